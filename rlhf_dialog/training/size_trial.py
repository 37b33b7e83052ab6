"""Try the sizes that the memory forecast has chosen before a run's first rollout; what does not fit becomes smaller."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.distributed.engine import Engine
from rlhf_dialog.distributed.memory.setting import memory_setting
from rlhf_dialog.distributed.random_states import random_states_kept
from rlhf_dialog.models.generation import Responses, respond
from rlhf_dialog.models.network import num_logits
from rlhf_dialog.models.part_sizes import UPDATE
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.rewards.scoring import Scores
from rlhf_dialog.training.clock import Clock
from rlhf_dialog.training.episodes import Episodes
from rlhf_dialog.training.rollout import Rollout, new_rollout
from rlhf_dialog.training.trainer import PPOTrainer
from rlhf_dialog.training.update import Microbatch

ENDING: Any = SimpleNamespace(find_ends=lambda ids: torch.ones(len(ids), dtype=torch.bool))  # after one token


def try_sizes(trainer: PPOTrainer) -> None:
    """Read the longest prompts, with one token for each, and compute the gradient of the largest microbatch, which is dropped.

    Random states are as before. Every rank takes the smallest size that one of them had to take; all ranks call it. ZeRO and
    FSDP2, whose ranks wait for each other in a pass, try the rollout alone.
    """
    config, models, speaker = trainer.config, trainer.models, trainer.speaker
    prompts = math.ceil(trainer.plan.num_prompts / trainer.world.size)
    rows = prompts * config.num_responses_per_prompt
    minibatch = math.ceil(rows / trainer.plan.num_minibatches)
    size = min(config.microbatch_size, minibatch)
    engines = trainer.engines.values()
    with random_states_kept():
        with trainer.world.fail_together(), trainer.placement.rollout():
            limits, tokens = replace(speaker.limits, look_every=1), longest_prompts(trainer, rows)
            uniform = torch.zeros(rows, config.max_new_tokens, dtype=torch.float64, device=tokens.device)
            respond(models.policy, tokens, speaker.sampling, ENDING, limits, uniform)
        del tokens, uniform
        if all(type(engine) is Engine for engine in engines):
            with trainer.world.fail_together():
                trainer.sizes.fit(UPDATE, size, partial(_add_gradients, trainer, 2 if size < minibatch else 1))
            for engine in engines:
                engine.zero_grad()
    trainer.agree_on_sizes()


def longest_prompts(trainer: PPOTrainer, rows: int) -> TokenBatch:
    """Prompts of `max_prompt_length`, as many of each as a rollout has."""
    config, encoder = trainer.config, trainer.speaker.encoder
    groups = torch.arange(rows) // config.num_responses_per_prompt
    return trainer.speaker.batch([[encoder.pad_id] * config.max_prompt_length] * rows, groups)


def _add_gradients(trainer: PPOTrainer, count: int, size: int) -> None:
    """Compute the gradient of `count` microbatches of `size` of the longest responses, at this rank's own pace."""
    for engine in trainer.engines.values():
        engine.zero_grad()
    rollout = longest_rollout(trainer, size)
    microbatch = Microbatch(rollout, (torch.arange(size, device=rollout.tokens.device), slice(None)), rollout.tokens)
    num_tokens = rollout.response_mask.sum()
    for _ in range(count):
        trainer.update.forward_backward(microbatch, num_tokens, is_first=False, is_last=False)


def longest_rollout(trainer: PPOTrainer, rows: int) -> Rollout:
    """A rollout of the longest prompts and responses, whose numbers are 0."""
    config, models, prompts = trainer.config, trainer.models, longest_prompts(trainer, rows)
    ids = torch.full((rows, config.max_new_tokens), prompts.pad_id, device=prompts.device)
    vocabulary = num_logits(models.policy.lm)
    kept = memory_setting(config, on_cuda=True).kept_ids(vocabulary)
    support = torch.arange(kept, device=prompts.device).expand(*ids.shape, kept) if kept else None
    tokens = prompts.with_responses(ids, torch.ones(ids.shape, dtype=torch.bool), support)
    zeros = torch.zeros(ids.shape, device=prompts.device)
    columns: dict[str, Any] = {"ref_logprobs": zeros, "values": zeros}
    if config.kl_in == "loss":
        columns["ref_features"] = _reference_features(trainer, tokens)
    episodes = Episodes([], Responses(tokens, torch.ones(rows, dtype=torch.bool), zeros, zeros))
    rollout = new_rollout(episodes, columns, Scores([], {}), torch.zeros(rows), Clock(prompts.device))
    rollout.advantages = rollout.targets = zeros
    return rollout


@torch.no_grad()
def _reference_features(trainer: PPOTrainer, tokens: TokenBatch) -> Tensor:
    packed, reference = tokens.pack(), trainer.models.ref_policy
    assert reference is not None
    return packed.scatter(reference.features(packed)[0])
