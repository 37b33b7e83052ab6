"""A rollout of prompts, responses and scores that the caller brings, for `PPOTrainer.step_on`.

B episodes, P prompt tokens, T response tokens.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import Speaker, collate_replies
from rlhf_dialog.models.device_copies import send
from rlhf_dialog.models.generation import Responses, teacher_forced
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.microbatches import microbatches
from rlhf_dialog.models.sizes import num_embeddings, num_positions
from rlhf_dialog.rewards.scoring import Scores
from rlhf_dialog.training.clock import Clock
from rlhf_dialog.training.episodes import Episodes, numbered
from rlhf_dialog.training.rollout import Rollout, critic_and_reference, on_host, rollout_of

LARGEST = torch.finfo(torch.float32).max
Given = str | Sequence[str] | Sequence[int] | Tensor  # a text, turns (of a prompt), or token ids


def given_rollout(
    models: Models,
    speaker: Speaker,
    prompts: Sequence[Given],
    responses: Sequence[Given],
    scores: Sequence[float],
    group_size: int = 1,
    keep_features: bool = False,
) -> Rollout:
    """The rollout of these B episodes, with the log-probabilities and values of the policy as it is now.

    With `keep_features` the rollout holds `ref_features`. Raises UserError when the three do not fit together, when one of them
    is empty or too long, for ids that the model does not have, and when the sampling has a filter: nobody knows then which tokens
    were kept beside those that were drawn.
    """
    _check_counts(speaker, prompts, responses, scores, group_size)
    clock = Clock(models.policy.lm.device)
    with clock.measured("rollout"):
        episodes = _episodes(models, speaker, prompts, responses, group_size)
        masks = on_host(episodes.prompt_mask, episodes.responses.mask)
        with clock.measured("reference"):
            tensors = critic_and_reference(
                models, episodes, masks, speaker.sampling.temperature, speaker.microbatch_size, keep_features
            )
    with clock.measured("reward"):
        totals = _finite(scores)
    return rollout_of(episodes, masks, tensors, Scores(totals, parts={}), torch.tensor(totals), clock)


def _check_counts(
    speaker: Speaker, prompts: Sequence[Given], responses: Sequence[Given], scores: Sequence[float], group_size: int
) -> None:
    for name, some in (("prompts", prompts), ("responses", responses), ("scores", scores)):
        if isinstance(some, str) or not hasattr(some, "__len__"):
            raise UserError(f"step_on: {name} is {str(some)[:60]!r}; give a list with one item for every episode")
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


def _finite(scores: Sequence[float]) -> list[float]:
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


def _episodes(
    models: Models, speaker: Speaker, prompts: Sequence[Given], responses: Sequence[Given], group_size: int
) -> Episodes:
    encoder, size = speaker.encoder, num_embeddings(models.policy.lm)
    turns = [[x] if isinstance(x, str) else list(x) if _is_turns(x) else None for x in prompts]
    prompt_ids = [
        _ids(x, f"prompts[{i}]", size) if said is None else encoder.encode_prompt(said)
        for i, (x, said) in enumerate(zip(prompts, turns, strict=True))
    ]
    response_ids = [
        encoder.encode_reply(x) if isinstance(x, str) else _ids(x, f"responses[{i}]", size)
        for i, x in enumerate(responses)
    ]
    _check_lengths(speaker, prompt_ids, response_ids)
    if wrong := [i for i, ids in enumerate(prompt_ids) if ids != prompt_ids[i - i % group_size]]:
        raise UserError(
            f"step_on: prompts[{wrong[0]}] is not the prompt before it; {group_size} neighbours answer the same one "
            "(num_responses_per_prompt)"
        )
    truncated = [not speaker.stop.ended(torch.tensor([ids]))[0] for ids in response_ids]
    dialogues = [
        Dialogue(
            said or [encoder.reply_text(prompt)],
            response=encoder.reply_text(response),
            truncated=cut,
            meta={"split": "given", "index": i, "group": i // group_size},
        )
        for i, (said, prompt, response, cut) in enumerate(zip(turns, prompt_ids, response_ids, truncated, strict=True))
    ]
    inputs = speaker.batch(prompt_ids)
    numbers = numbered(prompt_ids, dialogues)
    predicted = _predicted(models, speaker, *inputs, response_ids, truncated, numbers)
    return Episodes(dialogues, *inputs, predicted, None, numbers)


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


def _check_lengths(speaker: Speaker, prompts: list[list[int]], responses: list[list[int]]) -> None:
    positions = num_positions(speaker.policy.lm)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        if positions and len(prompt) + len(response) > positions:
            raise UserError(
                f"step_on: prompts[{i}] and responses[{i}] have {len(prompt)} + {len(response)} tokens, but the model has "
                f"{positions} positions; shorten them"
            )


@torch.no_grad()
def _predicted(
    models: Models,
    speaker: Speaker,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    responses: list[list[int]],
    truncated: list[bool],
    prompt_numbers: Tensor,
) -> Responses:
    """The responses with the policy's log-probabilities, entropies and values, each (B, T)."""
    device = prompt_ids.device
    host_ids, mask = collate_replies(responses, speaker.encoder.pad_id)
    ids = send(host_ids, device)
    columns: dict[str, Tensor] = {}
    rows = torch.arange(len(ids))
    for part in microbatches(prompt_mask, mask, rows, speaker.microbatch_size, device, prompt_numbers):
        at = (part.rows, part.response)
        prompt_at = (part.rows, part.prompt)
        new = teacher_forced(
            models.policy,
            prompt_ids[prompt_at],
            prompt_mask[prompt_at],
            ids[at],
            mask[part.host_rows, part.response],
            speaker.sampling.temperature,
            prompt_numbers=prompt_numbers[part.host_rows],
        )
        for name in ("logprobs", "entropy", "values"):
            if (x := getattr(new, name)) is not None:
                columns.setdefault(name, x.new_zeros(mask.shape))[at] = x
    return Responses(ids, send(mask, device), send(torch.tensor(truncated), device), **columns)
