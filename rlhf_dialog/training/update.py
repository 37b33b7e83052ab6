"""The optimizer steps of one rollout: epochs over minibatches of responses, each made of microbatches. B, T as in `ppo`."""

import logging
import math
from collections.abc import Sequence
from contextlib import ExitStack
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.placement import Placement
from rlhf_dialog.distributed.world import World
from rlhf_dialog.models.generation import TeacherForced, teacher_forced, teacher_forced_values
from rlhf_dialog.models.masks import masked
from rlhf_dialog.models.microbatches import Microbatch
from rlhf_dialog.training import ppo
from rlhf_dialog.training.checks import all_finite, check_ratio, difference_statistics, report_skipped
from rlhf_dialog.training.clock import Clock
from rlhf_dialog.training.diagnosis import Diagnosis
from rlhf_dialog.training.iteration_metrics import Metrics, read
from rlhf_dialog.training.minibatches import blank_microbatch, microbatches_of, minibatch_sizes, shuffled
from rlhf_dialog.training.noise import Noise
from rlhf_dialog.training.rollout import Rollout

logger = logging.getLogger(__name__)
NORMS = {"policy": "ppo/grad_norm", "critic": "ppo/critic_grad_norm"}


class PPOUpdate:
    """Makes the optimizer steps of a rollout; every rank of a run has one, and all make the same steps.

    `skipped_in_a_row` counts the optimizer steps skipped in a row, across rollouts, and is part of a checkpoint.
    """

    def __init__(self, config: Config, placement: Placement, world: World, num_minibatches: int, diagnosis: Diagnosis):
        self.config, self.placement, self.world, self.num_minibatches = config, placement, world, num_minibatches
        self.diagnosis = diagnosis
        self.engines = placement.engines
        self.skipped_in_a_row, self.overflows, self.is_warm = 0, 0, False
        self.iteration, self.clock = 0, Clock(world.device)
        self.kl_coef = 0.0  # of the loss, under `kl_in: loss`
        self.noise = Noise()

    def __call__(
        self,
        rollout: Rollout,
        iteration: int,
        lr_scale: float,
        kl_coef: float,
        clock: Clock,
        noise: Noise,
    ) -> Metrics:
        """Make ppo_epoch passes over the rollout in minibatches of responses.

        The responses to one prompt stay together, as far as the sizes of the minibatches allow. Returns the mean of each
        statistic over the minibatches whose step was made. Every rank adds rows of its own episodes, in
        its own order, to each minibatch. A token weighs the same in every minibatch: each loss is a sum over tokens, divided by
        the mean number of tokens in a minibatch of the rollout. `iteration` is the number for messages, `clock` measures the
        time, and `noise` is that of the arithmetic, for the check of the first ratios. Raises RunStopped as `optimizer_step`
        does.
        """
        self.iteration, self.clock, self.noise, self.overflows = iteration, clock, noise, 0
        self.kl_coef = kl_coef if self.config.kl_in == "loss" else 0.0
        self._set_learning_rates(lr_scale, is_warming=iteration <= self.config.critic_warmup)
        self.warm_up_ddp(rollout)
        counts = self.world.gather(len(rollout))
        num_minibatches = min(self.num_minibatches, sum(counts))
        sizes = minibatch_sizes(counts, num_minibatches)[self.world.rank]
        num_tokens = self.world.sum(rollout.response_mask.sum()).double() / num_minibatches
        steps: list[Metrics] = []
        good: list[Metrics] = []
        for _ in range(self.config.ppo_epoch):
            for rows in shuffled(rollout.prompt_numbers).split(sizes):
                step = self.optimizer_step(rollout, rows, is_first=not good, num_tokens=num_tokens)
                steps.append(step)
                if all_finite(step):
                    good.append(step)
        means = {name: sum(step[name] for step in good) / len(good) if good else math.nan for name in steps[0]}
        overflows = {"ppo/overflow_steps": self.overflows} if self.config.uses_fp16 else {}
        return means | {"ppo/skipped_steps": len(steps) - len(good), **overflows}

    def _set_learning_rates(self, scale: float, is_warming: bool) -> None:
        for name, lr in (("policy", 0.0 if is_warming else self.config.lr), ("critic", self.config.critic_lr)):
            if name in self.engines:
                self.engines[name].set_lr(lr * scale)

    def warm_up_ddp(self, rollout: Rollout) -> None:
        """Run, once per process with several ranks, a first microbatch that changes nothing (see `Engine`)."""
        if self.world.size > 1 and not self.is_warm:
            no_tokens = rollout.response_mask.new_ones((), dtype=torch.long)
            self.forward_backward(*blank_microbatch(rollout), no_tokens, is_first=False, is_last=True)
            self._drop_gradients()
        self.is_warm = True

    def _drop_gradients(self) -> None:
        for engine in self.engines.values():
            engine.zero_grad()

    def optimizer_step(
        self, rollout: Rollout, rows: Tensor, is_first: bool, num_tokens: Tensor | None = None
    ) -> Metrics:
        """Make the step of one minibatch; the gradient does not depend on the sizes of the microbatches or on their ranks.

        `rows` (N,) is on the host. `num_tokens`, a scalar, divides the sums over tokens; by default the number of tokens in the
        minibatch. The host waits for the device once, for the statistics of all microbatches and the norms together.

        The step is skipped when one of the returned statistics is not finite. A skipped step counts for `max_skipped_steps`,
        unless only the scale of fp16's losses was too large, as it is at the start. Raises RunStopped when `max_skipped_steps`
        were skipped in a row, and, on the first minibatch of a rollout, when the ratio is not 1.
        """
        if num_tokens is None:
            num_tokens = self.world.sum(rollout.response_mask[rows.to(rollout.response_mask.device)].sum())
        parts, statistics = self._add_gradients(rollout, rows, num_tokens, is_first)
        with self.clock.measured("optimizer"):
            *of_microbatches, norms = read(*statistics, self._gradient_norms())
            if is_first:
                self._check_ratios(of_microbatches, rollout, parts)
            totals = self._totals(of_microbatches)
            losses_are_finite = all_finite(totals)
            totals |= norms
            is_made = all_finite(totals)
            self._move(is_made, norms)
        lowered = [engine.lowered for engine in self.engines.values() if engine.lowered and losses_are_finite]
        self.overflows += bool(lowered)
        if is_made:
            self.skipped_in_a_row = 0
        if lowered:
            logger.info("iteration %d: an optimizer step is skipped: %s", self.iteration, "; ".join(lowered))
        elif not is_made:
            bad = [part for part, numbers in zip(parts, of_microbatches, strict=True) if not all_finite(numbers)]
            suspects = [row for episodes, part in bad if episodes is rollout for row in part.host_rows.tolist()]
            self._report_skipped(rollout, totals, rows.tolist(), suspects)
        return totals

    def _add_gradients(
        self, rollout: Rollout, rows: Tensor, num_tokens: Tensor, is_first: bool
    ) -> tuple[list[tuple[Rollout, Microbatch]], list[dict[str, Tensor]]]:
        """Forward and backward of all microbatches; returns them and the statistics of each, which stay on the device."""
        size = self.config.per_device_microbatch_size
        parts = microbatches_of(rollout, rows, size, self.world)
        statistics = [
            self.forward_backward(episodes, part, num_tokens, is_first, is_last=number == len(parts))
            for number, (episodes, part) in enumerate(parts, 1)
        ]
        return parts, statistics

    def _check_ratios(
        self, found: Sequence[Metrics], rollout: Rollout, parts: Sequence[tuple[Rollout, Microbatch]]
    ) -> None:
        """Take the numbers of `difference_statistics` out of those of each microbatch, and check them."""
        sizes = [(numbers.pop("largest"), numbers.pop("mean"), numbers.pop("tokens")) for numbers in found]

        def suspects() -> tuple[Rollout, Tensor]:
            pairs = zip(sizes, parts, strict=True)
            rows = [(size, part.host_rows) for size, (episodes, part) in pairs if episodes is rollout]
            return rollout, max(rows, key=itemgetter(0))[1] if rows else torch.empty(0, dtype=torch.long)

        policy = self.placement.models.policy
        with self.diagnosis.explaining(policy, self.noise, suspects), self.world.fail_together():
            for largest, mean, tokens in sizes:
                check_ratio(largest, mean, self.iteration, self.noise, tokens)

    def _totals(self, found: Sequence[Metrics]) -> Metrics:
        """The sum of each statistic over the microbatches of all ranks."""
        own = dict.fromkeys(found[0], 0.0)
        for numbers in found:
            own = {name: total + numbers[name] for name, total in own.items()}
        return dict(zip(own, self.world.sum_numbers(list(own.values())), strict=True))

    def _move(self, is_made: bool, norms: Metrics) -> None:
        """Make the step of each engine with its clipped gradient, or discard the gradients."""
        limit = self.config.max_grad_norm if self.config.use_max_grad_norm else math.inf
        for name, engine in self.engines.items():
            if is_made:
                engine.clip(limit, norms[NORMS[name]])
                engine.step()
            else:
                engine.lower_scale()
        self._drop_gradients()

    def forward_backward(
        self, rollout: Rollout, microbatch: Microbatch, num_tokens: Tensor, is_first: bool, is_last: bool
    ) -> dict[str, Tensor]:
        """Add the gradient of one microbatch; returns the statistics to add up."""
        with ExitStack() as stack:
            for engine in self.engines.values():
                stack.enter_context(engine.microbatch(is_last))
            with self.clock.measured("forward"):
                losses, statistics = self.losses(rollout, microbatch, num_tokens, is_first)
            with self.clock.measured("backward"):
                for name, loss in losses.items():
                    self.engines[name].backward(loss)
        return statistics

    def _report_skipped(self, rollout: Rollout, totals: Metrics, rows: list[int], suspects: list[int]) -> None:
        """Report a skipped step with the prompts of those microbatches, on any rank, that have the bad number."""
        of_ranks = self.world.gather(([rollout.dialogues[i] for i in suspects], [rollout.dialogues[i] for i in rows]))
        guilty = [dialogue for own, _ in of_ranks for dialogue in own]
        whole_minibatch = [dialogue for _, own in of_ranks for dialogue in own]
        self.skipped_in_a_row += 1
        report_skipped(
            totals,
            guilty or whole_minibatch,
            bool(guilty),
            self.iteration,
            self.skipped_in_a_row,
            self.config.max_skipped_steps,
        )

    def losses(
        self, rollout: Rollout, microbatch: Microbatch, num_tokens: Tensor, is_first: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The loss of a microbatch for each engine, as its share of the minibatch, and the statistics to add up; all scalars."""
        config, at = self.config, (microbatch.rows, microbatch.response)
        mask, old_logprobs = rollout.response_mask[at], rollout.logprobs[at]
        new, values = self._teacher_forced(rollout, microbatch)
        log_ratio = masked(new.logprobs - old_logprobs, mask)
        dual_clip = config.dual_clip_coeff if config.dual_clip_ppo else None
        policy_loss, clip_fraction = ppo.policy_loss(
            new.logprobs, old_logprobs, rollout.advantages[at], mask, config.clip_param, dual_clip, num_tokens
        )
        losses = {"policy": policy_loss}
        if new.entropy is not None:
            losses["policy"] = policy_loss - config.entropy_coef * masked(new.entropy, mask).sum() / num_tokens
        if new.kl is not None:
            kl_loss = masked(new.kl, mask).sum() / num_tokens
            losses["policy"] = losses["policy"] + self.kl_coef * kl_loss
        with torch.no_grad():
            approx_kl = masked(log_ratio.exp() - 1 - log_ratio, mask).sum() / num_tokens
        statistics = {"ppo/policy_loss": policy_loss, "ppo/clip_fraction": clip_fraction, "ppo/approx_kl": approx_kl}
        if new.kl is not None:
            statistics["ppo/kl_loss"] = kl_loss
        if values is not None:
            clip_range = config.clip_param if config.value_clip_param is None else config.value_clip_param
            clip = clip_range if config.use_clipped_value_loss else None
            huber = config.huber_delta if config.use_huber_loss else None
            value_loss = ppo.value_loss(values, rollout.values[at], rollout.targets[at], mask, clip, huber, num_tokens)
            statistics["ppo/value_loss"] = value_loss
            learner = "critic" if "critic" in self.engines else "policy"
            weighted = config.value_loss_coef * value_loss
            losses[learner] = losses[learner] + weighted if learner in losses else weighted
        statistics["ppo/loss"] = sum(losses.values(), torch.zeros_like(policy_loss))
        if is_first:
            statistics |= difference_statistics(log_ratio.detach(), mask)
        return losses, statistics

    def _teacher_forced(self, rollout: Rollout, microbatch: Microbatch) -> tuple[TeacherForced, Tensor | None]:
        prompt_mask, response_mask = rollout.masks_on_host
        prompt_ids = rollout.prompt_ids[microbatch.rows, microbatch.prompt]
        prompt_mask = prompt_mask[microbatch.host_rows, microbatch.prompt]
        response_ids = rollout.response_ids[microbatch.rows, microbatch.response]
        response_mask = response_mask[microbatch.host_rows, microbatch.response]
        numbers = rollout.prompt_numbers[microbatch.host_rows]
        support = None if rollout.support is None else rollout.support[microbatch.rows, microbatch.response]
        models: dict[str, Any] = {name: engine.model for name, engine in self.engines.items()}
        toward = None
        if rollout.ref_features is not None:
            toward = (self.placement.models.ref_policy, rollout.ref_features[microbatch.rows, microbatch.response])
        with_entropy = self.config.entropy_coef > 0
        new = teacher_forced(
            models["policy"],
            prompt_ids,
            prompt_mask,
            response_ids,
            response_mask,
            self.config.temperature,
            support,
            with_entropy,
            toward,
            numbers,
        )
        if "critic" not in models:
            return new, new.values
        critic = models["critic"]
        return new, teacher_forced_values(critic, prompt_ids, prompt_mask, response_ids, response_mask, numbers)

    def _gradient_norms(self) -> dict[str, Tensor]:
        """The norms of the gradients, before they are clipped, of the policy and of a separate critic; scalars."""
        return {NORMS[name]: engine.grad_norm() for name, engine in self.engines.items()}
