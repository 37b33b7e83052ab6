"""The guard of a run: its score rises on validation prompts while a judge that it never saw falls.

A reward that stands for something else rises at first with what it stands for, and later against it (Gao et al. 2022,
arXiv 2210.10760). N prompts, the same in every validation.

A change is tested one-sided by Student's t over dialogues, at a level that all comparisons of 20 validations share (Bonferroni).
An alarm needs a rise and a fall, so a run in which either is chance raises one with a probability of at most FALSE_ALARMS.
"""

import logging
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.evaluation.intervals import Array, Numbers, t_quantile
from rlhf_dialog.runs.checkpoint import newest_up_to
from rlhf_dialog.runs.services.base import Metrics, PPORun, Service

if TYPE_CHECKING:
    from rlhf_dialog.runs.services.validation import ValidationService

logger = logging.getLogger(__name__)
WINDOW = 3  # validations that are compared: the last with the first of them
FALSE_ALARMS = 0.05  # of a run of so many VALIDATIONS
VALIDATIONS = 20
LEVEL = FALSE_ALARMS / (VALIDATIONS - WINDOW + 1)  # of one comparison


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


def unpaired_change(first: Array, last: Array, first_units: Array, last_units: Array) -> Change:
    """The change from `first` (N) to `last` (M) between different samples: each unit, such as a prompt, counts with its mean.

    Numbers of a sample with a single unit count by themselves. The degrees of freedom are those of the smaller sample.
    """
    means, errors, sizes = [], [], []
    for values, units in ((first, first_units), (last, last_units)):
        numbers = np.unique(units, return_inverse=True)[1]
        numbers = numbers if numbers.max() > 0 else np.arange(len(values))
        of_units = np.bincount(numbers, values) / np.bincount(numbers)
        means.append(float(of_units.mean()))
        errors.append(float(of_units.std(ddof=1)) / math.sqrt(len(of_units)))
        sizes.append(len(of_units))
    return Change(means[1] - means[0], math.hypot(*errors), min(sizes))


@dataclass(frozen=True)
class ValidationSnapshot:
    """What one validation found: N scores, N numbers of the judge, N numbers of the dialogues (None: each prompt has its own)."""

    iteration: int
    score: list[float]
    judge: list[float]
    dialogues: list[int] | None = None


@dataclass(frozen=True)
class Alarm:
    sentence: str
    since: int  # the first iteration of the validations that were compared


class Guard:
    """Compares the last WINDOW validations. Its state is JSON, so that a resumed run raises the same alarms."""

    def __init__(self, judge: str):
        """`judge` is its name in sentences."""
        self.judge = judge
        self.looks: list[ValidationSnapshot] = []
        self.last: dict[str, Change] = {}  # of "score" and "judge" over the newest window, once it is full

    def add(self, look: ValidationSnapshot) -> Alarm | None:
        """Take a validation in; returns an alarm, after which the next one needs WINDOW validations again."""
        self.looks, self.last = [*self.looks, look][-WINDOW:], {}
        if len(self.looks) < WINDOW:
            return None
        first = self.looks[0]
        dialogues = np.asarray(range(len(look.score)) if look.dialogues is None else look.dialogues)
        score = change(np.asarray(first.score), np.asarray(look.score), dialogues)
        judge = change(np.asarray(first.judge), np.asarray(look.judge), dialogues)
        self.last = {"score": score, "judge": judge}
        if not (score.is_rise and judge.is_fall):
            return None
        self.looks = []
        between = f"from iteration {first.iteration} to {look.iteration} the score changed by {score}"
        return Alarm(f"{between} but the judge {self.judge} by {judge}, on the same prompts", first.iteration)

    def state_dict(self) -> dict[str, Any]:
        """JSON; a number that is not finite is null in it."""

        def as_json(values: list[float]) -> list[float | None]:
            return [value if math.isfinite(value) else None for value in values]

        looks = [asdict(one) | {"score": as_json(one.score), "judge": as_json(one.judge)} for one in self.looks]
        return {"looks": looks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a stored state."""

        def as_floats(values: list[float | None]) -> list[float]:
            return [math.nan if value is None else value for value in values]

        self.looks = [
            ValidationSnapshot(one["iteration"], as_floats(one["score"]), as_floats(one["judge"]), one.get("dialogues"))
            for one in state["looks"]
        ]


class RunGuard(Service):
    """Watches the validations of a run, on rank 0; all ranks know of an alarm that the run stops for."""

    key = "guard"

    def __init__(self, action: str, validation: "ValidationService"):
        assert validation.judge is not None
        self.stops, self.validation, self.guard = action == "stop", validation, Guard(validation.judge)
        self.alarm: Alarm | None = None  # that the run stops for

    def begin(self, run: PPORun) -> None:
        self._stop(run)  # an alarm of the iteration that was saved last

    def after_iteration(self, run: PPORun, metrics: Metrics) -> Metrics:
        """Look at what the validation of this iteration has measured; returns `guard/alarm`, and the changes when known."""
        if not self.validation.due(run.iteration, run.done):
            return {}
        alarm, numbers = run.world.on_main(lambda: self._look(run.iteration))
        if alarm is not None and self.stops:
            self.alarm = alarm
        elif alarm is not None:
            advice = "Read some replies; guard.action says what the run does next time"
            logger.warning("guard: %s. %s", alarm.sentence, advice)
        return numbers

    def _look(self, iteration: int) -> tuple[Alarm | None, Metrics]:
        measured = self.validation.measured
        assert measured is not None
        scores, judged = (measured.per_prompt[name].tolist() for name in ("score", self.guard.judge))
        dialogues = None if measured.dialogues is None else measured.dialogues.tolist()
        alarm = self.guard.add(ValidationSnapshot(iteration, scores, judged, dialogues))
        numbers: Metrics = {"guard/alarm": float(alarm is not None)}
        for name, found in self.guard.last.items():
            numbers |= {f"guard/{name}_change": found.mean, f"guard/{name}_error": found.error}
        return alarm, numbers

    def wants_checkpoint(self, run: PPORun) -> bool:
        return self.alarm is not None

    def iteration_ended(self, run: PPORun, saved: bool) -> None:
        self._stop(run)

    def _stop(self, run: PPORun) -> None:
        """Raise RunStopped after an alarm, with the command that exports the agent from before it."""
        if self.alarm is not None:
            before = "there is no checkpoint from before"
            if earlier := newest_up_to(run.folder / "checkpoints", self.alarm.since):
                export = f"rlhf-dialog export --run {run.folder} --checkpoint {earlier.name} --output DIR"
                before = f"an agent from before: {export}"
            raise RunStopped(
                f"guard: {self.alarm.sentence}. The run ends, as guard.action says; to go on all the same: "
                f"--resume --guard.action warn; {before}"
            )

    def state_dict(self) -> dict[str, Any]:
        """JSON, for the checkpoint; `protected` are the iterations that are, or can be, the first of those compared."""
        protected = [self.alarm.since] if self.alarm else [look.iteration for look in self.guard.looks[1 - WINDOW :]]
        alarm = asdict(self.alarm) if self.alarm else None
        return {"guard": self.guard.state_dict(), "alarm": alarm, "protected": protected if self.stops else []}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        self.guard.load_state_dict(state["guard"])
        if (alarm := state["alarm"]) and self.stops:
            self.alarm = Alarm(alarm["sentence"], alarm["since"])
