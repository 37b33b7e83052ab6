"""The optimizer steps of one rollout: epochs over minibatches of responses, each made of microbatches. B, T as in `ppo`."""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlhf_dialog.config.registry import LossFactory
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.placement import Placement
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.models.masks import apply_mask
from rlhf_dialog.models.part_sizes import UPDATE, PartSizes
from rlhf_dialog.models.policy import Predictions
from rlhf_dialog.models.token_batch import Index, TokenBatch
from rlhf_dialog.training import ppo
from rlhf_dialog.training.checks import (
    Noise,
    all_finite,
    check_ratio,
    difference_statistics,
    prompt_names,
)
from rlhf_dialog.training.iteration_metrics import Metrics, read
from rlhf_dialog.training.rollout import Rollout
from rlhf_dialog.user_code import as_user_error, is_of_users

logger = logging.getLogger(__name__)
PolicyLoss = Callable[[ppo.LossInputs], tuple[Tensor, dict[str, Tensor]]]
NORMS = {"policy": "ppo/grad_norm", "critic": "ppo/critic_grad_norm"}


class Microbatch(NamedTuple):
    """Rows of a rollout: their tokens, with no more padding than needed, and their `place` in its columns (B, T, ...)."""

    rollout: Rollout
    place: Index
    tokens: TokenBatch


