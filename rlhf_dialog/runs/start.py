"""How a run starts in its folder: as a new run, in place of another one, from a checkpoint, or with another run's weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs import folder as run_folder
from rlhf_dialog.runs.checkpoint import newest_checkpoint
from rlhf_dialog.runs.lock import check_unlocked


@dataclass
class Start:
    """What the flags of the command line ask for.

    resume: go on after the newest checkpoint; `auto`: if there is a run in the folder, else begin one
    weights_from: the folder of another run, whose weights the run begins with
    """

    overwrite: bool = False
    resume: bool | Literal["auto"] = False
    weights_from: Path | None = None

    def settle(self, folder: Path, world: World) -> None:
        """Decide for `resume="auto"`: continue the run that is there, or begin one, with the weights that were asked for.

        A run that was killed before it had saved those weights has nothing to continue, and is replaced.
        """
        if self.resume != "auto":
            return
        self.resume = world.on_main(lambda: run_folder.has_begun(folder))
        if self.resume and self.weights_from is not None:
            if world.on_main(lambda: run_folder.has_results(folder)):
                self.weights_from = None
            else:
                self.resume, self.overwrite = False, True

    def check(self, folder: Path, save_interval: int) -> None:
        """What can be known of the run folder before anything is loaded. Raises UserError."""
        check_unlocked(folder)
        run_folder.check_folder(folder, self.overwrite, bool(self.resume), save_interval)
        if self.weights_from is None:
            return
        if self.resume:
            what = "begins a new run, --resume goes on with an old one; give one of them"
            raise UserError(f"--resume_weights_only {what}")
        run_folder.check_source(self.weights_from, folder)

    def prepare(self, folder: Path, kept: Path | None = None, extra_files: tuple[str, ...] = ()) -> Path | None:
        """Remove what the run replaces and what a kill left behind; returns the checkpoint to continue from.

        kept: what `overwrite` does not remove, because it is of this run; extra_files: files that it removes too
        """
        if self.overwrite and not self.resume:
            run_folder.clear(folder, kept)
            for name in extra_files:
                (folder / name).unlink(missing_ok=True)
        run_folder.repair(folder)
        return newest_checkpoint(folder / "checkpoints") if self.resume else None
