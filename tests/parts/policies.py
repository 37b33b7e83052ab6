"""Policies of the kinds of zoo.py, what they answer, and their gradients in a trainer."""

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.metrics import VecInfo
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.policy import Critic, Policy
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.training.rollout import Clock
from rlhf_dialog.training.trainer import PPOTrainer
from tests.parts import plain, trainers
from tests.parts.plain import Case
from tests.parts.tiny import byte_tokenizer
from tests.parts.token_batches import respond_to
from tests.parts.zoo import END, PAD, SOME, new_lm


def row(kind: str, *more: Any) -> Any:
    """Parameters of a test; it is slow for kinds that are not in SOME."""
    return pytest.param(kind, *more, marks=() if kind in SOME else pytest.mark.slow)


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


def settings(**keys: Any) -> Config:
    small = {
        "rollout_batch_size": 4,
        "num_mini_batch": 1,
        "entropy_coef": 0.3,
        "value_loss_coef": 0.7,
        "clip_param": 0.3,
    }
    return trainers.settings(**{**small, **keys})


def features_of(policy: Policy, case: Case) -> torch.Tensor:
    """The features (B, T, .) of the response tokens."""
    packed = case.tokens.pack()
    with torch.no_grad():
        return packed.scatter(policy.features(packed)[0])


def fast_gradients(
    policy: Policy,
    critic: Critic | None,
    case: Case,
    old: dict[str, Any],
    config: Config,
    reference: Policy | None = None,
):
    """Loss and gradients of one minibatch as the trainer computes them, microbatch by microbatch, and no step."""
    models = Models(policy, critic, reference or policy, byte_tokenizer())
    trainer = PPOTrainer(config, models, [Dialogue(["a"])], BaseReward(), VecInfo())
    for engine in trainer.engines.values():
        engine.zero_grad()
        engine.clip = engine.step = engine.zero_grad = lambda *_: None
    trainer.update.kl_coef = config.kl_coef
    ref_features = None if reference is None else features_of(reference, case)
    groups = torch.arange(len(case.prompt_ids)) if case.groups is None else case.groups
    tokens = replace(case.tokens, prompt_groups=groups)
    ones, clock = torch.ones_like(old["logprobs"]), Clock(policy.lm.device)
    columns = {"loss_weights": ones, "engine_weights": ones, "ref_logprobs": ones} | old
    rollout = SimpleNamespace(**columns, tokens=tokens, ref_features=ref_features, clock=clock)
    rows = torch.arange(len(case.prompt_ids))
    totals = trainer.update.optimizer_step(rollout, rows, tokens.mask.sum(), is_first=False)
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


class Ends:
    """A response ends with one of these ids; a quarter of them, so that rows end at different times."""

    def __init__(self, ids=(END, *range(40, 50))):
        self.end_ids = list(ids)

    def find_ends(self, ids):
        return torch.isin(ids[:, -1], torch.tensor(self.end_ids, dtype=ids.dtype, device=ids.device))


def answered(policy, case, sampling, stop=None, seed=0, **options):
    torch.manual_seed(seed)
    return respond_to(policy, case.prompt_ids, case.prompt_mask, sampling, stop or Ends(), PAD, case.groups, **options)


def as_case(case, found):
    tokens = found.tokens
    return replace(case, response_ids=tokens.response_ids, response_mask=tokens.mask, support=tokens.support)
