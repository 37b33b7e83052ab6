"""Dialogues with their acts from a folder, a JSONL file or the Hugging Face Hub: reading and checking, nothing else."""

import codecs
import itertools
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from datasets.exceptions import DatasetsError
from huggingface_hub.errors import HTTPError

from rlhf_dialog.errors import UserError
from rlhf_dialog.hub import hub_reachable, is_local
from rlhf_dialog.registry import nearest

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
ACTS = {"inform": 1, "question": 2, "directive": 3, "commissive": 4}
TURN_KEYS = ("dialog", "utterances", "turns")
UTTERANCE_KEYS = ("utterance", "text")
ACT_KEYS = ("act", "acts")
ROW_ACT_KEYS = (*ACT_KEYS, "act_label_text", "act_label")
ID_KEYS = ("dialog_id", "dialogue_id")
HUB_SOURCES: dict[str, tuple[tuple[str, str | None], ...]] = {
    "daily_dialog": (
        ("li2017dailydialog/daily_dialog", "refs/convert/parquet"),
        ("OpenRL/daily_dialog", None),
        ("DeepPavlov/daily_dialog", None),
    )
}
LAYOUTS = (
    "a folder in the original DailyDialog layout (train/dialogues_train.txt, train/dialogues_act_train.txt, the same "
    "for validation and test) or a folder with train.jsonl, validation.jsonl, test.jsonl"
)

Pairs = Iterator[tuple[list[Any], list[Any] | None]]  # turns and acts of each dialogue


@dataclass
class DialogueRecord:
    """One dialogue as the data has it.

    >>> DialogueRecord(turns=["Is it far ?", "Two streets ."], acts=[2, 1])
    """

    turns: list[str]  # stripped, none empty
    acts: list[int] | None  # one per turn: 1 inform, 2 question, 3 directive, 4 commissive


def load_records(data_path: str, split: str) -> list[DialogueRecord]:
    """The dialogues of one split ("train", "validation" or "test"), in the order of the data.

    `data_path` is a folder in the original layout, a folder of JSONL files, one JSONL file (all of it is "train"), or
    else the name of a Hub data set. Raises UserError with file and line for whatever cannot be read.
    """
    if split not in SPLITS:
        raise UserError(f"split '{split}': wanted one of {', '.join(SPLITS)}")
    path = Path(os.path.expanduser(data_path))
    if path.is_dir():
        return _read_folder(path, split)
    if path.exists():
        return _read_file(path, split)
    if is_local(data_path):
        raise UserError(f"data path '{data_path}': there is no such file or folder; give {LAYOUTS}, or one .jsonl file")
    return _load_from_hub(data_path, split)


def _read_folder(folder: Path, split: str) -> list[DialogueRecord]:
    original, jsonl = folder / split / f"dialogues_{split}.txt", folder / f"{split}.jsonl"
    if original.is_file():
        return _read_original(original, folder / split / f"dialogues_act_{split}.txt")
    if jsonl.is_file():
        return _read_jsonl(jsonl)
    raise UserError(f"{folder}: has no {split} split, neither {original} nor {jsonl} exists; give {LAYOUTS}")


def _read_file(path: Path, split: str) -> list[DialogueRecord]:
    if path.suffix != ".jsonl":
        raise UserError(f"{path}: only .jsonl files are read one by one; give a .jsonl file or {LAYOUTS}")
    if split != "train":
        raise UserError(
            f"{path}: one file is the train split, it has no {split} split; give a folder with train.jsonl, "
            "validation.jsonl and test.jsonl"
        )
    return _read_jsonl(path)


