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
from rlhf_dialog.rewards.scoring import RewardError, RewardTimeout
from rlhf_dialog.runs.checkpoint import describe_kept, iteration_of, newest_checkpoint
from rlhf_dialog.runs.services.base import Metrics, PPORun, Service

logger = logging.getLogger(__name__)


class Rescue:
    """Contexts around an iteration of PPO that handle an exception in it, or after it; each is raised again.

    An iteration is saved only if metrics.jsonl has its line, without which no checkpoint could be resumed.
    """

    def __init__(self, run: PPORun, services: Sequence[Service], save: Callable[[], object]):
        self.run, self.world, self.services, self.save = run, run.world, services, save

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around `step`. When it raises, its predecessors since the last checkpoint are reported as lost."""
        before = self.run.iteration
        try:
            yield
        except Exception as error:
            if self.run.iteration > before and self.world.size == 1:
                trainer = self.run.trainer
                counters = {name: getattr(trainer, name) for name in ("iteration", "time_steps", "episodes")}
                self._save(error, counters)
            else:
                self._report_loss()
            raise

    @contextmanager
    def save_on_error(self, metrics: Metrics) -> Iterator[None]:
        """Save the iteration first when the block, which follows it, raises. All ranks raise together, or there is one."""
        try:
            yield
        except Exception as error:
            self._save(error, metrics)
            raise

    def _save(self, error: Exception, metrics: Metrics) -> None:
        """Save the iteration, if all ranks are still there and its line is in metrics.jsonl."""
        are_together = self.world.size == 1 or not isinstance(error, RuntimeError)  # torch raises it for a lost rank
        try:
            saves = are_together and self.world.on_main(
                lambda: all([service.complete(self.run, metrics) for service in self.services])
            )
            if saves:
                self.save()
        except (UserError, RunStopped, OSError, RuntimeError) as second:
            logger.warning("iteration %d could not be saved before the run ends: %s", self.run.iteration, second)
            saves = False
        if not saves:
            self._report_loss()
        elif self.world.is_main:
            text = (
                "the run ends after iteration %d, which is saved: %s. Correct what failed, then continue with --resume"
            )
            logger.warning(text, self.run.iteration, type(error).__name__)

    def _report_loss(self) -> None:
        """Report how many of the finished iterations no checkpoint has."""
        saved = 0
        with suppress(UserError):
            newest = newest_checkpoint(self.run.folder / "checkpoints")
            saved = iteration_of(newest) if newest else 0
        lost = self.run.iteration - saved
        if lost > 0 and self.world.is_main:
            text = (
                "the run ends, and iterations %d to %d are lost; save_interval (now %s) says how often checkpoints come"
            )
            logger.warning(text, saved + 1, self.run.iteration, self.run.config.save_interval)


@contextmanager
def failures_recorded(config: Config, folder: Path, world: World, is_trial: bool) -> Iterator[None]:
    """What a user's reward or another rank raises in the block leaves its traceback in `error.log` of the run folder.

    A RunStopped, which a full GPU becomes too, says what is kept; that of a full GPU also names keys that help.
    """
    try:
        yield
    except Exception as error:
        if lacks_memory(error) or FULL in str(error):
            what = str(error) if isinstance(error, RunStopped) else describe_full_gpu(error)
            useful = [key for key in remedies(config) if not (ONE_ROW in what and key.startswith("per_device_"))]
            kept = describe_kept(folder / "checkpoints")
            raise RunStopped(f"{what}; what helps: {'; '.join(useful[:3])}; {kept}") from error
        if isinstance(error, RunStopped) and not is_trial:
            error.args = (f"{error}; {describe_kept(folder / 'checkpoints')}",)
        is_foreign = isinstance(error, RewardError | RewardTimeout) or isinstance(error.__cause__, OtherRankFailed)
        if is_foreign and not is_trial and world.is_main:
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                replace_text(folder / "error.log", "".join(traceback.format_exception(error)))
                logger.info("the traceback is in %s", folder / "error.log")
        raise
