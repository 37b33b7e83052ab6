"""`watch`: metrics, replies and warnings of a reward that another trainer calls, in a folder that `report` reads.

Each process has its own files: `metrics.jsonl` and `ledger.jsonl`, that of rank 1 `metrics.1.jsonl` and `ledger.1.jsonl`.
"""

import fcntl
import functools
import inspect
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from numbers import Real
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import numpy as np
import torch.distributed as dist

from rlhf_dialog.data.dialogue import POLICY, USER, Dialogue, Turn
from rlhf_dialog.data.sources.record import NAMES
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.metrics.text import copied_from, distinct_n
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.rewards.function_reward import FunctionReward, function_name, is_async
from rlhf_dialog.rewards.scoring import Scorer, begin_scoring
from rlhf_dialog.runs.lock import open_lock
from rlhf_dialog.runs.metrics_file import METRICS, cut_metrics, rank_file, read_metrics
from rlhf_dialog.runs.services.guard import unpaired_change
from rlhf_dialog.runs.services.ledger import LEDGER, Ledger, Row, cut_ledger, finite_or_none, keep_some_texts, read_rows

logger = logging.getLogger(__name__)
COMPARED = 256  # replies: the newest with the first
CALLS = 64  # of a function that scores one reply, in a row
# column of the ledger -> metric, the mean of a row's replies; the other numbers keep their names
METRIC = {"score": "objective/score"} | {name: f"response/{name}" for name in ("length", "copied", "repetition")}
_writing = threading.RLock()  # trainers call a reward from several threads
_watches: dict[Path, "RewardWatch"] = {}  # of this process


def watch(
    function: Callable[..., Any],
    folder: str | Path,
    judge: Any = None,
    action: Literal["warn", "raise"] = "warn",
    reply: str | None = None,
) -> Callable[..., Any]:
    """The reward function, with its name and signature, which from now on writes a row of metrics into `folder` per call.

    `function` has the signature of TRL's reward functions or is `f(dialogues)`; with `reply`, the name of a parameter, it scores
    that one reply. `judge` is a function of the first two kinds, a reward, its name, or `{"id": name, "args": {...}}`. If the
    score has risen and the judge has fallen, `action` says what happens: a warning, or RunStopped. Raises UserError for
    arguments that cannot work; what fails later ends the watching with a warning, never the training.
    """
    watching = RewardWatch(function, Path(folder), judge, action, reply)

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        return watching.observe(function(*args, **kwargs), args, kwargs)

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return watching.observe(await function(*args, **kwargs), args, kwargs)

    made: Any = awaited if is_async(function) else watched
    made.__name__ = function_name(function)
    made.unwatched = function
    return made


