"""The guard at work: what it finds in a validation, what the run then does, and what of it is in the checkpoint."""

import logging
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlhf_dialog.config.schema import Config, GuardConfig
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.runs.checkpoint import checkpoints_of, iteration_of
from rlhf_dialog.runs.validation import Validation
from rlhf_dialog.training.guard import DISTINCT, ENTROPY, FACTOR, KL, MOST_BACK, WORDS, Alarm, Guard, Look
from rlhf_dialog.training.trainer import Metrics, PPOTrainer

logger = logging.getLogger(__name__)
ENDS = ("go_back", "stop")  # actions that are taken when the iteration is saved
SAVED = "Its last iteration is saved; to go on all the same: --resume --guard.action warn"


class RunGuard:
    """Watches the validations of a run. All ranks call its methods together, and know the same."""

    def __init__(self, config: Config, settings: GuardConfig, validation: Validation):
        self.config, self.action, self.validation = config, settings.action, validation
        self.guard = Guard(validation.judge)
        self.alarm: Alarm | None = None  # that the run has to go back or stop for

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
        if action in ENDS:
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

    def checkpoint_before(self, checkpoints: Path) -> Path | None:
        """The newest checkpoint that is not after the first of the validations that were compared, else None.

        Raises RunStopped where the run has to stop.
        """
        assert self.alarm is not None
        text = f"guard: {self.alarm.sentence}"
        if self.action == "stop":
            raise RunStopped(f"{text}. The run ends, as guard.action says. {SAVED}")
        if self.guard.num_back >= MOST_BACK:
            raise RunStopped(f"{text}. The run has gone back {MOST_BACK} times and ends. {SAVED}")
        earlier = [one for one in checkpoints_of(checkpoints) if iteration_of(one) <= self.alarm.since]
        if not earlier:
            logger.warning(
                "%s. There is no checkpoint before it, so the run goes on, at twice the KL coefficient", text
            )
            return None
        logger.warning("%s. The run goes back to %s, at twice the KL coefficient", text, earlier[-1].name)
        return earlier[-1]

    def go_on(self, trainer: PPOTrainer, num_back: int, num_raised: int) -> None:
        """Go on after an alarm, with what has been counted until then: a higher coefficient takes another path."""
        self.alarm = None
        self.guard.num_back, self.guard.num_raised = num_back, num_raised
        self._raise_kl(trainer)

    def state_dict(self) -> dict[str, Any]:
        """JSON, for the checkpoint."""
        return {"guard": self.guard.state_dict(), "alarm": asdict(self.alarm) if self.alarm else None}

    def load_state_dict(self, state: dict[str, Any], trainer: PPOTrainer) -> None:
        self.guard.load_state_dict(state["guard"])
        self.alarm = Alarm(**state["alarm"]) if state["alarm"] and self.action in ENDS else None
        self._set_target(trainer)
