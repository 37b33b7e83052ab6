"""A rollout of prompts, responses and scores that the caller brings, for `PPOTrainer.step_on`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.generation import Responses
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.network import num_embeddings
from rlhf_dialog.models.part_sizes import REFERENCE
from rlhf_dialog.models.policy import num_positions
from rlhf_dialog.models.responder import Responder
from rlhf_dialog.models.token_batch import Index, Packed, TokenBatch
from rlhf_dialog.rewards.scoring import Scores
from rlhf_dialog.training.clock import Clock
from rlhf_dialog.training.episodes import Episodes, prompt_group_ids
from rlhf_dialog.training.rollout import Rollout, new_rollout, predict_columns

LARGEST = torch.finfo(torch.float32).max
Given = str | Sequence[str] | Sequence[int] | Tensor  # a text, turns (of a prompt), or token ids


@dataclass(frozen=True)
class ExternalEpisodes:
    """Prompts, responses and scores of B episodes, as `PPOTrainer.step_on` takes them."""

    prompts: Sequence[Given]
    responses: Sequence[Given]
    scores: Sequence[float]


def external_rollout(
    external: ExternalEpisodes, speaker: Responder, models: Models, group_size: int = 1, keep_features: bool = False
) -> Rollout:
    """The rollout of these B episodes, with the log-probabilities and values of the policy as it is now.

    With `keep_features` the rollout holds `ref_features`. Raises UserError when the three do not fit together, when one of them
    is empty or too long, for ids that the model does not have, and when the sampling has a filter: nobody knows then which tokens
    were kept beside those that were drawn.
    """
    _check_counts(external, speaker, group_size)
    clock = Clock(models.policy.lm.device)
    with clock.measure("rollout"):
        episodes = _read_episodes(external, speaker, models, group_size)
        with clock.measure("reference"):
            columns = predict_columns(models, speaker, episodes, keep_features)
    with clock.measure("reward"):
        totals = _read_scores(external.scores)
    rollout = new_rollout(episodes, columns, Scores(totals, parts={}), torch.tensor(totals), clock)
    return replace(rollout, is_sampled=False)


def _check_counts(external: ExternalEpisodes, speaker: Responder, group_size: int) -> None:
    for name, items in vars(external).items():
        if isinstance(items, str) or not hasattr(items, "__len__"):
            raise UserError(f"step_on: {name} is {str(items)[:60]!r}; give a list with one item for every episode")
    prompts, responses, scores = external.prompts, external.responses, external.scores
    counts = {len(prompts), len(responses), len(scores)}
    if len(counts) > 1 or not all(counts):
        raise UserError(
            f"step_on: found {len(prompts)} prompts, {len(responses)} responses and {len(scores)} scores; give one of each for "
            "every episode, at least one"
        )
    if len(prompts) % group_size:
        raise UserError(
            f"step_on: {len(prompts)} responses cannot be divided into {group_size} per prompt (num_responses_per_prompt)"
        )
    if speaker.sampling.filtered:
        raise UserError(
            "step_on: top_k and top_p leave some tokens out, and which ones is not known of responses from elsewhere; set "
            "top_k: 0 and top_p: 1"
        )


def _read_scores(scores: Sequence[float]) -> list[float]:
    totals = [_number(score) for score in scores]
    if bad := [i for i, score in enumerate(totals) if not abs(score) <= LARGEST]:
        raise UserError(
            f"step_on: scores[{bad[0]}] is {str(scores[bad[0]])[:60]}, not a finite 32-bit number; leave that episode out"
        )
    return totals


def _number(score: Any) -> float:
    try:
        return float(score)
    except (TypeError, ValueError, RuntimeError):
        return math.nan


def _read_episodes(external: ExternalEpisodes, speaker: Responder, models: Models, group_size: int) -> Episodes:
    encoder, size = speaker.encoder, models.policy.num_ids or num_embeddings(models.policy.lm)
    turns = [[x] if isinstance(x, str) else list(x) if _is_turns(x) else None for x in external.prompts]
    prompt_ids = [
        _ids(x, f"prompts[{i}]", size) if texts is None else encoder.encode_prompt(texts)
        for i, (x, texts) in enumerate(zip(external.prompts, turns, strict=True))
    ]
    response_ids = [
        encoder.encode_reply(x) if isinstance(x, str) else _ids(x, f"responses[{i}]", size)
        for i, x in enumerate(external.responses)
    ]
    _check_lengths(speaker, prompt_ids, response_ids)
    if wrong := [i for i, ids in enumerate(prompt_ids) if ids != prompt_ids[i - i % group_size]]:
        raise UserError(
            f"step_on: prompts[{wrong[0]}] is not the prompt before it; {group_size} neighbours answer the same one "
            "(num_responses_per_prompt)"
        )
    truncated = [not speaker.stop.find_ends(torch.tensor([ids]))[0] for ids in response_ids]
    dialogues = [
        Dialogue(
            texts
            or [encoder.reply_text(prompt) or str(encoder.tokenizer.decode(prompt, skip_special_tokens=True)).strip()],
            response=encoder.reply_text(response),
            truncated=cut,
            meta={"split": "given", "index": i, "group": i // group_size},
        )
        for i, (texts, prompt, response, cut) in enumerate(zip(turns, prompt_ids, response_ids, truncated, strict=True))
    ]
    tokens = speaker.batch(prompt_ids, prompt_group_ids(prompt_ids, dialogues)).with_replies(response_ids)
    predictions = _predict(models, speaker, tokens)
    return Episodes(dialogues, Responses(tokens, torch.tensor(truncated), **predictions))


@torch.no_grad()
def _predict(models: Models, speaker: Responder, tokens: TokenBatch) -> dict[str, Tensor]:
    """The policy's log-probabilities, entropies and values, each (B, T)."""

    def predict(packed: Packed, _: Index) -> dict[str, Tensor]:
        predictions = models.policy(packed, speaker.sampling.temperature)
        return {name: x for name, x in predictions._asdict().items() if x is not None}

    limits = speaker.limits
    at_once = min(limits.prompts_at_once, len(tokens))
    return limits.sizes.fit(REFERENCE, at_once, lambda size: tokens.map_microbatches(size, predict))


def _is_turns(x: Any) -> bool:
    return isinstance(x, Sequence) and len(x) > 0 and all(isinstance(turn, str) for turn in x)


def _ids(x: Any, name: str, size: int) -> list[int]:
    """The token ids of a sequence or tensor. Raises UserError unless they are at least one id, each below `size`."""
    ids = x.tolist() if hasattr(x, "tolist") else x
    whole = isinstance(ids, Sequence) and all(type(i) is int and 0 <= i < size for i in ids)
    if not whole or not ids:
        raise UserError(
            f"step_on: {name} is {str(ids)[:60]!r}; give a text, or at least one token id, each from 0 to {size - 1}"
        )
    return list(ids)


def _check_lengths(speaker: Responder, prompts: list[list[int]], responses: list[list[int]]) -> None:
    positions = num_positions(speaker.policy.lm)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        if positions and len(prompt) + len(response) > positions:
            raise UserError(
                f"step_on: prompts[{i}] and responses[{i}] have {len(prompt)} + {len(response)} tokens, but the model has "
                f"{positions} positions; shorten them"
            )
