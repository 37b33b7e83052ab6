from small_world import small_world

from rlhf_dialog.task_oriented.policies.multi_domain.handcrafted import HandcraftedMulti
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.policies.sampling.transcripts import transcript
from rlhf_dialog.task_oriented.world.multi_domain.act_level import MultiActLevel

WORLD = small_world()
GOAL = {
    "hotel": {
        **{
            "info": {"area": "north", "stars": "4"},
            "fail_info": {"area": "south", "stars": "4"},
            "requests": ["phone"],
        },
        "book": {"stay": "1", "day": "friday", "people": "2"},
    }
}


class OneGoal(MultiActLevel):
    """Every user has the goal of this file."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={**(options or {}), "goal": GOAL})


def test_a_transcript_has_goal_acts_state_rewards_bookings_and_verdict():
    (episode,) = run_dialogues(HandcraftedMulti(WORLD), lambda: OneGoal(WORLD), 0, [0])
    names = OneGoal(WORLD).names
    lines = transcript(WORLD, names, episode).splitlines()
    assert lines[0] == (
        "dialogue 0, goal: hotel (info: area=north, stars=4; fail info: area=south, stars=4; requests: phone; "
        "book: stay=1, day=friday, people=2)"
    )
    assert lines[1].startswith("  at the end, goal: hotel (info: area=north, stars=4; requests: phone; book")
    states = [line for line in lines if line.startswith("  state")]
    assert len(states) == len(episode)
    assert "stars=4; 0 fit)" in states[0]
    assert "hotel (area=north, stars=4; 1 fit; asked: phone)" in states[2].replace(
        "stars=4, area=north", "area=north, stars=4"
    )
    systems = [line for line in lines if line.startswith("  system")]
    assert [line.rpartition("[")[2].rstrip("]") for line in systems] == [names[a] for a in episode.actions]
    assert [line for line in lines if line.startswith("  user")][-1] == "  user    bye()   [reward +79]"
    reference = episode.info["bookings"][0]["reference"]
    assert lines[-2] == f"  booked  hotel {reference}: stay=1, day=friday, people=2"
    assert lines[-1] == (
        f"  success after {len(episode)} turns (the user said goodbye); reward {80 - len(episode)}; precision 1.00, "
        "recall 1.00, f1 1.00, book rate 1.00"
    )
