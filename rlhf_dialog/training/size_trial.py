"""Sizes that are `auto` on a GPU: measured, before the first rollout, on the longest prompts and responses."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from rlhf_dialog.distributed.engine import Engine
from rlhf_dialog.models.generation import Responses
from rlhf_dialog.models.network import num_logits
from rlhf_dialog.models.part_sizes import GENERATION, UPDATE, PartSizes
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.rewards.scoring import Scores
from rlhf_dialog.training.episodes import Episodes
from rlhf_dialog.training.rollout import Clock, Rollout, new_collected
from rlhf_dialog.training.trainer import PPOTrainer
from rlhf_dialog.training.update import Microbatch

logger = logging.getLogger(__name__)
USED = 0.9  # of the free memory; the rest is for what lies between tensors
NUCLEUS = 4096  # ids that top-p is taken to keep at most
ENDING: Any = SimpleNamespace(find_ends=lambda ids: torch.ones(len(ids), dtype=torch.bool))  # after one token


def settle_sizes(trainer: PPOTrainer) -> dict[str, int]:
    """Let the trainer use the largest powers of two that a GPU has memory for, where its sizes are `auto`; returns their keys.

    All ranks call it, and take the smallest. No random number is drawn. On a CPU, and where ranks share out weights and so wait
    for each other in a pass, `auto` stays what `Config` takes it for.
    """
    config, world, placement = trainer.config, trainer.world, trainer.placement
    is_whole = not placement.frozen.partitioned and all(type(engine) is Engine for engine in trainer.engines.values())
    if world.device.type != "cuda" or not is_whole:
        return {}
    rows = math.ceil(trainer.plan.num_prompts / world.size) * config.num_responses_per_prompt
    minibatch = math.ceil(rows / trainer.plan.num_minibatches)
    measured: dict[str, int] = {}
    for key, phase, compute, most in (
        ("per_device_microbatch_size", UPDATE, add_gradients, minibatch),
        ("per_device_rollout_size", GENERATION, sample, rows),
    ):
        if getattr(config, key) != "auto":
            continue
        with world.fail_together():
            size = largest_that_fits(phase, partial(compute, trainer), most)
        measured[key] = min(world.gather(size))
        trainer.use_sizes(**measured)
        logger.info("%s: %d, for the memory of %s", key, measured[key], world.device)
    return measured


def largest_that_fits(phase: str, compute: Callable[[int, PartSizes], Any], most: int) -> int:
    """The largest power of two of rows that fits, of those up to the first that is not below `most`.

    The bytes grow linearly with the rows: 2 and 4 give the line, after 1, which also makes what libraries keep. The size that
    the line allows is tried once, and halved until it fits.
    """
    peaks = []
    for rows in (1, 2, 4):
        torch.cuda.reset_peak_memory_stats()
        compute(rows, PartSizes())
        peaks.append(torch.cuda.max_memory_allocated())
    torch.cuda.empty_cache()
    room = torch.cuda.memory_allocated() + USED * torch.cuda.mem_get_info()[0]
    per_row = max((peaks[2] - peaks[1]) / 2, 1)
    size = 1 << (most - 1).bit_length()
    while size > 1 and peaks[2] + (size - 4) * per_row > room:
        size //= 2
    sizes = PartSizes()
    compute(size, sizes)
    return sizes.limit(phase, size)


def sample(trainer: PPOTrainer, rows: int, sizes: PartSizes) -> None:
    """Read the longest prompts side by side, with room for the longest responses, and write one token for each."""
    responder, tokens = trainer.responder, longest_prompts(trainer, rows)
    limits = replace(responder.limits, rows_at_once=rows, look_every=1, sizes=sizes)
    uniform = torch.zeros(rows, trainer.config.max_new_tokens, dtype=torch.float64, device=tokens.device)
    replace(responder, stop=ENDING, limits=limits).generate(tokens, uniform)


def add_gradients(trainer: PPOTrainer, rows: int, sizes: PartSizes) -> None:
    """Add the gradient of a microbatch of the longest responses to that of another, and drop both."""
    for attempt in sizes.tries(UPDATE, rows):
        with attempt:
            _add_two(trainer, attempt.rows)
    for engine in trainer.engines.values():
        engine.zero_grad()


def _add_two(trainer: PPOTrainer, rows: int) -> None:
    for engine in trainer.engines.values():
        engine.zero_grad()  # what a larger size has left
    rollout = longest_rollout(trainer, rows)
    place = torch.arange(rows, device=rollout.tokens.device), slice(None)
    for _ in range(2):
        microbatch = Microbatch(rollout, place, rollout.tokens)
        trainer.update.forward_backward(microbatch, rollout.response_mask.sum(), is_first=False, is_last=False)


def longest_prompts(trainer: PPOTrainer, rows: int) -> TokenBatch:
    """Prompts of `max_prompt_length`, as many of each as a rollout has."""
    config, encoder = trainer.config, trainer.responder.encoder
    groups = torch.arange(rows) // config.num_responses_per_prompt
    return trainer.responder.batch([[encoder.pad_id] * config.max_prompt_length] * rows, groups)


@torch.no_grad()
def longest_rollout(trainer: PPOTrainer, rows: int) -> Rollout:
    """A rollout of the longest prompts and responses, whose numbers are 0."""
    config, prompts = trainer.config, longest_prompts(trainer, rows)
    ids = torch.full((rows, config.max_new_tokens), prompts.pad_id, device=prompts.device)
    support = None
    if trainer.responder.sampling.filtered:
        kept = min(config.top_k or NUCLEUS, num_logits(trainer.models.policy.lm))
        support = torch.arange(kept, device=prompts.device).expand(*ids.shape, kept)
    tokens = prompts.with_responses(ids, torch.ones(ids.shape, dtype=torch.bool), support)
    zeros = torch.zeros(ids.shape, device=prompts.device)
    columns: dict[str, Any] = dict.fromkeys(("logprobs", "entropy", "ref_logprobs", "values"), zeros)
    if config.kl_in == "loss" and (reference := trainer.models.ref_policy):
        packed = tokens.pack()
        columns["ref_features"] = packed.scatter(reference.features(packed)[0])
    episodes = Episodes([], Responses(tokens, torch.ones(rows, dtype=torch.bool)))
    collected = new_collected(episodes, columns, Scores([], {}), torch.zeros(rows), Clock(prompts.device))
    credit: dict[str, Any] = dict.fromkeys(("rewards", "advantages", "returns", "targets", "loss_weights"), zeros)
    return Rollout(**vars(collected), **credit)
