"""The parts of a run, in the order in which they are cheap to refuse: reward and data first, then the models and the trainer."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import rlhf_dialog.metrics
import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves
from rlhf_dialog.config.batch_plan import batch_plan
from rlhf_dialog.config.registry import VecInfoFactory
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import warn_of_marks
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.memory import forecast
from rlhf_dialog.distributed.placement import check_placement, deepspeed_setting
from rlhf_dialog.distributed.random_states import seed_rank
from rlhf_dialog.distributed.world import World
from rlhf_dialog.metrics.base import VecInfo
from rlhf_dialog.models.loading import load_models, trained_parameters
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.runs import identity
from rlhf_dialog.runs.services.validation import Validation
from rlhf_dialog.runs.stage_times import StageTimes
from rlhf_dialog.training.simulated import Simulated
from rlhf_dialog.training.trainer import PPOTrainer

logger = logging.getLogger(__name__)


@dataclass
class Parts:
    """What is checked before any model is loaded."""

    reward: BaseReward
    vec_info: VecInfo
    source: list[Dialogue] | Simulated
    validation: Validation | None
    memory: forecast.Forecast | None = None


ReadSource = Callable[[BaseReward], tuple[list[Dialogue] | Simulated, Validation | None]]


def prepare(config: Config, world: World, times: StageTimes, read_source: ReadSource) -> Parts:
    """Reward, vec-info, data and validation. Raises UserError."""
    seed_rank(config.seed, world)
    batch_plan(config, world.size)
    check_placement(config, world.device)
    memory = forecast.report_forecast(
        config, world.device, deepspeed_setting(config, world)
    )  # before anything is loaded
    with world.fail_together():
        with times.measured("reward"):
            reward = build_reward(config.reward_class.id, config.reward_class.args)
        vec_info = VecInfoFactory.create(config.vec_info_class.id, config.vec_info_class.args)
        with times.measured("data"):
            source, validation = read_source(reward)
    if validation:
        world.on_main(validation.check)
    return Parts(reward, vec_info, source, validation, memory)


def load(config: Config, world: World, parts: Parts, times: StageTimes) -> tuple[PPOTrainer, dict[str, Any]]:
    """The trainer with its models on the run's device, and what `identity.identity_of` says of them. Raises UserError."""
    with times.measured("models"), world.fail_together():
        models = load_models(config, world.device)
        parts.reward.to(str(world.device))
        if parts.validation:
            parts.validation.to(str(world.device))
    prompts = [] if isinstance(parts.source, Simulated) else parts.source
    of_run = identity.identity_of(config, models, prompts, parts.reward)
    identity.refuse_other_ranks(config, of_run, world)
    trainer = PPOTrainer(config, models, parts.source, parts.reward, parts.vec_info, world)
    warn_of_marks(trainer.speaker.encoder, [*prompts, *(parts.validation.prompts if parts.validation else ())])
    count = trained_parameters(m for m in (models.policy, models.critic) if m is not None)
    what = f"environment {config.environment.id}" if config.environment else f"{len(prompts)} prompts"
    about = f", about {forecast.human(parts.memory.total)} of memory" if parts.memory else ""
    plan = trainer.plan
    logger.info("%s; %.1f million trained parameters on %s%s; %s", what, count / 1e6, world.device, about, plan.line)
    logger.log(logging.DEBUG if plan.fits else logging.INFO, "%s", plan.text)
    return trainer, of_run
