"""From environments to a scored rollout. B episodes, T response tokens."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import warn_about_cut
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.placement import Placement
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.chat_agent import Responder
from rlhf_dialog.models.device_copies import send
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.policy import compare_unfiltered
from rlhf_dialog.models.token_batch import Index, Packed, TokenBatch
from rlhf_dialog.rewards.scoring import RewardError, Scorer, Scores, begin_scoring
from rlhf_dialog.training.checks import (
    KEPT_CHECKPOINT,
    Noise,
    check_numbers,
    check_type,
    combine_rounding,
    measure_rounding,
)
from rlhf_dialog.training.episodes import EpisodeInputs, Episodes, newest_turns, run_episodes
from rlhf_dialog.training.segments import Segments


class Clock:
    """Adds up seconds by name; GPU work is counted in the block that started it.

    On a GPU a block leaves two events among its work, and the host does not wait for them before `seconds` is read.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.started = time.perf_counter()
        self._seconds: dict[str, float] = defaultdict(float)
        self._open: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []  # whose time is not read yet

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Count the time of the block as `name`."""
        if self.device.type == "cuda":
            start = self._event()
            yield
            self._open.append((name, start, self._event()))
        else:
            start_time = time.perf_counter()
            yield
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

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@dataclass
class Rollout:
    """The episodes collected with one policy: text, tokens, and the results of the models and rewards.

    >>> rollout.logprobs.shape == rollout.values.shape == rollout.response_mask.shape  # (B, T)
    True
    """

    dialogues: list[Dialogue]
    tokens: TokenBatch  # prompts and responses
    truncated: Tensor  # (B,)
    logprobs: Tensor  # (B, T)
    ref_logprobs: Tensor  # (B, T)
    entropy: Tensor  # (B, T)
    values: Tensor  # (B, T), as the critic gives them; 0 without a critic
    # every part's raw and weighted values and its time; no parts where the caller gave the scores
    reward_scores: Scores
    scores: Tensor  # (B,), less the truncation penalty
    turn_rewards: Tensor | None  # (B, T), the environment's rewards, on the last token of each reply; None if all are 0
    seconds: dict[str, float]  # "rollout", in it "generation" and "reference" (with a separate critic), and "reward"
    num_generated: int  # response tokens that were sampled, including those of dropped episodes
    kl_full: Tensor | None = None  # (B, T), only for a filtered rollout
    ref_support_mass: Tensor | None = None  # (B, T), only for a filtered rollout
    ref_features: Tensor | None = None  # (B, T, .), for the reference's logits; only under `kl_in: loss`
    num_dropped: int = 0  # episodes that were left out, because a reward gave no score
    # with the episodes that were left out, if there are any, but without support and features
    whole: "Rollout | None" = None
    segments: Segments | None = None  # the contexts of the replies, where oldest turns had to leave some
    # (B, T), set by the trainer; under whiten_rewards whitened
    rewards: Tensor = field(default_factory=lambda: torch.empty(0))
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))  # (B, T), set by the trainer
    returns: Tensor = field(default_factory=lambda: torch.empty(0))  # (B, T), set by the trainer
    targets: Tensor = field(default_factory=lambda: torch.empty(0))  # (B, T), returns in the units of `values`

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
        """The runs of response tokens: one for each turn of the policy."""
        mask = self.tokens.response_mask
        return int(mask[:, :1].sum() + (mask[:, 1:] & ~mask[:, :-1]).sum())

    @property
    def paid(self) -> Tensor:
        """What each episode is paid in all (B,): the score, and the rewards of the environment."""
        return self.scores if self.turn_rewards is None else self.scores + self.turn_rewards.sum(dim=1)

    @property
    def columns(self) -> dict[str, Tensor]:
        """All tensors (B, ...) but the tokens, by the names of the fields."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return {name: x for name, x in columns.items() if isinstance(x, Tensor) and len(x) == len(self)}

    def in_segments(self) -> "Rollout":
        """Each segment as an episode of its own, for what reads the tokens in their contexts; without segments the rollout."""
        if self.segments is None:
            return self
        rows = self.segments.rows
        at = send(torch.tensor(rows, dtype=torch.long), self.tokens.device)
        columns: dict[str, Any] = {
            name: self.segments.split(x) if x.dim() > 1 else x[at] for name, x in self.columns.items()
        }
        return replace(
            self,
            dialogues=[self.dialogues[row] for row in rows],
            tokens=self.segments.split_tokens(self.tokens),
            reward_scores=self.reward_scores.select(rows),
            segments=None,
            **columns,
        )

    def select(self, rows: list[int]) -> "Rollout":
        """The rollout reduced to these episodes; only `num_generated` and `num_dropped` still count the others."""
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


