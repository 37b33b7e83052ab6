"""From environments to a scored rollout. B episodes, P prompt tokens, T response tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.environments.base import Environment, Limits
from rlhf_dialog.models.chat_agent import Speaker
from rlhf_dialog.models.device_copies import fetch, send
from rlhf_dialog.models.generation import compare_unfiltered
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.microbatches import microbatches
from rlhf_dialog.models.packed_rows import pack
from rlhf_dialog.rewards.scoring import RewardError, Scorer, Scores
from rlhf_dialog.training.clock import Clock
from rlhf_dialog.training.episodes import LIMITS, Episodes, play
from rlhf_dialog.training.segments import Segments


@dataclass
class Rollout:
    """The episodes collected with one policy: text, tokens, and the results of the models and rewards.

    >>> rollout.logprobs.shape == rollout.values.shape == rollout.response_mask.shape  # (B, T)
    True
    """

    dialogues: list[Dialogue]
    prompt_ids: Tensor  # (B, P), padded left
    prompt_mask: Tensor  # (B, P)
    prompt_numbers: Tensor  # (B,), on the host; episodes with the same number have the same prompt
    response_ids: Tensor  # (B, T), padded right
    response_mask: Tensor  # (B, T), may have holes
    support: Tensor | None  # (B, T, K) kept token ids of a filtered rollout, padded with -1
    truncated: Tensor  # (B,)
    logprobs: Tensor  # (B, T)
    ref_logprobs: Tensor  # (B, T)
    entropy: Tensor  # (B, T)
    values: Tensor  # (B, T), as the critic gives them; 0 without a critic
    kl_full: Tensor | None  # (B, T), only for a filtered rollout
    ref_support_mass: Tensor | None  # (B, T), only for a filtered rollout
    ref_features: Tensor | None  # (B, T, .), from which the reference computes its logits; only under `kl_in: loss`
    # every part's raw and weighted values and its time; no parts where the caller gave the scores
    reward_scores: Scores
    scores: Tensor  # (B,), less the truncation penalty
    turn_rewards: Tensor | None  # (B, T), the environment's rewards, on the last token of each reply; None if all are 0
    seconds: dict[str, float]  # "rollout", in it "generation" and "reference" (with a separate critic), and "reward"
    num_generated: int  # response tokens that were sampled, including those of dropped episodes
    num_dropped: int = 0  # episodes that were left out, because a reward gave no score
    whole: "Rollout | None" = (
        None  # with the episodes that were left out, if there are any, but without support and features
    )
    segments: Segments | None = None  # the contexts of the replies, where oldest turns had to leave some
    # (B, T), set by the trainer; under whiten_rewards whitened
    rewards: Tensor = field(default_factory=lambda: torch.empty(0))
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))  # (B, T), set by the trainer
    returns: Tensor = field(default_factory=lambda: torch.empty(0))  # (B, T), set by the trainer
    targets: Tensor = field(default_factory=lambda: torch.empty(0))  # (B, T), returns in the units of `values`

    def __len__(self) -> int:
        return len(self.dialogues)

    @property
    def num_tokens(self) -> int:
        return int(self.masks_on_host[1].sum())

    @property
    def num_replies(self) -> int:
        """The runs of response tokens: one for each turn of the policy."""
        mask = self.masks_on_host[1]
        return int(mask[:, :1].sum() + (mask[:, 1:] & ~mask[:, :-1]).sum())

    @cached_property
    def masks_on_host(self) -> tuple[Tensor, Tensor]:
        """Prompt mask (B, P) and response mask (B, T) on the CPU, where microbatches are planned; copied once."""
        return on_host(self.prompt_mask, self.response_mask)

    @property
    def paid(self) -> Tensor:
        """What each episode is paid in all (B,): the score, and the rewards of the environment."""
        return self.scores if self.turn_rewards is None else self.scores + self.turn_rewards.sum(dim=1)

    def in_segments(self) -> "Rollout":
        """Each segment as an episode of its own, for what reads the tokens in their contexts; without segments the rollout."""
        if self.segments is None:
            return self
        rows = self.segments.rows
        return replace(
            self,
            dialogues=[self.dialogues[row] for row in rows],
            reward_scores=self.reward_scores.of(rows),
            **self.segments.columns_of(self),
        )

    def of(self, rows: list[int]) -> "Rollout":
        """The rollout reduced to these episodes; only `num_generated` and `num_dropped` still count the others."""
        at = torch.tensor(rows, dtype=torch.long, device=self.response_ids.device)
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        tensors: dict[str, Any] = {
            name: x[at.to(x.device)] for name, x in columns.items() if isinstance(x, Tensor) and len(x) == len(self)
        }
        return replace(
            self,
            dialogues=[self.dialogues[i] for i in rows],
            reward_scores=self.reward_scores.of(rows),
            segments=self.segments and self.segments.of(rows),
            num_dropped=self.num_dropped + len(self) - len(rows),
            **tensors,
        )


def on_host(prompt_mask: Tensor, response_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The masks on the CPU, after one wait for the device."""
    first, second = fetch(prompt_mask, response_mask)
    return first, second


