"""PPO on dialogue prompts: `step` is the algorithm, `train` asks when to log, save and stop."""

import logging
import math
import time
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_dialog import ppo
from rlhf_dialog.chat_template import prompt_encoder
from rlhf_dialog.clock import Clock
from rlhf_dialog.dialogue import Dialogue
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.generation import Evaluation, Microbatch, Sampling, StopRule, evaluate, evaluate_values, microbatches
from rlhf_dialog.metrics.base import VecInfo
from rlhf_dialog.models import Models
from rlhf_dialog.prompts import PromptSampler
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.composite import ScoringRules
from rlhf_dialog.rollout import Rollout, collect, prompt_names, without_unscored
from rlhf_dialog.schema import Config, batch_plan

logger = logging.getLogger(__name__)
Metrics = dict[str, float]
NO_CRITIC = {"ppo/value_loss": math.nan, "ppo/explained_variance": math.nan}  # null in metrics.jsonl
STANDS = "the last checkpoint stands"


class PPOTrainer:
    """Trains `models.policy` (and its critic) on the prompts with the reward.

    `step()` runs one iteration and returns its metrics; `rollout` is the newest rollout. All state that a checkpoint needs is
    in `state_dict()`, the modules and the optimizers.
    """

    def __init__(self, config: Config, models: Models, prompts: list[Dialogue], reward: BaseReward, vec_info: VecInfo):
        self.config, self.models, self.prompts, self.reward, self.vec_info = config, models, prompts, reward, vec_info
        self.plan = batch_plan(config)
        self.encoder = prompt_encoder(models.tokenizer, config.turn_separator, config.max_prompt_length)
        self.sampling = Sampling(config.max_new_tokens, config.temperature, config.top_k, config.top_p)
        self.stop = StopRule(models.policy, models.tokenizer, config.turn_separator)
        self.sampler = PromptSampler(len(prompts), config.seed)
        self.kl = ppo.AdaptiveKLController(config.kl_coef, config.kl_target, config.kl_rate, config.kl_clip)
        self.value_norm = ppo.ValueNormalizer() if config.use_valuenorm else None
        self.optimizers = {"policy": self._adam(models.policy, config.lr)}
        if models.critic is not None:
            self.optimizers["critic"] = self._adam(models.critic, config.critic_lr)
        self.iteration, self.time_steps, self.episodes = 0, 0, 0
        self.skipped_in_a_row = 0
        self.first_support_mass: float | None = None
        self.rollout: Rollout | None = None
        self.clock = Clock(models.policy.lm.device)
        self.starts_from_reference = config.ref_model in (None, config.model_path)  # false with weights of a checkpoint

    def _adam(self, model: nn.Module, lr: float) -> torch.optim.AdamW:
        config = self.config
        return torch.optim.AdamW(
            model.parameters(), lr=lr, eps=config.opti_eps, weight_decay=config.weight_decay, fused=True
        )

    def step(self) -> Metrics:
        """One iteration: collect a rollout, turn scores into advantages, update, adapt the KL coefficient.

        Raises RunStopped when a check that every run makes fails or `max_skipped_steps` optimizer steps in a row had no finite
        numbers, RewardError when the reward fails.
        """
        start = time.perf_counter()
        self.clock = Clock(self.models.policy.lm.device)
        rollout = self.rollout = self._collect(self._next_prompts())
        kl = ppo.masked_mean(rollout.logprobs - rollout.ref_logprobs, rollout.response_mask).item()
        self._check_start(kl)
        kl_coef = self.kl.kl_coef
        rollout.rewards = ppo.token_rewards(
            rollout.scores, rollout.logprobs, rollout.ref_logprobs, rollout.response_mask, kl_coef
        )
        explained = self._set_advantages(rollout)
        losses = NO_CRITIC | self._update(rollout) | explained
        self.kl.update(kl)
        self.iteration += 1
        self.time_steps += rollout.num_generated
        self.episodes += len(rollout) + rollout.num_dropped
        metrics = self._metrics(rollout, losses, kl, kl_coef)
        metrics["time/update"] = time.perf_counter() - start - rollout.seconds["rollout"] - rollout.seconds["reward"]
        metrics["FPS"] = rollout.num_generated / (time.perf_counter() - start)
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
        """The prompts of one iteration; the responses to one prompt stand side by side."""
        indices = self.sampler.take(self.plan.num_prompts)
        return [self.prompts[i] for i in indices for _ in range(self.config.responses_per_prompt)]

    def _collect(self, prompts: list[Dialogue]) -> Rollout:
        """A rollout with finite numbers; under `on_reward_error: skip` without the episodes that have no score."""
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
        self._check_models(rollout)
        in_groups = config.advantage_estimator in ("grpo", "rloo")
        rollout = without_unscored(rollout, config.responses_per_prompt if in_groups else 1)
        if not len(rollout):
            raise RunStopped(
                f"iteration {self.iteration + 1}: all {rollout.num_dropped} episodes are dropped, since the reward "
                f"'{self.reward.name}' gave them{' or their groups' if in_groups else ''} no score; {STANDS}"
            )
        return rollout

    def _check_models(self, rollout: Rollout) -> None:
        """Weights that are no numbers show here, and no skipped step would mend them."""
        found = {"policy": rollout.logprobs, "critic": rollout.values, "reference": rollout.ref_logprobs}
        for model, tensor in found.items():
            bad = (rollout.response_mask & ~tensor.isfinite()).any(dim=1).nonzero().flatten().tolist()
            if bad:
                names = prompt_names([rollout.dialogues[i] for i in bad])
                raise RunStopped(
                    f"iteration {self.iteration + 1}: the {model} gives NaN or inf for {len(bad)} of {len(rollout)} responses "
                    f"before any update (prompts: {names}); its weights have gone bad; {STANDS}"
                )

    def _check_start(self, kl: float) -> None:
        """A fresh run that starts from its own reference has KL 0; anything else is a fault of masks, positions or dropout."""
        tolerance = 1e-3 if self.config.use_amp else 1e-5
        if self.iteration == 0 and self.starts_from_reference and not abs(kl) < tolerance:
            raise RunStopped(
                f"the policy starts as its own reference, yet their KL is {kl:.3g} nats per token (allowed: {tolerance:g}); "
                "the two do not compute the same log-probabilities"
            )

    def _set_advantages(self, rollout: Rollout) -> Metrics:
        """Advantages and returns of the rollout, and how much of the returns' variance the critic explains (1: all)."""
        config, mask, metrics = self.config, rollout.response_mask, {}
        if config.advantage_estimator == "gae":
            values = rollout.values if self.value_norm is None else self.value_norm.denormalize(rollout.values)
            gae_lambda = config.gae_lambda if config.use_gae else 1.0
            rollout.advantages, rollout.returns = ppo.gae(rollout.rewards, values, mask, config.gamma, gae_lambda)
            error, returns = (rollout.returns - values)[mask], rollout.returns[mask]
            metrics["ppo/explained_variance"] = (1 - error.var(correction=0) / returns.var(correction=0)).item()
        else:
            rollout.returns = ppo.discounted_returns(rollout.rewards, mask, config.gamma)
            rollout.advantages = rollout.returns
        if config.advantage_estimator in ("grpo", "rloo"):
            n = config.responses_per_prompt
            rollout.advantages = ppo.group_advantages(rollout.rewards, mask, n, config.advantage_estimator)
        if config.use_adv_normalize:
            rollout.advantages = ppo.whiten(rollout.advantages, mask)
        return metrics

    def _update(self, rollout: Rollout) -> Metrics:
        """ppo_epoch passes over the rollout in minibatches of responses; the mean of each statistic over the good minibatches."""
        rollout.targets = rollout.returns
        if self.value_norm is not None and self.config.advantage_estimator == "gae":
            self.value_norm.update(rollout.returns, rollout.response_mask)
            rollout.targets = self.value_norm.normalize(rollout.returns)
        self._set_learning_rates()
        steps: list[Metrics] = []
        good: list[Metrics] = []
        for _ in range(self.config.ppo_epoch):
            order = torch.randperm(len(rollout)).to(rollout.response_ids.device)
            for rows in order.tensor_split(min(self.plan.num_minibatches, len(rollout))):
                steps.append(self._minibatch(rollout, rows, first=not good))
                good += steps[-1:] if all_finite(steps[-1]) else []
        means = {name: sum(step[name] for step in good) / len(good) if good else math.nan for name in steps[0]}
        return means | {"ppo/skipped_steps": len(steps) - len(good)}

    def _set_learning_rates(self) -> None:
        scale = 1.0 - self.progress if self.config.use_linear_lr_decay else 1.0
        for name, lr in (("policy", self.config.lr), ("critic", self.config.critic_lr)):
            if name in self.optimizers:
                self.optimizers[name].param_groups[0]["lr"] = lr * scale

    def _minibatch(self, rollout: Rollout, rows: Tensor, first: bool) -> Metrics:
        """One optimizer step; its microbatches add up to the same gradient whatever their size.

        Without a step when one of the returned statistics is not finite.
        """
        num_tokens = rollout.response_mask[rows].sum()
        totals: Metrics = {}
        suspects: list[int] = []
        size = self.config.per_device_microbatch_size
        for part in microbatches(rollout.prompt_mask, rollout.response_mask, rows, size):
            with self.clock.measured("forward"):
                loss, statistics = self._losses(rollout, part, num_tokens, first)
            with self.clock.measured("backward"):
                loss.backward()
            found = {name: value.item() for name, value in statistics.items()}
            suspects += part.rows.tolist() if not all_finite(found) else []
            for name, value in found.items():
                totals[name] = totals.get(name, 0.0) + value
        with self.clock.measured("optimizer"):
            totals |= {f"ppo/{name}": norm for name, norm in self._clip_gradients().items()}
            if all_finite(totals):
                self.skipped_in_a_row = 0
                for optimizer in self.optimizers.values():
                    optimizer.step()
            self._drop_gradients()
        if not all_finite(totals):
            self._count_skipped(totals, [rollout.dialogues[i] for i in suspects or rows.tolist()], bool(suspects))
        return totals

    def _drop_gradients(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    def _count_skipped(self, totals: Metrics, dialogues: list[Dialogue], in_the_loss: bool) -> None:
        """Name a step that was not made. Raises RunStopped at the `max_skipped_steps`-th in a row."""
        self.skipped_in_a_row += 1
        bad = ", ".join(f"{name} {value}" for name, value in totals.items() if not math.isfinite(value))
        where = "microbatch with it" if in_the_loss else "minibatch"
        text = (
            f"iteration {self.iteration + 1}: a number of the update is not finite ({bad}); prompts of the {where}: "
            f"{prompt_names(dialogues)}; the optimizer step is skipped"
        )
        if self.skipped_in_a_row >= self.config.max_skipped_steps:
            raise RunStopped(f"{text}, {self.skipped_in_a_row} in a row (max_skipped_steps): the run stops; {STANDS}")
        logger.warning("%s, %d in a row", text, self.skipped_in_a_row)

    def _losses(
        self, rollout: Rollout, part: Microbatch, num_tokens: Tensor, first: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a microbatch as its share of the minibatch, and the statistics to add up."""
        config, at = self.config, (part.rows, part.response)
        mask, old_logprobs = rollout.response_mask[at], rollout.logprobs[at]
        new, values = self._evaluate(rollout, part)
        log_ratio = ppo.masked(new.logprobs - old_logprobs, mask)
        if first and log_ratio.isfinite().all():  # what is not finite makes the loss so too
            self._check_ratio(log_ratio.detach(), mask)
        dual_clip = config.dual_clip_coeff if config.dual_clip_ppo else None
        policy_loss, clip_fraction = ppo.policy_loss(
            new.logprobs, old_logprobs, rollout.advantages[at], mask, config.clip_param, dual_clip, num_tokens
        )
        loss = policy_loss
        if new.entropy is not None:
            loss = loss - config.entropy_coef * ppo.masked(new.entropy, mask).sum() / num_tokens
        with torch.no_grad():
            approx_kl = ppo.masked(log_ratio.exp() - 1 - log_ratio, mask).sum() / num_tokens
        statistics = {"ppo/policy_loss": policy_loss, "ppo/clip_fraction": clip_fraction, "ppo/approx_kl": approx_kl}
        if values is not None:
            clip = config.clip_param if config.use_clipped_value_loss else None
            huber = config.huber_delta if config.use_huber_loss else None
            value_loss = ppo.value_loss(values, rollout.values[at], rollout.targets[at], mask, clip, huber, num_tokens)
            loss = loss + config.value_loss_coef * value_loss
            statistics["ppo/value_loss"] = value_loss
        statistics["ppo/loss"] = loss
        return loss, statistics

    def _evaluate(self, rollout: Rollout, part: Microbatch) -> tuple[Evaluation, Tensor | None]:
        inputs = (
            rollout.prompt_ids[part.rows, part.prompt],
            rollout.prompt_mask[part.rows, part.prompt],
            rollout.response_ids[part.rows, part.response],
            rollout.response_mask[part.rows, part.response],
        )
        support = None if rollout.support is None else rollout.support[part.rows, part.response]
        with_entropy = self.config.entropy_coef > 0
        new = evaluate(self.models.policy, *inputs, self.config.temperature, support, with_entropy)
        values = evaluate_values(self.models.critic, *inputs) if self.models.critic else new.values
        return new, values

    def _check_ratio(self, log_ratio: Tensor, mask: Tensor) -> None:
        """Before the first optimizer step the policy is the one that sampled: every ratio is 1."""
        largest, mean = log_ratio.abs().max().item(), ppo.masked_mean(log_ratio.abs(), mask).item()
        fine = (mean < 1e-2 and largest < 0.3) if self.config.use_amp else largest < 1e-4
        if not fine:
            raise RunStopped(
                f"iteration {self.iteration + 1}: the ratio of new to old probabilities is not 1 on the first minibatch (largest "
                f"|log ratio| {largest:.3g}, mean {mean:.3g}); sampling and update do not compute the same log-probabilities"
            )

    def _clip_gradients(self) -> Metrics:
        """Gradient norms before clipping, of the policy and of a separate critic."""
        limit = self.config.max_grad_norm if self.config.use_max_grad_norm else math.inf
        norms = {"grad_norm": clip_gradients(self.models.policy, limit)}
        if self.models.critic is not None:
            norms["critic_grad_norm"] = clip_gradients(self.models.critic, limit)
        return norms

    def _metrics(self, rollout: Rollout, losses: Metrics, kl: float, kl_coef: float) -> Metrics:
        mask = rollout.response_mask
        metrics: Metrics = {
            "iteration": self.iteration,
            "time_steps": self.time_steps,
            "episodes": self.episodes,
            "objective/score": rollout.scores.mean().item(),
            "objective/kl": kl,
            "objective/kl_coef": kl_coef,
            "objective/entropy": ppo.masked_mean(rollout.entropy, mask).item(),
            "response/unscored": rollout.num_dropped,
            "response/length": rollout.num_tokens / len(rollout),
            "response/truncated": rollout.truncated.float().mean().item(),
            **losses,
            **{f"time/{name}": seconds for name, seconds in (rollout.seconds | self.clock.seconds).items()},
        }
        if self.iteration == 1:
            metrics["objective/kl_initial"] = kl
        for name, part in rollout.reward_scores.parts.items():
            metrics[f"reward/{name}"] = math.fsum(part.raw) / len(rollout)
            metrics[f"reward/{name}_weighted"] = math.fsum(part.weighted) / len(rollout)
            metrics[f"time/reward_{name}"] = part.seconds
        return metrics | self._support_metrics(rollout) | self._vec_info_metrics(rollout)

    def _vec_info_metrics(self, rollout: Rollout) -> Metrics:
        """What the vec-info class returns. Raises UserError with the line that failed when it raises."""
        try:
            return self.vec_info(rollout)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise UserError(
                f"vec_info_class: {type(self.vec_info).__name__} raised {type(error).__name__}: {error} at "
                f"{frame.filename}:{frame.lineno}"
            ) from error

    def _support_metrics(self, rollout: Rollout) -> Metrics:
        """What top-k and top-p hide from the KL, with a warning when the reference's mass on the support falls by half."""
        if rollout.kl_full is None or rollout.ref_support_mass is None:
            return {}
        mass = ppo.masked_mean(rollout.ref_support_mass, rollout.response_mask).item()
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
        kl_full = ppo.masked_mean(rollout.kl_full, rollout.response_mask).item()
        return {"objective/kl_full": kl_full, "objective/ref_support_mass": mass}

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


def clip_gradients(model: nn.Module, limit: float) -> float:
    """The norm of all gradients before they are scaled down to `limit`; gradients within it are not touched."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if not norm <= limit:
        nn.utils.clip_grads_with_norm_(model.parameters(), limit, norm)
    return norm.item()


def all_finite(metrics: Metrics) -> bool:
    """Whether no value is NaN or inf."""
    return all(map(math.isfinite, metrics.values()))
