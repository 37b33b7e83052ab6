"""Which files of a folder or an archive, and which rows of a file, are a split."""

import bisect
import os
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlhf_dialog.data.sources.files import (
    KINDS,
    SPLIT_NAMES,
    Archive,
    Folder,
    Joined,
    Keyed,
    Lines,
    Table,
    Tree,
    open_table,
    read_bytes,
    read_saved,
)
from rlhf_dialog.data.sources.record import SPLITS, act_number
from rlhf_dialog.data.sources.rows import Row
from rlhf_dialog.errors import MissingSplit, UserError, nearest

SplitNames = Mapping[Any, str]  # such as {"train": "train_sft"}: the split, and its name in the data
NO_NAMES: SplitNames = MappingProxyType({})
OF_A_ROW = ("data_split", "split")  # the column with the split of a row, as in ConvLab-3
ABOVE = r"(?:[^/]+/){0,2}"  # folders that a data set may lie in, within an archive
FILE = "|".join(kind[1:] for kind in KINDS)
SHARD = r"[-_](\d{1,9})(?:-of-(\d{1,9})(?:-[0-9a-f]+)?)?"
LAYOUTS = (
    "a folder or zip in the original DailyDialog layout (train/dialogues_train.txt, train/dialogues_act_train.txt, the "
    "same for validation and test), a folder of save_to_disk, a folder with train.jsonl, validation.jsonl, test.jsonl "
    f"(or {', '.join(kind for kind in KINDS if kind != '.jsonl')}), or one such file; docs/DATA.md shows them"
)


@dataclass(frozen=True)
class Split:
    """One of SPLITS, and what the data calls it."""

    name: str
    names: tuple[str, ...]
    is_named: bool = False  # by the configuration

    @classmethod
    def of(cls, name: str, names: SplitNames) -> "Split":
        """The split of this name, which `names` may call otherwise. Raises UserError when there is no such split."""
        for one in (name, *names):
            if one not in SPLITS:
                raise UserError(f"split '{one}' is unknown; use one of {', '.join(SPLITS)}")
        return cls(name, (names[name],), True) if name in names else cls(name, SPLIT_NAMES[name])

    @property
    def pattern(self) -> str:
        return "|".join(map(re.escape, self.names))

    def missing(self, where: str, shown: str, present: Iterable[str]) -> UserError:
        """The error for data without this split, which has those that are `present`, or shows something else."""
        present = list(dict.fromkeys(present))
        if self.is_named:
            hint = nearest(self.names[0], present)
            return UserError(f"split.{self.name}: {where} has no split '{self.names[0]}'{shown}{hint}")
        likely = [*(one for one in present for name in self.names if name in one.lower()), *present]
        key = f"name the one that is it with split: {{{self.name}: {likely[0]}}}" if present else f"give {LAYOUTS}"
        return MissingSplit(f"{where}: there is no {self.name} split{shown}; {key}")


class Chosen:
    """The rows of a table whose `column` holds one of these names, without it; the keys are those of the table."""

    def __init__(self, table: Table, column: str, names: set[str]):
        self.table, self.column, self.names, self.size = table, column, names, table.size

    def rows(self, start: int = 0) -> Keyed:
        for key, place, row in self.table.rows(start):
            if str(row.get(self.column)) in self.names:
                yield key, place, type(row)({name: cell for name, cell in row.items() if name != self.column})


def choose_rows(table: Table, split: Split, where: str) -> tuple[Table, bool]:
    """The rows whose column OF_A_ROW is this split, and True; all rows, and False, where the first one has no such column.

    A column `split` that names no split is one as any other.
    """
    first = next((row for _, _, row in table.rows()), {})
    column = next((name for name in OF_A_ROW if isinstance(first.get(name), str)), "")
    if not column:
        return table, False
    present = dict.fromkeys(str(row.get(column)) for _, _, row in table.rows())
    known = {*split.names}.union(*SPLIT_NAMES.values())
    if column != OF_A_ROW[0] and known.isdisjoint([*present, *map(str.lower, present)]):
        return table, False
    chosen = {name for name in present if name in split.names or name.lower() in split.names}
    if not chosen:
        raise split.missing(where, f", '{column}' of its rows is {', '.join(present):.200}", present)
    return Chosen(table, column, chosen), True


class Original:
    """The lines of a dialogues_<split>.txt, with their acts if there are some; the keys are those of its `Lines`."""

    def __init__(self, tree: Tree, name: str):
        """Raises UserError when there are acts, but not one line of them for each dialogue."""
        self.lines, self.acts = Lines(tree.file(name), tree.place(name)), None
        self.size = self.lines.size
        of_acts = "dialogues_act_".join(name.rsplit("dialogues_", 1))
        if of_acts in tree.names:
            self.acts = Lines(tree.file(of_acts), tree.place(of_acts))
            self.starts, self.act_starts = (
                array("Q", (key for key, _, _ in some.lines())) for some in (self.lines, self.acts)
            )
            if len(self.act_starts) != len(self.starts):
                raise UserError(
                    f"{self.acts.where}: {len(self.act_starts)} lines, but {self.lines.where} has {len(self.starts)}; both "
                    "need one line per dialogue (or remove the file of acts to use the data without them)"
                )

    def rows(self, start: int = 0) -> Keyed:
        if self.acts:
            acts = self.acts.lines(self.act_starts[bisect.bisect_left(self.starts, start)])
        for key, place, line in self.lines.lines(start):
            turns = line.split("__eou__")
            row: Row = {"dialog": turns if turns[-1].strip() else turns[:-1]}
            if self.acts:
                _, act_place, act_line = next(acts)
                row["act"] = [act_number(act, f"act {i}", act_place) for i, act in enumerate(act_line.split(), 1)]
            yield key, place, row


