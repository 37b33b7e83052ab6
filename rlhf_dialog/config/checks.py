"""Checks of single values in a configuration."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, GetCoreSchemaHandler
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from rlhf_dialog.errors import nearest
from rlhf_dialog.terminal import visible

MAX_VALUES = 100_000


@dataclass(frozen=True, eq=False)
class OneOf:
    """A text that must be one of `known`. `known` is read at each check, so a table may grow."""

    known: Iterable[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: str) -> str:
        if value not in self.known:
            *others, last = map(repr, self.known)
            raise ValueError(f"{', '.join(others)} or {last}{nearest(value, self.known)}")
        return value


def tree_problem(node: Any) -> str | None:
    """Why a list or mapping of a YAML cannot be used: it contains itself, or unfolds to more than MAX_VALUES values."""
    try:
        too_many = _unfolded(node, {}) > MAX_VALUES
    except RecursionError:
        return (
            "an alias (*name) refers to a node that contains it, or values are nested too deeply; write the values out"
        )
    return (
        f"its aliases (*name) unfold to more than {MAX_VALUES} values; write out what is needed" if too_many else None
    )


def _unfolded(node: Any, known: dict[int, int]) -> int:
    """The number of values with every alias written out; each node is visited once."""
    if not isinstance(node, dict | list):
        return 1
    if id(node) not in known:
        children = node.values() if isinstance(node, dict) else node
        known[id(node)] = 1 + sum(_unfolded(child, known) for child in children)
    return known[id(node)]


def folder_name(value: str | None) -> str | None:
    """Return `value`. Raises ValueError when it cannot be the name of one folder, or would not be shown as it is."""
    if value is None:
        return None
    fits = re.fullmatch(r"[^/\\.\t\n][^/\\\t\n]{0,200}", value) and len(value.encode(errors="replace")) <= 230
    if not fits or visible(value) != value:
        raise ValueError(
            "the name of a folder: at most 201 letters and 230 bytes, without / \\ and control characters, and no dot at its "
            "beginning"
        )
    return value


def repository_name(value: str | None) -> str | None:
    """Return `value`. Raises ValueError when the Hub cannot have a repository of that name."""
    if value is None:
        return None
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(value)
    except HFValidationError:
        raise ValueError(
            "the name of a repository on the Hub, NAME or USER/NAME, of at most 96 letters, digits and - _ . without -- and .."
        ) from None
    return value


RepositoryName = Annotated[str | None, AfterValidator(repository_name)]
