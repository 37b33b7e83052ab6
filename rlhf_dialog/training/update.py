"""The optimizer steps of one rollout: epochs over minibatches of responses, each made of microbatches. B, T as in `ppo`."""

import logging
import math
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.placement import Placement
from rlhf_dialog.distributed.world import World
from rlhf_dialog.models.generation import Microbatch, TeacherForced, teacher_forced, teacher_forced_values
from rlhf_dialog.models.masks import masked
from rlhf_dialog.training import ppo
from rlhf_dialog.training.checks import all_finite, check_ratio, difference_statistics, report_skipped
from rlhf_dialog.training.clock import Clock
from rlhf_dialog.training.iteration_metrics import Metrics
from rlhf_dialog.training.minibatches import blank_microbatch, microbatches_of, minibatch_sizes
from rlhf_dialog.training.noise import Noise
from rlhf_dialog.training.rollout import Rollout

logger = logging.getLogger(__name__)


class PPOUpdate:
    """Makes the optimizer steps of a rollout; every rank of a run has one, and all make the same steps.

    `skipped_in_a_row` counts the optimizer steps skipped in a row, across rollouts, and is part of a checkpoint.
    """

    def __init__(self, config: Config, placement: Placement, world: World, num_minibatches: int):
        self.config, self.placement, self.world, self.num_minibatches = config, placement, world, num_minibatches
        self.engines = placement.engines
        self.skipped_in_a_row, self.overflows, self.is_warm = 0, 0, False
        self.iteration, self.clock = 0, Clock(world.device)
        self.kl_coef = 0.0  # of the loss, under `kl_in: loss`
        self.noise: Noise | None = None  # of 16-bit arithmetic, once it is measured

    def __call__(self, rollout: Rollout, iteration: int, lr_scale: float, kl_coef: float, clock: Clock) -> Metrics:
        """Make ppo_epoch passes over the rollout in minibatches of responses.

        Returns the mean of each statistic over the minibatches whose step was made. Every rank adds rows of its own episodes, in
        its own order, to each minibatch. A token weighs the same in every minibatch: each loss is a sum over tokens, divided by
        the mean number of tokens in a minibatch of the rollout. `iteration` is the number for messages, `clock` measures the
        time. Raises RunStopped as `optimizer_step` does.
        """
        self.iteration, self.clock, self.overflows = iteration, clock, 0
        self.kl_coef = kl_coef if self.config.kl_in == "loss" else 0.0
        self._set_learning_rates(lr_scale)
        self.warm_up_ddp(rollout)
        counts = self.world.gather(len(rollout))
        num_minibatches = min(self.num_minibatches, sum(counts))
        sizes = minibatch_sizes(counts, num_minibatches)[self.world.rank]
        num_tokens = self.world.sum(rollout.response_mask.sum()).double() / num_minibatches
        steps: list[Metrics] = []
        good: list[Metrics] = []
        for _ in range(self.config.ppo_epoch):
            order = torch.randperm(len(rollout)).to(rollout.response_ids.device)
            for rows in order.split(sizes):
                step = self.optimizer_step(rollout, rows, is_first=not good, num_tokens=num_tokens)
                steps.append(step)
                if all_finite(step):
                    good.append(step)
        means = {name: sum(step[name] for step in good) / len(good) if good else math.nan for name in steps[0]}
        overflows = {"ppo/overflow_steps": self.overflows} if self.config.uses_fp16 else {}
        return means | {"ppo/skipped_steps": len(steps) - len(good), **overflows}

    def _set_learning_rates(self, scale: float) -> None:
        for name, lr in (("policy", self.config.lr), ("critic", self.config.critic_lr)):
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

        `num_tokens`, a scalar, divides the sums over tokens; by default the number of tokens in the minibatch.

        The step is skipped when one of the returned statistics is not finite. A skipped step counts for `max_skipped_steps`,
        unless only the scale of fp16's losses was too large, as it is at the start. Raises RunStopped when `max_skipped_steps`
        were skipped in a row, and, on the first minibatch of a rollout, when the ratio is not 1.
        """
        if num_tokens is None:
            num_tokens = self.world.sum(rollout.response_mask[rows].sum())
        totals, suspects = self._add_gradients(rollout, rows, num_tokens, is_first)
        losses_are_finite = all_finite(totals)
        with self.clock.measured("optimizer"):
            totals |= {f"ppo/{name}": norm for name, norm in self._clip_gradients().items()}
            is_made = all_finite(totals)
            for engine in self.engines.values():
                if is_made:
                    engine.step()
                else:
                    engine.lower_scale()
            self._drop_gradients()
        lowered = [engine.lowered for engine in self.engines.values() if engine.lowered and losses_are_finite]
        self.overflows += bool(lowered)
        if is_made:
            self.skipped_in_a_row = 0
        if lowered:
            logger.info("iteration %d: an optimizer step is skipped: %s", self.iteration, "; ".join(lowered))
        elif not is_made:
            self._report_skipped(rollout, totals, rows.tolist(), suspects)
        return totals

    def _add_gradients(
        self, rollout: Rollout, rows: Tensor, num_tokens: Tensor, is_first: bool
    ) -> tuple[Metrics, list[int]]:
        """Forward and backward of all microbatches; returns statistics over all ranks, and this rank's rows with a bad number."""
        totals: Metrics = {}
        suspects: list[int] = []
        microbatches = microbatches_of(
            rollout, rows, self.config.per_device_microbatch_size, max(self.world.gather(len(rows)))
        )
        for number, (episodes, microbatch) in enumerate(microbatches, 1):
            statistics = self.forward_backward(
                episodes, microbatch, num_tokens, is_first, is_last=number == len(microbatches)
            )
            found = {name: value.item() for name, value in statistics.items()}
            if episodes is rollout and not all_finite(found):
                suspects += microbatch.rows.tolist()
            for name, value in found.items():
                totals[name] = totals.get(name, 0.0) + value
        return dict(zip(totals, self.world.sum_of(list(totals.values())), strict=True)), suspects

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
        limits = (self.iteration, self.skipped_in_a_row, self.config.max_skipped_steps)
        report_skipped(totals, guilty or whole_minibatch, bool(guilty), *limits)

    def losses(
        self, rollout: Rollout, microbatch: Microbatch, num_tokens: Tensor, is_first: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The loss of a microbatch for each engine, as its share of the minibatch, and the statistics to add up; all scalars."""
        config, at = self.config, (microbatch.rows, microbatch.response)
        mask, old_logprobs = rollout.response_mask[at], rollout.logprobs[at]
        new, values = self._teacher_forced(rollout, microbatch)
        log_ratio = masked(new.logprobs - old_logprobs, mask)
        if is_first:
            found = {name: x.item() for name, x in difference_statistics(log_ratio.detach(), mask).items()}
            with self.world.fail_together():
                check_ratio(**found, iteration=self.iteration, noise=self.noise, temperature=config.temperature)
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
            clip = config.clip_param if config.use_clipped_value_loss else None
            huber = config.huber_delta if config.use_huber_loss else None
            value_loss = ppo.value_loss(values, rollout.values[at], rollout.targets[at], mask, clip, huber, num_tokens)
            statistics["ppo/value_loss"] = value_loss
            learner = "critic" if "critic" in self.engines else "policy"
            weighted = config.value_loss_coef * value_loss
            losses[learner] = losses[learner] + weighted if learner in losses else weighted
        statistics["ppo/loss"] = sum(losses.values(), torch.zeros_like(policy_loss))
        return losses, statistics

    def _teacher_forced(self, rollout: Rollout, microbatch: Microbatch) -> tuple[TeacherForced, Tensor | None]:
        inputs = (
            rollout.prompt_ids[microbatch.rows, microbatch.prompt],
            rollout.prompt_mask[microbatch.rows, microbatch.prompt],
            rollout.response_ids[microbatch.rows, microbatch.response],
            rollout.response_mask[microbatch.rows, microbatch.response],
        )
        support = None if rollout.support is None else rollout.support[microbatch.rows, microbatch.response]
        models: dict[str, Any] = {name: engine.model for name, engine in self.engines.items()}
        toward = None
        if rollout.ref_features is not None:
            toward = (self.placement.models.ref_policy, rollout.ref_features[microbatch.rows, microbatch.response])
        with_entropy = self.config.entropy_coef > 0
        new = teacher_forced(models["policy"], *inputs, self.config.temperature, support, with_entropy, toward)
        values = teacher_forced_values(models["critic"], *inputs) if "critic" in models else new.values
        return new, values

    def _clip_gradients(self) -> Metrics:
        """Gradient norms before clipping, of the policy and of a separate critic."""
        limit = self.config.max_grad_norm if self.config.use_max_grad_norm else math.inf
        names = {"policy": "grad_norm", "critic": "critic_grad_norm"}
        return {names[name]: engine.clip(limit) for name, engine in self.engines.items()}
