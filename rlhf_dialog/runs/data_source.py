"""What a run is trained on and validated with: prompts, or dialogues with an environment."""

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import rlhf_dialog.metrics
import rlhf_dialog.rewards  # noqa: F401  the built-in rewards register themselves
from rlhf_dialog.config.registry import BaselineFactory
from rlhf_dialog.config.schema import Config, EnvironmentConfig
from rlhf_dialog.data.chat_template import warn_about_marks, warn_about_replies
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules, Prompts
from rlhf_dialog.distributed.memory import human
from rlhf_dialog.distributed.world import World
from rlhf_dialog.environments.base import (
    Baseline,
    EpisodeLimits,
    answer,
    baseline_names,
    build_environment,
    check_turns,
)
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.dialogues import Played, means
from rlhf_dialog.models.generation import Responder
from rlhf_dialog.models.loading import trained_parameters
from rlhf_dialog.models.saved_agent import kept_system_prompt
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.runs.services import validation as run_validation
from rlhf_dialog.runs.services.validation import Validation, ValidationService
from rlhf_dialog.training.episodes import plain, run_episodes
from rlhf_dialog.training.iteration_metrics import Metrics
from rlhf_dialog.training.simulated import Simulated
from rlhf_dialog.training.trainer import PPOTrainer

logger = logging.getLogger(__name__)
MEASURES = ("score", "success", "reward", "turns", "words", "truncated", "distinct_1", "distinct_2")


Source = tuple[Sequence[Dialogue] | Simulated, Validation | None]


def prompts_of(source: Sequence[Dialogue] | Simulated) -> Sequence[Dialogue]:
    return [] if isinstance(source, Simulated) else source


def agent_config(trainer: PPOTrainer) -> Config:
    """The configuration with which the trainer's agent is saved: with the system prompt that it keeps."""
    text = kept_system_prompt(trainer.config, prompts_of(trainer.prompts), trainer.models.tokenizer)
    return trainer.config.model_copy(update={"system_prompt": text})


def report_size(
    trainer: PPOTrainer, source: Sequence[Dialogue] | Simulated, validation: Validation | None, memory: int | None
) -> None:
    """Log how many prompts, parameters and optimizer steps the run has, and warn of prompts with marks of the template.

    memory: bytes that a forecast has for this process
    """
    config, models, plan, prompts = trainer.config, trainer.models, trainer.plan, prompts_of(source)
    warn_about_replies(trainer.responder.encoder)
    warn_about_marks(trainer.responder.encoder, prompts, validation.prompts if validation else ())
    count = trained_parameters(m for m in (models.policy, models.critic) if m is not None)
    what = f"environment {config.environment.id}" if config.environment else f"{len(prompts)} prompts"
    about = f", about {human(memory)} of memory" if memory else ""
    device = trainer.world.device
    logger.info("%s; %.1f million trained parameters on %s%s; %s", what, count / 1e6, device, about, plan.line)
    if plan.notice:
        logger.info("%s", plan.notice)


def read_source(config: Config, reward: BaseReward, world: World | None = None) -> Source:
    """What the run is trained on, checked with the reward, and its validation if it has one. Raises UserError.

    Rank 0 reads the data once, and all get its index; all ranks call it.
    """
    if config.environment:
        if given := config.env.args.data_path:
            raise UserError(
                f"env.args.data_path: the environment {config.environment.id} does not read '{given}'; leave it out, or leave "
                "environment out to train on the prompts of the data"
            )
        held_out = build_simulated(config.environment, config.seed, "validation")
        validation = DialogueValidation(config, held_out, reward) if config.eval_interval else None
        return build_simulated(config.environment, config.seed, "train"), validation
    world = world or World()
    prompts = world.on_main(lambda: training_prompts(config, reward))
    with world.fail_together():
        prompts.open(config.env.args.data_path)
        reward.check_prompts(prompts)
    if not config.eval_interval:
        return prompts, None
    validating = world.on_main(lambda: run_validation.load_validation_prompts(config))
    with world.fail_together():
        reward.check_prompts(validating, " of the validation split (eval_interval)")
        return prompts, ValidationService(config, validating, reward)


