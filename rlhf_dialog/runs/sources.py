"""What a run is trained on, and what it is evaluated on: prompts of a data set, or dialogues with an environment."""

import math
from functools import partial
from typing import Any

from rlhf_dialog.config.registry import BaselineFactory
from rlhf_dialog.config.schema import Config, EnvironmentConfig
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.environments.base import Baseline, Environment, Limits, answer, baselines_of, check_turns
from rlhf_dialog.environments.built_in import build_environment
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.evaluation.dialogues import Played, means
from rlhf_dialog.models.chat_agent import Speaker
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.needs import check_needs
from rlhf_dialog.runs.services.validation import BATCH_SIZE, Validation, load_validation_prompts
from rlhf_dialog.training.episodes import plain, play
from rlhf_dialog.training.iteration_metrics import Metrics
from rlhf_dialog.training.simulated import Simulated
from rlhf_dialog.training.trainer import PPOTrainer

MEASURES = ("score", "success", "reward", "turns", "words", "truncated", "distinct_1", "distinct_2")


def read_source(config: Config, reward: BaseReward) -> tuple[list[Dialogue] | Simulated, Validation | None]:
    """What the run is trained on, checked with the reward, and its validation if it has one. Raises UserError."""
    if config.environment:
        if given := config.env.args.data_path:
            raise UserError(
                f"env.args.data_path: the environment {config.environment.id} does not read '{given}'; leave it out, or leave "
                "environment out to train on the prompts of the data"
            )
        held_out = simulated(config.environment, config.seed, "validation")
        validation = DialogueValidation(config, held_out, reward) if config.eval_interval else None
        return simulated(config.environment, config.seed, "train"), validation
    path = config.env.args.data_path
    prompts = load_prompts(
        path, "train", config.context_size, config.min_context_size, config.drop_overlap, config.turn_separator
    )
    check_needs(reward, prompts)
    if not config.eval_interval:
        return prompts, None
    validating = load_validation_prompts(config)
    check_needs(reward, validating, " of the validation split (eval_interval)")
    return prompts, Validation(config, validating, reward)


def simulated(environment: EnvironmentConfig, seed: int, split: str) -> Simulated:
    """The dialogues of a split with the environment, one of which is built at once. Raises UserError when that fails."""
    limits = Limits(environment.step_timeout_s, environment.max_turns)
    found = Simulated(partial(build_environment, environment.id, environment.args), seed, limits, split)
    found.environments.append(found.make())
    return found


def played(speaker: Speaker, source: Simulated, numbers: range, at_once: int = BATCH_SIZE) -> list[Played]:
    """The dialogues of these numbers, at most `at_once` side by side; how many there are changes no dialogue."""
    dialogues = []
    for start in range(0, len(numbers), at_once):
        deal = source.deal([source[number] for number in numbers[start : start + at_once]])
        episodes = play(deal.environments, speaker, deal.seeds, source.limits, deal.streams, deal.metas)
        paid = [0.0] * len(deal.seeds) if episodes.turn_rewards is None else episodes.turn_rewards.sum(dim=1).tolist()
        dialogues += [Played(*pair) for pair in zip(episodes.dialogues, paid, strict=True)]
    return dialogues


def spoken(name: str, source: Simulated, numbers: range) -> list[Played]:
    """The dialogues of these numbers with a baseline of the environment. Raises UserError where it has none of this name."""
    environment = source.environments[0]
    if name not in baselines_of(environment):
        raise UserError(f"{name}: speaks acts, which {type(environment).__name__} does not understand")
    system: Baseline = BaselineFactory.create(name, {"environment": environment, "seed": source.seed})
    return [_spoken(environment, system, source.seed_of(number), source.limits) for number in numbers]


def _spoken(environment: Environment, system: Baseline, seed: int, limits: Limits) -> Played:
    dialogue, paid, ended, count = Dialogue([system.begin(seed)]), 0.0, False, 0
    while not ended:
        check_turns(environment, count, limits)
        reply = system.reply()
        text, reward, terminated, truncated, info = answer(environment, reply, limits)
        dialogue, paid, ended, count = (
            dialogue.said(reply, truncated).heard(text),
            paid + reward,
            terminated or truncated,
            count + 1,
        )
    dialogue.meta = {"info": plain(info)}
    return Played(dialogue, paid)


class DialogueValidation(Validation):
    """Evaluates the policy at intervals on `eval_episodes` dialogues, the same every time; `score` is what they pay in all."""

    def __init__(self, config: Config, source: Simulated, reward: BaseReward):
        super().__init__(config, [], reward)
        self.source, self.num_prompts = source, config.eval_episodes
        self.known: Metrics = {}  # of the handcrafted policy, where it understands the environment

    def check(self) -> None:
        """Play the dialogues with the handcrafted policy. Raises UserError for an unknown `eval_metric`."""
        if self.config.eval_metric not in MEASURES:
            hint = nearest(self.config.eval_metric, MEASURES) or "."
            raise UserError(
                f"eval_metric: '{self.config.eval_metric}' is not measured{hint} Choose one of: {', '.join(MEASURES)}"
            )
        if "handcrafted" in baselines_of(self.source.environments[0]):
            found = means(spoken("handcrafted", self.source, range(self.num_prompts)))
            self.known = {f"handcrafted_{name}": found[name] for name in ("success", "reward")}

    def _own_replies(self, trainer: PPOTrainer) -> Any:
        mine = trainer.world.share(range(self.num_prompts))
        return played(trainer.speaker, self.source, range(mine[0], mine[-1] + 1) if mine else range(0))

    def _joined(self, parts: list[Any]) -> Any:
        return [one for part in parts for one in part]

    def measure(self, replies: Any, iteration: int) -> Metrics:
        """`eval/<measure>` of the dialogues, see `Validation.measure`."""
        found = self._score(replies) | {name: x for name, x in means(replies).items() if math.isfinite(x)} | self.known
        self._compare(found.get(self.config.eval_metric, math.nan), iteration)
        return {f"eval/{name}": value for name, value in found.items()}

    def _score(self, dialogues: list[Played]) -> Metrics:
        scores = self.scorer.score([one.dialogue for one in dialogues]).total
        return {"score": (sum(scores) + sum(one.reward for one in dialogues)) / len(dialogues)}
