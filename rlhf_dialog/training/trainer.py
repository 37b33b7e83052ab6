"""The PPO loop: `PPOTrainer.step` makes one iteration, `train` repeats it until the run's length is reached."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import prompt_encoder, warn_about_cut
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptSampler
from rlhf_dialog.distributed.placement import Placement
from rlhf_dialog.distributed.world import World
from rlhf_dialog.distributed.zero_checkpoint import whole_optimizers
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.metrics.nlp import VecInfo
from rlhf_dialog.models.generation import GenerationLimits, Sampling, StopRule
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.masks import apply_mask, masked_mean
from rlhf_dialog.models.part_sizes import PartSizes
from rlhf_dialog.models.responder import Responder
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import Scorer, begin_scoring, load_state, state_of
from rlhf_dialog.training import checks, iteration_metrics, ppo
from rlhf_dialog.training.advantages import estimate_advantages, kl_to_reference, token_rewards
from rlhf_dialog.training.episodes import EpisodeInputs, PromptList, newest_turns
from rlhf_dialog.training.external_rollout import Given, external_rollout
from rlhf_dialog.training.iteration_metrics import Metrics
from rlhf_dialog.training.rollout import Rollout, collect_rollout, drop_unscored
from rlhf_dialog.training.simulated import DialogueCounter, Simulated
from rlhf_dialog.training.update import PPOUpdate

logger = logging.getLogger(__name__)
NO_CRITIC = {"ppo/value_loss": math.nan, "ppo/explained_variance": math.nan}  # null in metrics.jsonl


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
        self.speaker = Responder(
            models.policy,
            prompt_encoder(models.tokenizer, config.turn_separator, config.max_prompt_length, config.system_prompt),
            Sampling(config.max_new_tokens, config.temperature, config.top_k, config.top_p),
            StopRule(models.policy, models.tokenizer, config.turn_separator, config.stop_token_ids),
            GenerationLimits(sizes=self.sizes),
            config.context_size,
        )
        skip, penalty = config.on_reward_error == "skip", config.truncation_penalty
        self.scorer = Scorer(reward, skip, config.reward_timeout_s, penalty, self.sizes)
        self.sampler: DialogueCounter | PromptSampler = DialogueCounter()
        if isinstance(self.prompts, PromptList):
            self.sampler = PromptSampler(len(self.prompts), config.seed)
        self.kl = ppo.AdaptiveKLController(
            config.kl_coef, config.kl_target, config.kl_rate, config.kl_clip, config.kl_hold, config.kl_coef_max
        )
        self.value_norm = ppo.ValueNormalizer() if config.use_valuenorm else None
        self.placement = Placement(config, models, reward, self.world, self.plan)
        self.engines = self.placement.engines
        self.group_size = config.num_responses_per_prompt if config.estimator.needs_groups else 1
        self.keep_features = config.kl_in == "loss"
        self.noise, self.is_measured = checks.Noise(), False  # of log-probabilities, by rounding, on the first rollout
        updating = partial(self.tell, "update")
        self.update = PPOUpdate(config, self.placement, self.world, self.plan.num_minibatches, self.sizes, updating)
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
        start, self.rollout = time.perf_counter(), None  # its tensors go before the next one's come
        episodes, limits = self.next_episodes(), replace(self.speaker.limits, tell=partial(self.tell, "rollout"))
        speaker = replace(self.speaker, limits=limits)
        with self.world.fail_together():
            begin_scoring(self.scorer.reward, "rollout", self.iteration + 1)
        rollout = self.on_every_rank(collect_rollout, episodes, speaker, self.scorer, self.models, self.keep_features)
        return self.learn_from(rollout, start)

    def learn_from(self, rollout: Rollout, start: float) -> Metrics:
        """The second half of an iteration: advantages, the update, and the metrics of all; it began at `start`."""
        config, iteration, self.rollout = self.config, self.iteration + 1, rollout
        rollout.clock.started = start
        if iteration == 1 and self.starts_from_reference:
            self.check_start(rollout)
        kl, kl_coef = kl_to_reference(rollout, self.world), self.kl.kl_coef
        rewards = token_rewards(rollout, config, kl_coef, self.world)
        values = rollout.values if self.value_norm is None else self.value_norm.denormalize(rollout.values)
        advantages = estimate_advantages(rewards, values, rollout.response_mask, config, self.world, iteration)
        rollout.rewards, rollout.advantages, rollout.returns = rewards.total, advantages.advantages, advantages.returns
        rollout.targets = self.value_targets(advantages.returns, rollout.response_mask)
        losses = self.update(rollout.in_segments(), iteration, self.lr_scale, kl_coef, self.noise)
        for rows in self.world.gather(dict(self.sizes.rows)):
            self.sizes.lower(rows)  # not when a checkpoint is written, whose time depends on the clock
        if config.reference:
            self.kl.update(kl)
        objective = {"objective/kl": kl, "objective/kl_coef": kl_coef}
        return self.metrics(rollout, objective, NO_CRITIC | advantages.statistics | losses)

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
        start, self.rollout = time.perf_counter(), None
        given = prompts, responses, scores
        rollout = self.on_every_rank(
            external_rollout, given, self.speaker, self.models, self.group_size, self.keep_features
        )
        return self.learn_from(rollout, start)

    def on_every_rank(self, make_rollout: Callable[..., Rollout], *given: Any) -> Rollout:
        """This rank's part of the rollout that `make_rollout(*given)` returns, checked, without episodes that have no score.

        The first call measures the rounding noise. If one rank fails, all raise; RunStopped also when no episode is left. "wait"
        on the rollout's clock is how long this rank waited for the others.
        """
        config, iteration, reference = self.config, self.iteration + 1, self.models.ref_policy
        with self.world.fail_together(), self.placement.rollout():
            rollout = make_rollout(*given)
            predictions = {"policy": rollout.logprobs, "critic": rollout.values}
            predictions |= {} if reference is None else {"reference": rollout.ref_logprobs}
            checks.check_numbers(predictions, rollout.response_mask, rollout.dialogues, iteration)
            rollout = drop_unscored(rollout, self.group_size)
            if not self.is_measured:
                measured = ("policy", self.models.policy) if reference is None else ("reference", reference)
                rounding = checks.measure_rounding(*measured, rollout.in_segments().tokens, config.temperature)
            collected = time.perf_counter()
        if not self.is_measured:
            num_bits = 16 if self.placement.reduced_precision else 32
            self.is_measured = True
            self.noise = checks.combine_rounding(rounding, self.world, config.temperature, num_bits)
            if rollout.is_sampled:
                newest = [Dialogue([text], system=x.system) for x in rollout.dialogues for text in newest_turns(x)]
                warn_about_cut(self.speaker.encoder, newest, self.world.gather)
        if self.world.size > 1:
            rollout.clock.seconds["wait"] = time.perf_counter() - collected
        left, dropped = self.world.sum_numbers([len(rollout), rollout.num_dropped])
        if not left:
            groups = " or their groups" if config.estimator.needs_groups else ""
            raise RunStopped(
                f"iteration {iteration}: all {dropped:.0f} episodes are dropped, because the reward "
                f"'{self.scorer.reward.name}' gave them{groups} no score; {checks.KEPT_CHECKPOINT}"
            )
        return rollout

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

    def tell(self, stage: str, text: str) -> None:
        if self.listener:
            self.listener(self.iteration + 1, f"{stage}, {text}")

    @property
    def asked_sizes(self) -> list[int]:
        return [self.config.rollout_size, self.config.microbatch_size]

    def use_sizes(self) -> None:
        """Take the sizes of the configuration."""
        self.plan = batch_plan(self.config, self.world.size)
        rows, prompts = self.asked_sizes
        self.speaker.limits = replace(self.speaker.limits, rows_at_once=rows, prompts_at_once=prompts)

    @property
    def lr_scale(self) -> float:
        return 1.0 - self.progress if self.config.use_linear_lr_decay else 1.0

    def next_episodes(self) -> EpisodeInputs:
        """This rank's episodes of one iteration; the responses to one prompt are neighbours with the same `group` in `meta`."""
        numbered = self.world.share(list(enumerate(self.sampler.take(self.plan.num_prompts))))
        prompts = [replace(self.prompts[i], meta=self.prompts[i].meta | {"group": group}) for group, i in numbered]
        return self.prompts.deal([prompt for prompt in prompts for _ in range(self.config.num_responses_per_prompt)])

    def check_start(self, rollout: Rollout) -> None:
        """Raise RunStopped unless the policy computes as its reference does."""
        mask = rollout.response_mask
        size = apply_mask(rollout.logprobs - rollout.ref_logprobs, mask).abs()
        largest = max(self.world.gather(size.max().item() if len(size) else 0.0))
        mean = masked_mean(size, mask, self.world.sum).item()
        (num_tokens,) = self.world.sum_numbers([rollout.num_tokens])
        checks.check_start(largest, mean, self.noise, num_tokens)

    def value_targets(self, returns: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
        """The critic's regression targets (B, T): the returns, normalised under `use_valuenorm`."""
        if self.value_norm is None or not self.config.estimator.needs_critic:
            return returns
        self.value_norm.update(returns, response_mask, self.world.sum)
        return self.value_norm.normalize(returns)

    def count(self, rollout: Rollout) -> int:
        """Advance the counters by this rollout; returns the number of tokens that all ranks generated."""
        made = [rollout.num_generated, len(rollout) + rollout.num_dropped]
        num_generated, num_episodes = map(int, self.world.sum_numbers(made))
        self.iteration += 1
        self.time_steps += num_generated
        self.episodes += num_episodes
        return num_generated

    def metrics(self, rollout: Rollout, objective: Metrics, losses: Metrics) -> Metrics:
        """Count the iteration; returns its line of metrics.jsonl, from the update and from the rollout."""
        num_generated = self.count(rollout)
        metrics: Metrics = {
            "iteration": self.iteration,
            "time_steps": self.time_steps,
            "episodes": self.episodes,
            **objective,
            **losses,
            **iteration_metrics.times(rollout.clock, num_generated),
            **iteration_metrics.rollout_metrics(rollout, self.world),
            **iteration_metrics.gain_metrics(rollout, self.config.num_responses_per_prompt, self.world),
        }
        checks.watch_kl(self.kl, objective["objective/kl"], self.iteration)
        if self.iteration == 1:
            metrics["objective/kl_initial"] = objective["objective/kl"]
        if isinstance(self.prompts, Simulated):
            metrics |= iteration_metrics.dialogue_metrics(rollout, self.world)
        if rollout.reward_scores.parts:
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
