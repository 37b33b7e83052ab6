"""The guard at work: what it finds in a validation, what the run then does, and what of it is in the checkpoint."""

import logging
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlhf_dialog.config.schema import Config, GuardConfig
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.runs.checkpoint import newest_up_to
from rlhf_dialog.runs.validation import Validation
from rlhf_dialog.training.guard import DISTINCT, ENTROPY, FACTOR, KL, WINDOW, WORDS, Alarm, Guard, Look
from rlhf_dialog.training.trainer import Metrics, PPOTrainer

logger = logging.getLogger(__name__)


class RunGuard:
    """Watches the validations of a run. All ranks call its methods together, and know the same."""

    def __init__(self, config: Config, settings: GuardConfig, validation: Validation):
        self.config, self.action, self.validation = config, settings.action, validation
        self.guard = Guard(validation.judge)
        self.alarm: Alarm | None = None  # that the run stops for

    def watch(self, trainer: PPOTrainer, metrics: Metrics) -> Metrics:
        """Look at what the validation of this iteration has measured; warn, and raise the KL coefficient, at once.

        Returns `guard/score_change` and `guard/judge_change` with their standard errors, as soon as there are three validations,
        and `guard/alarm`, 1 or 0.
        """
        alarm, numbers = trainer.world.on_main(lambda: self._look(trainer.iteration, metrics))
        self.load_state_dict(trainer.world.broadcast(self.state_dict()), trainer)
        if alarm is not None:
            self._answer(alarm, trainer)
        return numbers

    def _look(self, iteration: int, metrics: Metrics) -> tuple[Alarm | None, Metrics]:
        measured = self.validation.measured
        assert measured is not None
        judge, points = self.validation.judge, measured.points()
        signs = {
            DISTINCT: points["distinct_2"],
            WORDS: points["mean_words"],
            ENTROPY: metrics["objective/entropy"],
            **({KL: metrics["objective/kl"] / self.config.kl_target} if self.config.kl_rate else {}),
        }
        scores = measured.per_prompt["score"].tolist()
        judged = measured.per_prompt[judge].tolist() if judge else None
        alarm = self.guard.add(Look(iteration, scores, judged, {k: x for k, x in signs.items() if math.isfinite(x)}))
        numbers: Metrics = {"guard/alarm": float(alarm is not None)}
        for name, change in zip(("score", "judge"), self.guard.last, strict=True):
            if change is not None:
                numbers |= {f"guard/{name}_change": change.mean, f"guard/{name}_error": change.error}
        return alarm, numbers

    def _answer(self, alarm: Alarm, trainer: PPOTrainer) -> None:
        action = self.action if alarm.is_judged else "warn"
        if action == "stop":
            self.alarm = alarm
            return
        if action == "raise_kl":
            self._raise_kl(trainer)
            done = f"The KL coefficient is now {trainer.kl.kl_coef:.3g}, its target {trainer.kl.kl_target:.3g}"
        else:
            done = (
                "Read some replies; guard.action says what the run does next time"
                if alarm.is_judged
                else "Read some replies"
            )
        logger.warning("guard: %s. %s", alarm.sentence, done)

    def _raise_kl(self, trainer: PPOTrainer) -> None:
        trainer.kl.kl_coef *= FACTOR
        self.guard.num_raised += 1
        self._set_target(trainer)

    def _set_target(self, trainer: PPOTrainer) -> None:
        trainer.kl.kl_target = self.config.kl_target / FACTOR**self.guard.num_raised

    def heed(self, run: Path) -> None:
        """Raise RunStopped after an alarm, with the command that exports the agent from before it."""
        if self.alarm is None:
            return
        earlier = newest_up_to(run / "checkpoints", self.alarm.since)
        export = f"rlhf-dialog export --run {run} --checkpoint {earlier.name} --output DIR" if earlier else ""
        where = f"an agent from before: {export}" if earlier else "there is no checkpoint from before"
        raise RunStopped(
            f"guard: {self.alarm.sentence}. The run ends, as guard.action says. Its last iteration is saved; to go on all the "
            f"same: --resume --guard.action warn; {where}"
        )

    def protected(self) -> list[int]:
        """The iterations of the validations that are, or can be, the first of those compared."""
        if self.action != "stop":
            return []
        return [self.alarm.since] if self.alarm else [look.iteration for look in self.guard.looks[1 - WINDOW :]]

    def state_dict(self) -> dict[str, Any]:
        """JSON, for the checkpoint."""
        alarm = asdict(self.alarm) if self.alarm else None
        return {"guard": self.guard.state_dict(), "alarm": alarm, "protected": self.protected()}

    def load_state_dict(self, state: dict[str, Any], trainer: PPOTrainer) -> None:
        self.guard.load_state_dict(state["guard"])
        self.alarm = Alarm(**state["alarm"]) if state["alarm"] and self.action == "stop" else None
        self._set_target(trainer)
