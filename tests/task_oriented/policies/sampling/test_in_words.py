"""A policy of acts as the system of a dialogue in words."""

from rlhf_dialog.task_oriented.policies.handcrafted import Handcrafted
from rlhf_dialog.task_oriented.policies.sampling.in_words import PolicyInWords
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from rlhf_dialog.task_oriented.world.acts import format_acts
from rlhf_dialog.task_oriented.world.restaurant import restaurant


def test_it_says_what_the_policy_chooses_at_act_level():
    """The same user with the same goal, who hears the same acts: so both environments hold the same dialogue."""
    environment, acts = restaurant(), ActLevel("restaurant")
    policy = Handcrafted(environment.domain)
    system = PolicyInWords(environment, policy)
    for seed in range(12):
        observation, info = acts.reset(seed=seed)
        system.begin(seed)
        while "success" not in info:
            action, _ = policy.act(observation[None], info["action_mask"][None])
            observation, _, _, _, info = acts.step(action[0])
            *_, ended = environment.step(system.reply())
        assert list(map(format_acts, ended["user_acts"])) == list(map(format_acts, info["user_acts"]))
        assert ended["success"] == info["success"]


def test_the_same_seed_gives_the_same_words():
    said = []
    for _ in range(2):
        system = PolicyInWords(environment := restaurant(), Handcrafted(environment.domain))
        said.append([system.begin(3), system.reply()])
        environment.step(said[-1][1])
        said[-1].append(system.reply())
    assert said[0] == said[1]
