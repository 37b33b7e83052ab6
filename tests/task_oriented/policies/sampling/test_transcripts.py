from small_domain import small_domain

from rlhf_dialog.task_oriented.policies.base import PolicySpec
from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted
from rlhf_dialog.task_oriented.policies.random import RandomPolicy
from rlhf_dialog.task_oriented.policies.sampling.sampler import run_dialogues
from rlhf_dialog.task_oriented.policies.sampling.transcripts import transcript
from rlhf_dialog.task_oriented.world.act_level import ActLevel

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
