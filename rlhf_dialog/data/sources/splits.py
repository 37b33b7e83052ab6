"""Which files of a folder or an archive hold a split."""

import re
from collections import defaultdict
from typing import Any

from rlhf_dialog.data.sources.columns import RowReader
from rlhf_dialog.data.sources.files import KINDS, read_rows, read_saved, text_lines
from rlhf_dialog.data.sources.record import DialogueRecord, checked_record
from rlhf_dialog.data.sources.trees import SPLIT_NAMES, Archive, Tree
from rlhf_dialog.errors import MissingSplit, UserError

ABOVE = r"(?:[^/]+/){0,2}"  # folders that a data set may lie in, within an archive
LAYOUTS = (
    "a folder or zip in the original DailyDialog layout (train/dialogues_train.txt, train/dialogues_act_train.txt, the "
    "same for validation and test), a folder of save_to_disk, a folder with train.jsonl, validation.jsonl, test.jsonl "
    f"(or {', '.join(kind for kind in KINDS if kind != '.jsonl')}), or one such file; docs/DATA.md shows them"
)


def read_original(tree: Tree, name: str) -> list[DialogueRecord]:
    """The dialogues of `name`, a dialogues_<split>.txt. Raises UserError when text and acts do not fit together."""
    where, lines = tree.place(name), _lines(tree, name)
    acts_name = "dialogues_act_".join(name.rsplit("dialogues_", 1))
    acts_where = tree.place(acts_name)
    act_lines = _lines(tree, acts_name) if acts_name in tree.names else None
    if act_lines is not None and len(act_lines) != len(lines):
        raise UserError(
            f"{acts_where}: {len(act_lines)} lines, but {where} has {len(lines)}; both need one line per dialogue "
            "(or remove the file of acts to use the data without them)"
        )
    return [
        checked_record(
            _turns(line),
            act_lines[i].split() if act_lines else None,
            f"{where}, line {i + 1}",
            f"{acts_where}, line {i + 1}",
        )
        for i, line in enumerate(lines)
    ]


def _lines(tree: Tree, name: str) -> list[str]:
    return text_lines(tree.read(name), tree.place(name))


def _turns(line: str) -> list[str]:
    turns = line.split("__eou__")
    return turns if turns[-1].strip() else turns[:-1]


def read_split(tree: Tree, split: str, make: RowReader, inner: bool = False) -> list[DialogueRecord] | list[Any]:
    """The dialogues of one split: the original layout, else zips of it, else save_to_disk, else data files.

    `make(rows, where)` makes the result from the rows; the original layout has no rows, and always gives dialogues.

    Raises MissingSplit when none of them is there, and UserError for what cannot be read.
    """
    names = "|".join(SPLIT_NAMES[split])
    if name := _only_one(tree, rf"{ABOVE}dialogues_{split}\.txt", split):
        return make.without_columns(read_original(tree, name), tree.where)
    if not inner and (name := _only_one(tree, rf"{ABOVE}(?:{names})(?:\.json)?\.zip", split)):
        return read_split(Archive(tree.read(name), tree.place(name)), split, make, inner=True)
    if name := _only_one(tree, rf"{ABOVE}(?:{names})/state\.json", split):
        return make(read_saved(tree, name), tree.place(name))
    if split == "train" and "state.json" in tree.names:
        return make(read_saved(tree, "state.json"), tree.where)
    if files := _data_files(tree, split):
        rows = (row for name in files for row in read_rows(name, tree.read(name), tree.place(name)))
        return make(rows, tree.place(files[0]))
    raise MissingSplit(f"{tree.where}: there is no {split} split{_found(tree)}; give {LAYOUTS}")


def _highest(tree: Tree, pattern: str) -> list[re.Match[str]]:
    """The matching names with the fewest folders above them."""
    matches = [match for name in tree.names if (match := re.fullmatch(pattern, name, re.IGNORECASE))]
    fewest = min((match[0].count("/") for match in matches), default=0)
    return [match for match in matches if match[0].count("/") == fewest]


def _only_one(tree: Tree, pattern: str, split: str) -> str | None:
    names = [match[0] for match in _highest(tree, pattern)]
    if len(names) > 1:
        raise _twice(tree, split, names)
    return names[0] if names else None


def _data_files(tree: Tree, split: str) -> list[str]:
    """The files of a split: train.csv, or in order the shards train-00000-of-00002.parquet ... or train/0000.parquet ..."""
    kinds = "|".join(kind[1:] for kind in KINDS)
    names = "|".join(SPLIT_NAMES[split])
    shard = r"[-_](\d{1,9})(?:-of-(\d{1,9})(?:-[0-9a-f]+)?)?"
    pattern = rf"({ABOVE}(?:{names}))(?:(?:{shard})?\.({kinds})|/(?:(?:{names})-)?(\d{{1,9}})\.(parquet))"
    groups: dict[tuple[str | None, ...], list[re.Match[str]]] = defaultdict(list)
    for match in _highest(tree, pattern):
        groups[match[1], match[4] or match[6], match[3]].append(match)
    if len(groups) > 1:
        raise _twice(tree, split, [group[0][0] for group in groups.values()])
    found = sorted(*groups.values(), key=_shard_number) if groups else []
    _check_shards(tree, found)
    return [match[0] for match in found]


def _shard_number(match: re.Match[str]) -> int:
    return int(match[2] or match[5] or -1)


def _check_shards(tree: Tree, shards: list[re.Match[str]]) -> None:
    numbers = [_shard_number(match) for match in shards]
    total = shards[0][3] if shards else None  # of train-00000-of-00002
    start = 0 if total else min(numbers, default=0)
    if numbers != list(range(start, start + len(shards))) or (total and int(total) != len(shards)):
        shown = ", ".join(match[0] for match in shards[:6])
        raise UserError(
            f"{tree.where}: of the {len(shards)} parts, {shown}, one is missing or there twice; give every part once"
        )


def _twice(tree: Tree, split: str, names: list[str]) -> UserError:
    return UserError(f"{tree.where}: the {split} split is there more than once: {', '.join(names)}; keep one of them")


def _found(tree: Tree) -> str:
    names = ", ".join(tree.names[:10]) or "nothing"
    return f", found {names}{' and more' if len(tree.names) > 10 else ''}"
