"""Read the JSON files that this program writes: what a damaged one raises becomes one sentence."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlhf_dialog.errors import UserError

FAULTS = (OSError, ValueError, LookupError, TypeError, AttributeError)  # what a damaged file and its readers raise
MAX_FAULT = 300  # characters


def parse_json(text: str | bytes, shape: Any = None) -> Any:
    """The JSON of a text. Raises ValueError when it is none, is nested too deeply, or has not the types of `shape`."""
    try:
        tree = json.loads(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if shape is not None:
        check_shape(tree, shape)
    return tree


def check_shape(tree: Any, shape: Any) -> None:
    """Raises ValueError when what was read has not the types of `shape`."""
    TypeAdapter(shape).validate_python(tree, strict=True)


def refuse_newer(place: Path | str, version: int, known: int, kind: str = "format") -> None:
    """Raises UserError for what a newer program has written."""
    if version > known:
        raise UserError(
            f"{place}: has {kind} version {version}, but this program knows versions up to {known}; update rlhf-dialog"
        )


def load_json(path: Path | Traversable, shape: Any = None, encoding: str = "utf-8") -> Any:
    """The JSON of a file, see `parse_json`. Raises OSError or ValueError: for readers that have a message for all their files."""
    if isinstance(path, Path) and path.exists() and not path.is_file():  # a pipe would wait for a writer
        raise ValueError("is not a regular file")
    return parse_json(path.read_text(encoding=encoding), shape)


def read_json(
    path: Path | Traversable, begin: str = "", end: str = "", shape: Any = None, encoding: str = "utf-8"
) -> Any:
    """The JSON of a file. Raises UserError: `begin` (by default the file), what is wrong, `end` (what to do).

    shape: a type whose parts the file must have, such as `dict[str, int]` or a model of pydantic; it may have others too
    """
    with damage_as_user_error(begin or f"{path}: is damaged: ", end):
        return load_json(path, shape, encoding)


def json_or(path: Path, default: Any, shape: Any = None) -> Any:
    """The JSON of a file, or `default` where there is none that can be read: for what can be made again."""
    try:
        return load_json(path, shape)
    except (OSError, ValueError):
        return default


def as_read_again(tree: Any) -> Any:
    """What a reader of the written tree gets: lists for tuples, texts for keys, and for what JSON does not know."""
    return json.loads(json.dumps(tree, default=str))


def map_leaves(
    tree: Any, change: Callable[[Any], Any], keep: Callable[[Any, Any], bool] = lambda key, value: True
) -> Any:
    """The tree with all changed that is no mapping, list or tuple; of a mapping, only the items (key, value) to `keep`."""
    if isinstance(tree, Mapping):
        return {key: map_leaves(value, change, keep) for key, value in tree.items() if keep(key, value)}
    if isinstance(tree, list | tuple):
        return [map_leaves(value, change, keep) for value in tree]
    return change(tree)


@contextmanager
def damage_as_user_error(
    begin: str,
    end: str | Callable[[], str] = "",
    faults: tuple[type[Exception], ...] = FAULTS,
    in_words: Callable[[BaseException], str] | None = None,
) -> Iterator[None]:
    """Turn what a damaged file raises in the block into a UserError of one sentence: `begin`, the fault in words, `end`."""
    try:
        yield
    except faults as error:
        raise UserError(f"{begin}{(in_words or _fault)(error)}{end if isinstance(end, str) else end()}") from error


def _fault(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        text = ": ".join((".".join(map(str, first["loc"])) or "the file", first["msg"]))
    else:
        text = f"{type(error).__name__}: {error}" if isinstance(error, LookupError) else str(error)
    return " ".join(text.split())[:MAX_FAULT]
