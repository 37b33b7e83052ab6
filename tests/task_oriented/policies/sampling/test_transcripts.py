from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted, HandcraftedMulti, RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.policies.sampling.transcripts import transcript
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.multi_domain.act_level import MultiActLevel
from tests.parts.small_domain import small_domain
from tests.parts.small_world import small_world

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


DOMAIN = small_domain()


def make():
    return ActLevel(DOMAIN, error_rate=0.15, max_turns=6)


def test_a_transcript_has_goal_acts_beliefs_rewards_and_verdict():
    (episode,) = run_dialogues(Handcrafted(DOMAIN), make, 0, [0])
    lines = transcript(DOMAIN, make().names, episode).splitlines()
    wanted = episode.info["first_goal"]["constraints"]
    assert lines[0].startswith("dialogue 0, goal: ")
    assert all(f"{slot}={value}" in lines[0] for slot, value in wanted.items())
    assert len([line for line in lines if line.startswith("  belief")]) == len(episode)
    systems = [line for line in lines if line.startswith("  system")]
    assert [line.rpartition("[")[2].rstrip("]") for line in systems] == [make().names[a] for a in episode.actions]
    users = [line for line in lines if line.startswith("  user")]
    assert len(users) == len(episode) + 1
    assert users[-1].endswith("[reward +19]" if episode.success else "[reward -1]")
    verdict = "success" if episode.success else "failure"
    assert lines[-1].startswith(f"  {verdict} after {len(episode)} turns (the user said goodbye); reward ")


def test_a_dialogue_that_was_cut_off_says_so():
    episodes = run_dialogues(RandomPolicy(PolicySpec(1, 1)), make, 0, range(20))
    cut = next(episode for episode in episodes if episode.truncated)
    last = transcript(DOMAIN, make().names, cut).splitlines()[-1]
    assert last.startswith("  failure after 6 turns (the turn limit); reward -6; ")
