"""Lists in the cells of a CSV file, written as JSON or in Python notation."""

import ast
import io
import itertools
import json
import tokenize
from collections.abc import Iterator
from typing import Any

from rlhf_dialog.data.sources.rows import LIST_KEYS, Cells, Row, Rows
from rlhf_dialog.errors import UserError


def parse_lists(rows: Rows) -> Iterator[tuple[str, Row]]:
    """The rows, with lists in place of `Cells` that hold one. Only columns that may hold lists are parsed.

    Raises UserError for a cell that is written like a list but cannot be read as one.
    """
    for where, row in rows:
        if isinstance(row, Cells):
            row = {key: _parse(cell, key, where) if key in LIST_KEYS else cell for key, cell in row.items()}
        yield where, row


def _parse(cell: str | None, key: str, where: str) -> Any:
    text = (cell or "").strip()
    if not (text.startswith("[") and text.endswith("]")):
        return cell
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        value = ast.literal_eval(text)
        if not _has_adjacent_strings(text):
            return value
    except (ValueError, SyntaxError, tokenize.TokenError):
        pass
    raise UserError(
        f"{where}: '{key}' holds {text:.60}, which is neither a JSON nor a Python list (numpy writes lists without commas, "
        "which cannot be read back); save the lists with json.dumps, or save the data as JSONL or parquet"
    )


def _has_adjacent_strings(text: str) -> bool:
    """Whether two strings follow each other without a comma: numpy's ['a' 'b'], which Python reads as ['ab']."""
    skipped = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT)
    kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in skipped]
    return any(a == b == tokenize.STRING for a, b in itertools.pairwise(kinds))
