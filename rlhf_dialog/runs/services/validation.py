"""Evaluation during training: the policy answers fixed validation prompts, and the best iteration is recorded."""

import logging
import math
import random
import time
from collections.abc import Collection, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import TurnEncoder, keep_with_room
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.distributed.random_states import generators_of_users, random_states_kept, seed_everything
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.evaluation.measure import Measured, default_judges, measure
from rlhf_dialog.evaluation.replies import Replies, generate_share, join_replies
from rlhf_dialog.rewards.base import BaseReward, check_alone
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.rewards.scoring import Scorer, penalty_keys
from rlhf_dialog.runs.services.base import Metrics, PPORun, Service
from rlhf_dialog.training.trainer import PPOTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Best:
    """The highest value of `metric` on `num_prompts` prompts so far, and the iteration that reached it."""

    metric: str
    num_prompts: int
    value: float
    iteration: int


class Validation(Service):
    """Evaluates the policy at intervals, without influence on the training, and records the best iteration.

    A subclass has the policy answer and measures that: `ValidationService` on prompts, `DialogueValidation` in dialogues.
    prompts: those of the validation split, if there are any
    """

    key = "validation"

    def __init__(self, config: Config, reward: BaseReward, num_prompts: int):
        self.config, self.num_prompts = config, num_prompts
        self.prompts: list[Dialogue] = []
        skip = config.on_reward_error == "skip"
        around = partial(generators_of_users, config.seed, World())
        self.scorer = Scorer(reward, skip, config.reward_timeout_s, *penalty_keys(config), around=around)
        self.best: Best | None = None
        self.run: PPORun | None = None

    def metric_names(self) -> Collection[str]:
        """What `measure` will have. Raises RewardError for a reward that fails."""
        raise NotImplementedError

    def answer(self, trainer: PPOTrainer) -> Any:
        """This rank's share of the answers; the random numbers of one do not depend on the number of ranks."""
        raise NotImplementedError

    def measure(self, shares: list[Any], iteration: int) -> Metrics:
        """The metrics of the answers of all ranks. Raises RewardError when the reward fails."""
        raise NotImplementedError

    def other_rewards(self) -> Iterable[BaseReward]:
        """Those beside the reward of the run."""
        return ()

    def prepare(self, encoder: TurnEncoder, device: str) -> None:
        """Keep the prompts for which the encoder has room, and move the models of `other_rewards`; the run moves the reward."""
        self.prompts = list(keep_with_room(encoder, self.prompts))
        for reward in self.other_rewards():
            reward.move_to(device)

    def check(self) -> None:
        """Find errors before training. Raises UserError for an unknown `eval_metric`, RewardError for a reward that fails."""
        metric, names = self.config.eval_metric, self.metric_names()
        if metric not in names:
            hint = nearest(metric, names) or "."
            raise UserError(f"eval_metric: '{metric}' is not measured{hint} Choose one of: {', '.join(names)}")

    def begin(self, run: PPORun) -> None:
        self.run = run
        self.scorer = replace(self.scorer, sizes=run.trainer.sizes)

    def after_iteration(self, run: PPORun, metrics: Metrics) -> Metrics:
        return self.validate(run.trainer) if self.due(run.iteration, run.done) else {}

    def wants_checkpoint(self, run: PPORun) -> bool:
        return self.best is not None and self.best.iteration == run.iteration

    def due(self, iteration: int, done: bool) -> bool:
        """Whether to evaluate after `iteration`; always after the last one."""
        return done or iteration % self.config.eval_interval == 0

    def validate(self, trainer: PPOTrainer) -> Metrics:
        """`eval/<metric>` for each, and `time/eval`. The ranks share the prompts out; rank 0 measures all replies, so that the
        numbers are those of one process. Every rank calls it. Raises RewardError when the reward fails.
        """
        start, world = time.perf_counter(), trainer.world
        with random_states_kept(), self.run.pause() if self.run else nullcontext():
            seed_everything(self.config.seed)
            with world.fail_together(), trainer.placement.rollout():
                own = self.answer(trainer)
            shares = world.gather(own)
            with world.fail_together(), trainer.placement.judging():
                found = self.measure(shares, trainer.iteration) if world.is_main else {}
        self.compare(found.get(self.config.eval_metric, math.nan), trainer.iteration)
        measured = {f"eval/{name}": value for name, value in found.items()}
        measured["time/eval"] = time.perf_counter() - start
        metrics, best = world.broadcast((measured, self.state_dict()))
        self.load_state_dict(best)
        return metrics

    def compare(self, value: float, iteration: int) -> None:
        """Record the iteration as the best so far if the value of its metric is the highest."""
        if not math.isnan(value) and (self.best is None or value > self.best.value):
            self.best = Best(self.config.eval_metric, self.num_prompts, value, iteration)

    def state_dict(self) -> dict[str, Any]:
        """The best result so far, as JSON."""
        return {"best": asdict(self.best) if self.best else None}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore a stored state; a best of another metric or another number of prompts is dropped."""
        best = Best(**state["best"]) if state and state["best"] else None
        comparable = best and (best.metric, best.num_prompts) == (self.config.eval_metric, self.num_prompts)
        self.best = best if comparable else None

    def end(self, error: BaseException | None) -> None:
        """Say which iteration was the best of a run that has finished, and where its agent is."""
        if error is not None or self.run is None or self.run.is_trial:
            return
        if self.best is None:
            logger.warning("eval/%s was never a number, so there is no best agent", self.config.eval_metric)
            return
        text = "best eval/%s: %.4f after iteration %d; its agent: %s"
        logger.info(text, self.best.metric, self.best.value, self.best.iteration, self.run.folder / "best_agent")


class ValidationService(Validation):
    """`Validation` on the same prompts every time, by the metrics that their data allows, and by the guard's judge.

    measured: on rank 0, what the last validation found; judge: the metric of the guard's judge
    """

    def __init__(self, config: Config, prompts: list[Dialogue], reward: BaseReward):
        super().__init__(config, reward, len(prompts))
        self.prompts = prompts
        self.judge_rewards: dict[str, BaseReward] = {}  # the guard's, by the name of its metric
        self.measured: Measured | None = None
        self.judge: str | None = None
        if config.guard:
            try:
                judge = build_reward(config.guard.judge.id, config.guard.judge.args, config.env.args.columns)
            except UserError as error:
                raise error.with_location("guard.judge", "reward_class") from error
            check_alone(judge, "guard.judge")
            judge.check_prompts(prompts, " of the validation split (guard.judge)")
            self.judge = f"judge_{judge.name}"
            self.judge_rewards[self.judge] = judge
        self.judges = replace(default_judges(self.scorer), purpose="validation", user_judges=self.judge_rewards)

    def other_rewards(self) -> Iterable[BaseReward]:
        return self.judge_rewards.values()

    def begin(self, run: PPORun) -> None:
        super().begin(run)
        self.judges = replace(self.judges, sizes=run.trainer.sizes)

    def metric_names(self) -> Collection[str]:
        """The metrics of two references, measured as if they were replies."""
        barest = sorted(self.prompts, key=lambda prompt: (prompt.reference is not None, prompt.act is not None))
        dialogues = [replace(prompt, response=prompt.reference or "") for prompt in barest[:2]]
        with random_states_kept():
            return measure(Replies(dialogues, [1] * len(dialogues)), self.judges).points()

    def answer(self, trainer: PPOTrainer) -> Replies:
        size = min(trainer.responder.limits.rows_at_once, trainer.plan.num_responses)
        title = f"evaluation of iteration {trainer.iteration}"
        share = trainer.world.share(range(len(self.prompts)))
        return generate_share(trainer.responder, self.prompts, share, self.config.seed, size, title)

    def measure(self, shares: list[Replies], iteration: int) -> Metrics:
        self.measured = measure(join_replies(shares), replace(self.judges, iteration=iteration))
        return self.measured.points()


def load_validation_prompts(config: Config) -> list[Dialogue]:
    """At most `eval_episodes` prompts of the validation split, drawn by the seed."""
    try:
        prompts = PromptRules.from_keys(config).load(config.env.args.data_path, "validation")
    except UserError as error:
        what = f"{config.eval_interval} needs a validation split; set eval_interval: 0, or fix this: {error}"
        raise UserError(f"eval_interval: {what}") from error
    return random.Random(config.seed).sample(prompts, min(config.eval_episodes, len(prompts)))
