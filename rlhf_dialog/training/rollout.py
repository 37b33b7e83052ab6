"""From environments to a scored rollout. B episodes, T response tokens."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.models.generation import Responder
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.masks import last_run_lengths
from rlhf_dialog.models.part_sizes import lacks_memory
from rlhf_dialog.models.token_batch import TokenBatch, send
from rlhf_dialog.rewards.scoring import RewardError, Scorer, Scores
from rlhf_dialog.training.episodes import EpisodeInputs, Episodes, Segments, run_episodes
from rlhf_dialog.training.reading import predict_columns


class Clock:
    """Adds up seconds by name. On a GPU a block is timed by two CUDA events, for which only reading `seconds` waits."""

    def __init__(self, device: torch.device):
        self.device = device
        self.started = time.perf_counter()
        self._seconds: dict[str, float] = defaultdict(float)
        self._open: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []  # whose time is not read yet

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Count the time of the block as `name`, which is also the note of an error for want of memory."""
        on_gpu = self.device.type == "cuda"
        start_time = time.perf_counter()
        start, end = (torch.cuda.Event(enable_timing=True) if on_gpu else None for _ in range(2))
        if start is not None:
            start.record()
        try:
            yield
        except Exception as error:
            if lacks_memory(error):
                error.add_note(name)
            raise
        if start is not None and end is not None:
            end.record()
            self._open.append((name, start, end))
        else:
            self._seconds[name] += time.perf_counter() - start_time

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each name so far; on a GPU this waits, once, until the work of all blocks is done."""
        if self._open:
            torch.cuda.synchronize(self.device)
        for name, start, end in self._open:
            self._seconds[name] += start.elapsed_time(end) / 1000
        self._open.clear()
        return self._seconds

    @property
    def elapsed(self) -> float:
        """The seconds since the clock was made."""
        return time.perf_counter() - self.started

    def add(self, other: "Clock") -> None:
        """Count the seconds of another clock, too."""
        for name, seconds in other.seconds.items():
            self._seconds[name] += seconds


@dataclass(frozen=True)
class Collected:
    """The episodes sampled from one policy: text, tokens, the models' predictions, and the scores."""

    dialogues: list[Dialogue]
    tokens: TokenBatch  # prompts and responses
    truncated: Tensor  # (B,)
    logprobs: Tensor  # (B, T)
    ref_logprobs: Tensor  # (B, T), NaN without a reference
    entropy: Tensor  # (B, T)
    values: Tensor  # (B, T), as the critic gives them; 0 without a critic
    reward_scores: Scores  # raw and weighted values and time of each part; no parts for the caller's scores
    scores: Tensor  # (B,), less the truncation penalty
    turn_rewards: Tensor | None  # (B, T), the environment's rewards, on the last token of each reply; None if all are 0
    engine_weights: Tensor  # (B, T), of the policy loss; 1 without an engine
    clock: Clock  # of the iteration: "rollout", in it "generation" and "reference" (with the critic), "reward", ...
    num_generated: int  # response tokens that were sampled, including those of dropped episodes
    kl_full: Tensor | None = None  # (B, T), only for a filtered rollout
    ref_support_mass: Tensor | None = None  # (B, T), only for a filtered rollout
    ref_features: Tensor | None = None  # (B, T, .), for the reference's logits; only under `kl_in: loss`
    num_dropped: int = 0  # episodes that were left out, because a reward gave no score
    is_sampled: bool = True  # by the policy; false for the caller's responses
    whole: "Collected | None" = None  # with the dropped episodes, if there are any; without support and features
    sampled_logprobs: Tensor | None = None  # (B, T), of the engine that sampled; None without an engine
    # with the groups in whose place others were drawn, if there are any; without support and features
    drawn: "Collected | None" = None
    num_resampled: int = 0  # groups of all ranks that were replaced, and
    num_flat_left: int = 0  # those whose rewards are still all equal
    segments: Segments | None = None  # the contexts of the replies, where oldest turns had to leave some

    def __len__(self) -> int:
        return len(self.dialogues)

    @property
    def response_mask(self) -> Tensor:
        """(B, T), True on the tokens of the policy; may have holes."""
        return self.tokens.mask

    @property
    def num_tokens(self) -> int:
        return int(self.tokens.response_mask.sum())

    @property
    def num_replies(self) -> int:
        """The number of replies: unbroken runs of response tokens."""
        mask = self.tokens.response_mask
        return int(mask[:, :1].sum() + (mask[:, 1:] & ~mask[:, :-1]).sum())

    @property
    def paid(self) -> Tensor:
        """The total reward of each episode (B,): its score plus the environment's rewards, without the KL penalty."""
        return self.scores if self.turn_rewards is None else self.scores + self.turn_rewards.sum(dim=1)

    @property
    def columns(self) -> dict[str, Tensor]:
        """All tensors (B, ...) except the tokens, by field name."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return {name: x for name, x in columns.items() if isinstance(x, Tensor)}

    def in_segments(self) -> Self:
        """The episodes with each segment as a row, for models that read tokens in context; else themselves."""
        if self.segments is None:
            return self
        rows = self.segments.rows
        at = send(torch.tensor(rows, dtype=torch.long), self.tokens.device)
        split = self.segments.split
        columns: dict[str, Any] = {name: split(x) if x.dim() > 1 else x[at] for name, x in self.columns.items()}
        return replace(
            self,
            dialogues=[self.dialogues[row] for row in rows],
            tokens=self.segments.split_tokens(self.tokens),
            reward_scores=self.reward_scores.select(rows),
            segments=None,
            **columns,
        )

    def select(self, rows: list[int]) -> Self:
        """Only these episodes; `num_generated` and `num_dropped` still count the others."""
        on_host = torch.tensor(rows, dtype=torch.long)
        at = send(on_host, self.tokens.device)
        columns: dict[str, Any] = {name: x[at] for name, x in self.columns.items()}
        return replace(
            self,
            dialogues=[self.dialogues[i] for i in rows],
            tokens=self.tokens.rows(on_host),
            reward_scores=self.reward_scores.select(rows),
            segments=self.segments and self.segments.select(rows),
            num_dropped=self.num_dropped + len(self) - len(rows),
            **columns,
        )


@dataclass(frozen=True, kw_only=True)
class Rollout(Collected):
    """What was collected, with the credit of each token; each (B, T).

    >>> rollout.advantages.shape == rollout.values.shape == rollout.response_mask.shape
    True
    """

    rewards: Tensor  # score, environment's rewards and KL penalty; perhaps whitened
    advantages: Tensor
    returns: Tensor
    targets: Tensor  # the returns in the units of `values`
    loss_weights: Tensor  # of `loss_average`


def drop_unscored(collected: Collected, group_size: int) -> Collected:
    """What was collected without the groups of `group_size` neighbouring episodes in which a score is missing."""
    scored_rows = collected.scores.isfinite().view(-1, group_size)
    whole = scored_rows.all(dim=1, keepdim=True).expand_as(scored_rows).flatten()
    if whole.all():
        return collected
    return replace(collected.select(whole.nonzero().flatten().tolist()), whole=without_features(collected))


def without_features(collected: Collected) -> Collected:
    """What was collected, without what only the update needs."""
    return replace(collected, tokens=replace(collected.tokens, support=None), ref_features=None)


def collect_rollout(
    inputs: EpisodeInputs,
    responder: Responder,
    scorer: Scorer,
    models: Models,
    keep_features: bool = False,
    clock: Clock | None = None,
) -> Collected:
    """Run one episode per environment, score the dialogues, and compute critic and reference on the responses.

    With `keep_features` the result holds `ref_features`; its `clock` is this one, or begins now. Where the scorer skips what has
    no score, a score may be NaN. Raises UserError when the reward or an environment fails, RewardTimeout when the
    reward takes too long, and RunStopped when the policy's predictions are not finite.
    """
    clock = clock or Clock(models.policy.lm.device)
    with clock.measure("rollout"):
        with clock.measure("generation"):
            episodes = run_episodes(inputs, responder)
        scoring = scorer.begin(episodes.dialogues)
        responder.limits.tell("reference model")
        with clock.measure("reference"):
            columns = predict_columns(models, responder, episodes, keep_features)
    responder.limits.tell("reward")
    with clock.measure("reward"):
        reward_scores = scoring()
        totals = np.array(reward_scores.total, dtype=np.float64)
        lengths = last_run_lengths(episodes.responses.tokens.response_mask)
        totals = scorer.subtract_truncation_penalty(totals, episodes.responses.truncated.numpy(), lengths.numpy())
        precision = torch.promote_types(torch.get_default_dtype(), columns["logprobs"].dtype)
        scores = torch.from_numpy(totals).to(precision)
        if scores.isinf().any() or (scores.isnan().any() and not scorer.skip_unscored):
            row = int((~scores.isfinite()).nonzero()[0])
            raise RewardError(
                f"reward '{scorer.reward.name}': the score {reward_scores.total[row]!r} of dialogue {row} is not a finite "
                "32-bit number; return smaller values, or lower the weights of the parts"
            )
    return new_collected(episodes, columns, reward_scores, scores, clock)


def new_collected(
    episodes: Episodes, columns: dict[str, Any], reward_scores: Scores, scores: Tensor, clock: Clock
) -> Collected:
    """These episodes: `columns` as of `predict_columns`, `scores` (B,) on the host."""
    tokens = episodes.responses.tokens
    return Collected(
        dialogues=episodes.dialogues,
        tokens=tokens,
        truncated=send(episodes.responses.truncated, tokens.device),
        reward_scores=reward_scores,
        scores=send(scores, tokens.device),
        turn_rewards=episodes.turn_rewards,
        clock=clock,
        num_generated=int(tokens.response_mask.sum()),
        segments=episodes.segments,
        sampled_logprobs=episodes.responses.sampled_logprobs,
        engine_weights=torch.ones_like(columns["logprobs"]),
        **columns,
    )
