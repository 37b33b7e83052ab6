"""An exception costs as few iterations as possible: what is whole is saved, and what is lost is reported."""

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.memory import remedies
from rlhf_dialog.distributed.world import OtherRankFailed, World
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.models.part_sizes import FULL, ONE_ROW, describe_full_gpu, lacks_memory
from rlhf_dialog.rewards.errors import RewardTimeout
from rlhf_dialog.rewards.scoring import RewardError
from rlhf_dialog.runs.checkpoint import iteration_of, newest_checkpoint
from rlhf_dialog.runs.services.base import Metrics, PPORun, Service

logger = logging.getLogger(__name__)


class Rescue:
    """Contexts around an iteration of PPO that handle an exception in it, or after it; each is raised again.

    An iteration is saved only if metrics.jsonl has its line, without which no checkpoint could be resumed.
    """

    def __init__(self, run: PPORun, services: Sequence[Service], save: Callable[[bool], object]):
        self.run, self.world, self.services, self.save = run, run.world, services, save

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around `step`. When it raises, its predecessors since the last checkpoint are reported as lost.

        What raises when its update is done, such as a vec-info class, comes after the iteration.
        """
        before = self.run.iteration
        try:
            yield
        except Exception as error:
            if self.run.iteration > before and self.world.size == 1:
                self._save(error, self._counters())
            else:
                self._report_loss(self.run.iteration)
            raise

    @contextmanager
    def save_on_error(self, metrics: Metrics) -> Iterator[None]:
        """Save the iteration first when the block, which follows it, raises. All ranks raise together, or there is one."""
        try:
            yield
        except Exception as error:
            self._save(error, metrics)
            raise

    def _counters(self) -> Metrics:
        trainer = self.run.trainer
        return {"iteration": trainer.iteration, "time_steps": trainer.time_steps, "episodes": trainer.episodes}

    def _save(self, error: Exception, metrics: Metrics) -> None:
        """Save the iteration, if all ranks are still there and its line is in metrics.jsonl."""
        iteration = self.run.iteration
        are_together = self.world.size == 1 or not isinstance(error, RuntimeError)  # torch raises it for a lost rank
        try:
            saves = are_together and self.world.on_main(lambda: self._complete(metrics))
            if saves:
                self.save(False)
        except (UserError, RunStopped, OSError, RuntimeError) as second:
            logger.warning("iteration %d could not be saved before the run ends: %s", iteration, second)
            saves = False
        if not saves:
            self._report_loss(iteration)
        elif self.world.is_main:
            text = "the run ends after iteration %d, which is saved: %s between two iterations. %s"
            remedy = "Correct what failed, then continue with --resume"
            logger.warning(text, iteration, type(error).__name__, remedy)

    def _complete(self, metrics: Metrics) -> bool:
        return all([service.complete(self.run, metrics) for service in self.services])

    def _report_loss(self, iteration: int) -> None:
        """Report how many of the iterations up to `iteration` no checkpoint has."""
        saved = 0
        with suppress(UserError):
            newest = newest_checkpoint(self.run.folder / "checkpoints")
            saved = iteration_of(newest) if newest else 0
        lost = iteration - saved
        if lost > 0 and self.world.is_main:
            start = f"iter_{saved:06d}" if saved else "its start"
            what, verb = ("1 finished iteration", "is") if lost == 1 else (f"{lost} finished iterations", "are")
            text = "the run ends, and %s since %s %s lost; save_interval (now %s) says how often checkpoints come"
            logger.warning(text, what, start, verb, self.run.config.save_interval)


@contextmanager
def failures_recorded(config: Config, folder: Path, world: World, is_trial: bool) -> Iterator[None]:
    """What a user's reward or another rank raises in the block leaves its traceback in `error.log` of the run folder.

    A full GPU is a RunStopped that says what helps.
    """
    try:
        yield
    except Exception as error:
        if lacks_memory(error) or FULL in str(error):
            what = str(error) if isinstance(error, RunStopped) else describe_full_gpu(error)
            raise RunStopped(f"{what}; {what_helps(config, folder / 'checkpoints', ONE_ROW in what)}") from error
        if not isinstance(error, UserError | RunStopped):
            raise
        is_foreign = isinstance(error, RewardError | RewardTimeout) or isinstance(error.__cause__, OtherRankFailed)
        if is_foreign and not is_trial and world.is_main:
            _leave_traceback(error, folder)
        raise


def what_helps(config: Config, checkpoints: Path, is_one_row: bool) -> str:
    """Three keys that lower the memory, and the checkpoint to go on from."""
    useful = [key for key in remedies(config) if not (is_one_row and key.startswith("per_device_"))]
    text = f"what helps: {'; '.join(useful[:3])}"
    with suppress(UserError):
        if newest := newest_checkpoint(checkpoints):
            return f"{text}. --resume goes on from {newest.name}"
    return f"{text}. There is no checkpoint yet"


def _leave_traceback(error: Exception, folder: Path) -> None:
    path = folder / "error.log"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, "".join(traceback.format_exception(error)))
        logger.info("the traceback is in %s", path)
