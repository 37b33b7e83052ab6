"""Every fast path of evaluation and update against the plain one (tests/plain.py): float64 at 1e-9 on tiny models."""

import itertools
from types import SimpleNamespace
from typing import Any

import plain
import pytest
import torch
from plain import Case, new_case
from tiny import byte_tokenizer
from torch import nn
from zoo import CAPPED, KINDS, NEVER_PACKED, SOME, new_lm

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.metrics import VecInfo
from rlhf_dialog.models import policy as policy_module
from rlhf_dialog.models.generation import teacher_forced, teacher_forced_values
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.policy import Critic, Policy, packs
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.training.trainer import PPOTrainer

every_kind = pytest.mark.parametrize("kind", KINDS)
some_kinds = pytest.mark.parametrize("kind", SOME)


def tolerance(kind: str) -> dict[str, float]:
    """BLOOM writes its softmax in float32, and gives NaN for padding in float64; Cohere's norm adds up in float32."""
    return {"rtol": 0, "atol": {"bloom": 2e-4, "cohere": 1e-7}.get(kind, 1e-9)}


def precision(kind: str) -> torch.dtype:
    return torch.float32 if kind == "bloom" else torch.float64


def new_policy(kind: str, seed: int = 0, value_head: bool = True, packing: bool = True) -> Policy:
    """A policy with a value head that has opinions."""
    policy = Policy(new_lm(kind, seed, packing, precision(kind)), value_head).to(precision(kind)).eval()
    return with_opinion(policy)


def with_opinion(module: Any) -> Any:
    if module.value_head is not None:
        nn.init.normal_(module.value_head.weight, std=0.3)
        nn.init.constant_(module.value_head.bias, 0.2)
    return module


@every_kind
def test_what_packs_and_whose_head_is_plain(kind):
    policy = new_policy(kind)
    assert packs(policy.lm) == (kind not in NEVER_PACKED)
    assert policy.has_plain_head == (kind not in NEVER_PACKED + CAPPED)
    assert not packs(plain.as_made(policy).lm)


@torch.no_grad()
@every_kind
@pytest.mark.parametrize("packing", [True, False])
def test_evaluation_equals_the_plain_path(kind, packing):
    policy, critic = new_policy(kind, packing=packing), with_opinion(Critic(new_lm(kind, 3, packing, precision(kind))))
    critic = critic.to(precision(kind))
    oracle, oracle_critic = plain.as_made(policy), plain.as_made(critic)
    for seed in range(8):
        case = new_case(seed, filtered=seed % 2 == 1, holes=seed % 4 < 3)
        temperature = (1.0, 0.6, 1.7)[seed % 3]
        found = teacher_forced(policy, *case.inputs, temperature, case.support)
        expected = plain.evaluated(oracle, case, temperature)
        pairs = {name: (getattr(found, name), getattr(expected, name)) for name in ("logprobs", "entropy", "values")}
        pairs["critic"] = teacher_forced_values(critic, *case.inputs), plain.criticised(oracle_critic, case)
        for name, (ours, theirs) in pairs.items():
            assert ours.dtype == precision(kind)
            mask = case.response_mask
            torch.testing.assert_close(ours[mask], theirs[mask], **tolerance(kind), msg=lambda m, n=name: f"{n}: {m}")
            assert not ours[~mask].any()
        assert teacher_forced(policy, *case.inputs, temperature, case.support, with_entropy=False).entropy is None


def settings(**keys: Any) -> Config:
    env = {"args": {"data_path": "unused"}}
    small = {
        "rollout_batch_size": 4,
        "num_mini_batch": 1,
        "entropy_coef": 0.3,
        "value_loss_coef": 0.7,
        "clip_param": 0.3,
    }
    return Config(model_path="tiny", env=env, reward_class={"id": "Meteor"}, **{**small, **keys})


def fast_gradients(policy: Policy, critic: Critic | None, case: Case, old: dict[str, Any], config: Config):
    """Loss and gradients of one minibatch as the trainer computes them, microbatch by microbatch, and no step."""
    models = Models(policy, critic, policy, byte_tokenizer())
    trainer = PPOTrainer(config, models, [Dialogue(["a"])], BaseReward(), VecInfo())
    for engine in trainer.engines.values():
        engine.zero_grad()
        engine.step = engine.zero_grad = lambda: None
    trainer.update._clip_gradients = dict
    rollout = SimpleNamespace(**vars(case), **old)
    totals = trainer.update.optimizer_step(rollout, torch.arange(len(case.prompt_ids)), is_first=False)
    return totals, gradients(policy, critic)


def gradients(policy: Policy, critic: Critic | None) -> dict[str, torch.Tensor | None]:
    named = itertools.chain(
        policy.named_parameters(), () if critic is None else critic.named_parameters(prefix="critic")
    )
    return {name: p.grad for name, p in named}