def drop_unscored(rollout: Rollout, group_size: int) -> Rollout:
    """The rollout without the groups of `group_size` neighbouring episodes in which a score is missing."""
    scored_rows = rollout.scores.isfinite().view(-1, group_size)
    whole = scored_rows.all(dim=1, keepdim=True).expand_as(scored_rows).flatten()
    if whole.all():
        return rollout
    kept = rollout.select(whole.nonzero().flatten().tolist())
    kept.whole = replace(rollout, tokens=replace(rollout.tokens, support=None), ref_features=None)
    return kept


def collect_rollout(
    inputs: EpisodeInputs, speaker: Responder, scorer: Scorer, models: Models, keep_features: bool = False
) -> Rollout:
    """Run an episode of each environment, score the dialogues, and compute critic and reference on the responses.

    With `keep_features` the rollout holds `ref_features`. Under `rules.skip_unscored` the score of an episode may be NaN. Raises
    RewardError (a UserError) when the reward fails, RewardTimeout when it takes too long, UserError when an environment returns
    something wrong, and RunStopped when the policy's predictions are not finite.
    """
    clock = Clock(models.policy.lm.device)
    with clock.measure("rollout"):
        with clock.measure("generation"):
            episodes = run_episodes(inputs, speaker)
        scoring = scorer.begin(episodes.dialogues)
        with clock.measure("reference"):
            columns = predict_columns(models, speaker, episodes, keep_features)
    with clock.measure("reward"):
        reward_scores = scoring()
        is_truncated = torch.tensor([dialogue.truncated for dialogue in episodes.dialogues])
        precision = torch.promote_types(torch.get_default_dtype(), episodes.responses.logprobs.dtype)
        scores = scorer.subtract_truncation_penalty(torch.tensor(reward_scores.total, dtype=precision), is_truncated)
        if scores.isinf().any() or (scores.isnan().any() and not scorer.rules.skip_unscored):
            row = int((~scores.isfinite()).nonzero()[0])
            raise RewardError(
                f"reward '{scorer.reward.name}': the score {reward_scores.total[row]!r} of dialogue {row} is not a finite "
                "32-bit number; return smaller values, or lower the weights of the parts"
            )
    return new_rollout(episodes, columns, reward_scores, scores, clock)


def new_rollout(
    episodes: Episodes, columns: dict[str, Any], reward_scores: Scores, scores: Tensor, clock: Clock
) -> Rollout:
    """The rollout of these episodes: `columns` as of `predict_columns`, `scores` (B,) on the host."""
    tokens = episodes.responses.tokens
    return Rollout(
        dialogues=episodes.dialogues,
        tokens=tokens,
        truncated=send(episodes.responses.truncated, tokens.device),
        logprobs=episodes.responses.logprobs,
        entropy=episodes.responses.entropy,
        reward_scores=reward_scores,
        scores=send(scores, tokens.device),
        turn_rewards=episodes.turn_rewards,
        seconds=dict(clock.seconds),
        num_generated=int(tokens.response_mask.sum()),
        segments=episodes.segments,
        **columns,
    )


