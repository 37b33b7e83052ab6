"""What a run can do without: it is dropped with one warning when it fails, and the run goes on."""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rlhf_dialog.errors import ASKED_TO_END

logger = logging.getLogger(__name__)


class OptionalOutputs:
    """Things by name, each of which may fail: trackers, the ledger, the report; each is closed at the end, or when it fails."""

    def __init__(self) -> None:
        self.others: dict[str, Any] = {}

    def add(self, name: str, make: Callable[[], Any]) -> None:
        """Make one of them; without it, and with a warning, if that fails."""
        try:
            self.others[name] = make()
        except Exception as error:
            self._warn(name, error)

    def use(self, name: str, action: Callable[[Any], object]) -> None:
        """Call `action` with it, if it still works; drop it if the action fails."""
        if name not in self.others:
            return
        try:
            action(self.others[name])
        except ASKED_TO_END:
            raise
        except BaseException as error:
            dropped = self.others.pop(name)
            with suppress(Exception):
                dropped.close()  # before the warning, which a live display would swallow
            self._warn(name, error)

    def _warn(self, name: str, error: BaseException) -> None:
        text = "%s has failed and is not used any more: %s: %.300s. The run goes on; metrics.jsonl has every iteration"
        logger.warning(text, name, type(error).__name__, error)

    def close(self) -> None:
        """Close all of them; those that fail are reported, but do not raise."""
        for name in tuple(self.others):
            self.use(name, lambda one: one.close())
