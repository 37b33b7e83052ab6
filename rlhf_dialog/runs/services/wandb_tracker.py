"""Weights & Biases: one run for one training, opened before the models are loaded; offline when the server does not answer."""

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from rlhf_dialog.atomic_files import replace_text
from rlhf_dialog.errors import ASKED_TO_END
from rlhf_dialog.found_files import check_files

logger = logging.getLogger(__name__)
RUN_ID = "wandb_run_id"  # file in the run folder
CONNECT_SECONDS = 20.0


class Tracked(Protocol):
    """What the trackers read of a configuration: that of a language model's run, and that of a policy's."""

    @property
    def use_wandb(self) -> bool: ...
    @property
    def wandb_entity(self) -> str | None: ...
    @property
    def wandb_project(self) -> str: ...
    @property
    def disable_wandb(self) -> bool: ...
    @property
    def use_tensorboard(self) -> bool: ...
    @property
    def use_rich_handler(self) -> bool: ...
    @property
    def experiment_name(self) -> str | None: ...
    @property
    def log_interval(self) -> int: ...
    def model_dump(self) -> dict[str, Any]: ...


class WandbTracker:
    """A run of wandb. Offline without a key, and where it cannot be opened online."""

    def __init__(self, config: Tracked, folder: Path, resume: bool = False):
        """`resume`: continue the wandb run whose id is in the run folder. Raises what wandb raises when it fails offline too."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # do not send crash reports to its makers
        self.config, self.folder = config, folder
        self.id = os.environ.get("WANDB_RUN_ID") or (_stored_id(folder) if resume else "") or secrets.token_hex(4)
        self.run = self._open()

    def _open(self) -> Any:
        import wandb

        mode = os.environ.get("WANDB_MODE")
        if mode is None and not (os.environ.get("WANDB_API_KEY") or wandb.api.api_key):
            run = self._init("offline")
            logger.info("wandb: no key found; logging offline; upload it later: wandb sync %s", Path(run.dir).parent)
            return run
        if mode not in (None, "online"):
            return self._init(mode)
        try:
            return self._init(mode)
        except ASKED_TO_END:
            raise
        except BaseException as error:
            with suppress(Exception):
                wandb.teardown()  # its helper process still holds the id of the run
            run = self._init("offline")
            text = "wandb cannot log online: %s. The run goes on and logs offline; upload it later: wandb sync %s"
            logger.warning(text, _reason(error), Path(run.dir).parent)
            return run

    def _init(self, mode: str | None) -> Any:
        import wandb

        limit = {} if "WANDB_INIT_TIMEOUT" in os.environ else {"init_timeout": CONNECT_SECONDS}
        return wandb.init(
            project=self.config.wandb_project,
            entity=self.config.wandb_entity,
            name=self.config.experiment_name,
            id=self.id,
            resume="allow" if mode in (None, "online") else None,
            allow_val_change=True,  # of settings that a resumed run has changed
            config=self.config.model_dump(),
            dir=str(self.folder.absolute()),  # the process that writes may have another working directory
            mode=mode,  # type: ignore[arg-type]
            settings=wandb.Settings(console="off", **limit),
        )

    @property
    def files(self) -> Path:
        """The folder in <run folder>/wandb that wandb writes to."""
        return Path(self.run.dir).parent

    def remember(self) -> None:
        """Write the id into the run folder, so that `--resume` continues this run of wandb. Raises OSError."""
        if _stored_id(self.folder) != self.id:
            replace_text(self.folder / RUN_ID, self.id)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.run.log(metrics, step=step)

    def log_table(self, step: int, columns: list[str], rows: list[list[Any]]) -> None:
        import wandb

        self.run.log({"ledger": wandb.Table(columns=list(columns), data=rows, allow_mixed_types=True)}, step=step)

    def close(self) -> None:
        """Wait until the metrics are uploaded, or written to the disk. Raises what wandb raises."""
        try:
            self.run.finish()
        except Exception:
            import wandb

            with suppress(Exception):
                wandb.teardown()  # else Python prints a traceback when it ends
            raise


def open_wandb(config: Tracked, folder: Path, resume: bool = False) -> WandbTracker | None:
    """The tracker, if the configuration wants one; None, with a warning, where wandb cannot be used."""
    if not config.use_wandb or config.disable_wandb:
        return None
    try:
        return WandbTracker(config, folder, resume)
    except ASKED_TO_END:
        raise
    except BaseException as error:
        logger.warning("wandb cannot be used: %s. The run goes on without it", _reason(error))
        return None


def _reason(error: BaseException) -> str:
    """The first line of an error, with its kind, as part of a sentence."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:300].rstrip(".")


def _stored_id(folder: Path) -> str:
    check_files(folder, [RUN_ID])
    try:
        return (folder / RUN_ID).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
