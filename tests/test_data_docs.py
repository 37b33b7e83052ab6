"""docs/DATA.md: its examples load or are refused as the page says, and its table names every accepted column."""

import re

import pytest

from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.data.sources import columns, load_records, messages, rows
from rlhf_dialog.errors import UserError
from tests.parts.processes import ROOT

PAGE = (ROOT / "docs/DATA.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\S+)( refused)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("language", "refused", "text"), BLOCKS, ids=range(len(BLOCKS)))
def test_examples_load(tmp_path, language, refused, text):
    path = tmp_path / f"example.{language}"
    path.write_text(text, encoding="utf-8")
    if refused:
        with pytest.raises(UserError, match=r"example\.\w+, line \d"):
            load_records(str(path), "train")
    else:
        assert load_records(str(path), "train")
        assert load_prompts(str(path), "train")


def test_the_kinds_of_columns_are_in_their_table():
    table = PAGE[PAGE.index("| kinds | they say") : PAGE.index("A bot's key")]
    named = {name for line in table.split("\n| ") for name in re.findall(r"`([\w.]+)`", line.split("|")[0])}
    assert named == set(columns.KINDS)


def test_the_table_names_every_column():
    table = PAGE[PAGE.index("## Accepted column names") : PAGE.index("## Columns with names")]
    named = [re.findall(r"`([\w-]+)`", line) for line in table.splitlines() if line.startswith("| ") and "`" in line]
    assert list(map(tuple, named)) == [
        rows.TURN_KEYS,
        messages.TEXT_KEYS,
        messages.ROLE_KEYS,
        rows.ACT_KEYS,
        rows.ID_KEYS,
        rows.PROMPT_KEYS,
        rows.SYSTEM_KEYS,
        rows.HISTORY_KEYS,
        rows.INPUT_KEYS,
        rows.PARENT_KEYS,
        rows.MESSAGE_KEYS,
        (*rows.REPLY_KEYS, "references"),
    ]