def without_unscored(rollout: Rollout, group_size: int) -> Rollout:
    """The rollout without the groups of `group_size` neighbouring episodes in which a score is missing."""
    scored_rows = rollout.scores.isfinite().view(-1, group_size)
    whole = scored_rows.all(dim=1, keepdim=True).expand_as(scored_rows).flatten()
    if whole.all():
        return rollout
    kept = rollout.of(whole.nonzero().flatten().tolist())
    kept.whole = replace(rollout, support=None, ref_features=None)
    return kept


def prompt_names(dialogues: Sequence[Dialogue], at_most: int = 16) -> str:
    """The split and index of each prompt, without repeats: `train 3, train 7 and 2 more`."""
    names = [f"{d.meta.get('split', 'prompt')} {d.meta.get('index', '?')}" for d in dialogues]
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more


def collect(
    environments: Sequence[Environment],
    speaker: Speaker,
    scorer: Scorer,
    models: Models,
    seeds: Sequence[int] | None = None,
    keep_features: bool = False,
    limits: Limits = LIMITS,
    streams: Sequence[torch.Generator] | None = None,
    metas: Sequence[dict[str, Any]] | None = None,
) -> Rollout:
    """Play an episode of each environment, score the dialogues, and compute critic and reference on the responses.

    With `keep_features` the rollout holds `ref_features`; the other options are those of `play`.

    Under `rules.skip_unscored` the score of an episode may be NaN. Raises RewardError (a UserError) when the reward fails,
    RewardTimeout when it takes too long, UserError when an environment returns something wrong, and RunStopped when the
    policy's predictions are not finite.
    """
    clock = Clock(models.policy.lm.device)
    with clock.measured("rollout"):
        with clock.measured("generation"):
            episodes = play(environments, speaker, seeds, limits, streams, metas)
        responses = episodes.responses
        scoring = scorer.begin(episodes.dialogues)
        with clock.measured("reference"):
            masks = on_host(episodes.prompt_mask, responses.mask)
            tensors = critic_and_reference(
                models, episodes, masks, speaker.sampling.temperature, speaker.microbatch_size, keep_features
            )
    with clock.measured("reward"):
        reward_scores = scoring()
        is_truncated = torch.tensor([dialogue.truncated for dialogue in episodes.dialogues])
        precision = torch.promote_types(torch.get_default_dtype(), responses.logprobs.dtype)
        scores = scorer.less_penalty(torch.tensor(reward_scores.total, dtype=precision), is_truncated)
        _check_scores(scores, reward_scores, scorer)
    return rollout_of(episodes, masks, tensors, reward_scores, scores, clock)


