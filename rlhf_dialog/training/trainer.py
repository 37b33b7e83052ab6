"""The PPO loop: `PPOTrainer.step` makes one iteration, `train` repeats it until the run's length is reached."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.registry import AdvantageFactory
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompt_ids import PromptSampler, warn_about_cut
from rlhf_dialog.distributed.placement import Placement
from rlhf_dialog.distributed.random_states import generators_of_users
from rlhf_dialog.distributed.world import World
from rlhf_dialog.distributed.zero_checkpoint import whole_optimizers
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models.generation import GenerationLimits, Responder, Sampling, StopRule
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.masks import masked_mean
from rlhf_dialog.models.part_sizes import PartSizes
from rlhf_dialog.rewards.base import BaseReward, runs_user_code
from rlhf_dialog.rewards.scoring import Scorer, begin_scoring, load_state, penalty_keys, state_of
from rlhf_dialog.training import checks, iteration_metrics, ppo
from rlhf_dialog.training.episodes import EpisodeInputs, PromptList, newest_turns
from rlhf_dialog.training.iteration_metrics import Metrics
from rlhf_dialog.training.reading import Given, read_episodes
from rlhf_dialog.training.rollout import (
    Clock,
    Rollout,
    collect_rollout,
    drop_unscored,
    external_rollout,
    flat_groups,
    join_rollouts,
    without_features,
)
from rlhf_dialog.training.simulated import DialogueCounter, Simulated
from rlhf_dialog.training.update import PPOUpdate
from rlhf_dialog.user_code import as_user_error, is_of_users

logger = logging.getLogger(__name__)
NO_CRITIC = {"ppo/value_loss": math.nan, "ppo/explained_variance": math.nan}  # null in metrics.jsonl


@dataclass(frozen=True)
class RolloutEngine:
    """Another program that writes the responses of training, by `speaker`.

    Before each rollout all ranks call `sync` with the number of iterations so far, which tells the weights of the policy from
    earlier ones. `cap`: the largest of `engine_weights`.
    """

    speaker: Responder
    sync: Callable[[int], None]
    cap: float


class PPOTrainer:
    """Trains `models.policy` (and its critic) with the reward, on prompts or on dialogues with environments.

    `step()` runs one iteration and returns its metrics, `step_on()` one on the caller's responses and scores; `rollout` is the
    newest rollout. A checkpoint needs `state_dict()`, the modules and the optimizers. With several ranks, each has a trainer and
    a part of each rollout; all make the same steps, and every metric except times covers the episodes of all ranks.
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
        self.prompts = prompts if isinstance(prompts, Simulated) else PromptList(prompts)
        self.world = world or World()
        self.plan = batch_plan(config, self.world.size)
        self.sizes = PartSizes()  # of all phases, smaller than asked where memory has run out
        self.speaker = Responder(  # samples here; chats, validation and guard never ask the engine
            models.policy,
            prompt_encoder(models.tokenizer, config.turn_separator, config.max_prompt_length, config.system_prompt),
            Sampling(config.max_new_tokens, config.temperature, config.top_k, config.top_p),
            StopRule(models.policy, models.tokenizer, config.turn_separator, config.stop_token_ids),
            GenerationLimits(sizes=self.sizes),
            config.context_size,
        )
        self.rollout_engine: RolloutEngine | None = None
        skip, penalty = config.on_reward_error == "skip", penalty_keys(config)
        self.scorer = Scorer(reward, skip, config.reward_timeout_s, *penalty, self.sizes, self.around_reward)
        self.sampler: DialogueCounter | PromptSampler = DialogueCounter()
        if isinstance(self.prompts, PromptList):
            self.sampler = PromptSampler(len(self.prompts), config.seed)
        self.kl = ppo.AdaptiveKLController(
            config.kl_coef, config.kl_target, config.kl_rate, config.kl_clip, config.kl_hold, config.kl_coef_max
        )
        self.value_norm = ppo.ValueNormalizer() if config.use_valuenorm else None
        self.placement = Placement(config, models, reward, self.world, self.plan)
        self.engines = self.placement.engines
        self.estimator = config.estimator
        self.group_size = config.num_responses_per_prompt if self.estimator.needs_groups else 1
        self.keep_features = config.kl_in == "loss"
        self.noise, self.is_measured = checks.Noise(), False  # of log-probabilities, by rounding, on the first rollout
        self.update = PPOUpdate(config, self.placement, self.world, self.plan.num_minibatches, self.sizes, self.tell)
        self.listener: Callable[[int, str], None] | None = None  # hears where each iteration is, once a run shows it
        self.use_sizes()
        self.iteration, self.time_steps, self.episodes = 0, 0, 0
        self.rollout: Rollout | None = None
        # false with weights of a checkpoint
        self.starts_from_reference = config.reference and config.ref_model in (None, config.model_path)

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return whole_optimizers(self.engines)

    def step(self) -> Metrics:
        """One iteration of PPO (Schulman et al. 2017, arXiv 1707.06347) on responses to the next prompts: returns its metrics.

        Raises RunStopped when a check of the run fails, or after `max_skipped_steps` skipped optimizer steps in a row;
        RewardError when the reward fails.
        """
        self.rollout = None  # its tensors go before the next one's come
        rollout, rounding = self.collect(self.plan.num_prompts)
        assert rollout is not None  # each rank has a prompt
        if self.config.resample_flat_groups:
            rollout = self.resample(rollout)
        return self.learn_from(rollout, rounding)

    def collect(self, num_prompts: int, first_group: int = 0) -> tuple[Rollout | None, Tensor | None]:
        """What `check` returns for this rank's responses to the next prompts; None where it has none of them."""
        episodes = self.next_episodes(num_prompts, first_group)
        with self.world.fail_together(), self.around_reward():
            begin_scoring(self.scorer.reward, "rollout", self.iteration + 1)
        clock = Clock(self.models.policy.lm.device)
        speaker = self.begin_rollout(clock)
        with self.world.fail_together(), self.placement.rollout():
            if not episodes.environments:
                return None, None
            return self.check(collect_rollout(episodes, speaker, self.scorer, self.models, self.keep_features, clock))

    def resample(self, rollout: Rollout) -> Rollout:
        """The rollout with groups of the next prompts in place of those whose episodes were all paid the same.

        This is dynamic sampling (Yu et al. 2025, DAPO, arXiv 2503.14476, section 3.2); after
        `resample_flat_groups` further rounds, the flat groups of the last one stay.

        All ranks draw the same prompts, as many as are missing on all of them, and divide these anew.
        """
        rounds, flat, num_drawn, num_resampled = [rollout], flat_groups(rollout), self.plan.num_prompts, 0
        kept = list(range(len(rollout)))
        for _ in range(self.config.resample_flat_groups):
            (count,) = map(int, self.world.sum_numbers([len(flat)]))
            if not count:
                break
            given_up = {row for rows in flat for row in rows}
            start = sum(map(len, rounds)) - len(rounds[-1]) if flat else 0
            kept = [row for row in kept if row - start not in given_up]
            more, _ = self.collect(count, num_drawn)
            num_drawn, num_resampled, flat = num_drawn + count, num_resampled + count, []
            if more is not None:
                kept += [sum(map(len, rounds)) + row for row in range(len(more))]
                rounds[0].clock.add(more.clock)
                rounds, flat = [*rounds, more], flat_groups(more)
        (left,) = map(int, self.world.sum_numbers([len(flat)]))
        drawn = join_rollouts(rounds)
        if len(kept) < len(drawn):
            whole = join_rollouts([without_features(one) if one.whole is None else one.whole for one in rounds])
            kept_rows = replace(drawn.select(kept), num_dropped=drawn.num_dropped)
            rollout = replace(kept_rows, drawn=without_features(drawn), whole=whole)
        elif len(rounds) > 1:
            rollout = drawn
        return replace(rollout, num_resampled=num_resampled, num_flat_left=left)

    def begin_rollout(self, clock: Clock) -> Responder:
        """Who writes the responses of training: the policy itself, or the engine, to which the weights are sent now."""
        limits = replace(self.speaker.limits, tell=self.tell, measure=clock.measure)
        if self.rollout_engine is None:
            return replace(self.speaker, limits=limits)
        with clock.measure("rollout"), clock.measure("sync"):
            self.rollout_engine.sync(self.iteration)
        return replace(self.rollout_engine.speaker, limits=limits)

    def around_reward(self) -> AbstractContextManager[None]:
        """Around each call of the reward: it draws numbers of its own, by seed, rank and iteration, and the run draws its own."""
        if not runs_user_code(self.scorer.reward):
            return nullcontext()
        return generators_of_users(self.config.seed, self.world, self.iteration)

    def check(self, rollout: Rollout) -> tuple[Rollout, Tensor | None]:
        """The rollout without episodes that have no score, and, on the first call, the rounding errors of log-probabilities (K,).

        Raises RunStopped for predictions that are not finite. Here no rank waits for another.
        """
        reference = self.models.ref_policy
        predictions = {"policy": rollout.logprobs, "critic": rollout.values}
        predictions |= {} if reference is None else {"reference": rollout.ref_logprobs}
        sampled = rollout.sampled_logprobs
        predictions |= {} if sampled is None else {"engine": sampled}
        checks.check_numbers(predictions, rollout.response_mask, rollout.dialogues, self.iteration + 1)
        if self.rollout_engine is not None and sampled is not None:
            cap = self.rollout_engine.cap
            rollout.engine_weights = ppo.engine_weights(rollout.logprobs, sampled, rollout.response_mask, cap)
        rollout = drop_unscored(rollout, self.group_size)
        if self.is_measured:
            return rollout, None
        name, model = ("policy", self.models.policy) if reference is None else ("reference", reference)
        return rollout, checks.measure_rounding(name, model, rollout.in_segments().tokens, self.config.temperature)

    def learn_from(self, rollout: Rollout, rounding: Tensor | None) -> Metrics:
        """The second half of an iteration, from what `check` returns: advantages, the update, and the metrics of all."""
        config, iteration, mask, self.rollout = self.config, self.iteration + 1, rollout.response_mask, rollout
        self.await_ranks(rollout, rounding)
        of_engine: Metrics = {}
        if self.rollout_engine is not None and rollout.sampled_logprobs is not None:
            of_engine = iteration_metrics.engine_metrics(
                rollout, rollout.sampled_logprobs, self.rollout_engine.cap, self.world
            )
            checks.check_engine(of_engine, iteration, self.noise)
        if iteration == 1 and self.starts_from_reference:
            checks.check_start(rollout.logprobs - rollout.ref_logprobs, mask, self.noise, self.world)
        kl_coef = self.kl.kl_coef
        drawn = rollout if rollout.drawn is None else rollout.drawn
        # NaN without a reference
        kl = masked_mean(drawn.logprobs - drawn.ref_logprobs, drawn.response_mask, self.world.sum).item()
        earned, penalties = token_rewards(rollout, config, kl_coef, self.world)
        rollout.rewards = earned + penalties
        values = rollout.values if self.value_norm is None else self.value_norm.denormalize(rollout.values)
        rollout.advantages, rollout.returns, statistics = estimate_advantages(
            earned, penalties, values, mask, config, self.world, iteration
        )
        rollout.targets = rollout.returns
        rollout.loss_weights = ppo.loss_weights(
            mask, config.loss_average, config.max_new_tokens, rollout.logprobs, self.world.sum
        )
        if self.value_norm is not None and self.estimator.needs_critic:
            self.value_norm.update(rollout.returns, mask, self.world.sum)
            rollout.targets = self.value_norm.normalize(rollout.returns)
        losses = self.update(rollout.in_segments(), iteration, self.lr_scale, kl_coef, self.noise)
        for rows in self.world.gather(dict(self.sizes.rows)):
            self.sizes.lower(rows)  # not when a checkpoint is written, whose time depends on the clock
        if config.reference:
            self.kl.update(kl)
        objective = {"objective/kl": kl, "objective/kl_coef": kl_coef} | of_engine
        return self.metrics(rollout, objective, NO_CRITIC | statistics | losses)

    def await_ranks(self, rollout: Rollout, rounding: Tensor | None) -> None:
        """Wait for the rollouts of all ranks. Sets `noise` on the first call. Raises RunStopped when no episode is left."""
        if self.world.size > 1:
            seconds = rollout.clock.seconds
            seconds["wait"] = rollout.clock.elapsed - seconds["rollout"] - seconds["reward"]
        if rounding is not None:
            num_bits = 16 if self.placement.reduced_precision else 32
            self.noise = checks.combine_rounding(rounding, self.world, self.config.temperature, num_bits)
            self.is_measured = True
            if rollout.is_sampled:
                newest = [Dialogue([text], system=x.system) for x in rollout.dialogues for text in newest_turns(x)]
                warn_about_cut(self.speaker.encoder, newest, self.world.gather)
        left, dropped = self.world.sum_numbers([len(rollout), rollout.num_dropped])
        if not left:
            groups = " or their groups" if self.estimator.needs_groups else ""
            raise RunStopped(
                f"iteration {self.iteration + 1}: all {dropped:.0f} episodes are dropped, because the reward "
                f"'{self.scorer.reward.name}' gave them{groups} no score"
            )

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
        policy as it is now. `scores` are used unchanged: neither the run's reward nor `truncation_penalty` changes them. Raises
        UserError for what cannot be used (a filter in `top_k` or `top_p`, too), and RunStopped as `step` does.
        """
        self.rollout = None
        with self.world.fail_together(), self.placement.rollout():
            dialogues, tokens = read_episodes(prompts, responses, scores, self.speaker, self.group_size)
            rollout = external_rollout(dialogues, tokens, scores, self.speaker, self.models, self.keep_features)
            rollout, rounding = self.check(rollout)
        return self.learn_from(rollout, rounding)

    def train(self) -> Iterator[Metrics]:
        """Yield the metrics of each iteration until `total_time_steps`, `max_iterations` or `total_episodes` is reached."""
        while not self.done:
            yield self.step()

    @property
    def done(self) -> bool:
        return self.progress >= 1

    @property
    def progress(self) -> float:
        """The share of the run that is done, 0 to 1."""
        if self.config.max_iterations is not None:
            return self.iteration / self.config.max_iterations
        if self.config.total_episodes is not None:
            return min(self.episodes / self.config.total_episodes, 1.0)
        return min(self.time_steps / self.config.total_time_steps, 1.0)

    def tell(self, text: str) -> None:
        if self.listener:
            self.listener(self.iteration + 1, text)

    @property
    def asked_sizes(self) -> list[int]:
        return [self.config.rollout_size, self.config.microbatch_size]

    def use_sizes(self) -> None:
        """Take the sizes of the configuration."""
        self.plan = batch_plan(self.config, self.world.size)
        rows, microbatch = self.asked_sizes
        self.speaker.limits = replace(self.speaker.limits, rows_at_once=rows, prompts_at_once=microbatch)
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
        return self.prompts.deal([prompt for prompt in prompts for _ in range(self.config.num_responses_per_prompt)])

    def metrics(self, rollout: Rollout, objective: Metrics, losses: Metrics) -> Metrics:
        """Count the iteration; returns its line of metrics.jsonl, from the update and from the rollout."""
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
            **objective,
            **losses,
            **iteration_metrics.times(rollout.clock, num_generated),
            **iteration_metrics.rollout_metrics(drawn, self.world),
            **iteration_metrics.gain_metrics(drawn, self.config.num_responses_per_prompt, self.world),
        }
        if self.config.resample_flat_groups:
            metrics |= {"rollout/resampled": rollout.num_resampled, "rollout/flat_left": rollout.num_flat_left}
        checks.watch_kl(self.kl, objective["objective/kl"], self.iteration)
        if self.iteration == 1:
            metrics["objective/kl_initial"] = objective["objective/kl"]
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
        self.iteration, self.time_steps, self.episodes = state["iteration"], state["time_steps"], state["episodes"]
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


def token_rewards(rollout: Rollout, config: Config, kl_coef: float, world: World) -> tuple[Tensor, Tensor]:
    """The per-token rewards of a scored rollout in two parts, each (B, T): what was earned, and -kl_coef * KL.

    The first is the score and the environment's rewards, or under `whiten_rewards` the whitened sum of all; the second is 0 then,
    and under `kl_in: loss`.
    """
    mask = rollout.response_mask
    rewards = ppo.score_rewards(rollout.scores, mask, rollout.turn_rewards)
    coef_in_reward = kl_coef if config.kl_in == "reward" else 0.0
    penalties = torch.zeros_like(rewards)
    if config.reference:
        penalties = ppo.kl_penalties(rollout.logprobs, rollout.ref_logprobs, mask, coef_in_reward, config.kl_estimator)
    if config.whiten_rewards:
        rewards = ppo.whiten(rewards + penalties, mask, world.sum, shift_mean=False)
        penalties = torch.zeros_like(penalties)
    return rewards, penalties


def estimate_advantages(
    earned: Tensor,
    penalties: Tensor,
    values: Tensor,
    response_mask: Tensor,
    config: Config,
    world: World,
    iteration: int,
) -> tuple[Tensor, Tensor, Metrics]:
    """Advantages by the run's estimator, whitened once over the rollout of all ranks, and returns, each (B, T), with statistics.

    `values` (B, T) and the returns are in units of the rewards. The statistics are the critic's explained variance, or the number
    of groups whose rewards are all equal. If that is all groups, only KL penalties are left, and whitening, which would amplify
    them, is left out.
    """
    gae_lambda, by_turn = config.gae_lambda if config.use_gae else 1.0, config.credit == "turn"
    credit = ppo.Credit(config.gamma, gae_lambda, config.num_responses_per_prompt, by_turn, config.group_std)
    estimator = config.estimator
    function, who = AdvantageFactory.find(estimator.name), f"advantage_estimator '{estimator.name}'"
    with as_user_error(who) if is_of_users(function) else nullcontext():
        advantages, returns = function(earned, penalties, values, response_mask, credit)
    for x in (advantages, returns):
        if x.shape != values.shape:
            wanted = f"two tensors {tuple(values.shape)}, advantages and returns"
            raise UserError(f"{who}: returned a tensor {tuple(x.shape)}; it must return {wanted}")
    statistics: Metrics = {}
    all_flat = False
    if estimator.needs_groups:
        flat = ppo.flat_groups(earned, response_mask, credit).item()
        num_flat, num_groups = map(int, world.sum_numbers((flat, len(values) / credit.num_responses_per_prompt)))
        statistics, all_flat = {"ppo/flat_groups": num_flat}, num_flat == num_groups
        if all_flat:
            text = "iteration %d: the %d responses to each prompt have equal scores, for all %d prompts; there is nothing to "
            logger.warning(text + "learn from them but the KL", iteration, credit.num_responses_per_prompt, num_groups)
    if config.use_adv_normalize and not all_flat:
        advantages = ppo.whiten(advantages, response_mask, world.sum)
    if estimator.needs_critic:
        explained = ppo.explained_variance(values, returns, response_mask, world.sum)
        statistics = {"ppo/explained_variance": explained.item()}
    return advantages, returns, statistics
