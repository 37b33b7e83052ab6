"""Episodes from a loop of the caller's own (`PPOTrainer.step_on`). B episodes, T response tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.generation import Responder, Responses
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.network import num_embeddings
from rlhf_dialog.models.policy import num_positions
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.rewards.scoring import Scores
from rlhf_dialog.training.episodes import Episodes, prompt_group_ids
from rlhf_dialog.training.reading import predict_columns
from rlhf_dialog.training.rollout import Clock, Collected, new_collected

LARGEST = torch.finfo(torch.float32).max
Given = str | Sequence[str] | Sequence[int] | Tensor  # a text, turns (of a prompt), or token ids


def read_episodes(
    prompts: Sequence[Given], responses: Sequence[Given], scores: Sequence[float], responder: Responder, group_size: int
) -> tuple[list[Dialogue], TokenBatch]:
    """The given episodes as dialogues and as tokens.

    Raises UserError when the three do not fit together, when one of them is empty or too long, for ids that the model does not
    have, for scores that are not finite, and when the sampling has a filter: nobody knows then which tokens were kept beside
    those that were drawn.
    """
    if not len(prompts) == len(responses) == len(scores) > 0:
        raise UserError(
            f"step_on: found {len(prompts)} prompts, {len(responses)} responses and {len(scores)} scores; give one of each "
            "for every episode, at least one"
        )
    if responder.sampling.filtered:
        raise UserError(
            "step_on: top_k and top_p leave some tokens out, and which ones is not known of responses from elsewhere; set "
            "top_k: 0 and top_p: 1"
        )
    for i, score in enumerate(scores):
        if not abs(float(score)) <= LARGEST:
            raise UserError(f"step_on: scores[{i}] is {score}, not a finite 32-bit number; leave that episode out")
    if len(prompts) % group_size:
        raise UserError(
            f"step_on: {len(prompts)} responses cannot be divided into {group_size} per prompt (num_responses_per_prompt)"
        )
    encoder = responder.encoder
    positions = num_positions(responder.policy.lm)
    size = responder.policy.num_ids or num_embeddings(responder.policy.lm)
    dialogues: list[Dialogue] = []
    all_prompts: list[list[int]] = []
    all_responses: list[list[int]] = []
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        turns: Any = [prompt] if isinstance(prompt, str) else prompt
        if isinstance(turns, Sequence) and len(turns) > 0 and all(isinstance(turn, str) for turn in turns):
            prompt_ids = encoder.encode_prompt(list(turns))
        else:
            prompt_ids = _ids(prompt, f"prompts[{i}]", size)
            text = encoder.reply_text(prompt_ids) or encoder.tokenizer.decode(prompt_ids, skip_special_tokens=True)
            turns = [str(text).strip()]
        response_ids = (
            encoder.encode_reply(response) if isinstance(response, str) else _ids(response, f"responses[{i}]", size)
        )
        if positions and len(prompt_ids) + len(response_ids) > positions:
            raise UserError(
                f"step_on: prompts[{i}] and responses[{i}] have {len(prompt_ids)} + {len(response_ids)} tokens, but the model "
                f"has {positions} positions; shorten them"
            )
        if i % group_size and prompt_ids != all_prompts[-1]:
            raise UserError(
                f"step_on: prompts[{i}] is not the prompt before it; {group_size} neighbours answer the same one "
                "(num_responses_per_prompt)"
            )
        cut = not responder.stop.find_ends(torch.tensor([response_ids]))[0]
        meta = {"split": "given", "index": i, "group": i // group_size}
        dialogues.append(Dialogue(list(turns), response=encoder.reply_text(response_ids), truncated=cut, meta=meta))
        all_prompts.append(prompt_ids)
        all_responses.append(response_ids)
    return dialogues, responder.batch(all_prompts, prompt_group_ids(all_prompts, dialogues)).with_replies(all_responses)


def _ids(x: Any, name: str, size: int) -> list[int]:
    """The token ids of a sequence or tensor. Raises UserError unless they are at least one id, each below `size`."""
    ids = x.tolist() if hasattr(x, "tolist") else x
    whole = isinstance(ids, Sequence) and all(type(i) is int and 0 <= i < size for i in ids)
    if not whole or not ids:
        raise UserError(
            f"step_on: {name} is {str(ids)[:60]!r}; give a text, or at least one token id, each from 0 to {size - 1}"
        )
    return list(ids)


def external_rollout(
    dialogues: list[Dialogue],
    tokens: TokenBatch,
    scores: Sequence[float],
    responder: Responder,
    models: Models,
    keep_features: bool,
) -> Collected:
    """B given episodes, with the log-probabilities and values of the policy as it is now."""
    clock = Clock(models.policy.lm.device)
    totals = [float(score) for score in scores]
    episodes = Episodes(dialogues, Responses(tokens, torch.tensor([d.truncated for d in dialogues])))
    with clock.measure("rollout"), clock.measure("reference"):
        columns = predict_columns(models, responder, episodes, keep_features)
    with clock.measure("reward"):
        precision = torch.promote_types(torch.get_default_dtype(), columns["logprobs"].dtype)
        given = torch.tensor(totals, dtype=precision)
        collected = new_collected(episodes, columns, Scores(totals, parts={}), given, clock)
    return replace(collected, is_sampled=False)
