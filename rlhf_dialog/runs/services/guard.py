"""The guard of a run: its reward rises on validation prompts while a judge that it never saw falls, or a sign of decay shows.

A reward that stands for something else rises at first with what it stands for, and later against it (Gao et al. 2022,
arXiv 2210.10760). N prompts, the same in every validation.

A change is tested one-sided by Student's t over dialogues, at a level that all comparisons of 20 validations share (Bonferroni).
An alarm needs a rise and a fall, so a run in which either is chance raises one with a probability of at most FALSE_ALARMS.
"""

import logging
import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlhf_dialog.config.schema import Config, GuardConfig
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.evaluation.intervals import Array, Numbers, t_quantile
from rlhf_dialog.runs.checkpoint import newest_up_to
from rlhf_dialog.runs.services.base import Metrics, PPORun, Service

if TYPE_CHECKING:
    from rlhf_dialog.runs.services.validation import ValidationService
    from rlhf_dialog.training.trainer import PPOTrainer

logger = logging.getLogger(__name__)
WINDOW = 3  # validations that are compared: the last with the first of them
FALSE_ALARMS = 0.05  # of a run of so many VALIDATIONS
VALIDATIONS = 20
LEVEL = FALSE_ALARMS / (VALIDATIONS - WINDOW + 1)  # of one comparison
FACTOR = 2.0  # by which the KL coefficient rises and its target falls
# Of the first validation's value; the KL per token is measured in units of its target.
BOUNDS = {
    "distinct-2, of the first validation's": (0.6, math.inf),
    "words a reply, of the first validation's": (0.5, 2.0),
    "entropy, of the first validation's": (0.3, 3.0),
    "KL, of its target": (-math.inf, 4.0),  # an estimate, which may be below 0
}
DISTINCT, WORDS, ENTROPY, KL = BOUNDS


