"""PPO on dialogue prompts: `step` is the algorithm, `train` asks when to log, save and stop."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog import ppo
from rlhf_dialog.batch_plan import batch_plan
from rlhf_dialog.chat_template import prompt_encoder
from rlhf_dialog.checks import STANDS, all_finite, check_numbers, check_ratio, check_start, tell_skipped
from rlhf_dialog.clock import Clock
from rlhf_dialog.dialogue import Dialogue
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.generation import Evaluation, Microbatch, Sampling, StopRule, evaluate, evaluate_values
from rlhf_dialog.metrics.base import VecInfo
from rlhf_dialog.minibatches import blank_part, minibatch_sizes, parts_of
from rlhf_dialog.models import Models
from rlhf_dialog.partitions import whole_optimizers
from rlhf_dialog.prompts import PromptSampler
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import ScoringRules, begin_scoring, load_state, state_of
from rlhf_dialog.rollout import Rollout, collect, without_unscored
from rlhf_dialog.schema import Config
from rlhf_dialog.sharing import Sharing
from rlhf_dialog.summary import Metrics, filter_metrics, reward_metrics, rollout_metrics, vec_info_metrics
from rlhf_dialog.world import World

logger = logging.getLogger(__name__)
NO_CRITIC = {"ppo/value_loss": math.nan, "ppo/explained_variance": math.nan}  # null in metrics.jsonl


class PPOTrainer:
    """Trains `models.policy` (and its critic) on the prompts with the reward.

    `step()` runs one iteration and returns its metrics; `rollout` is the newest rollout. All state that a checkpoint needs is
    in `state_dict()`, the modules and the optimizers. In a world of several ranks every rank has a trainer and a part of each
    rollout; all of them take the same steps, and every number that is no time is that of all episodes.
    """

    def __init__(
        self,
        config: Config,
        models: Models,
        prompts: list[Dialogue],
        reward: BaseReward,
        vec_info: VecInfo,
        world: World | None = None,
    ):
        self.config, self.models, self.prompts, self.reward, self.vec_info = config, models, prompts, reward, vec_info
        self.world = world or World()
        self.plan = batch_plan(config, self.world.size)
        self.encoder = prompt_encoder(models.tokenizer, config.turn_separator, config.max_prompt_length)
        self.sampling = Sampling(config.max_new_tokens, config.temperature, config.top_k, config.top_p)
        self.stop = StopRule(models.policy, models.tokenizer, config.turn_separator)
        self.sampler = PromptSampler(len(prompts), config.seed)
        self.kl = ppo.AdaptiveKLController(config.kl_coef, config.kl_target, config.kl_rate, config.kl_clip)
        self.value_norm = ppo.ValueNormalizer() if config.use_valuenorm else None
        self.sharing = Sharing(config, models, reward, self.world, self.plan)
        self.engines = self.sharing.engines
        self.iteration, self.time_steps, self.episodes = 0, 0, 0
        self.skipped_in_a_row, self.overflows, self.settled = 0, 0, False
        self.first_support_mass: float | None = None
        self.rollout: Rollout | None = None
        self.clock = Clock(models.policy.lm.device)
        self.starts_from_reference = config.ref_model in (None, config.model_path)  # false with weights of a checkpoint

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return whole_optimizers(self.engines)

    def step(self) -> Metrics:
        """One iteration: collect a rollout, turn scores into advantages, update, adapt the KL coefficient.

        Raises RunStopped when a check that every run makes fails or `max_skipped_steps` optimizer steps in a row had no finite
        numbers, RewardError when the reward fails.
        """
        start = time.perf_counter()
        self.clock = Clock(self.models.policy.lm.device)
        rollout = self.rollout = self._collect(self._next_prompts())
        kl = ppo.masked_mean(rollout.logprobs - rollout.ref_logprobs, rollout.response_mask, self.world.sum).item()
        if self.iteration == 0 and self.starts_from_reference:
            check_start(kl, self.sharing.coarse)
        kl_coef = self.kl.kl_coef
        rollout.rewards = ppo.token_rewards(
            rollout.scores, rollout.logprobs, rollout.ref_logprobs, rollout.response_mask, kl_coef
        )
        explained = self._set_advantages(rollout)
        losses = NO_CRITIC | self._update(rollout) | explained
        self.kl.update(kl)
        generated, episodes = map(int, self.world.sum_of([rollout.num_generated, len(rollout) + rollout.num_dropped]))
        self.iteration += 1
        self.time_steps += generated
        self.episodes += episodes
        metrics = self._metrics(rollout, losses, kl, kl_coef)
        metrics["time/update"] = time.perf_counter() - start - rollout.seconds["rollout"] - rollout.seconds["reward"]
        metrics["FPS"] = generated / (time.perf_counter() - start)
        return metrics

    def train(self) -> Iterator[Metrics]:
        """Yield the metrics of each iteration until `total_time_steps` or `max_iterations` is reached."""
        while not self.done:
            yield self.step()

    @property
    def done(self) -> bool:
        if self.config.max_iterations is not None:
            return self.iteration >= self.config.max_iterations
        return self.time_steps >= self.config.total_time_steps

    @property
    def progress(self) -> float:
        """The share of the run that is done, 0 to 1."""
        if self.config.max_iterations is not None:
            return self.iteration / self.config.max_iterations
        return min(self.time_steps / self.config.total_time_steps, 1.0)

    def _next_prompts(self) -> list[Dialogue]:
        """This rank's prompts of one iteration; the responses to one prompt stand side by side."""
        indices = self.world.share(self.sampler.take(self.plan.num_prompts))
        return [self.prompts[i] for i in indices for _ in range(self.config.responses_per_prompt)]

    def _collect(self, prompts: list[Dialogue]) -> Rollout:
        """A rollout with finite numbers; under `on_reward_error: skip` without the episodes that have no score.

        Where a rank fails, all ranks raise; how long this one waited for the others is `time/wait`.
        """
        in_groups = self.config.advantage_estimator in ("grpo", "rloo")
        with self.world.in_step():
            begin_scoring(self.reward, "rollout", self.iteration + 1)
        with self.world.in_step(), self.sharing.rollout():
            rollout = self._collect_own(prompts)
            rollout = without_unscored(rollout, self.config.responses_per_prompt if in_groups else 1)
            collected = time.perf_counter()
        if self.world.size > 1:
            rollout.seconds["wait"] = time.perf_counter() - collected
        left, dropped = self.world.sum_of([len(rollout), rollout.num_dropped])
        if not left:
            raise RunStopped(
                f"iteration {self.iteration + 1}: all {dropped:.0f} episodes are dropped, since the reward "
                f"'{self.reward.name}' gave them{' or their groups' if in_groups else ''} no score; {STANDS}"
            )
        return rollout

    def _collect_own(self, prompts: list[Dialogue]) -> Rollout:
        config = self.config
        rollout = collect(
            self.models,
            prompts,
            self.encoder,
            self.sampling,
            self.stop,
            self.reward,
            config.truncation_penalty,
            config.per_device_microbatch_size,
            config.per_device_rollout_size,
            ScoringRules(config.on_reward_error == "skip", config.reward_timeout_s),
        )
        check_numbers(rollout, self.iteration + 1)
        return rollout

    def _set_advantages(self, rollout: Rollout) -> Metrics:
        """Advantages and returns of the rollout, and how much of the returns' variance the critic explains (1: all)."""
        config, mask, total, metrics = self.config, rollout.response_mask, self.world.sum, {}
        if config.advantage_estimator == "gae":
            values = rollout.values if self.value_norm is None else self.value_norm.denormalize(rollout.values)
            gae_lambda = config.gae_lambda if config.use_gae else 1.0
            rollout.advantages, rollout.returns = ppo.gae(rollout.rewards, values, mask, config.gamma, gae_lambda)
            explained = ppo.explained_variance(values, rollout.returns, mask, total)
            metrics["ppo/explained_variance"] = explained.item()
        else:
            rollout.returns = ppo.discounted_returns(rollout.rewards, mask, config.gamma)
            rollout.advantages = rollout.returns
        if config.advantage_estimator in ("grpo", "rloo"):
            n = config.responses_per_prompt
            rollout.advantages = ppo.group_advantages(rollout.rewards, mask, n, config.advantage_estimator)
        if config.use_adv_normalize:
            rollout.advantages = ppo.whiten(rollout.advantages, mask, total)
        return metrics

    def _update(self, rollout: Rollout) -> Metrics:
        """ppo_epoch passes over the rollout in minibatches of responses; the mean of each statistic over the good minibatches.

        A minibatch is the rows that every rank takes of its own part, in an order of its own.
        """
        rollout.targets = rollout.returns
        if self.value_norm is not None and self.config.advantage_estimator == "gae":
            self.value_norm.update(rollout.returns, rollout.response_mask, self.world.sum)
            rollout.targets = self.value_norm.normalize(rollout.returns)
        self._set_learning_rates()
        self._settle(rollout)
        counts = self.world.gather(len(rollout))
        sizes = minibatch_sizes(counts, min(self.plan.num_minibatches, sum(counts)))[self.world.rank]
        steps: list[Metrics] = []
        good: list[Metrics] = []
        self.overflows = 0
        for _ in range(self.config.ppo_epoch):
            order = torch.randperm(len(rollout)).to(rollout.response_ids.device)
            for rows in order.split(sizes):
                steps.append(self._minibatch(rollout, rows, first=not good))
                good += steps[-1:] if all_finite(steps[-1]) else []
        means = {name: sum(step[name] for step in good) / len(good) if good else math.nan for name in steps[0]}
        overflows = {"ppo/overflow_steps": self.overflows} if self.config.uses_fp16 else {}
        return means | {"ppo/skipped_steps": len(steps) - len(good), **overflows}

    def _settle(self, rollout: Rollout) -> None:
        """Once in the life of the process: the first microbatch of several ranks, which changes nothing (see `Engine`)."""
        if self.world.size > 1 and not self.settled:
            self._descend(
                *blank_part(rollout), rollout.response_mask.new_ones((), dtype=torch.long), first=False, last=True
            )
            self._drop_gradients()
        self.settled = True

    def _drop_gradients(self) -> None:
        for engine in self.engines.values():
            engine.zero_grad()

    def _set_learning_rates(self) -> None:
        scale = 1.0 - self.progress if self.config.use_linear_lr_decay else 1.0
        for name, lr in (("policy", self.config.lr), ("critic", self.config.critic_lr)):
            if name in self.engines:
                self.engines[name].set_lr(lr * scale)

    def _minibatch(self, rollout: Rollout, rows: Tensor, first: bool) -> Metrics:
        """One optimizer step; its microbatches add up to the same gradient whatever their size, and whichever ranks they lie on.

        Without a step when one of the returned statistics is not finite; it counts for `max_skipped_steps` unless only the scale
        of fp16's losses was too large, as it is at the start.
        """
        num_tokens = self.world.sum(rollout.response_mask[rows].sum())
        totals: Metrics = {}
        suspects: list[int] = []
        parts = parts_of(rollout, rows, self.config.per_device_microbatch_size, max(self.world.gather(len(rows))))
        for number, (episodes, part) in enumerate(parts, 1):
            statistics = self._descend(episodes, part, num_tokens, first, last=number == len(parts))
            found = {name: value.item() for name, value in statistics.items()}
            suspects += part.rows.tolist() if episodes is rollout and not all_finite(found) else []
            for name, value in found.items():
                totals[name] = totals.get(name, 0.0) + value
        totals = dict(zip(totals, self.world.sum_of(list(totals.values())), strict=True))
        with self.clock.measured("optimizer"):
            losses_are_finite = all_finite(totals)
            totals |= {f"ppo/{name}": norm for name, norm in self._clip_gradients().items()}
            if all_finite(totals):
                self.skipped_in_a_row = 0
            for engine in self.engines.values():
                engine.step() if all_finite(totals) else engine.lower_scale()
            self._drop_gradients()
        lowered = [engine.lowered for engine in self.engines.values() if engine.lowered and losses_are_finite]
        self.overflows += bool(lowered)
        if lowered:
            logger.info("iteration %d: a step is skipped: %s", self.iteration + 1, "; ".join(lowered))
        elif not all_finite(totals):
            self._skip(rollout, totals, rows.tolist(), suspects)
        return totals

    def _descend(
        self, rollout: Rollout, part: Microbatch, num_tokens: Tensor, first: bool, last: bool
    ) -> dict[str, Tensor]:
        """Forward and backward of one microbatch; returns the statistics to add up."""
        with ExitStack() as stack:
            for engine in self.engines.values():
                stack.enter_context(engine.microbatch(last))
            with self.clock.measured("forward"):
                losses, statistics = self._losses(rollout, part, num_tokens, first)
            with self.clock.measured("backward"):
                for name, loss in losses.items():
                    self.engines[name].backward(loss)
        return statistics

    def _skip(self, rollout: Rollout, totals: Metrics, rows: list[int], suspects: list[int]) -> None:
        """Tell of a step that was not made, with the prompts of the microbatches on any rank that show the bad number."""
        told = self.world.gather(tuple([rollout.dialogues[i] for i in some] for some in (suspects, rows)))
        guilty, all_of_it = ([d for one in told for d in one[i]] for i in (0, 1))
        self.skipped_in_a_row += 1
        limits = (self.iteration + 1, self.skipped_in_a_row, self.config.max_skipped_steps)
        tell_skipped(totals, guilty or all_of_it, bool(guilty), *limits)

    def _losses(
        self, rollout: Rollout, part: Microbatch, num_tokens: Tensor, first: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """For each engine the loss of a microbatch as its share of the minibatch, and the statistics to add up."""
        config, at = self.config, (part.rows, part.response)
        mask, old_logprobs = rollout.response_mask[at], rollout.logprobs[at]
        new, values = self._evaluate(rollout, part)
        log_ratio = ppo.masked(new.logprobs - old_logprobs, mask)
        if first:
            with self.world.in_step():
                check_ratio(log_ratio.detach(), mask, self.iteration + 1, self.sharing.coarse)
        dual_clip = config.dual_clip_coeff if config.dual_clip_ppo else None
        policy_loss, clip_fraction = ppo.policy_loss(
            new.logprobs, old_logprobs, rollout.advantages[at], mask, config.clip_param, dual_clip, num_tokens
        )
        losses = {"policy": policy_loss}
        if new.entropy is not None:
            losses["policy"] = policy_loss - config.entropy_coef * ppo.masked(new.entropy, mask).sum() / num_tokens
        with torch.no_grad():
            approx_kl = ppo.masked(log_ratio.exp() - 1 - log_ratio, mask).sum() / num_tokens
        statistics = {"ppo/policy_loss": policy_loss, "ppo/clip_fraction": clip_fraction, "ppo/approx_kl": approx_kl}
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

    def _evaluate(self, rollout: Rollout, part: Microbatch) -> tuple[Evaluation, Tensor | None]:
        inputs = (
            rollout.prompt_ids[part.rows, part.prompt],
            rollout.prompt_mask[part.rows, part.prompt],
            rollout.response_ids[part.rows, part.response],
            rollout.response_mask[part.rows, part.response],
        )
        support = None if rollout.support is None else rollout.support[part.rows, part.response]
        models: dict[str, Any] = {name: engine.model for name, engine in self.engines.items()}
        new = evaluate(models["policy"], *inputs, self.config.temperature, support, self.config.entropy_coef > 0)
        values = evaluate_values(models["critic"], *inputs) if "critic" in models else new.values
        return new, values

    def _clip_gradients(self) -> Metrics:
        """Gradient norms before clipping, of the policy and of a separate critic."""
        limit = self.config.max_grad_norm if self.config.use_max_grad_norm else math.inf
        names = {"policy": "grad_norm", "critic": "critic_grad_norm"}
        return {names[name]: engine.clip(limit) for name, engine in self.engines.items()}

    def _metrics(self, rollout: Rollout, losses: Metrics, kl: float, kl_coef: float) -> Metrics:
        metrics: Metrics = {
            "iteration": self.iteration,
            "time_steps": self.time_steps,
            "episodes": self.episodes,
            "objective/kl": kl,
            "objective/kl_coef": kl_coef,
            **losses,
            **rollout_metrics(rollout, self.world),
            **{f"time/{name}": seconds for name, seconds in self.clock.seconds.items()},
        }
        if self.iteration == 1:
            metrics["objective/kl_initial"] = kl
        metrics |= filter_metrics(rollout, self.world)
        self._watch_support(metrics.get("objective/ref_support_mass"))
        metrics |= reward_metrics(self.reward, rollout, self.world)
        return metrics | vec_info_metrics(self.vec_info, rollout, self.world)

    def _watch_support(self, mass: float | None) -> None:
        """Warn when the probability that the reference gives to the tokens of the filter falls by half."""
        if mass is None:
            return
        if self.first_support_mass is None:
            self.first_support_mass = mass
        if mass < 0.5 * self.first_support_mass:
            logger.warning(
                "iteration %d: the reference gives only %.2f of its probability to the tokens that the policy keeps (%.2f at the "
                "start); objective/kl cannot see this, objective/kl_full can",
                self.iteration,
                mass,
                self.first_support_mass,
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything but modules, optimizers and random states; JSON."""
        return {
            "iteration": self.iteration,
            "time_steps": self.time_steps,
            "episodes": self.episodes,
            "skipped_in_a_row": self.skipped_in_a_row,
            "first_support_mass": self.first_support_mass,
            "sampler": self.sampler.state_dict(),
            "kl_controller": self.kl.state_dict(),
            "value_normalizer": self.value_norm.state_dict() if self.value_norm else None,
            "reward": state_of(self.reward),
            "scalers": {name: engine.scaler.state_dict() for name, engine in self.engines.items() if engine.scaler},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a stored state. Raises UserError when only one of the two runs normalises its values."""
        if (state["value_normalizer"] is None) != (self.value_norm is None):
            raise UserError("use_valuenorm: the checkpoint was made with the other setting; resume with the same")
        self.iteration, self.time_steps, self.episodes = state["iteration"], state["time_steps"], state["episodes"]
        self.first_support_mass, self.skipped_in_a_row = state["first_support_mass"], state.get("skipped_in_a_row", 0)
        self.sampler.load_state_dict(state["sampler"])
        self.kl.load_state_dict(state["kl_controller"])
        if self.value_norm:
            self.value_norm.load_state_dict(state["value_normalizer"])
        for name, engine in self.engines.items():
            if engine.scaler and name in state.get("scalers", {}):
                engine.scaler.load_state_dict(state["scalers"][name])
        if "reward" in state:
            load_state(self.reward, state["reward"])
