"""The table of advantage estimators: it is complete, it is the only place that knows them, and one line makes a new one."""

import inspect

import pytest
import torch

from rlhf_dialog.commands import command_line
from rlhf_dialog.config.registry import AdvantageFactory, Formula
from rlhf_dialog.config.schema import Config
from rlhf_dialog.models import loading
from rlhf_dialog.training import ppo
from tests.parts.tiny import gpt2
from tests.parts.trainers import make_trainer, parameters, settings

TABLE = {  # name: needs a critic, needs groups, responses to a prompt unless the configuration says it
    "gae": (True, False, 1),
    "grpo": (False, True, 4),
    "rloo": (False, True, 4),
    "reinforce_pp": (False, False, 1),
}


def test_what_each_of_the_table_needs():
    assert list(AdvantageFactory.formulas) == list(TABLE)
    for name, one in AdvantageFactory.formulas.items():
        assert (one.needs_critic, one.needs_groups, one.num_responses_per_prompt) == TABLE[name]
        assert (one.name, "arXiv" in one.paper) == (name, True)
        parameters_of = list(inspect.signature(AdvantageFactory.find(name)).parameters)
        assert parameters_of == ["rewards", "penalties", "values", "response_mask", "credit"]


def toy_advantages(paid, penalties, values, response_mask, credit):
    """Every token has the sum of its episode's rewards, and half of it for two responses to a prompt."""
    rewards = paid + penalties
    total = ppo.apply_mask(rewards, response_mask).sum(dim=1, keepdim=True) / credit.num_responses_per_prompt
    return ppo.apply_mask(total.expand_as(rewards), response_mask), rewards


@pytest.mark.parametrize("needs_groups", [True, False])
def test_a_new_one_is_a_function_and_a_line(monkeypatch, needs_groups):
    monkeypatch.setitem(AdvantageFactory.classes, "toy", None)  # what is registered goes when the test ends
    monkeypatch.setitem(AdvantageFactory.formulas, "toy", None)
    assert AdvantageFactory.register("toy", needs_groups=needs_groups)(toy_advantages) is toy_advantages
    keys = {"advantage_estimator": "toy", "num_responses_per_prompt": 2, "use_adv_normalize": False}
    trainer = make_trainer(**keys)
    start = parameters(trainer.models.policy)
    for _ in range(2):
        metrics, r = trainer.step(), trainer.rollout
        wanted = r.rewards.sum(dim=1, keepdim=True) / 2 * r.response_mask
        torch.testing.assert_close(r.advantages, wanted)
    assert metrics["iteration"] == 2
    assert any(not torch.equal(p, start[name]) for name, p in trainer.models.policy.named_parameters())
    assert settings(advantage_estimator="toy", rollout_batch_size=8).num_responses_per_prompt == (
        4 if needs_groups else 1
    )
    kinds = {row.key: row.kind for row in command_line.key_rows(Config)}
    assert kinds["advantage_estimator"] == " | ".join([*TABLE, "toy"])


def test_a_new_one_with_a_critic_gets_one(monkeypatch):
    monkeypatch.setitem(AdvantageFactory.formulas, "toy", Formula("toy", needs_critic=True))
    for name, critics in (("toy", True), ("rloo", False)):
        config = settings(advantage_estimator=name, use_share_model=False, rollout_batch_size=8)
        policy, critic = loading.build_trained(config, gpt2(), {})
        assert (critic is not None, policy.value_head is None) == (critics, True)