def _read_original(text_path: Path, acts_path: Path) -> list[DialogueRecord]:
    lines = _read_lines(text_path)
    act_lines = _read_lines(acts_path) if acts_path.is_file() else None
    if act_lines is not None and len(act_lines) != len(lines):
        raise UserError(
            f"{acts_path}: {len(act_lines)} lines, but {text_path} has {len(lines)}; both need one line per dialogue "
            f"(or remove {acts_path.name} to go without acts)"
        )
    records = []
    for i, line in enumerate(lines):
        turns = line.split("__eou__")
        if not turns[-1].strip():
            turns.pop()
        acts = [int(word) if word in "1234" else word for word in act_lines[i].split()] if act_lines else None
        records.append(_record(turns, acts, f"{text_path}, line {i + 1}", f"{acts_path}, line {i + 1}"))
    return records


def _read_jsonl(path: Path) -> list[DialogueRecord]:
    records = []
    for number, line in enumerate(_read_lines(path), 1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: is not JSON: {error}; every line must be one JSON object") from None
        if not isinstance(row, dict):
            raise UserError(
                f"{where}: holds {type(row).__name__}, wanted an object like {{'dialog': [...], 'act': [...]}}"
            )
        records.append(_from_mapping(row, where))
    return records


def _read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, none of them blank; a byte order mark and carriage returns are dropped."""
    try:
        pieces = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if not pieces[-1].strip():
        pieces.pop()
    if not pieces:
        raise UserError(f"{path}: is empty; it needs one dialogue per line")
    lines = []
    for number, piece in enumerate(pieces, 1):
        try:
            lines.append(piece.decode("utf-8").strip())
        except UnicodeDecodeError as error:
            byte = f"byte 0x{piece[error.start]:02x} at column {error.start + 1}"
            raise UserError(f"{path}, line {number}: {byte} is not UTF-8; save the file as UTF-8") from None
        if not lines[-1]:
            raise UserError(f"{path}, line {number}: is blank; every line must hold one dialogue, remove it")
    return lines


def _from_mapping(row: dict[str, Any], where: str) -> DialogueRecord:
    key = _first(TURN_KEYS, row)
    if key is None:
        raise UserError(f"{where}: no turns; wanted a list under 'dialog', 'utterances' or 'turns', found {_keys(row)}")
    acts = next((row[name] for name in ACT_KEYS if row.get(name) is not None), None)
    if not isinstance(row[key], list) or not isinstance(acts, list | None):
        name, value = (key, row[key]) if not isinstance(row[key], list) else ("acts", acts)
        raise UserError(f"{where}: '{name}' holds {type(value).__name__}, wanted a list with one item per turn")
    return _record([_text(turn) for turn in row[key]], acts, where)


def _text(turn: Any) -> Any:
    """A turn, or what an object says under `utterance` or `text`; `_record` refuses whatever is no string then."""
    key = _first(UTTERANCE_KEYS, turn) if isinstance(turn, dict) else None
    return turn[key] if key else turn


def _record(turns: list[Any], acts: list[Any] | None, where: str, acts_where: str | None = None) -> DialogueRecord:
    for number, turn in enumerate(turns, 1):
        if not isinstance(turn, str):
            raise UserError(
                f"{where}: turn {number} holds {type(turn).__name__}, wanted a string ('utterance' or 'text')"
            )
        if not turn.strip():
            raise UserError(
                f"{where}: turn {number} of {len(turns)} is empty; remove the turn and its act, or write it"
            )
    if not turns:
        raise UserError(f"{where}: the dialogue has no turns; remove it")
    for number, act in enumerate(acts or [], 1):
        if type(act) is not int or not 1 <= act <= 4:
            known = ", ".join(f"{value} {name}" for name, value in ACTS.items())
            raise UserError(f"{acts_where or where}: act {number} is {act!r}, wanted a number from 1 to 4 ({known})")
    if acts is not None and len(acts) != len(turns):
        raise UserError(
            f"{where}: {len(turns)} turns but {len(acts)} acts{f' in {acts_where}' if acts_where else ''}; "
            "every turn needs one act: mend the line, or leave the acts out of the whole data set"
        )
    return DialogueRecord([turn.strip() for turn in turns], acts)


def _load_from_hub(name: str, split: str) -> list[DialogueRecord]:
    reasons = []
    with _cache_only_when_unreachable() as reachable:
        for source, revision in HUB_SOURCES.get(name, ((name, None),)):
            at = {"revision": revision} if revision else {}
            try:
                records = _from_rows(datasets.load_dataset(source, split=split, **at), f"{source}, {split}")
            except (OSError, ValueError, RuntimeError, DatasetsError, HTTPError, UserError) as error:
                kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                reasons.append(f"  {source}: {kind}{' '.join(str(error).split())[:200]}")
                continue
            logger.info("%s: %d %s dialogues from %s on the Hugging Face Hub", name, len(records), split, source)
            return records
    known = () if name in HUB_SOURCES else HUB_SOURCES
    cache = "" if reachable else " (the Hub cannot be reached, only its local cache was tried)"
    tried = "\n".join([f"data path '{name}': no such file or folder, and not loaded from the Hub{cache}:", *reasons])
    raise UserError(f"{tried}\nGive {LAYOUTS}, or check the name{nearest(name.lower(), known)}")


@contextmanager
def _cache_only_when_unreachable() -> Iterator[bool]:
    """Yields whether the Hub answers; where it does not, `datasets` uses its cache at once instead of retrying 20 s."""
    reachable, before = hub_reachable(), datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = not reachable
    try:
        yield reachable
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _from_rows(rows: Iterable[dict[str, Any]], where: str) -> list[DialogueRecord]:
    """Rows that are dialogues, or utterances: with a dialogue id each, or each with all turns before it."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{where}: has no rows")
    rows = itertools.chain([first], rows)
    text, act, ident = (_first(keys, first) for keys in ((*TURN_KEYS, *UTTERANCE_KEYS), ROW_ACT_KEYS, ID_KEYS))
    if text and isinstance(first[text], str) and ident:
        pairs = _by_id(rows, text, act, ident)
    elif text and isinstance(first[text], list) and act and isinstance(first[act], int | str):
        pairs = _growing(rows, text, act, where)
    elif text and isinstance(first[text], list):
        pairs = (([_text(turn) for turn in row[text] or ()], row[act] if act else None) for row in rows)
    else:
        raise UserError(f"{where}: no column with turns, or utterances without a dialogue id; found {_keys(first)}")
    return [_record(turns, _numbers(acts), f"{where}, dialogue {n}") for n, (turns, acts) in enumerate(pairs, 1)]