def rollout_of(
    episodes: Episodes,
    masks: tuple[Tensor, Tensor],
    tensors: dict[str, Any],
    reward_scores: Scores,
    scores: Tensor,
    clock: Clock,
) -> Rollout:
    """The rollout of these episodes: `masks` and `tensors` as in `critic_and_reference`, `scores` (B,) on the host."""
    responses = episodes.responses
    rollout = Rollout(
        dialogues=episodes.dialogues,
        prompt_ids=episodes.prompt_ids,
        prompt_mask=episodes.prompt_mask,
        prompt_numbers=episodes.prompt_numbers,
        response_ids=responses.ids,
        response_mask=responses.mask,
        support=responses.support,
        truncated=responses.truncated,
        reward_scores=reward_scores,
        scores=send(scores, responses.ids.device),
        turn_rewards=episodes.turn_rewards,
        logprobs=responses.logprobs,
        entropy=responses.entropy,
        seconds=dict(clock.seconds),
        num_generated=int(masks[1].sum()),
        segments=episodes.segments,
        **tensors,
    )
    rollout.masks_on_host = masks
    return rollout


def _check_scores(scores: Tensor, reward_scores: Scores, scorer: Scorer) -> None:
    if scores.isinf().any() or (scores.isnan().any() and not scorer.rules.skip_unscored):
        row = int((~scores.isfinite()).nonzero()[0])
        raise RewardError(
            f"reward '{scorer.reward.name}': the score {reward_scores.total[row]!r} of dialogue {row} is not a finite 32-bit "
            "number; return smaller values, or lower the weights of the parts"
        )


@torch.no_grad()
def critic_and_reference(
    models: Models,
    episodes: Episodes,
    masks: tuple[Tensor, Tensor],
    temperature: float,
    size: int,
    keep_features: bool = False,
) -> dict[str, Any]:
    """`values, ref_logprobs, kl_full, ref_support_mass`, each (B, T), and `ref_features` (B, T, .); the last 3 may be None.

    `masks` are the masks of prompts and responses on the host, as in `Rollout.masks_on_host`.
    """
    if episodes.segments is not None:
        parted, joined = episodes.in_segments(), episodes.segments.joined
        masks = on_host(parted.prompt_mask, parted.responses.mask)
        of_parts = critic_and_reference(models, parted, masks, temperature, size, keep_features)
        return {name: None if x is None else joined(x) for name, x in of_parts.items()}
    prompt_ids, responses, (prompt_mask, response_mask) = episodes.prompt_ids, episodes.responses, masks
    columns: dict[str, Tensor] = {}
    device, numbers = prompt_ids.device, episodes.prompt_numbers
    for part in microbatches(prompt_mask, response_mask, torch.arange(len(prompt_ids)), size, device, numbers):
        at, prompt_at = (part.rows, part.response), (part.rows, part.prompt)
        masks_at = prompt_mask[part.host_rows, part.prompt], response_mask[part.host_rows, part.response]
        packed = pack(prompt_ids[prompt_at], masks_at[0], responses.ids[at], masks_at[1], numbers[part.host_rows])
        support = None if responses.support is None else packed.gather(responses.support[at])
        features, _ = models.ref_policy.features(packed)
        tensors = {"ref_logprobs": models.ref_policy.predict(features, packed.targets, temperature, support, False)[0]}
        if keep_features:
            tensors["ref_features"] = features
        if models.critic is not None:
            tensors["values"] = models.critic(packed)
        if support is not None and responses.features is not None:
            tensors["kl_full"], tensors["ref_support_mass"] = compare_unfiltered(
                models.policy, packed.gather(responses.features[at]), models.ref_policy, features, temperature, support
            )
        for name, x in tensors.items():
            columns.setdefault(name, x.new_zeros(*response_mask.shape, *x.shape[1:]))[at] = packed.scatter(x)
    columns.setdefault("values", torch.zeros_like(responses.logprobs) if responses.values is None else responses.values)
    return {"kl_full": None, "ref_support_mass": None, "ref_features": None} | columns