class PPOUpdate:
    """Makes the optimizer steps of a rollout, the same on every rank.

    `skipped_in_a_row` is the number of consecutive skipped optimizer steps, across rollouts; it is part of a checkpoint.
    """

    def __init__(
        self,
        config: Config,
        placement: Placement,
        world: World,
        num_minibatches: int,
        sizes: PartSizes,
        tell: Callable[[str], None],
    ):
        """`tell` hears how far the update is."""
        self.config = config
        self.placement = placement
        self.world = world
        self.num_minibatches = num_minibatches
        self.sizes = sizes
        self.tell = tell
        self.engines = placement.engines
        self.microbatch_size = config.microbatch_size
        self.is_fixed = not all(engine.can_start_over for engine in self.engines.values())
        self.skipped_in_a_row = 0
        self.overflows = 0
        self.is_warm = False
        self.iteration = 0
        self.noise = Noise()
        self.kl_coef = 0.0  # of the loss, under `kl_in: loss`
        self.learners = set(self.engines)  # whose steps are made
        high = config.clip_param if config.clip_param_high is None else config.clip_param_high
        dual = config.dual_clip_coeff if config.dual_clip_ppo else None
        self.clip = ppo.Clip(config.clip_param, high, dual, config.ratio == "sequence")
        self.policy_loss: PolicyLoss = LossFactory.find(config.policy_loss)
        self.head_alone = False  # of a shared model, only the value head learns

    def __call__(self, rollout: Rollout, iteration: int, lr_scale: float, kl_coef: float, noise: Noise) -> Metrics:
        """Make `ppo_epoch` passes over the rollout in minibatches; returns each statistic's mean over the steps that were made.

        Each rank shuffles its own episodes and adds its share to every minibatch. Each loss is a sum over tokens divided by the
        mean number of tokens per minibatch, so all tokens have equal weight. `noise` is that of the check of the first ratios.
        Raises RunStopped as `optimizer_step` does.
        """
        self.iteration = iteration
        self.noise = noise
        self.overflows = 0
        self.kl_coef = kl_coef if self.config.kl_in == "loss" else 0.0
        warms_up = iteration <= self.config.critic_warmup
        separate = "critic" in self.engines
        self.learners = {"critic"} if warms_up and separate else set(self.engines)
        self.head_alone = warms_up and not separate
        critic_lr = self.config.critic_lr * lr_scale
        for name, engine in self.engines.items():
            engine.set_lr(*((self.config.lr * lr_scale, critic_lr) if name == "policy" else (critic_lr,)))
        self.warm_up_ddp(rollout)
        counts = self.world.gather(len(rollout))
        num_minibatches = min(self.num_minibatches, sum(counts))
        sizes = minibatch_sizes(counts, num_minibatches)[self.world.rank]
        num_tokens = self.world.sum(rollout.response_mask.sum()).double() / num_minibatches
        steps: list[Metrics] = []
        good: list[Metrics] = []
        epochs = self.config.ppo_epoch
        for epoch in range(epochs):
            for i, rows in enumerate(shuffle_groups(rollout.tokens).split(sizes)):
                self.tell(f"epoch {epoch + 1} of {epochs}, minibatch {i + 1} of {num_minibatches}")
                step = self.optimizer_step(rollout, rows, num_tokens, is_first=not good)
                steps.append(step)
                if all_finite(step):
                    good.append(step)
        means = {name: sum(step[name] for step in good) / len(good) if good else math.nan for name in steps[0]}
        counts_overflows = any(engine.scaler is not None for engine in self.engines.values())
        overflows = {"ppo/overflow_steps": self.overflows} if counts_overflows else {}
        return means | {"ppo/skipped_steps": len(steps) - len(good), **overflows}

    def warm_up_ddp(self, rollout: Rollout) -> None:
        """Run, once per process with several ranks, a first microbatch that changes nothing (see `Engine`)."""
        if self.world.size > 1 and not self.is_warm:
            no_tokens = rollout.response_mask.new_ones((), dtype=torch.long)
            self.forward_backward(blank_microbatch(rollout), no_tokens, is_first=False, is_last=True)
            for engine in self.engines.values():
                engine.zero_grad()
        self.is_warm = True

    def optimizer_step(self, rollout: Rollout, rows: Tensor, num_tokens: Tensor, is_first: bool) -> Metrics:
        """Make the optimizer step of one minibatch; the gradient does not depend on how microbatches and ranks divide it.

        `rows` (N,) is on the host. Sums over tokens are divided by `num_tokens`, a scalar. The host waits for the device once,
        for all statistics and gradient norms together.

        The step is skipped when a returned statistic is not finite. A skipped step counts towards `max_skipped_steps`, unless
        fp16's loss scale was too large, as it is at the start. Raises RunStopped after `max_skipped_steps` in a row, and on the
        first minibatch of a rollout when the probability ratio is not 1.
        """
        asked = min(self.microbatch_size, max(len(rows), 1))
        for attempt in self.sizes.tries(UPDATE, asked, self.is_fixed):
            with attempt:
                for engine in self.engines.values():
                    engine.zero_grad()  # what a larger size has left
                statistics = []
                microbatches = self.microbatches(rollout, rows, attempt.rows)
                for x in microbatches:
                    statistics.append(self.forward_backward(x, num_tokens, is_first, is_last=x is microbatches[-1]))
        with rollout.clock.measure("optimizer"):
            if self.head_alone:
                self.engines["policy"].keep_head_gradient()
            norms_before_clipping = {NORMS[name]: engine.grad_norm() for name, engine in self.engines.items()}
            *numbers, norms = read(*statistics, norms_before_clipping)
            if is_first:
                sizes = [(x.pop("largest"), x.pop("mean"), x.pop("tokens")) for x in numbers]
                with self.world.fail_together():
                    for size in sizes:
                        check_ratio(*size, self.iteration, self.noise)
            sums = [sum(x[name] for x in numbers) for name in numbers[0]]
            totals = dict(zip(numbers[0], self.world.sum_numbers(sums), strict=True))
            losses_are_finite = all_finite(totals)
            totals |= norms
            is_made = all_finite(totals)
            limit = self.config.max_grad_norm if self.config.use_max_grad_norm else math.inf
            for name, engine in self.engines.items():
                if is_made and name in self.learners:
                    engine.clip(limit, norms[NORMS[name]])
                    engine.step()
                else:
                    engine.lower_scale()
                engine.zero_grad()
        lowered = [engine.lowered for engine in self.engines.values() if engine.lowered and losses_are_finite]
        self.overflows += bool(lowered)
        if is_made:
            self.skipped_in_a_row = 0
        if lowered:
            logger.info("iteration %d: an optimizer step is skipped: %s", self.iteration, "; ".join(lowered))
        elif not is_made:
            pairs = zip(microbatches, numbers, strict=True)
            bad = [x for x, found in pairs if x.rollout is rollout and not all_finite(found)]  # and not blank
            suspects = [row for microbatch in bad for row in microbatch.place[0].tolist()]
            self._report_skipped(rollout, totals, rows.tolist(), suspects)
        return totals

    def microbatches(self, rollout: Rollout, rows: Tensor, size: int) -> list[Microbatch]:
        """The rows (N,) in microbatches of `size`, and blank ones, so that each rank has as many as the one with the most."""
        microbatches = [Microbatch(rollout, at, tokens) for at, tokens in rollout.tokens.microbatches(size, rows)]
        missing = max(self.world.gather(len(microbatches))) - len(microbatches)
        return microbatches + [blank_microbatch(rollout) for _ in range(missing)]

    def forward_backward(
        self, microbatch: Microbatch, num_tokens: Tensor, is_first: bool, is_last: bool
    ) -> dict[str, Tensor]:
        """Add the gradient of one microbatch; returns the statistics to add up."""
        with ExitStack() as stack:
            for engine in self.engines.values():
                stack.enter_context(engine.microbatch(is_last))
            with microbatch.rollout.clock.measure("forward"):
                losses, statistics = self.losses(microbatch, num_tokens, is_first)
            with microbatch.rollout.clock.measure("backward"):
                for name, loss in losses.items():
                    self.engines[name].backward(loss)
        return statistics

    def _report_skipped(self, rollout: Rollout, totals: Metrics, rows: list[int], suspects: list[int]) -> None:
        """Warn of a skipped step, with the prompts of the suspects on all ranks; RunStopped at `max_skipped_steps` in a row."""
        guilty = [x for of_rank in self.world.gather([rollout.dialogues[i] for i in suspects]) for x in of_rank]
        trained = [x for of_rank in self.world.gather([rollout.dialogues[i] for i in rows]) for x in of_rank]
        self.skipped_in_a_row += 1
        bad = ", ".join(f"{name} {value}" for name, value in totals.items() if not math.isfinite(value))
        text = (
            f"iteration {self.iteration}: a number of the update is not finite ({bad}); prompts of the "
            f"{'microbatch with it' if guilty else 'minibatch'}: {prompt_names(guilty or trained)}; the optimizer step is "
            f"skipped, {self.skipped_in_a_row} in a row"
        )
        if self.skipped_in_a_row >= self.config.max_skipped_steps:
            raise RunStopped(f"{text} (max_skipped_steps): the run stops")
        logger.warning("%s", text)

    def losses(
        self, microbatch: Microbatch, num_tokens: Tensor, is_first: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The loss of a microbatch for each engine, as its share of the minibatch, and the statistics to add up; all scalars."""
        config, (rollout, place, tokens) = self.config, microbatch
        mask = tokens.mask
        old_logprobs = rollout.logprobs[place]
        new = self.predict(microbatch)
        log_ratio = apply_mask(new.logprobs - old_logprobs, mask)
        weights = rollout.loss_weights[place]
        ref_logprobs = rollout.ref_logprobs[place]
        inputs = ppo.LossInputs(
            logprobs=new.logprobs,
            old_logprobs=old_logprobs,
            ref_logprobs=ref_logprobs,
            advantages=rollout.advantages[place],
            weights=weights * rollout.engine_weights[place],
            mask=mask,
            num_tokens=num_tokens,
            clip=self.clip,
        )
        policy_loss, sums = self.ask_loss(inputs)
        losses = {"policy": policy_loss}
        if new.entropy is not None:
            losses["policy"] = (
                policy_loss - config.entropy_coef * apply_mask(new.entropy * weights, mask).sum() / num_tokens
            )
        if new.kl is not None:
            kl_loss = apply_mask(new.kl * weights, mask).sum() / num_tokens
            losses["policy"] = losses["policy"] + self.kl_coef * kl_loss
        with torch.no_grad():
            approx_kl = apply_mask(log_ratio.exp() - 1 - log_ratio, mask).sum() / num_tokens
        statistics = {"ppo/policy_loss": policy_loss, **sums, "ppo/approx_kl": approx_kl}
        if new.kl is not None:
            statistics["ppo/kl_loss"] = kl_loss
        if new.values is not None:
            clip_range = config.clip_param if config.value_clip_param is None else config.value_clip_param
            clip = clip_range if config.use_clipped_value_loss else None
            huber = config.huber_delta if config.use_huber_loss else None
            value_loss = ppo.value_loss(
                new.values, rollout.values[place], rollout.targets[place], mask, clip, huber, num_tokens
            )
            statistics["ppo/value_loss"] = value_loss
            learner = "critic" if "critic" in self.engines else "policy"
            weighted = config.value_loss_coef * value_loss
            losses[learner] = losses[learner] + weighted if learner in losses else weighted
        statistics["ppo/loss"] = sum(losses.values(), torch.zeros_like(policy_loss))
        if is_first:
            statistics |= difference_statistics(log_ratio.detach(), mask)
        return losses, statistics

    def ask_loss(self, inputs: ppo.LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The policy loss, and its sums for the log as `ppo/<name>`. Raises UserError for one of the user's that fails."""
        who = f"policy_loss '{self.config.policy_loss}'"
        with as_user_error(who) if is_of_users(self.policy_loss) else nullcontext():
            loss, sums = self.policy_loss(inputs)
            scalars = {f"ppo/{name}": x for name, x in sums.items()}
        if wrong := [x for x in (loss, *scalars.values()) if not isinstance(x, Tensor) or x.dim()]:
            found = f"a tensor {tuple(wrong[0].shape)}" if isinstance(wrong[0], Tensor) else type(wrong[0]).__name__
            raise UserError(
                f"{who}: returned {found}; it must return the loss, a scalar tensor, and a dict of such scalars"
            )
        return loss, {name: x.detach() for name, x in scalars.items()}

    def predict(self, microbatch: Microbatch) -> Predictions:
        """The predictions of policy and critic for the microbatch's tokens, each (B, T)."""
        rollout, place, tokens = microbatch
        packed = tokens.pack()
        reference = None
        ref_policy = self.placement.models.ref_policy
        if rollout.ref_features is not None and ref_policy is not None:
            reference = ref_policy, packed.gather(rollout.ref_features[place])
        with_entropy = self.config.entropy_coef > 0
        policy: Any = self.engines["policy"].model
        new: Predictions = policy(packed, self.config.temperature, with_entropy, reference)
        if "critic" in self.engines:
            new = new._replace(values=self.engines["critic"].model(packed))
        return new.scatter(packed)


def minibatch_sizes(num_responses: Sequence[int], num_minibatches: int) -> list[list[int]]:
    """The number of responses of each rank in each minibatch: one list per rank.

    Minibatch sizes differ by at most one response, and so do each rank's shares. For one rank: as in `Tensor.tensor_split`.

    >>> minibatch_sizes([3, 2], 4)
    [[1, 1, 1, 0], [1, 0, 0, 1]]
    """
    sizes, dealt = [], 0
    for count in num_responses:
        own = [0] * num_minibatches
        for place in range(dealt, dealt + count):
            own[place % num_minibatches] += 1
        sizes.append(own)
        dealt += count
    return sizes


def shuffle_groups(tokens: TokenBatch) -> Tensor:
    """All rows (B,), on the host, in a random order of the prompt groups; the rows of one group stay in order."""
    assert tokens.prompt_groups is not None
    number = tokens.prompt_groups.unique(return_inverse=True)[1]
    place = torch.randperm(int(number.max()) + 1 if len(number) else 0).argsort()
    return place[number].argsort(stable=True)


def blank_microbatch(rollout: Rollout) -> Microbatch:
    """One episode with one prompt token and one masked response token: it adds nothing to any loss, gradient or statistic."""
    tokens = rollout.tokens
    zeros = rollout.logprobs.new_zeros(1, 1)
    ids, yes = tokens.response_ids.new_zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    support = None if tokens.support is None else ids.unsqueeze(2)
    features = rollout.ref_features
    blank = replace(
        rollout,
        dialogues=[],
        tokens=TokenBatch(ids, yes, ids, ~yes, torch.zeros(1, dtype=torch.long), support),
        logprobs=zeros,
        values=zeros,
        ref_features=None if features is None else features.new_zeros(1, 1, *features.shape[2:]),
        engine_weights=zeros,
        ref_logprobs=zeros,
        advantages=zeros,
        loss_weights=zeros,
        targets=zeros,
    )
    return Microbatch(blank, (torch.zeros_like(ids[0]), slice(0, 1)), blank.tokens)
