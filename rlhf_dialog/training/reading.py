"""What policy, critic and reference say of responses that are there. B episodes, T response tokens."""

import math

import torch
from torch import Tensor

from rlhf_dialog.models.generation import Responder
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.part_sizes import REFERENCE
from rlhf_dialog.models.policy import Policy, compare_unfiltered
from rlhf_dialog.models.token_batch import TokenBatch
from rlhf_dialog.training.episodes import Episodes


def predict_columns(models: Models, responder: Responder, episodes: Episodes, keep_features: bool) -> dict[str, Tensor]:
    """The models' predictions for the responses, each (B, T): `logprobs, entropy, values, ref_logprobs`, NaN without a reference.

    Those of the policy are the sampler's. Where it did not know them, they are computed here, in the contexts of the replies.

    With a reference, for a filtered rollout also `kl_full` and `ref_support_mass` (B, T), and with `keep_features`
    `ref_features` (B, T, .).
    """
    responses = episodes.responses
    segments = episodes.segments
    limits = responder.limits
    tokens = responses.tokens
    features = responses.features
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
    reference = models.ref_policy
    critic = models.critic
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