def old_numbers(policy: Policy, case: Case, temperature: float) -> dict[str, torch.Tensor]:
    """What a rollout would hold: log-probs near the policy's own, so that some ratios are clipped."""
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        logprobs = plain.evaluated(plain.as_made(policy), case, temperature).logprobs
    shape, like = logprobs.shape, {"generator": g, "dtype": logprobs.dtype}
    noise = {name: torch.randn(shape, **like) for name in ("values", "advantages", "targets")}
    return {"logprobs": logprobs + 0.3 * torch.randn(shape, **like), **noise}


def compare_minibatch(kind: str, share: bool, seed: int, policy: Policy, critic: Critic | None, **keys: Any) -> None:
    """One minibatch by the trainer and by the plain path: the loss, and the gradient of every parameter."""
    config = settings(temperature=(1.0, 0.7)[seed % 2], use_share_model=share, **keys)
    case = new_case(seed, rows=5, filtered=seed % 2 == 1)
    old = old_numbers(policy, case, config.temperature)
    totals, fast = fast_gradients(policy, critic, case, old, config)
    oracle, oracle_critic = plain.as_made(policy), critic and plain.as_made(critic)
    oracle.zero_grad()
    loss = plain.loss_of(oracle, oracle_critic, case, old, config)
    loss.backward()
    assert totals["ppo/loss"] == pytest.approx(loss.item(), abs=tolerance(kind)["atol"])
    slow = gradients(oracle, oracle_critic)
    assert set(fast) == set(slow)
    for name, expected in slow.items():
        expected = torch.zeros(1) if expected is None else expected
        if fast[name] is None:  # a separate critic leaves nothing out, and a layer's unused bias has no gradient
            assert not expected.any(), name
        else:
            torch.testing.assert_close(fast[name], expected, **tolerance(kind), msg=lambda m, n=name: f"{n}: {m}")
    assert sum(g is not None and bool(g.any()) for g in fast.values()) > 0.8 * len(fast)


@every_kind
@pytest.mark.parametrize("share", [True, False])
def test_loss_and_gradients_of_a_minibatch_equal_the_plain_path(kind, share):
    policy = new_policy(kind, value_head=share)
    critic = None if share else with_opinion(Critic(new_lm(kind, 3, True, precision(kind)))).to(precision(kind))
    for seed, size in enumerate((2, 3, 16)):  # 2 and 3 do not divide 5
        compare_minibatch(kind, share, seed, policy, critic, per_device_microbatch_size=size)


@some_kinds
def test_padded_rows_have_the_gradients_of_the_plain_path_too(kind):
    compare_minibatch(kind, True, 1, new_policy(kind, packing=False), None, per_device_microbatch_size=2)
    critic = with_opinion(Critic(new_lm(kind, 3, False, precision(kind)))).to(precision(kind))
    compare_minibatch(kind, False, 2, new_policy(kind, value_head=False, packing=False), critic)


@pytest.mark.parametrize("keys", [{"entropy_coef": 0.0}, {"dual_clip_ppo": True}, {"use_huber_loss": False}])
def test_losses_with_other_settings(keys):
    compare_minibatch("gpt2", True, 3, new_policy("gpt2"), None, per_device_microbatch_size=2, **keys)


@some_kinds
@pytest.mark.parametrize("filtered", [False, True])
def test_logits_in_chunks_change_nothing(kind, filtered, monkeypatch):
    """Chunks of 1, 2 and 5 positions, recomputed on the way back: the same numbers and gradients."""
    policy, case = new_policy(kind), new_case(4 + filtered, filtered=filtered)
    chunks = []

    def counting(logits, *rest):
        chunks.append(len(logits))
        return predict(logits, *rest)

    predict = policy_module.predict
    monkeypatch.setattr(policy_module, "predict", counting)
    found = []
    for positions in (100, 1, 2, 5):
        monkeypatch.setattr(policy_module, "LOGITS_AT_ONCE", positions * 61 + 60)
        assert policy.positions_at_once == positions
        policy.zero_grad()
        chunks.clear()
        result = teacher_forced(policy, *case.inputs, 0.8, case.support)
        assert max(chunks) == min(positions, case.response_mask.sum())
        (result.logprobs.sum() + 0.5 * result.entropy.sum() + result.values.sum()).backward()
        found.append([result.logprobs, result.entropy, result.values, *(p.grad.clone() for p in policy.parameters())])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-4 if kind == "bloom" else 1e-11)


def test_no_more_logits_than_asked_for_are_computed():
    policy, case, sizes = new_policy("gpt2"), new_case(1), []
    assert policy.has_plain_head  # it has been tried
    hook = policy.lm.get_output_embeddings().register_forward_hook(lambda *args: sizes.append(args[2].shape))
    with hook:
        teacher_forced(policy, *case.inputs, 1.0)
    assert sizes == [(int(case.response_mask.sum()), 61)]


def test_values_of_what_a_projection_stands_behind():
    """OPT projects its hidden states before the output embedding; the head reads what the embedding reads."""
    policy = new_policy("opt")
    assert policy.value_head.in_features == policy.lm.get_output_embeddings().in_features == 12
