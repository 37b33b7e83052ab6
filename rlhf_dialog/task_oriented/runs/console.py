"""What a policy's run shows while it learns: a live line with the remaining time on a terminal, else lines of the log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rlhf_dialog.runs.services.trackers import Metrics, live_line
from rlhf_dialog.terminal import Console

logger = logging.getLogger(__name__)
SHOWN = ("iteration", "dialogues", "success", "reward", "turns", "FPS")


class PolicyConsole:
    """A tracker for `Trackers`; `live` shows the line on a terminal, and nowhere else."""

    def __init__(self, live: bool):
        console = Console(stderr=True)
        self.live = live and console.is_terminal
        self.progress = live_line(console, self.live, transient=True)
        self.task = self.progress.add_task("sampling the first dialogues", total=1.0)
        self.progress.start()

    def log(self, step: int, metrics: Metrics) -> None:
        """A line for the evaluation if there was one, and one for the iteration if it has metrics."""
        if "eval/success" in metrics:
            rules = ""
            if "eval/handcrafted_success" in metrics:
                rules = " (handcrafted: {eval/handcrafted_success:.3f}, {eval/handcrafted_reward:.2f})"
            text = "evaluation of iteration %d: success {eval/success:.3f}, reward {eval/reward:.2f}" + rules
            logger.info(text.format(**metrics), step)
        if "success" in metrics:
            text = "iteration %d  dialogues %d  success %.3f  reward %.2f  turns %.1f  %.0f turns a second"
            numbers = [metrics[name] for name in SHOWN]
            if self.live:
                self.progress.update(self.task, description=text % tuple(numbers))
            else:
                logger.info(text, *numbers)

    def advance(self, share: float) -> None:
        """Show that `share` (0 to 1) of the run is done."""
        self.progress.update(self.task, completed=share)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Nothing else shows a progress bar."""
        yield

    def close(self) -> None:
        self.progress.stop()
