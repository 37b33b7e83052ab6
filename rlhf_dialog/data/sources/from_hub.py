"""Data sets of the Hugging Face Hub, downloaded or from the local cache of an earlier download."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import datasets
from datasets.exceptions import DatasetsError
from huggingface_hub.errors import HTTPError

from rlhf_dialog.data.hub import hub_reachable
from rlhf_dialog.data.sources.columns import RowReader
from rlhf_dialog.errors import MissingSplit, UserError, nearest

logger = logging.getLogger(__name__)

HUB_SOURCES: dict[str, tuple[tuple[str, str | None], ...]] = {
    "daily_dialog": (
        ("li2017dailydialog/daily_dialog", "refs/convert/parquet"),
        ("OpenRL/daily_dialog", None),
        ("DeepPavlov/daily_dialog", None),
    )
}


def load_from_hub(name: str, split: str, layouts: str, make: RowReader) -> list[Any]:
    """What `make(rows, where)` makes of the first source of `name` that loads.

    Raises MissingSplit when it has only other splits, UserError when none loads.
    """
    reasons = []
    with _cache_only_when_unreachable() as reachable:
        for source, revision in HUB_SOURCES.get(name, ((name, None),)):
            try:
                records = _load(source, revision, split, make)
            except (OSError, ValueError, RuntimeError, DatasetsError, HTTPError, UserError) as error:
                kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                reasons.append(f"  {source}: {kind}{' '.join(str(error).split())[:300]}")
                continue
            logger.info("%s: %d %s dialogues from %s on the Hugging Face Hub", name, len(records), split, source)
            return records
    raise _not_loaded(name, split, reasons, reachable, layouts)


def _load(source: str, revision: str | None, split: str, make: RowReader) -> list[Any]:
    at = {"revision": revision} if revision else {}
    rows = datasets.load_dataset(source, split=split, **at)
    where = f"{source}, {split}"
    return make(((f"{where}, row {number}", row) for number, row in enumerate(rows, 1)), where)


def _not_loaded(name: str, split: str, reasons: list[str], reachable: bool, layouts: str) -> UserError:
    if all("Unknown split" in reason for reason in reasons):
        return MissingSplit("\n".join([f"data path '{name}': there is no {split} split on the Hub:", *reasons]))
    hub_names = () if name in HUB_SOURCES else HUB_SOURCES
    cache = "" if reachable else " (the Hub cannot be reached, so only its local cache was tried)"
    tried = "\n".join(
        [f"data path '{name}': no such file or folder, and it cannot be loaded from the Hub{cache}:", *reasons]
    )
    return UserError(f"{tried}\nGive {layouts}; or check the name{nearest(name.lower(), hub_names)}")


@contextmanager
def _cache_only_when_unreachable() -> Iterator[bool]:
    """Yields whether the Hub answers; where it does not, `datasets` uses its cache at once instead of retrying 20 s."""
    reachable, before = hub_reachable(), datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = not reachable
    try:
        yield reachable
    finally:
        datasets.config.HF_HUB_OFFLINE = before
