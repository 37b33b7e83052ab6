"""PPO on dialogue prompts: `step` is the algorithm, `train` asks when to log, save and stop."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptSampler
from rlhf_dialog.distributed.placement import Placement
from rlhf_dialog.distributed.world import World
from rlhf_dialog.distributed.zero_checkpoint import whole_optimizers
from rlhf_dialog.environments.single_turn import SingleTurn
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.metrics.base import VecInfo
from rlhf_dialog.models.chat_agent import Speaker
from rlhf_dialog.models.generation import Sampling, StopRule
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.masks import masked, masked_mean
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.processes import RewardProcesses, free_cores
from rlhf_dialog.rewards.scoring import Scorer, ScoringRules, begin_scoring, load_state, state_of
from rlhf_dialog.training import ppo
from rlhf_dialog.training.checks import (
    KEPT_CHECKPOINT,
    check_numbers,
    check_start,
    check_start_in_16_bit,
    watch_kl,
    watch_support,
)
from rlhf_dialog.training.clock import Clock
from rlhf_dialog.training.given import Given, given_rollout
from rlhf_dialog.training.iteration_metrics import (
    Metrics,
    dialogue_metrics,
    filter_metrics,
    reward_metrics,
    rollout_metrics,
    vec_info_metrics,
)
from rlhf_dialog.training.noise import differences, noise_of
from rlhf_dialog.training.rollout import Rollout, collect, without_unscored
from rlhf_dialog.training.simulated import Numbers, Simulated
from rlhf_dialog.training.update import PPOUpdate

logger = logging.getLogger(__name__)
NO_CRITIC = {"ppo/value_loss": math.nan, "ppo/explained_variance": math.nan}  # null in metrics.jsonl


class PPOTrainer:
    """Trains `models.policy` (and its critic) on the prompts, or on dialogues with environments, with the reward.

    `step()` runs one iteration and returns its metrics, `step_on()` one on responses and scores that the caller brings; `rollout`
    is the newest rollout. All state that a checkpoint needs is
    in `state_dict()`, the modules and the optimizers. With several ranks, every rank has a trainer and a part of each rollout;
    all of them make the same steps, and every metric except times covers the episodes of all ranks.
    """

    def __init__(
        self,
        config: Config,
        models: Models,
        prompts: list[Dialogue] | Simulated,
        reward: BaseReward,
        vec_info: VecInfo,
        world: World | None = None,
    ):
        self.config, self.models, self.vec_info = config, models, vec_info
        self.simulated = prompts if isinstance(prompts, Simulated) else None  # dialogues with environments
        self.prompts: list[Dialogue] = [] if isinstance(prompts, Simulated) else prompts
        self.world = world or World()
        self.plan = batch_plan(config, self.world.size)
        self.speaker = Speaker(
            models.policy,
            prompt_encoder(models.tokenizer, config.turn_separator, config.max_prompt_length),
            Sampling(config.max_new_tokens, config.temperature, config.top_k, config.top_p),
            StopRule(models.policy, models.tokenizer, config.turn_separator, config.stop_token_ids),
            config.per_device_rollout_size,
            config.per_device_microbatch_size,
            config.context_size,
        )
        processes = RewardProcesses(free_cores(self._busy_threads, self.world.size_here))
        rules = ScoringRules(config.on_reward_error == "skip", config.reward_timeout_s, processes)
        self.scorer = Scorer(reward, rules, config.truncation_penalty)
        self.sampler = Numbers() if self.simulated else PromptSampler(len(self.prompts), config.seed)
        self.kl = self._new_kl_controller()
        self.value_norm = ppo.ValueNormalizer() if config.use_valuenorm else None
        self.placement = Placement(config, models, reward, self.world, self.plan)
        self.engines = self.placement.engines
        self.update = PPOUpdate(config, self.placement, self.world, self.plan.num_minibatches)
        self.iteration, self.time_steps, self.episodes = 0, 0, 0
        self.first_support_mass: float | None = None
        self.rollout: Rollout | None = None
        self.clock = Clock(models.policy.lm.device)
        self.starts_from_reference = config.ref_model in (None, config.model_path)  # false with weights of a checkpoint

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return whole_optimizers(self.engines)

    @property
    def _busy_threads(self) -> int:
        """The threads of this process that compute during a rollout; for a GPU, the one that gives it work."""
        return torch.get_num_threads() if self.models.policy.lm.device.type == "cpu" else 1

    def step(self) -> Metrics:
        """One iteration: collect a rollout, turn scores into advantages, update, adapt the KL coefficient.

        Raises RunStopped when one of the checks of every run fails, or when `max_skipped_steps` optimizer steps in a row are
        skipped because a number was not finite; RewardError when the reward fails.
        """
        start = time.perf_counter()
        self.clock = Clock(self.models.policy.lm.device)
        return self._learn(self._collect(self._next_prompts()), start)

    def step_on(self, prompts: Sequence[Given], responses: Sequence[Given], scores: Sequence[float]) -> Metrics:
        """One iteration, as `step` makes it, on responses and scores from a loop of your own; returns its metrics.

        >>> trainer = PPOAgent.from_config("nlp_ppo.yaml").build()
        >>> prompts = [["Do you have a table for two ?", "Yes . Would you like to sit outside ?"], ["Hello ."]]
        >>> replies = trainer.speaker.reply([Dialogue(turns) for turns in prompts])
        >>> trainer.step_on(prompts, [reply.ids for reply in replies], scores=[0.5, -1.0])["objective/kl"]
        0.0

        A prompt is a text (one turn), a list of turns, oldest first, or a sequence of token ids; a response is a text, which ends
        with its separator, or ids with the token that ended it. With several responses to a prompt (`num_responses_per_prompt`)
        these are neighbours. With several ranks each gives its own.

        The log-probabilities of policy and reference are computed here, at `temperature`, so the responses count as those of the
        policy as it is now; the run's checks are those of `step`. `scores` are used unchanged: neither the run's reward nor
        `truncation_penalty` changes them. Raises UserError for what cannot be used (a filter in `top_k` or `top_p`, too), and
        RunStopped as `step` does.
        """
        start = time.perf_counter()
        self.clock = Clock(self.models.policy.lm.device)
        size = self.config.num_responses_per_prompt if self.config.estimator.needs_groups else 1
        options = (size, self.config.kl_in == "loss")

        def given() -> Rollout:
            rollout = given_rollout(self.models, self.speaker, prompts, responses, scores, *options)
            check_numbers(rollout, self.iteration + 1)
            return rollout

        return self._learn(self._on_every_rank(given), start)

    def _learn(self, rollout: Rollout, start: float) -> Metrics:
        """What follows a rollout, which was begun at `start`: advantages, update, KL coefficient, metrics."""
        self.rollout = rollout
        kl = masked_mean(rollout.logprobs - rollout.ref_logprobs, rollout.response_mask, self.world.sum).item()
        if self.iteration == 0 and self.starts_from_reference:
            self._check_start(rollout, kl)
        kl_coef = self.kl.kl_coef
        of_advantages = self._set_advantages(rollout, kl_coef)
        self._set_targets(rollout)
        losses = NO_CRITIC | of_advantages
        losses |= self.update(rollout.in_segments(), self.iteration + 1, self._lr_scale, kl_coef, self.clock)
        self.kl.update(kl)
        generated, episodes = map(int, self.world.sum_of([rollout.num_generated, len(rollout) + rollout.num_dropped]))
        self.iteration += 1
        self.time_steps += generated
        self.episodes += episodes
        losses |= {
            f"time/{name}": seconds for name, seconds in self.clock.seconds.items()
        }  # which waits for the device
        seconds = time.perf_counter() - start
        losses["time/update"] = seconds - rollout.seconds["rollout"] - rollout.seconds["reward"]
        losses["FPS"] = generated / seconds
        if rollout.reward_scores.parts:
            self.scorer.watch(rollout.reward_scores, seconds)
        watch_kl(self.kl, kl, self.iteration)
        return self._metrics(rollout, losses, kl, kl_coef)

    def train(self) -> Iterator[Metrics]:
        """Yield the metrics of each iteration until `total_time_steps`, `max_iterations` or `total_episodes` is reached."""
        while not self.done:
            yield self.step()

    def close(self) -> None:
        """End the processes that share the reward's work; iterations are possible as before, without them."""
        self.scorer.close()

    @property
    def done(self) -> bool:
        if self.config.max_iterations is not None:
            return self.iteration >= self.config.max_iterations
        if self.config.total_episodes is not None:
            return self.episodes >= self.config.total_episodes
        return self.time_steps >= self.config.total_time_steps

    @property
    def progress(self) -> float:
        """The share of the run that is done, 0 to 1."""
        if self.config.max_iterations is not None:
            return self.iteration / self.config.max_iterations
        if self.config.total_episodes is not None:
            return min(self.episodes / self.config.total_episodes, 1.0)
        return min(self.time_steps / self.config.total_time_steps, 1.0)

    def _next_prompts(self) -> list[Dialogue]:
        """This rank's prompts of one iteration; the responses to one prompt are neighbours with the same `group` in `meta`."""
        numbered = self.world.share(list(enumerate(self.sampler.take(self.plan.num_prompts))))
        source = self.simulated or self.prompts
        prompts = [replace(source[i], meta=source[i].meta | {"group": group}) for group, i in numbered]
        return [prompt for prompt in prompts for _ in range(self.config.num_responses_per_prompt)]

    def _collect(self, prompts: list[Dialogue]) -> Rollout:
        """A rollout with finite numbers; under `on_reward_error: skip` without the episodes that have no score."""
        in_groups = self.config.estimator.needs_groups
        with self.world.fail_together():
            begin_scoring(self.scorer.reward, "rollout", self.iteration + 1)
        size = self.config.num_responses_per_prompt if in_groups else 1
        rollout = self._on_every_rank(lambda: without_unscored(self._collect_own(prompts), size))
        left, dropped = self.world.sum_of([len(rollout), rollout.num_dropped])
        if not left:
            raise RunStopped(
                f"iteration {self.iteration + 1}: all {dropped:.0f} episodes are dropped, because the reward "
                f"'{self.scorer.reward.name}' gave them{' or their groups' if in_groups else ''} no score; {KEPT_CHECKPOINT}"
            )
        return rollout

    def _on_every_rank(self, collect_own: Callable[[], Rollout]) -> Rollout:
        """This rank's part of a rollout; the first one in 16 bits measures their noise.

        When one rank fails, all ranks raise. `time/wait` is how long this rank waited for the others.
        """
        with self.world.fail_together(), self.placement.rollout():
            rollout = collect_own()
            is_measured = self.update.noise is not None or not self.placement.reduced_precision
            rounding = None if is_measured else differences(self.models.ref_policy, rollout, self.config.temperature)
            collected = time.perf_counter()
        if rounding is not None:
            self.update.noise = noise_of(rounding, self.world, self.config.temperature)
        if self.world.size > 1:
            rollout.seconds["wait"] = time.perf_counter() - collected
        return rollout

    def _check_start(self, rollout: Rollout, kl: float) -> None:
        """Raise RunStopped unless the policy computes as its reference does, from which it starts."""
        noise = self.update.noise
        if noise is None:
            check_start(kl, self.config.temperature)
            return
        size = masked(rollout.logprobs - rollout.ref_logprobs, rollout.response_mask).abs()
        largest = max(self.world.gather(size.max().item() if len(size) else 0.0))
        mean = masked_mean(size, rollout.response_mask, self.world.sum).item()
        check_start_in_16_bit(largest, mean, noise, self.world.sum_of([rollout.num_tokens])[0])

    def _collect_own(self, prompts: list[Dialogue]) -> Rollout:
        parts, keep = (self.speaker, self.scorer, self.models), self.config.kl_in == "loss"
        if self.simulated:
            rollout = self.simulated.collect(prompts, *parts, keep)
        else:
            rollout = collect([SingleTurn(prompt) for prompt in prompts], *parts, keep_features=keep)
        check_numbers(rollout, self.iteration + 1)
        return rollout

    def _set_advantages(self, rollout: Rollout, kl_coef: float) -> Metrics:
        """Rewards, advantages and returns of the rollout.

        Returns how much of the returns' variance the critic explains (1: all), or how many groups have no spread.
        """
        config, mask, total = self.config, rollout.response_mask, self.world.sum
        paid = ppo.paid_rewards(rollout.scores, mask, rollout.turn_rewards)
        coef_in_reward = kl_coef if config.kl_in == "reward" else 0.0
        penalties = ppo.kl_penalties(rollout.logprobs, rollout.ref_logprobs, mask, coef_in_reward, config.kl_estimator)
        if config.whiten_rewards:
            paid, penalties = ppo.whiten(paid + penalties, mask, total, shift_mean=False), torch.zeros_like(penalties)
        rollout.rewards = paid + penalties
        values = rollout.values if self.value_norm is None else self.value_norm.denormalize(rollout.values)
        gae_lambda = config.gae_lambda if config.use_gae else 1.0
        by_turn = config.credit == "turn"
        credit = ppo.Credit(config.gamma, gae_lambda, config.num_responses_per_prompt, by_turn)
        advantages_of = getattr(ppo, config.estimator.advantages)
        rollout.advantages, rollout.returns = advantages_of(paid, penalties, values, mask, credit)
        num_flat, all_flat = self._flat_groups(paid, mask, credit)
        if config.use_adv_normalize and not all_flat:
            rollout.advantages = ppo.whiten(rollout.advantages, mask, total)
        if config.estimator.needs_groups:
            return {"ppo/flat_groups": num_flat}
        if not config.estimator.needs_critic:
            return {}
        return {"ppo/explained_variance": ppo.explained_variance(values, rollout.returns, mask, total).item()}

    def _flat_groups(self, paid: torch.Tensor, mask: torch.Tensor, credit: ppo.Credit) -> tuple[int, bool]:
        """The number of groups whose responses are all paid the same, and whether that are all groups.

        Then only the KL penalties are left in the advantages, and whitening would blow them up to full size.
        """
        if not self.config.estimator.needs_groups:
            return 0, False
        groups = len(paid) / credit.num_responses_per_prompt
        num_flat, num_groups = map(int, self.world.sum_of([ppo.flat_groups(paid, mask, credit).item(), groups]))
        if num_flat == num_groups:
            logger.warning(
                "iteration %d: the %d responses to each prompt have equal scores, for all %d prompts; there is nothing to learn "
                "from them but the KL",
                *(self.iteration + 1, credit.num_responses_per_prompt, num_groups),
            )
        return num_flat, num_flat == num_groups

    def _set_targets(self, rollout: Rollout) -> None:
        """Set the targets of the critic: the returns, normalised where `value_norm` is used."""
        rollout.targets = rollout.returns
        if self.value_norm is not None and self.config.estimator.needs_critic:
            self.value_norm.update(rollout.returns, rollout.response_mask, self.world.sum)
            rollout.targets = self.value_norm.normalize(rollout.returns)

    def _new_kl_controller(self) -> ppo.AdaptiveKLController:
        config = self.config
        settings = (
            config.kl_coef,
            config.kl_target,
            config.kl_rate,
            config.kl_clip,
            config.kl_hold,
            config.kl_coef_max,
        )
        return ppo.AdaptiveKLController(*settings)

    @property
    def _lr_scale(self) -> float:
        return 1.0 - self.progress if self.config.use_linear_lr_decay else 1.0

    def _metrics(self, rollout: Rollout, losses: Metrics, kl: float, kl_coef: float) -> Metrics:
        metrics: Metrics = {
            "iteration": self.iteration,
            "time_steps": self.time_steps,
            "episodes": self.episodes,
            "objective/kl": kl,
            "objective/kl_coef": kl_coef,
            **losses,
            **rollout_metrics(rollout, self.world),
        }
        if self.iteration == 1:
            metrics["objective/kl_initial"] = kl
        metrics |= filter_metrics(rollout, self.world)
        if self.simulated:
            metrics |= dialogue_metrics(rollout, self.world)
        mass = metrics.get("objective/ref_support_mass")
        self.first_support_mass = watch_support(mass, self.first_support_mass, self.iteration)
        if rollout.reward_scores.parts:
            metrics |= reward_metrics(self.scorer.reward, rollout, self.world)
        start = time.perf_counter()
        metrics |= vec_info_metrics(self.vec_info, rollout, self.world)
        return metrics | {"time/vec_info": time.perf_counter() - start}

    def state_dict(self) -> dict[str, Any]:
        """The state of the trainer without modules, optimizers and random states; JSON."""
        return {
            "iteration": self.iteration,
            "time_steps": self.time_steps,
            "episodes": self.episodes,
            "precision": self.placement.precision,
            "skipped_in_a_row": self.update.skipped_in_a_row,
            "first_support_mass": self.first_support_mass,
            "sampler": self.sampler.state_dict(),
            "kl_controller": self.kl.state_dict(),
            "value_normalizer": self.value_norm.state_dict() if self.value_norm else None,
            "reward": state_of(self.scorer.reward),
            "scalers": {name: engine.scaler.state_dict() for name, engine in self.engines.items() if engine.scaler},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a stored state. Raises UserError when only one of the two runs normalises its values."""
        if (state["value_normalizer"] is None) != (self.value_norm is None):
            raise UserError(
                "use_valuenorm: the checkpoint was saved with the other setting; resume with the setting of the checkpoint"
            )
        if (before := state.get("precision", self.placement.precision)) != self.placement.precision:
            logger.warning(
                "the run has computed in %s and goes on in %s: its numbers differ from here on; to keep them, set precision: %s",
                *(before, self.placement.precision, before),
            )
        self.iteration, self.time_steps, self.episodes = state["iteration"], state["time_steps"], state["episodes"]
        self.first_support_mass = state["first_support_mass"]
        self.update.skipped_in_a_row = state.get("skipped_in_a_row", 0)
        self.sampler.load_state_dict(state["sampler"])
        self.kl = self._new_kl_controller()
        self.kl.load_state_dict(state["kl_controller"])
        if self.value_norm:
            self.value_norm.load_state_dict(state["value_normalizer"])
        for name, engine in self.engines.items():
            if engine.scaler and name in state.get("scalers", {}):
                engine.scaler.load_state_dict(state["scalers"][name])
        if "reward" in state:
            load_state(self.scorer.reward, state["reward"])
