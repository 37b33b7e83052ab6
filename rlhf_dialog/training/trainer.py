"""One iteration of PPO: play, read, score, credit, update. The loop is `while not trainer.done: trainer.step()`."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompt_ids import PromptSampler, warn_about_cut
from rlhf_dialog.distributed.placement import NewOptimizer, Placement, new_optimizer
from rlhf_dialog.distributed.random_states import generators_of_users
from rlhf_dialog.distributed.world import World
from rlhf_dialog.distributed.zero_checkpoint import whole_optimizers
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models.generation import GenerationLimits, Responder, Sampling, StopRule, silent
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.masks import masked_mean
from rlhf_dialog.models.part_sizes import PartSizes
from rlhf_dialog.rewards.base import BaseReward, runs_user_code
from rlhf_dialog.rewards.scoring import Scorer, begin_scoring, load_state, penalty_keys, state_of
from rlhf_dialog.training import checks, iteration_metrics, ppo
from rlhf_dialog.training.credit import CreditAssignment
from rlhf_dialog.training.episodes import EpisodeInputs, deal_prompts, newest_turns
from rlhf_dialog.training.given import Given, external_rollout, read_episodes
from rlhf_dialog.training.iteration_metrics import Metrics
from rlhf_dialog.training.resampling import resample
from rlhf_dialog.training.rollout import Clock, Collected, Rollout, collect_rollout, drop_unscored
from rlhf_dialog.training.simulated import DialogueCounter, Simulated
from rlhf_dialog.training.update import PPOUpdate

logger = logging.getLogger(__name__)
NO_CRITIC = {"ppo/value_loss": math.nan, "ppo/explained_variance": math.nan}  # null in metrics.jsonl


@dataclass(frozen=True)
class RolloutEngine:
    """Another program that writes the responses of training, by `responder`.

    Before each rollout all ranks call `sync` with the number of iterations so far, which tells the weights of the policy from
    earlier ones. `cap`: the largest of `engine_weights`.
    """

    responder: Responder
    sync: Callable[[int], None]
    cap: float


class PPOTrainer:
    """Trains `models.policy` (and its critic) with the reward, on prompts or on dialogues with environments.

    `step()` runs one iteration and returns its metrics, `step_on()` one on the caller's responses and scores; `rollout` is the
    newest rollout. A checkpoint needs `state_dict()`, the modules and the optimizers. With several ranks, each has a trainer and
    a part of each rollout; all make the same steps, and every metric except times covers the episodes of all ranks.
    """

    def __init__(  # noqa: PLR0913 - the parts of a run
        self,
        config: Config,
        models: Models,
        prompts: Sequence[Dialogue] | Simulated,
        reward: BaseReward,
        vec_info: VecInfo,
        world: World | None = None,
        from_reference: bool = True,
        tell: Callable[[str], None] = silent,
        optimizer: NewOptimizer = new_optimizer,
    ):
        """`from_reference`: the weights are those of `model_path`, which may be the reference, not of a checkpoint.

        `tell` hears where each iteration is. `optimizer` makes that of a module with a learning rate.
        """
        self.config = config
        self.models = models
        self.vec_info = vec_info
        self.prompts = prompts
        self.world = world or World()
        self.plan = batch_plan(config, self.world.size)
        self.sizes = PartSizes()  # of all phases, smaller than asked where memory has run out
        self.responder = Responder(  # samples here; chats, validation and guard never ask the engine
            models.policy,
            prompt_encoder(models.tokenizer, config.turn_separator, config.max_prompt_length, config.system_prompt),
            Sampling(config.max_new_tokens, config.temperature, config.top_k, config.top_p),
            StopRule(models.policy, models.tokenizer, config.turn_separator, config.stop_token_ids),
            GenerationLimits(sizes=self.sizes),
            config.context_size,
        )
        self.rollout_engine: RolloutEngine | None = None
        skip = config.on_reward_error == "skip"
        penalty = penalty_keys(config)
        self.scorer = Scorer(reward, skip, config.reward_timeout_s, *penalty, self.sizes, self.around_reward)
        self.sampler: DialogueCounter | PromptSampler = DialogueCounter()
        if not isinstance(prompts, Simulated):
            self.sampler = PromptSampler(len(prompts), config.seed)
        self.kl = ppo.AdaptiveKLController(
            config.kl_coef, config.kl_target, config.kl_rate, config.kl_clip, config.kl_hold, config.kl_coef_max
        )
        self.value_norm = ppo.ValueNormalizer() if config.use_valuenorm else None
        self.assign_credit = CreditAssignment(config, self.value_norm, self.world)
        self.placement = Placement(config, models, reward, self.world, self.plan, optimizer)
        self.engines = self.placement.engines
        self.estimator = config.estimator
        self.group_size = config.num_responses_per_prompt if self.estimator.needs_groups else 1
        self.keep_features = config.kl_in == "loss"
        self.noise = checks.Noise()  # of log-probabilities, by rounding; measured on the first rollout
        self.update = PPOUpdate(config, self.placement, self.world, self.plan.num_minibatches, self.sizes, tell)
        self.tell = tell
        self.use_sizes()
        self.iteration = 0
        self.time_steps = 0
        self.episodes = 0
        self.rollout: Rollout | None = None
        self.starts_from_reference = (
            from_reference and config.reference and config.ref_model in (None, config.model_path)
        )

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return whole_optimizers(self.engines)

    def step(self) -> Metrics:
        """One iteration of PPO (Schulman et al. 2017, arXiv 1707.06347) on responses to the next prompts: returns its metrics.

        Raises RunStopped when a check of the run fails, or after `max_skipped_steps` skipped optimizer steps in a row;
        RewardError when the reward fails.
        """
        self.rollout = None  # its tensors go before the next one's come
        collected = self.collect(self.plan.num_prompts)
        assert collected is not None  # each rank has a prompt
        if rounds := self.config.resample_flat_groups:
            collected = resample(collected, self.collect, self.plan.num_prompts, rounds, self.world)
        rollout, metrics = self.credit(collected)
        losses = self.update(rollout.in_segments(), self.iteration + 1, self.lr_scale, self.kl.kl_coef, self.noise)
        return self.finish(rollout, metrics | losses)

    def collect(self, num_prompts: int, first_group: int = 0) -> Collected | None:
        """What `check` returns for this rank's responses to the next prompts; None where it has none of them."""
        with self.world.fail_together():
            episodes = self.next_episodes(num_prompts, first_group)
            with self.around_reward():
                begin_scoring(self.scorer.reward, "rollout", self.iteration + 1)
        clock = Clock(self.models.policy.lm.device)
        responder = self.begin_rollout(clock)
        with self.world.fail_together(), self.placement.rollout():
            if not episodes.environments:
                return None
            return self.check(collect_rollout(episodes, responder, self.scorer, self.models, self.keep_features, clock))

    def begin_rollout(self, clock: Clock) -> Responder:
        """Who writes the responses of training: the policy itself, or the engine, to which the weights are sent now."""
        limits = replace(self.responder.limits, tell=self.tell, measure=clock.measure)
        if self.rollout_engine is None:
            return replace(self.responder, limits=limits)
        with clock.measure("rollout"), clock.measure("sync"):
            self.rollout_engine.sync(self.iteration)
        return replace(self.rollout_engine.responder, limits=limits)

    def around_reward(self) -> AbstractContextManager[None]:
        """Around each call of the reward: it draws numbers of its own, by seed, rank and iteration, and the run draws its own."""
        if not runs_user_code(self.scorer.reward):
            return nullcontext()
        return generators_of_users(self.config.seed, self.world, self.iteration)

    def check(self, collected: Collected) -> Collected:
        """What was collected, without episodes that have no score.

        Raises RunStopped for predictions that are not finite. Here no rank waits for another.
        """
        mask = collected.response_mask
        predictions = {"policy": collected.logprobs, "critic": collected.values}
        predictions |= {} if self.models.ref_policy is None else {"reference": collected.ref_logprobs}
        sampled = collected.sampled_logprobs
        predictions |= {} if sampled is None else {"engine": sampled}
        checks.check_numbers(predictions, mask, collected.dialogues, self.iteration + 1)
        if self.rollout_engine is not None and sampled is not None:
            weights = ppo.engine_weights(collected.logprobs, sampled, mask, self.rollout_engine.cap)
            collected = replace(collected, engine_weights=weights)
        return drop_unscored(collected, self.group_size)

    def credit(self, collected: Collected) -> tuple[Rollout, Metrics]:
        """The rollout, which is `rollout` from now on, and the metrics of what `check` returned on all ranks.

        Raises RunStopped where sampling and policy, or policy and reference, do not agree.
        """
        iteration = self.iteration + 1
        self.await_ranks(collected)
        of_engine: Metrics = {}
        if self.rollout_engine is not None and collected.sampled_logprobs is not None:
            of_engine = iteration_metrics.engine_metrics(
                collected, collected.sampled_logprobs, self.rollout_engine.cap, self.world
            )
            checks.check_engine(of_engine, iteration, self.noise)
        if iteration == 1 and self.starts_from_reference:
            difference = collected.logprobs - collected.ref_logprobs
            checks.check_start(difference, collected.response_mask, self.noise, self.world)
        kl_coef = self.kl.kl_coef
        drawn = collected if collected.drawn is None else collected.drawn
        # NaN without a reference
        kl = masked_mean(drawn.logprobs - drawn.ref_logprobs, drawn.response_mask, self.world.sum).item()
        rollout, statistics = self.assign_credit(collected, kl_coef, iteration)
        self.rollout = rollout
        return rollout, {"objective/kl": kl, "objective/kl_coef": kl_coef} | of_engine | NO_CRITIC | statistics

    def await_ranks(self, collected: Collected) -> None:
        """Wait for the rollouts of all ranks. Sets `noise` on the first call. Raises RunStopped when no episode is left."""
        if self.world.size > 1:
            seconds = collected.clock.seconds
            seconds["wait"] = collected.clock.elapsed - seconds["rollout"] - seconds["reward"]
        if not self.noise.is_measured:
            self.noise = self.measure_noise(collected)
            if collected.is_sampled:
                newest = [Dialogue([text], system=x.system) for x in collected.dialogues for text in newest_turns(x)]
                warn_about_cut(self.responder.encoder, newest, self.world.gather)
        left, dropped = self.world.sum_numbers([len(collected), collected.num_dropped])
        if not left:
            groups = " or their groups" if self.estimator.needs_groups else ""
            raise RunStopped(
                f"iteration {self.iteration + 1}: all {dropped:.0f} episodes are dropped, because the reward "
                f"'{self.scorer.reward.name}' gave them{groups} no score"
            )

    def measure_noise(self, collected: Collected) -> checks.Noise:
        """The noise of log-probabilities on all ranks, by the model that is not trained, where there is one."""
        reference = self.models.ref_policy
        name, model = ("policy", self.models.policy) if reference is None else ("reference", reference)
        temperature = self.config.temperature
        num_bits = 16 if self.placement.reduced_precision else 32
        with self.world.fail_together(), self.placement.rollout():
            rounding = checks.measure_rounding(name, model, collected.in_segments().tokens, temperature)
        return checks.combine_rounding(rounding, self.world, temperature, num_bits)

    def step_on(self, prompts: Sequence[Given], responses: Sequence[Given], scores: Sequence[float]) -> Metrics:
        """One iteration, as `step` makes it, on responses and scores from a loop of your own; returns its metrics.

        >>> trainer = PPOAgent.from_config("nlp_ppo.yaml").build()
        >>> prompts = [["Do you have a table for two ?", "Yes . Would you like to sit outside ?"], ["Hello ."]]
        >>> replies = trainer.responder.reply([Dialogue(turns) for turns in prompts])
        >>> trainer.step_on(prompts, [reply.ids for reply in replies], scores=[0.5, -1.0])["objective/kl"]
        0.0

        A prompt is a text (one turn), a list of turns, oldest first, or a sequence of token ids; a response is a text, which ends
        with its separator, or ids with the token that ended it. With several responses to a prompt (`num_responses_per_prompt`)
        these are neighbours. With several ranks each gives its own.

        The log-probabilities of policy and reference are computed here, at `temperature`, so the responses count as those of the
        policy as it is now. `scores` are used unchanged: neither the run's reward nor `truncation_penalty` changes them. Raises
        UserError for what cannot be used (a filter in `top_k` or `top_p`, too), and RunStopped as `step` does.
        """
        self.rollout = None
        with self.world.fail_together(), self.placement.rollout():
            dialogues, tokens = read_episodes(prompts, responses, scores, self.responder, self.group_size)
            collected = external_rollout(dialogues, tokens, scores, self.responder, self.models, self.keep_features)
            collected = self.check(collected)
        rollout, metrics = self.credit(collected)
        losses = self.update(rollout.in_segments(), self.iteration + 1, self.lr_scale, self.kl.kl_coef, self.noise)
        return self.finish(rollout, metrics | losses)

    @property
    def done(self) -> bool:
        """Whether `total_time_steps`, `max_iterations` or `total_episodes` is reached."""
        return self.progress >= 1

    @property
    def progress(self) -> float:
        """The share of the run that is done, 0 to 1."""
        if self.config.max_iterations is not None:
            return self.iteration / self.config.max_iterations
        if self.config.total_episodes is not None:
            return min(self.episodes / self.config.total_episodes, 1.0)
        return min(self.time_steps / self.config.total_time_steps, 1.0)

    def use_sizes(
        self, per_device_rollout_size: int | None = None, per_device_microbatch_size: int | None = None
    ) -> None:
        """Take these sizes, and those of the configuration for others."""
        rows = per_device_rollout_size or self.config.rollout_size
        microbatch = per_device_microbatch_size or self.config.microbatch_size
        self.asked_sizes = [rows, microbatch]
        self.responder.limits = replace(self.responder.limits, rows_at_once=rows, prompts_at_once=microbatch)
        self.update.microbatch_size = microbatch

    @property
    def lr_scale(self) -> float:
        return 1.0 - self.progress if self.config.use_linear_lr_decay else 1.0

    def next_episodes(self, num_prompts: int | None = None, first_group: int = 0) -> EpisodeInputs:
        """This rank's episodes of the next prompts; the responses to one prompt are neighbours with the same `group` in `origin`,
        which counts from `first_group` on."""
        numbered = self.world.share(
            list(enumerate(self.sampler.take(num_prompts or self.plan.num_prompts), first_group))
        )
        prompts = [self.prompts[i].from_origin(group=group) for group, i in numbered]
        dialogues = [prompt for prompt in prompts for _ in range(self.config.num_responses_per_prompt)]
        return self.prompts.deal(dialogues) if isinstance(self.prompts, Simulated) else deal_prompts(dialogues)

    def finish(self, rollout: Rollout, numbers: Metrics) -> Metrics:
        """Count the iteration and adapt the KL coefficient; returns the line of metrics.jsonl, `numbers` and the rollout's."""
        for rows in self.world.gather(dict(self.sizes.rows)):
            self.sizes.lower(rows)  # not when a checkpoint is written, whose time depends on the clock
        if self.config.reference:
            self.kl.update(numbers["objective/kl"])
        drawn = rollout if rollout.drawn is None else rollout.drawn
        counts = [drawn.num_generated, len(drawn) + drawn.num_dropped]
        num_generated, num_episodes = map(int, self.world.sum_numbers(counts))
        self.iteration += 1
        self.time_steps += num_generated
        self.episodes += num_episodes
        metrics: Metrics = {
            "iteration": self.iteration,
            "time_steps": self.time_steps,
            "episodes": self.episodes,
            **numbers,
            **iteration_metrics.times(rollout.clock, num_generated),
            **iteration_metrics.rollout_metrics(drawn, self.world),
            **iteration_metrics.gain_metrics(drawn, self.config.num_responses_per_prompt, self.world),
        }
        if self.config.resample_flat_groups:
            metrics |= {"rollout/resampled": rollout.num_resampled, "rollout/flat_left": rollout.num_flat_left}
        checks.watch_kl(self.kl, numbers["objective/kl"], self.iteration)
        if self.iteration == 1:
            metrics["objective/kl_initial"] = numbers["objective/kl"]
        if isinstance(self.prompts, Simulated):
            metrics |= iteration_metrics.dialogue_metrics(rollout, self.world)
        if rollout.reward_scores.parts:
            with self.around_reward():
                metrics |= iteration_metrics.reward_metrics(self.scorer.reward, rollout, self.world)
        start = time.perf_counter()
        metrics |= iteration_metrics.vec_info_metrics(self.vec_info, rollout, self.world)
        return metrics | {"time/vec_info": time.perf_counter() - start}

    def state_dict(self) -> dict[str, Any]:
        """The state of the trainer without modules, optimizers and random states; JSON."""
        return {
            "iteration": self.iteration,
            "time_steps": self.time_steps,
            "episodes": self.episodes,
            "precision": self.placement.precision,
            "part_sizes": {"asked": self.asked_sizes, "rows": dict(self.sizes.rows)},
            "skipped_in_a_row": self.update.skipped_in_a_row,
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
            text = "the run has computed in %s and goes on in %s: its numbers differ from here on; to keep them, set precision: "
            logger.warning(text + "%s", before, self.placement.precision, before)
        sizes = state.get("part_sizes", {})
        if sizes.get("asked") == self.asked_sizes:  # who changes the keys begins anew
            self.sizes.lower(sizes["rows"])
        self.iteration = state["iteration"]
        self.time_steps = state["time_steps"]
        self.episodes = state["episodes"]
        self.starts_from_reference = False
        self.update.skipped_in_a_row = state.get("skipped_in_a_row", 0)
        self.sampler.load_state_dict(state["sampler"])
        self.kl.load_state_dict(state["kl_controller"])
        if self.value_norm:
            self.value_norm.load_state_dict(state["value_normalizer"])
        for name, engine in self.engines.items():
            if engine.scaler and name in state.get("scalers", {}):
                engine.scaler.load_state_dict(state["scalers"][name])
        if "reward" in state:
            load_state(self.scorer.reward, state["reward"])
