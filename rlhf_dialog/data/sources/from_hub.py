"""Data sets of the Hugging Face Hub, downloaded or from the local cache of an earlier download."""

import logging
import re
from typing import Any

import datasets
from datasets.exceptions import DatasetsError
from huggingface_hub.errors import HTTPError

from rlhf_dialog.data.hub import hub_reachable
from rlhf_dialog.data.sources.files import Keyed, Table
from rlhf_dialog.data.sources.splits import LAYOUTS, Split
from rlhf_dialog.errors import UserError, nearest

logger = logging.getLogger(__name__)
HUB_SOURCES = {"daily_dialog": ("li2017dailydialog/daily_dialog", "refs/convert/parquet")}  # its own files are a script


class HubTable:
    """The rows of a data set of the `datasets` library, which maps its files; a key is the number of a row."""

    def __init__(self, rows: Any, where: str):
        self.dataset, self.where, self.size = rows, where, len(rows)

    def rows(self, start: int = 0) -> Keyed:
        rows = (self.dataset[key] for key in range(start, self.size)) if start else self.dataset
        return ((key, f"{self.where}, row {key + 1}", row) for key, row in enumerate(rows, start))


def table_of_hub(name: str, split: Split) -> tuple[Table, str]:
    """The table of a split of the data set `name`, and its place.

    Where the Hub does not answer, `datasets` uses its cache at once instead of retrying for 20 s. Raises MissingSplit when the
    data set has only other splits, UserError when it cannot be loaded.
    """
    source, revision = HUB_SOURCES.get(name, (name, None))
    reachable, before = hub_reachable(), datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = not reachable
    try:
        rows = datasets.load_dataset(source, split=split.names[0], revision=revision)
    except (OSError, ValueError, RuntimeError, DatasetsError, HTTPError) as error:
        reason = f"{source}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if "Unknown split" in reason:
            present = re.findall(r"'([^']+)'", reason.partition("Should be one of")[2])
            raise split.missing(f"data path '{name}'", f" on the Hub:\n  {reason}\n ", present) from error
        cache = "" if reachable else " (the Hub cannot be reached, so only its local cache was tried)"
        raise UserError(
            f"data path '{name}': no such file or folder, and it cannot be loaded from the Hub{cache}:\n  {reason}\n"
            f"Give {LAYOUTS}; or check the name{nearest(name.lower(), set(HUB_SOURCES) - {name})}"
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = before
    logger.info("%s: %d %s rows from %s on the Hugging Face Hub", name, len(rows), split.name, source)
    where = f"{source}, {split.names[0]}"
    return HubTable(rows, where), where