@dataclass(frozen=True)
class GuardLimit:
    """One measure, and its limit: `at_most`, else at least."""

    name: str
    value: float
    limit: float
    at_most: bool

    @property
    def passed(self) -> bool:
        """Whether it is within its limit; what is not a number is not."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def __str__(self) -> str:
        bound = f"{'at most' if self.at_most else 'at least'} {self.limit:g}"
        return f"{self.name} {self.value:.3g} ({bound}{'' if self.passed else ': FAILED'})"

    def as_json(self) -> dict[str, Any]:
        value = self.value if math.isfinite(self.value) else None
        return asdict(self) | {"value": value, "passed": self.passed}


@dataclass(frozen=True)
class Change:
    """The mean change of a number between two validations over dialogues, its standard error, and the number of dialogues."""

    mean: float
    error: float
    num_dialogues: int

    @property
    def is_rise(self) -> bool:
        return self.mean > self._least

    @property
    def is_fall(self) -> bool:
        return -self.mean > self._least

    @property
    def _least(self) -> float:
        """A change counts that is larger."""
        return math.inf if self.num_dialogues < 2 else t_quantile(self.num_dialogues - 1, LEVEL) * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.3g} (standard error {self.error:.2g})"


def change(first: Array, last: Array, dialogues: Numbers) -> Change:
    """The change from `first` (N) to `last` (N): each dialogue counts with the mean change of its prompts that have both numbers.

    `dialogues` (N): the dialogue of each prompt, numbered from 0. NaN for fewer than two dialogues.
    """
    difference = last - first
    has_both = np.isfinite(difference)
    numbers = np.unique(dialogues[has_both], return_inverse=True)[1]
    means = np.bincount(numbers, difference[has_both]) / np.bincount(numbers)
    if len(means) < 2:
        return Change(math.nan, math.nan, len(means))
    return Change(float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means))), len(means))


@dataclass(frozen=True)
class ValidationSnapshot:
    """What one validation found: N scores, N numbers of the judge (None without one), and the signs of BOUNDS by name; N numbers
    of the dialogues (None: each prompt has its own)."""

    iteration: int
    score: list[float]
    judge: list[float] | None
    signs: dict[str, float]
    dialogues: list[int] | None = None


@dataclass(frozen=True)
class Alarm:
    """Why, in a sentence, and the first iteration of the validations that were compared; `is_judged`: the judge fell."""

    sentence: str
    since: int
    is_judged: bool


class Guard:
    """Compares the last WINDOW validations. Its state is JSON, so that a resumed run raises the same alarms."""

    def __init__(self, judge: str | None = None):
        """`judge` is its name in sentences."""
        self.judge = judge
        self.looks: list[ValidationSnapshot] = []
        self.first: dict[str, float] = {}  # the signs of the first validation
        self.said: list[str] = []  # signs that were warned of
        self.num_raised = 0
        self.last: tuple[Change | None, Change | None] = (None, None)  # of score and judge, in the newest window

    def add(self, look: ValidationSnapshot) -> Alarm | None:
        """Take a validation in; returns an alarm, after which the next one needs WINDOW validations again."""
        self.first = self.first or look.signs
        self.looks = [*self.looks, look][-WINDOW:]
        score, judge = self.last = self._changes()
        if score is None or not score.is_rise:
            return None
        since, alarm = self.looks[0].iteration, None
        between = f"from iteration {since} to {look.iteration} the score changed by {score}"
        if judge is not None and judge.is_fall:
            alarm = Alarm(f"{between} but the judge {self.judge} by {judge}, on the same prompts", since, True)
        elif decayed := [one for one in self._limits(look) if not one.passed and one.name not in self.said]:
            self.said += [one.name for one in decayed]
            alarm = Alarm(f"{between}, and there is a sign of decay: {', '.join(map(str, decayed))}", since, False)
        if alarm is not None:
            self.looks = []
        return alarm

    def _changes(self) -> tuple[Change | None, Change | None]:
        """Of score and judge over the window; None while it is not full, and without a judge."""
        if len(self.looks) < WINDOW:
            return None, None
        first, last = self.looks[0], self.looks[-1]
        dialogues = np.asarray(range(len(last.score)) if last.dialogues is None else last.dialogues)
        judge = None
        if first.judge is not None and last.judge is not None:
            judge = change(np.asarray(first.judge), np.asarray(last.judge), dialogues)
        return change(np.asarray(first.score), np.asarray(last.score), dialogues), judge

    def _limits(self, look: ValidationSnapshot) -> list[GuardLimit]:
        """The signs as multiples of the first validation's, each with both its limits."""
        limits = []
        for name, (low, high) in BOUNDS.items():
            base = 1.0 if name == KL else self.first.get(name, math.nan)
            if name in look.signs and math.isfinite(base) and base:
                value = look.signs[name] / base
                limits.append(GuardLimit(name, value, *((high, True) if value > high else (low, False))))
        return limits

    def state_dict(self) -> dict[str, Any]:
        """JSON; a number that is not finite is null in it."""
        looks = [asdict(look) | {"score": _as_json(look.score), "judge": _as_json(look.judge)} for look in self.looks]
        return {"looks": looks, "first": self.first, "said": self.said, "num_raised": self.num_raised}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.looks = [
            ValidationSnapshot(**look | {"score": _as_floats(look["score"]) or [], "judge": _as_floats(look["judge"])})
            for look in state["looks"]
        ]
        self.first, self.said, self.num_raised = state["first"], state["said"], state["num_raised"]


def _as_json(values: list[float] | None) -> list[float | None] | None:
    return None if values is None else [value if math.isfinite(value) else None for value in values]


def _as_floats(values: list[float | None] | None) -> list[float] | None:
    return None if values is None else [math.nan if value is None else value for value in values]