def find_table(path: Path, split: Split) -> tuple[Table, str]:
    """The table of one split of a folder, an archive or a file, and its place.

    Raises MissingSplit when the split is not there, and UserError for what cannot be read.
    """
    if os.path.isdir(path):
        return _in_tree(Folder(path, split.names), split)
    suffix = path.suffix.lower()
    if suffix == ".zip":
        return _in_tree(Archive(read_bytes(path), str(path)), split)
    if suffix not in KINDS:
        known = ", ".join([*KINDS, ".zip"])
        raise UserError(
            f"{path}: unknown file type; a single data file must be one of {known}; give one of them, or {LAYOUTS}"
        )
    table, says_split = choose_rows(open_table(path.name, path, str(path)), split, str(path))
    if not says_split and (split.is_named or split.name != "train"):
        key, kind = (f"split.{split.name}: ", UserError) if split.is_named else ("", MissingSplit)
        raise kind(
            f"{key}{path}: a single file is the train split and has no {split.name} split; give a folder with "
            f"train{suffix}, validation{suffix} and test{suffix}{', and leave split out' if key else ''}"
        )
    return table, str(path)


def _in_tree(tree: Tree, split: Split, inner: bool = False) -> tuple[Table, str]:
    """The original layout, else zips of it, else save_to_disk, else data files."""
    if name := _only_one(tree, rf"{ABOVE}dialogues_(?:{split.pattern if split.is_named else split.name})\.txt", split):
        return Original(tree, name), tree.place(name)
    if not inner and (name := _only_one(tree, rf"{ABOVE}(?:{split.pattern})(?:\.json)?\.zip", split)):
        return _in_tree(Archive(read_bytes(tree.file(name)), tree.place(name)), split, inner=True)
    if name := _only_one(tree, rf"{ABOVE}(?:{split.pattern})/state\.json", split):
        return read_saved(tree, name), tree.place(name)
    if split.name == "train" and not split.is_named and "state.json" in tree.names:
        return read_saved(tree, "state.json"), tree.where
    if files := _data_files(tree, split):
        return Joined([open_table(name, tree.file(name), tree.place(name)) for name in files]), tree.place(files[0])
    if name := _only_one(tree, rf"{ABOVE}dialogues\.jsonl?", split):
        chosen, says_split = choose_rows(open_table(name, tree.file(name), tree.place(name)), split, tree.place(name))
        if says_split:
            return chosen, tree.place(name)
    shown = ", ".join(tree.names[:10]) or "nothing"
    shown = f", found {shown}{' and more' if len(tree.names) > 10 else ''}"
    raise split.missing(tree.where, shown, _split_names(tree))


def _split_names(tree: Tree) -> list[str]:
    """What the data files and folders of a tree are called, without numbers of parts."""
    known = "|".join(name for names in SPLIT_NAMES.values() for name in names)
    pattern = rf"{ABOVE}({known})/.*|{ABOVE}([^/.]+?)(?:{SHARD})?\.(?:{FILE})|([^/.]*[^/.A-Z][^/.]*)(?:/.*)?"
    files = [re.fullmatch(pattern, name) for name in tree.names]
    return [match[1] or match[2] or match[5] for match in files if match]


def _highest(tree: Tree, pattern: str) -> list[re.Match[str]]:
    """The matching names with the fewest folders above them."""
    matches = [match for name in tree.names if (match := re.fullmatch(pattern, name, re.IGNORECASE))]
    fewest = min((match[0].count("/") for match in matches), default=0)
    return [match for match in matches if match[0].count("/") == fewest]


def _only_one(tree: Tree, pattern: str, split: Split) -> str | None:
    names = [match[0] for match in _highest(tree, pattern)]
    if len(names) > 1:
        raise _twice(tree, split, names)
    return names[0] if names else None


def _data_files(tree: Tree, split: Split) -> list[str]:
    """The files of a split: train.csv, or in order the parts train-00000-of-00002.parquet ... or those in the folder train.

    Of a folder, all files are parts of the split; or the numbered ones, where there are some.
    """
    base = rf"({ABOVE}(?:{split.pattern}))"
    parts = _highest(tree, rf"{base}(?:{SHARD})?\.({FILE})")
    if not parts:
        inside = _highest(tree, rf"{base}/[^/]*?(\d{{1,9}})?(?:-of-(\d{{1,9}})(?:-[0-9a-f]+)?)?\.({FILE})")
        parts = [match for match in inside if match[2]] or inside
    groups: dict[tuple[str | None, ...], list[re.Match[str]]] = defaultdict(list)
    for match in parts:
        groups[match[1], match[4].lower(), match[3]].append(match)
    if len(groups) > 1:
        raise _twice(tree, split, [group[0][0] for group in groups.values()])
    parts.sort(key=lambda match: int(match[2] or 0))
    numbers = [int(match[2]) for match in parts if match[2]]
    total = parts[0][3] if parts else None  # of train-00000-of-00002
    start = 0 if total else min(numbers, default=0)
    if numbers != list(range(start, start + len(numbers))) or (total and int(total) != len(parts)):
        shown = ", ".join(match[0] for match in parts[:6])
        raise UserError(
            f"{tree.where}: of the {len(parts)} parts, {shown}, one is missing or there twice; give every part once"
        )
    return [match[0] for match in parts]


def _twice(tree: Tree, split: Split, names: list[str]) -> UserError:
    return UserError(
        f"{tree.where}: the {split.name} split is there more than once: {', '.join(names)}; keep one of them"
    )