@torch.no_grad()
def predict_columns(models: Models, speaker: Responder, episodes: Episodes, keep_features: bool) -> dict[str, Tensor]:
    """What critic and reference say of the responses: `values` and `ref_logprobs` (B, T).

    For a filtered rollout also `kl_full` and `ref_support_mass` (B, T), and with `keep_features` `ref_features` (B, T, .).
    """
    responses, segments, temperature = episodes.responses, episodes.segments, speaker.sampling.temperature
    tokens, features = responses.tokens, responses.features
    if segments is not None:
        tokens, features = segments.split_tokens(tokens), None if features is None else segments.split(features)

    def predict(packed: Packed, index: Index) -> dict[str, Tensor]:
        ref_features, _ = models.ref_policy.features(packed)
        columns = {"ref_logprobs": models.ref_policy.predict(ref_features, packed, temperature).logprobs}
        if keep_features:
            columns["ref_features"] = ref_features
        if models.critic is not None:
            columns["values"] = models.critic(packed)
        if packed.support is not None and features is not None:
            columns["kl_full"], columns["ref_support_mass"] = compare_unfiltered(
                (models.policy, packed.gather(features[index])),
                (models.ref_policy, ref_features),
                temperature,
                packed.support,
            )
        return columns

    columns = tokens.map_microbatches(speaker.limits.prompts_at_once, predict)
    if segments is not None:
        columns = {name: segments.join(x) for name, x in columns.items()}
    if "values" not in columns:
        columns["values"] = torch.zeros_like(responses.logprobs) if responses.values is None else responses.values
    return columns


class Collector:
    """Collects rollouts with the policy as it is.

    `noise` is what rounding does to log-probabilities, measured with the first rollout.
    """

    def __init__(
        self, config: Config, models: Models, speaker: Responder, scorer: Scorer, placement: Placement, world: World
    ):
        self.config, self.models, self.speaker, self.scorer = config, models, speaker, scorer
        self.placement, self.world = placement, world
        self.group_size = config.num_responses_per_prompt if config.estimator.needs_groups else 1
        self.keep_features = config.kl_in == "loss"
        self.noise, self.is_measured = Noise(), False
        self.is_first = True

    def collect(self, inputs: EpisodeInputs, iteration: int) -> Rollout:
        """A rollout with finite numbers; under `on_reward_error: skip` without the episodes that have no score.

        Raises RunStopped when no episode is left, or when a model's numbers are not finite; RewardError when the reward fails.
        """
        with self.world.fail_together():
            begin_scoring(self.scorer.reward, "rollout", iteration)
        make = partial(collect_rollout, inputs, self.speaker, self.scorer, self.models, self.keep_features)
        rollout = self.on_every_rank(make, iteration)
        if self.is_first:
            newest = [text for dialogue in rollout.dialogues for text in newest_turns(dialogue)]
            warn_about_cut(self.speaker.encoder, newest, self.world.gather)
            self.is_first = False
        left, dropped = self.world.sum_numbers([len(rollout), rollout.num_dropped])
        if not left:
            groups = " or their groups" if self.config.estimator.needs_groups else ""
            raise RunStopped(
                f"iteration {iteration}: all {dropped:.0f} episodes are dropped, because the reward "
                f"'{self.scorer.reward.name}' gave them{groups} no score; {KEPT_CHECKPOINT}"
            )
        return rollout

    def on_every_rank(self, make_rollout: Callable[[], Rollout], iteration: int) -> Rollout:
        """This rank's part of a rollout, checked; the first one measures the noise of the arithmetic.

        When one rank fails, all ranks raise. `time/wait` is how long this rank waited for the others.
        """
        reference, temperature = self.models.ref_policy, self.config.temperature
        num_bits = 16 if self.placement.reduced_precision else 32
        if not self.is_measured:
            check_type(reference, num_bits)
        with self.world.fail_together(), self.placement.rollout():
            rollout = make_rollout()
            predictions = {"policy": rollout.logprobs, "critic": rollout.values, "reference": rollout.ref_logprobs}
            check_numbers(predictions, rollout.response_mask, rollout.dialogues, iteration)
            rollout = drop_unscored(rollout, self.group_size)
            rounding = None
            if not self.is_measured:
                rounding = measure_rounding(reference, rollout.in_segments().tokens, temperature)
            collected = time.perf_counter()
        if rounding is not None:
            self.noise, self.is_measured = combine_rounding(rounding, self.world, temperature, num_bits), True
        if self.world.size > 1:
            rollout.seconds["wait"] = time.perf_counter() - collected
        return rollout