def training_prompts(config: Config, reward: BaseReward | None = None) -> Prompts:
    """The prompts of the training split; where the reward needs no reference or act, also those without a reply to learn."""
    rules = replace(PromptRules.from_keys(config), unanswered=True)
    return rules.load(config.env.args.data_path, "train", () if reward is None else reward.needs)


def build_simulated(environment: EnvironmentConfig, seed: int, split: str) -> Simulated:
    """The dialogues of a split with the environment, one of which is built at once. Raises UserError when that fails."""
    limits = EpisodeLimits(environment.step_timeout_s, environment.max_turns)
    found = Simulated(partial(build_environment, environment.id, environment.args), seed, limits, split)
    found.environments.append(found.make())
    return found


def play_dialogues(responder: Responder, source: Simulated, numbers: range, at_once: int = 64) -> list[Played]:
    """The dialogues of these numbers, at most `at_once` side by side; how many there are changes no dialogue."""
    dialogues = []
    for start in range(0, len(numbers), at_once):
        inputs = source.deal([source[number] for number in numbers[start : start + at_once]])
        episodes = run_episodes(inputs, responder)
        paid, unpaid = episodes.turn_rewards, [0.0] * len(inputs.environments)
        rewards = unpaid if paid is None else paid.sum(dim=1).tolist()
        dialogues += [Played(*pair) for pair in zip(episodes.dialogues, rewards, strict=True)]
    return dialogues


def spoken(name: str, source: Simulated, numbers: range) -> list[Played]:
    """The dialogues of these numbers with a baseline of the environment. Raises UserError where it has none of this name."""
    environment = source.environments[0]
    if name not in baseline_names(environment):
        raise UserError(f"{name}: speaks acts, which {type(environment).__name__} does not understand")
    system: Baseline = BaselineFactory.create(name, {"environment": environment, "seed": source.seed})
    played = []
    for number in numbers:
        dialogue, reward_sum, ended, count = Dialogue([system.begin(source.seed_of(number))]), 0.0, False, 0
        while not ended:
            check_turns(environment, count, source.limits)
            reply = system.reply()
            text, reward, terminated, truncated, info = answer(environment, reply, source.limits)
            dialogue = dialogue.with_reply(reply, truncated).with_user_turn(text)
            reward_sum, ended, count = reward_sum + reward, terminated or truncated, count + 1
        dialogue.meta = {"info": plain(info)}
        played.append(Played(dialogue, reward_sum))
    return played


class DialogueValidation(Validation):
    """`Validation` in `eval_episodes` dialogues, the same every time; `score` is what they pay in all."""

    def __init__(self, config: Config, source: Simulated, reward: BaseReward):
        super().__init__(config, reward, config.eval_episodes)
        self.source = source
        self.known: Metrics = {}  # of the handcrafted policy, where it understands the environment

    def metric_names(self) -> Collection[str]:
        """Also plays the dialogues with the handcrafted policy."""
        if "handcrafted" in baseline_names(self.source.environments[0]):
            found = means(spoken("handcrafted", self.source, range(self.num_prompts)))
            self.known = {f"handcrafted_{name}": found[name] for name in ("success", "reward")}
        return MEASURES

    def answer(self, trainer: PPOTrainer) -> list[Played]:
        share = trainer.world.share(range(self.num_prompts))
        return play_dialogues(trainer.responder, self.source, share, trainer.responder.limits.rows_at_once)

    def measure(self, shares: list[list[Played]], iteration: int) -> Metrics:
        dialogues = [one for share in shares for one in share]
        scores = self.scorer.score([one.dialogue for one in dialogues]).total
        score = (sum(scores) + sum(one.reward for one in dialogues)) / len(dialogues)
        finite = {name: x for name, x in means(dialogues).items() if math.isfinite(x)}
        return {"score": score} | finite | self.known
