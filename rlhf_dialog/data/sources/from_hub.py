"""Data sets of the Hugging Face Hub, downloaded or from the local cache of an earlier download."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import datasets
from datasets.exceptions import DatasetsError
from huggingface_hub.errors import HTTPError

from rlhf_dialog.data.hub import hub_reachable
from rlhf_dialog.data.sources.columns import RowReader
from rlhf_dialog.data.sources.splits import LAYOUTS, Split
from rlhf_dialog.errors import UserError, nearest

logger = logging.getLogger(__name__)

HUB_SOURCES: dict[str, tuple[tuple[str, str | None], ...]] = {
    "daily_dialog": (
        ("li2017dailydialog/daily_dialog", "refs/convert/parquet"),
        ("OpenRL/daily_dialog", None),
        ("DeepPavlov/daily_dialog", None),
    )
}


def load_from_hub(name: str, split: Split, make: RowReader) -> list[Any]:
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
                reasons.append(f"{source}: {kind}{' '.join(str(error).split())[:300]}")
                continue
            text = "%s: %d %s dialogues from %s on the Hugging Face Hub"
            logger.info(text, name, len(records), split.name, source)
            return records
    tried = "".join(f"\n  {reason}" for reason in reasons)
    if all("Unknown split" in reason for reason in reasons):
        present = [
            one for reason in reasons for one in re.findall(r"'([^']+)'", reason.partition("Should be one of")[2])
        ]
        raise split.missing(f"data path '{name}'", f" on the Hub:{tried}\n ", present)
    hub_names = () if name in HUB_SOURCES else HUB_SOURCES
    cache = "" if reachable else " (the Hub cannot be reached, so only its local cache was tried)"
    raise UserError(
        f"data path '{name}': no such file or folder, and it cannot be loaded from the Hub{cache}:{tried}\n"
        f"Give {LAYOUTS}; or check the name{nearest(name.lower(), hub_names)}"
    )


def _load(source: str, revision: str | None, split: Split, make: RowReader) -> list[Any]:
    at = {"revision": revision} if revision else {}
    rows = datasets.load_dataset(source, split=split.names[0], **at)
    where = f"{source}, {split.names[0]}"
    return make(((f"{where}, row {number}", row) for number, row in enumerate(rows, 1)), where)


@contextmanager
def _cache_only_when_unreachable() -> Iterator[bool]:
    """Yields whether the Hub answers; where it does not, `datasets` uses its cache at once instead of retrying 20 s."""
    reachable, before = hub_reachable(), datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = not reachable
    try:
        yield reachable
    finally:
        datasets.config.HF_HUB_OFFLINE = before