class RunGuard(Service):
    """Watches the validations of a run. All ranks call its methods together, and know the same."""

    key = "guard"

    def __init__(self, config: Config, settings: GuardConfig, validation: "ValidationService"):
        self.config, self.action, self.validation = config, settings.action, validation
        self.guard = Guard(validation.judge)
        self.alarm: Alarm | None = None  # that the run stops for

    def begin(self, run: PPORun) -> None:
        self._set_target(run.trainer)
        self.stop_after_alarm(run)  # an alarm of the iteration that was saved last

    def after_iteration(self, run: PPORun, metrics: Metrics) -> Metrics:
        is_due = self.validation.due(run.iteration, run.done)
        return self.watch(run.trainer, metrics) if is_due else {}

    def wants(self, run: PPORun) -> set[str]:
        return {"save", "stop"} if self.alarm else set()

    def iteration_ended(self, run: PPORun, saved: bool) -> None:
        self.stop_after_alarm(run)

    def watch(self, trainer: "PPOTrainer", metrics: Metrics) -> Metrics:
        """Look at what the validation of this iteration has measured; warn, and raise the KL coefficient, at once.

        Returns `guard/score_change` and `guard/judge_change` with their standard errors, as soon as there are three validations,
        and `guard/alarm`, 1 or 0.
        """
        alarm, numbers = trainer.world.on_main(lambda: self._look(trainer.iteration, metrics))
        self.load_state_dict(trainer.world.broadcast(self.state_dict()))
        self._set_target(trainer)
        if alarm is not None:
            self._answer(alarm, trainer)
        return numbers

    def _look(self, iteration: int, metrics: Metrics) -> tuple[Alarm | None, Metrics]:
        measured = self.validation.measured
        assert measured is not None
        judge, points = self.validation.judge, measured.points()
        signs = {DISTINCT: points["distinct_2"], WORDS: points["mean_words"], ENTROPY: metrics["objective/entropy"]}
        signs |= {KL: metrics["objective/kl"] / self.config.kl_target} if self.config.kl_rate else {}
        finite = {name: value for name, value in signs.items() if math.isfinite(value)}
        scores = measured.per_prompt["score"].tolist()
        judged = measured.per_prompt[judge].tolist() if judge else None
        dialogues = None if measured.dialogues is None else measured.dialogues.tolist()
        alarm = self.guard.add(ValidationSnapshot(iteration, scores, judged, finite, dialogues))
        numbers: Metrics = {"guard/alarm": float(alarm is not None)}
        for name, change in zip(("score", "judge"), self.guard.last, strict=True):
            if change is not None:
                numbers |= {f"guard/{name}_change": change.mean, f"guard/{name}_error": change.error}
        return alarm, numbers

    def _answer(self, alarm: Alarm, trainer: "PPOTrainer") -> None:
        action = self.action if alarm.is_judged else "warn"
        if action == "stop":
            self.alarm = alarm
            return
        if action == "raise_kl":
            trainer.kl.kl_coef *= FACTOR
            self.guard.num_raised += 1
            self._set_target(trainer)
            done = f"The KL coefficient is now {trainer.kl.kl_coef:.3g}, its target {trainer.kl.kl_target:.3g}"
        else:
            next_time = "; guard.action says what the run does next time" if alarm.is_judged else ""
            done = f"Read some replies{next_time}"
        logger.warning("guard: %s. %s", alarm.sentence, done)

    def _set_target(self, trainer: "PPOTrainer") -> None:
        trainer.kl.kl_target = self.config.kl_target / FACTOR**self.guard.num_raised

    def stop_after_alarm(self, run: PPORun) -> None:
        """Raise RunStopped after an alarm, with the command that exports the agent from before it."""
        if self.alarm is not None:
            run.world.on_main(partial(self._stop, self.alarm, run.folder))

    def _stop(self, alarm: Alarm, run: Path) -> None:
        earlier = newest_up_to(run / "checkpoints", alarm.since)
        export = f"rlhf-dialog export --run {run} --checkpoint {earlier.name} --output DIR" if earlier else ""
        where = f"an agent from before: {export}" if earlier else "there is no checkpoint from before"
        raise RunStopped(
            f"guard: {alarm.sentence}. The run ends, as guard.action says. Its last iteration is saved; to go on all the "
            f"same: --resume --guard.action warn; {where}"
        )

    def protected_iterations(self) -> list[int]:
        """The iterations of the validations that are, or can be, the first of those compared."""
        if self.action != "stop":
            return []
        return [self.alarm.since] if self.alarm else [look.iteration for look in self.guard.looks[1 - WINDOW :]]

    def state_dict(self) -> dict[str, Any]:
        """JSON, for the checkpoint."""
        alarm = asdict(self.alarm) if self.alarm else None
        return {"guard": self.guard.state_dict(), "alarm": alarm, "protected": self.protected_iterations()}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        self.guard.load_state_dict(state["guard"])
        self.alarm = Alarm(**state["alarm"]) if state["alarm"] and self.action == "stop" else None