def _by_id(rows: Iterable[dict[str, Any]], text: str, act: str | None, ident: str) -> Pairs:
    """Every row holds one turn; rows of one id that follow each other are one dialogue."""
    for _, group in itertools.groupby(rows, key=lambda row: row[ident]):
        members = list(group)
        yield [row[text] for row in members], [row[act] for row in members] if act else None


def _growing(rows: Iterable[dict[str, Any]], text: str, act: str, where: str) -> Pairs:
    """Row k of a dialogue holds its first k turns and the act of the last one."""
    turns: list[str] = []
    acts: list[Any] = []
    for number, row in enumerate(rows, 1):
        so_far = row[text] or []
        if len(so_far) == 1 and turns:
            yield turns, acts
            turns, acts = [], []
        if so_far[:-1] != turns:
            raise UserError(f"{where}, row {number}: does not continue the dialogue of the row before")
        turns, acts = so_far, [*acts, row[act]]
    yield turns, acts


def _numbers(acts: list[Any] | None) -> list[Any] | None:
    """Acts as numbers where they are names; None where the data has none."""
    if acts is None or all(act is None for act in acts):
        return None
    return [ACTS.get(act.lower(), act) if isinstance(act, str) else act for act in acts]


def _first(keys: Iterable[str], row: dict[str, Any]) -> str | None:
    return next((key for key in keys if key in row), None)


def _keys(row: dict[str, Any]) -> str:
    return ", ".join(f"'{key}'" for key in row) or "nothing"
