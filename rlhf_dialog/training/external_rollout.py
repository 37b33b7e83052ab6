"""A rollout of prompts, responses and scores that the caller brings, for `PPOTrainer.step_on`."""

import math
from collections.abc import Sequence
from dataclasses import replace
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
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.rewards.scoring import Scores
from rlhf_dialog.training.episodes import Episodes, prompt_group_ids
from rlhf_dialog.training.rollout import Clock, Rollout, new_rollout, predict_columns

LARGEST = torch.finfo(torch.float32).max
Given = str | Sequence[str] | Sequence[int] | Tensor  # a text, turns (of a prompt), or token ids


def external_rollout(
    given: tuple[Sequence[Given], Sequence[Given], Sequence[float]],
    speaker: Responder,
    models: Models,
    group_size: int,
    keep_features: bool,
) -> Rollout:
    """The rollout of B given prompts, responses and scores, with the log-probabilities and values of the policy as it is now.

    With `keep_features` the rollout holds `ref_features`. Raises UserError when the three do not fit together, when one of them
    is empty or too long, for ids that the model does not have, and when the sampling has a filter: nobody knows then which tokens
    were kept beside those that were drawn.
    """
    for name, items in zip(("prompts", "responses", "scores"), given, strict=True):
        if isinstance(items, str) or not hasattr(items, "__len__"):
            raise UserError(f"step_on: {name} is {str(items)[:60]!r}; give a list with one item for every episode")
    counts = [len(items) for items in given]
    if len({*counts}) > 1 or not all(counts):
        raise UserError(
            f"step_on: found {counts[0]} prompts, {counts[1]} responses and {counts[2]} scores; give one of each for every "
            "episode, at least one"
        )
    if speaker.sampling.filtered:
        raise UserError(
            "step_on: top_k and top_p leave some tokens out, and which ones is not known of responses from elsewhere; set "
            "top_k: 0 and top_p: 1"
        )
    prompts, responses, scores = given
    totals = [_score(score, f"scores[{i}]") for i, score in enumerate(scores)]
    clock = Clock(models.policy.lm.device)
    with clock.measure("rollout"):
        episodes = _read_episodes(prompts, responses, speaker, models, group_size)
        with clock.measure("reference"):
            columns = predict_columns(models, speaker, episodes, keep_features)
    with clock.measure("reward"):
        rollout = new_rollout(episodes, columns, Scores(totals, parts={}), torch.tensor(totals), clock)
    return replace(rollout, is_sampled=False)


def _read_episodes(
    prompts: Sequence[Given], responses: Sequence[Given], speaker: Responder, models: Models, group_size: int
) -> Episodes:
    encoder, size = speaker.encoder, models.policy.num_ids or num_embeddings(models.policy.lm)
    turns = [[x] if isinstance(x, str) else list(x) if _is_turns(x) else None for x in prompts]
    prompt_ids = [
        _ids(x, f"prompts[{i}]", size) if texts is None else encoder.encode_prompt(texts)
        for i, (x, texts) in enumerate(zip(prompts, turns, strict=True))
    ]
    response_ids = [
        encoder.encode_reply(x) if isinstance(x, str) else _ids(x, f"responses[{i}]", size)
        for i, x in enumerate(responses)
    ]
    positions = num_positions(speaker.policy.lm)
    dialogues: list[Dialogue] = []
    if len(prompts) % group_size:
        raise UserError(
            f"step_on: {len(prompts)} responses cannot be divided into {group_size} per prompt (num_responses_per_prompt)"
        )
    for i, (texts, prompt, response) in enumerate(zip(turns, prompt_ids, response_ids, strict=True)):
        if positions and len(prompt) + len(response) > positions:
            raise UserError(
                f"step_on: prompts[{i}] and responses[{i}] have {len(prompt)} + {len(response)} tokens, but the model has "
                f"{positions} positions; shorten them"
            )
        if prompt != prompt_ids[i - i % group_size]:
            raise UserError(
                f"step_on: prompts[{i}] is not the prompt before it; {group_size} neighbours answer the same one "
                "(num_responses_per_prompt)"
            )
        decoded = encoder.reply_text(prompt) or str(encoder.tokenizer.decode(prompt, skip_special_tokens=True)).strip()
        cut = not speaker.stop.find_ends(torch.tensor([response]))[0]
        meta = {"split": "given", "index": i, "group": i // group_size}
        dialogues.append(Dialogue(texts or [decoded], response=encoder.reply_text(response), truncated=cut, meta=meta))
    tokens = speaker.batch(prompt_ids, prompt_group_ids(prompt_ids, dialogues)).with_replies(response_ids)
    asked, fit = min(speaker.limits.prompts_at_once, len(tokens)), speaker.limits.sizes.fit
    predictions = fit(REFERENCE, asked, _predict, models, tokens, speaker.sampling.temperature)
    return Episodes(dialogues, Responses(tokens, torch.tensor([d.truncated for d in dialogues]), **predictions))


@torch.no_grad()
def _predict(models: Models, tokens: TokenBatch, temperature: float, size: int) -> dict[str, Tensor]:
    """The policy's log-probabilities, entropies and values, each (B, T), in microbatches of `size` rows."""
    columns: dict[str, Tensor] = {}
    for index, microbatch in tokens.microbatches(size):
        packed = microbatch.pack()
        predictions = models.policy(packed, temperature)._asdict()
        tokens.put(columns, index, packed, {name: x for name, x in predictions.items() if x is not None})
    return columns


def _score(score: Any, name: str) -> float:
    try:
        number = float(score)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not abs(number) <= LARGEST:
        raise UserError(f"step_on: {name} is {str(score)[:60]}, not a finite 32-bit number; leave that episode out")
    return number


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
