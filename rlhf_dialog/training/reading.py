"""What policy, critic and reference say of responses that are there. B episodes, T response tokens."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.generation import Responder
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.network import num_embeddings
from rlhf_dialog.models.part_sizes import REFERENCE
from rlhf_dialog.models.policy import Policy, compare_unfiltered, num_positions
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.training.episodes import Episodes, prompt_group_ids

LARGEST = torch.finfo(torch.float32).max
Given = str | Sequence[str] | Sequence[int] | Tensor  # a text, turns (of a prompt), or token ids


def predict_columns(models: Models, responder: Responder, episodes: Episodes, keep_features: bool) -> dict[str, Tensor]:
    """The models' predictions for the responses, each (B, T): `logprobs, entropy, values, ref_logprobs`, NaN without a reference.

    Those of the policy are the sampler's. Where it did not know them, they are computed here, in the contexts of the replies.

    With a reference, for a filtered rollout also `kl_full` and `ref_support_mass` (B, T), and with `keep_features`
    `ref_features` (B, T, .).
    """
    responses, segments, limits = episodes.responses, episodes.segments, responder.limits
    tokens, features = responses.tokens, responses.features
    if segments is not None:
        tokens, features = segments.split_tokens(tokens), None if features is None else segments.split(features)
    asked = min(limits.prompts_at_once, len(tokens))
    temperature = responder.sampling.temperature
    known = {name: getattr(responses, name) for name in ("logprobs", "entropy", "values")}
    columns = {name: x for name, x in known.items() if x is not None}
    found: dict[str, Tensor] = {}
    for attempt in limits.sizes.tries(REFERENCE, asked) if "logprobs" not in columns else ():
        with attempt:
            found |= read_policy(models.policy, tokens, temperature, attempt.rows)
    for attempt in limits.sizes.tries(REFERENCE, asked):
        with attempt:
            found |= read_responses(models, tokens, features, temperature, keep_features, attempt.rows)
    columns |= found if segments is None else {name: segments.join(x) for name, x in found.items()}
    if models.ref_policy is None:
        columns["ref_logprobs"] = torch.full_like(columns["logprobs"], math.nan)
    if "values" not in columns:
        columns["values"] = torch.zeros_like(columns["logprobs"])
    return columns


@torch.no_grad()
def read_policy(policy: Policy, tokens: TokenBatch, temperature: float, size: int) -> dict[str, Tensor]:
    """The policy's log-probabilities, entropies and values, each (B, T), in microbatches of `size` rows."""
    columns: dict[str, Tensor] = {}
    for index, microbatch in tokens.microbatches(size):
        packed = microbatch.pack()
        predictions = policy(packed, temperature)._asdict()
        tokens.put(columns, index, packed, {name: x for name, x in predictions.items() if x is not None})
    return columns


@torch.no_grad()
def read_responses(
    models: Models, tokens: TokenBatch, features: Tensor | None, temperature: float, keep_features: bool, size: int
) -> dict[str, Tensor]:
    """The columns of critic and reference, in microbatches of `size` rows; one model after the other, for its adapter.

    `features` (B, T, .): the policy's, of a filtered rollout.
    """
    columns: dict[str, Tensor] = {}
    reference, critic = models.ref_policy, models.critic
    if reference is not None:
        with reference.use_adapter():
            for index, microbatch in tokens.microbatches(size):
                packed = microbatch.pack()
                ref_features, _ = reference.features(packed)
                found = {"ref_logprobs": reference.predict(ref_features, packed, temperature).logprobs}
                if keep_features:
                    found["ref_features"] = ref_features
                if packed.support is not None and features is not None:
                    ours, theirs = (models.policy, packed.gather(features[index])), (reference, ref_features)
                    kl_full, mass = compare_unfiltered(ours, theirs, temperature, packed.support)
                    found |= {"kl_full": kl_full, "ref_support_mass": mass}
                tokens.put(columns, index, packed, found)
    if critic is not None:
        with critic.use_adapter():
            for index, microbatch in tokens.microbatches(size):
                packed = microbatch.pack()
                tokens.put(columns, index, packed, {"values": critic(packed)})
    return columns


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
    encoder, positions = responder.encoder, num_positions(responder.policy.lm)
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