class RewardWatch:
    """Takes in the calls of a function; the files are opened by the first call in each process."""

    def __init__(self, function: Callable[..., Any], folder: Path, judge: Any, action: str, reply: str | None):
        self.is_trl = reply is None and FunctionReward(function).is_trl
        self.name, self.signature = function_name(function), inspect.signature(function)
        self.folder, self.action, self.reply = folder, action, reply
        if action not in ("warn", "raise"):
            raise UserError(f"watch: action: found {action!r:.80}, wanted 'warn' or 'raise'")
        if (folder / "config.yaml").exists() or (folder.exists() and not folder.is_dir()):
            raise UserError(f"watch: {folder} is a file, or the folder of a run of this program; name a new folder")
        if reply is not None and reply not in self.signature.parameters:
            raise UserError(f"watch: reply: '{reply}' is no parameter of {self.name}{self.signature}")
        node: Any = {"id": judge} if isinstance(judge, str) else judge
        if isinstance(node, Mapping):
            judge = build_reward(str(node.get("id")), node.get("args") or {})
        self.judge = judge if judge is None or isinstance(judge, BaseReward) else FunctionReward(judge)
        self.judge_column = "" if self.judge is None else f"judge/{self.judge.name}"
        self.process: int | None = None  # that has opened the files
        self.metrics: Ledger
        self.ledger: Ledger
        self.iteration = self.episodes = 0
        self.has_failed = False
        self.first: list[tuple[Any, ...]] = []  # score, judge and prompt of replies
        self.newest: list[tuple[Any, ...]] = []
        self.waiting: list[Row] = []  # of calls that are no row of metrics yet
        before = _watches.get(folder.absolute())
        if before and before.name != self.name:
            raise UserError(f"watch: {folder} is that of {before.name}; give {self.name} a folder of its own")
        if before and before.process == os.getpid():  # as when a cell of a notebook is run again
            os.close(before.lock)
        _watches[folder.absolute()] = self

    def observe(self, found: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Take in and return what the function `found` for these arguments. Raises RunStopped after an alarm, if `action` is
        raise."""
        if self.has_failed:
            return found
        found, alarm = list(found) if isinstance(found, Iterator) else found, ""
        try:
            with _writing:
                alarm = self._take(found, self._by_name(args, kwargs))
        except Exception as error:
            self.has_failed = True
            what = f"watch: {self.name} is not watched any more: {type(error).__name__}"
            logger.warning("%s: %.300s. The training goes on", what, error)
        if alarm and self.action == "raise":
            raise RunStopped(f"watch: {alarm}")
        if alarm:
            logger.warning("watch: %s. Read some replies", alarm)
        return found

    def _by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by their names, those of `**kwargs` too."""
        named: dict[str, Any] = {}
        for name, value in self.signature.bind(*args, **kwargs).arguments.items():
            is_rest = self.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            named |= value if is_rest else {name: value}
        return named

    def _take(self, found: Any, arguments: dict[str, Any]) -> str:
        """Write what there is to write; returns the alarm, empty without one."""
        if self.reply is not None:
            prompt = arguments.get("prompt", arguments.get("prompts", ""))
            dialogues, scores = [as_dialogue(prompt, arguments[self.reply], arguments)], [found]
        elif self.is_trl:
            dialogues, scores = _trl_dialogues(arguments), found
        else:
            dialogues, scores = next(iter(arguments.values())), found
        step = getattr(arguments.get("trainer_state"), "global_step", None)
        if self.process != os.getpid():
            self._open(step)
        ids = arguments.get("completion_ids") if self.is_trl else None
        scores = scores.tolist() if hasattr(scores, "tolist") else scores
        rows = list(map(_ledger_row, dialogues, scores, [None] * len(dialogues) if ids is None else ids))
        if self.judge is not None:
            begin_scoring(self.judge, "rollout", self.iteration + 1)
            for row, value in zip(rows, Scorer(self.judge, skip_unscored=True).score(dialogues).total, strict=True):
                row[self.judge_column] = finite_or_none(value)
        self.waiting += rows
        if not self.waiting or (self.reply is not None and len(self.waiting) < CALLS):
            return ""
        self.iteration, self.episodes = self.iteration + 1, self.episodes + len(self.waiting)
        rows, self.waiting = [{"iteration": self.iteration, "split": None, **row} for row in self.waiting], []
        alarm, changes = self._compare(rows)
        metrics = {"iteration": self.iteration, "episodes": self.episodes} | ({} if step is None else {"step": step})
        metrics |= _metrics(rows) | changes
        keep_some_texts(rows)
        self.ledger.write(rows)  # before the metrics: after a kill, rows that these lack are cut off
        self.metrics.write([metrics])
        return alarm

    def _compare(self, rows: Sequence[Row]) -> tuple[str, Row]:
        """Take in rows with score and judge; whenever COMPARED are new: the alarm, empty without one, and the numbers."""
        alarm, numbers = "", Row()
        for row in rows:
            values = row.get("score"), row.get(self.judge_column), row["index"]
            if None in values:
                continue
            (self.first if len(self.first) < COMPARED else self.newest).append(values)
            if len(self.newest) == COMPARED:
                first, newest = (np.asarray(some, dtype=np.float64).T for some in (self.first, self.newest))
                score, judge = (unpaired_change(first[i], newest[i], first[2], newest[2]) for i in (0, 1))
                is_alarm, self.newest = score.is_rise and judge.is_fall, []
                numbers = {"guard/alarm": float(is_alarm), "guard/score_change": score.mean}
                numbers |= {"guard/judge_change": judge.mean}
                what = f"from the first {COMPARED} replies to the newest the score changed by {score}"
                alarm = f"{what} but {self.judge_column} by {judge}" if is_alarm else ""
        return alarm, numbers

    def _open(self, step: int | None) -> None:
        """Go on with the files of this rank, from `step` on: a resumed run writes the rows of its steps again.

        The files of a run that begins anew are set aside.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        number = self._lock()
        metrics, ledger = (rank_file(self.folder / name, number) for name in (METRICS, LEDGER))
        rows = read_metrics(metrics) if metrics.exists() else []
        kept = [row for row in rows if step is None or row.get("step", -1) < step]
        if rows and not kept:
            aside = next(n for n in count(1) if not metrics.with_suffix(f".before-{n}.jsonl").exists())
            for path in (metrics, ledger):
                path.replace(path.with_suffix(f".before-{aside}.jsonl"))
        cut_metrics(metrics, len(kept))
        cut_ledger(ledger, len(kept))
        self.iteration, self.episodes = len(kept), int(kept[-1]["episodes"]) if kept else 0
        self.first, self.newest = [], []
        self._compare([row for _, row in read_rows(ledger)])
        self.metrics, self.ledger = Ledger(metrics), Ledger(ledger)
        self.process, self.waiting = os.getpid(), []

    def _lock(self) -> int:
        """The number of this process: its rank, or the next one that no other process has."""
        is_ranked = dist.is_available() and dist.is_initialized()
        number = dist.get_rank() if is_ranked else int(os.environ.get("RANK", "0"))
        while True:
            self.lock = open_lock(self.folder / f".lock.{number}")
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return number
            except BlockingIOError:
                os.close(self.lock)
                number += 1


def _trl_dialogues(arguments: Mapping[str, Any]) -> list[Dialogue]:
    completions = arguments["completions"]
    columns = {k: v for k, v in arguments.items() if isinstance(v, list) and len(v) == len(completions)}
    cells = [{name: values[i] for name, values in columns.items()} for i in range(len(completions))]
    return list(map(as_dialogue, arguments.get("prompts") or [""] * len(completions), completions, cells))


def as_dialogue(prompt: Any, completion: Any, columns: Mapping[str, Any]) -> Dialogue:
    """A prompt and what followed, both a text or messages, as rewards read it; the columns of the data are its `meta`."""
    before, after = _messages(prompt, "user"), _messages(completion, "assistant")
    system = "\n".join(text for role, text in before if role == "system")
    turns = [(role, text) for role, text in before if role != "system"] or [("user", "")]
    said = [Turn(POLICY if role == "assistant" else USER, text) for role, text in after]
    last = max((i for i, turn in enumerate(said) if turn.speaker == POLICY), default=len(said) - 1)
    references = [value for name in NAMES["reference"] if isinstance(value := columns.get(name), str)]
    return Dialogue(
        [text for _, text in turns],
        said[last].text if said else "",
        reference=references[0] if references else None,
        meta={name: value for name, value in columns.items() if name not in ("prompts", "completions")},
        earlier=said[: max(last, 0)],
        later=said[last + 1 :],
        system=system or None,
        roles=None if isinstance(prompt, str) else [role if role == "assistant" else "user" for role, _ in turns],
    )


def _messages(value: Any, role: str) -> list[tuple[str, str]]:
    """(role, text) of each message; a text alone is said by `role`, and of several parts of a message the texts count."""
    found = []
    for message in value if isinstance(value, list) else [{"role": role, "content": value}]:
        content = message["content"]
        if isinstance(content, list):
            content = " ".join(part["text"] for part in content if isinstance(part.get("text"), str))
        found.append((str(message["role"]), content if isinstance(content, str) else ""))
    return found


def _ledger_row(dialogue: Dialogue, found: Any, ids: Any) -> Row:
    """A reply as in the ledger; `found` is a number, None, or a mapping with `score` and further numbers, the parts.

    `length` is in tokens where the trainer gives their `ids`, else in words; `index` is the same for all replies to a prompt.
    """
    reply, prompt = dialogue.response, dialogue.turns_before
    parts = {f"reward/{name}": value for name, value in found.items()} if isinstance(found, Mapping) else {}
    numbers = {"score": parts.pop("reward/score", None)} if parts else {"score": found}
    numbers |= {name: x for name, x in parts.items() if isinstance(x, Real) or hasattr(x, "item")}
    row: Row = {"index": crc32("\n".join([dialogue.system or "", *prompt]).encode("utf-8", "replace"))}
    row |= {name: None if x is None else finite_or_none(float(x)) for name, x in numbers.items()}
    row |= {"length": len(reply.split()) if ids is None else len(ids)}
    row |= {"repetition": 1 - distinct_n([reply], 2)} if len(reply.split()) > 1 else {}
    row |= {"copied": copied_from(prompt[-1:], reply)} if prompt[-1] else {}
    return row | {"prompt": prompt, "reply": reply}


def _metrics(rows: Sequence[Row]) -> Row:
    """The means over the replies that have the number, distinct-2 of all, and how many have no score."""
    found: Row = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name in METRIC or "/" in name:
            known = [row[name] for row in rows if row.get(name) is not None]
            found[METRIC.get(name, name)] = math.fsum(known) / len(known) if known else None
    unscored = sum(row["score"] is None for row in rows)
    return found | {"response/distinct_2": distinct_n([row["reply"] for row in rows], 2), "response/unscored": unscored}
