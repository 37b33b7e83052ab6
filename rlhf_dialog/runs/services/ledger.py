"""The ledger of a run: a row for each response, with its score, the parts of the reward, KL and length. Rank 0 writes it.

A row is flat JSON, with the names of metrics.jsonl: `reward/<part>`, its weight and the seconds of its batch. The rows are in
the order of the prompts, those of all ranks. `ledger_texts` says which have texts; the tables of trackers have them under `all`.
"""

import heapq
import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch

from rlhf_dialog.config.schema import Config
from rlhf_dialog.models.masks import apply_mask, last_run_lengths
from rlhf_dialog.rewards.base import NoScore
from rlhf_dialog.rewards.scoring import truncation_penalties
from rlhf_dialog.runs.optional_outputs import OptionalOutputs
from rlhf_dialog.runs.services.base import Metrics, PPORun, Service
from rlhf_dialog.terminal import visible
from rlhf_dialog.training.rollout import Rollout

logger = logging.getLogger(__name__)
LEDGER = "ledger.jsonl"
MAX_REASON = 300  # letters of a failure
MAX_TABLE = 64  # rows of a table in a tracker
SOME_TEXTS = 8  # rows of an iteration with texts under `ledger_texts: some`
TEXTS, WORDS = ("prompt", "reply"), "words/"  # WORDS: what a judge has written, by the name of the part
MAX_WORDS = 2000  # letters
Row = dict[str, Any]


def rows_of(rollout: Rollout, iteration: int, config: Config) -> list[Row]:
    """A row for each response of this rank, also for those that were left out, which have `used: false`.

    `kl` is the mean over the tokens in nats. `score` is the weighted sum of the parts less the penalty of a truncated response,
    and with what an environment paid. What is not finite is None.
    """
    used = {id(dialogue) for dialogue in rollout.dialogues}
    whole = rollout if rollout.whole is None else rollout.whole
    mask = whole.response_mask
    truncated = np.array([dialogue.truncated for dialogue in whole.dialogues])
    penalties = truncation_penalties(config, truncated, last_run_lengths(whole.tokens.response_mask).numpy())
    kls = apply_mask(whole.logprobs - whole.ref_logprobs, mask).sum(dim=1)
    paid = torch.zeros_like(whole.scores) if whole.turn_rewards is None else whole.turn_rewards.sum(dim=1)
    columns = [column.double() for column in (whole.paid, kls, mask.sum(dim=1), paid)]
    rows = []
    numbers: list[list[float]] = torch.stack(columns, dim=1).tolist()  # one wait for the device
    for i, (score, kl, length, earned) in enumerate(numbers):
        dialogue = whole.dialogues[i]
        row: Row = {"iteration": iteration, "split": dialogue.origin_of("split"), "index": dialogue.origin_of("index")}
        row |= {"score": finite_or_none(score), "kl": finite_or_none(kl / max(length, 1)), "length": int(length)}
        row |= {"truncated": dialogue.truncated, "used": id(dialogue) in used}
        for name, part in whole.reward_scores.parts.items():
            value = part.raw[i]
            row |= {f"reward/{name}": finite_or_none(value), f"reward/{name}_weight": part.weight}
            row |= {f"time/reward_{name}": part.seconds}
            row |= {f"failure/{name}": value.why[:MAX_REASON]} if isinstance(value, NoScore) else {}
        row |= {"penalty": float(penalties[i])} if config.truncation_penalty else {}
        row |= {"environment": earned} if config.environment else {}
        if config.ledger_texts != "none":
            row |= {"prompt": dialogue.turns_before, "reply": dialogue.response}
            judged = {name: getattr(part.raw[i], "words", "") for name, part in whole.reward_scores.parts.items()}
            row |= {f"{WORDS}{name}": visible(words)[:MAX_WORDS] for name, words in judged.items() if words}
        rows.append(row)
    return rows


def finite_or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def keep_some_texts(rows: Sequence[Row]) -> None:
    """Remove the texts of all rows but those of SOME_TEXTS prompts, whose checksums are the lowest, so that the same ones are
    kept in each epoch; other rows fill up where there are fewer prompts.
    """
    first: dict[str, int] = {}
    for number, row in enumerate(rows):
        first.setdefault(f"{row['split']} {row['index']}", number)
    chosen = [first[prompt] for prompt in sorted(first, key=lambda prompt: crc32(prompt.encode()))]
    kept = [*chosen, *(number for number in range(len(rows)) if number not in chosen)][:SOME_TEXTS]
    for number, row in enumerate(rows):
        for name in filter(is_text, list(row)) if number not in kept else ():
            del row[name]


def is_text(column: str) -> bool:
    """Whether a column of the ledger is one of `ledger_texts`."""
    return column in TEXTS or column.startswith(WORDS)


class Ledger:
    """`ledger.jsonl`, to which each iteration adds its rows in one write."""

    def __init__(self, path: Path):
        """Raises OSError when the file cannot be opened."""
        self.file = path.open("ab", buffering=0)  # unbuffered: after a full disk, closing must not write again

    def write(self, rows: Sequence[Row]) -> None:
        """Add the rows. Raises OSError; a part of a row may be left then, which the next resume cuts off."""
        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
        while lines:
            lines = lines[self.file.write(lines) :]

    def close(self) -> None:
        self.file.close()


class LedgerService(Service):
    """Writes the rows of all ranks, each iteration once; `show_table` takes iteration, columns and rows where it is time."""

    def __init__(self, config: Config, show_table: Callable[[int, list[str], list[list[Any]]], None]):
        self.config, self.show_table = config, show_table
        self.output = OptionalOutputs()
        self.recorded = 0  # the last iteration in the ledger

    def begin(self, run: PPORun) -> None:
        if self.config.ledger and run.world.is_main:
            self.output.add(LEDGER, lambda: Ledger(run.folder / LEDGER))

    def after_iteration(self, run: PPORun, metrics: Metrics) -> Metrics:
        self._record(run)
        return {}

    def complete(self, run: PPORun, metrics: Metrics) -> bool:
        if run.world.size == 1:  # with several ranks nothing can raise before they have recorded
            self._record(run)
        return True

    def _record(self, run: PPORun) -> None:
        iteration, interval = run.iteration, self.config.sample_interval
        if not self.config.ledger or run.rollout is None or iteration <= self.recorded:
            return
        gathered = run.world.gather(rows_of(run.rollout, iteration, self.config))
        self.recorded = iteration
        if not run.world.is_main:
            return
        rows = [row for part in gathered for row in part]
        texts = self.config.ledger_texts
        if texts == "some":
            keep_some_texts(rows)
        self.output.use(LEDGER, lambda ledger: ledger.write(rows))
        if interval and iteration % interval == 0:
            self.show_table(iteration, *table_of(rows, texts == "all"))

    def end(self, error: BaseException | None) -> None:
        self.output.close()


def read_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The place in bytes behind each whole line of a ledger, and its row; damaged lines are left out, as a missing file is."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        end = 0
        for line in file:
            end += len(line)
            row = None
            with suppress(ValueError):
                row = json.loads(line.decode("utf-8")) if line.endswith(b"\n") else None
            if isinstance(row, dict) and isinstance(row.get("iteration"), int):
                yield end, row


def read_ledger(*paths: Path) -> tuple[list[Row], list[Row], list[tuple[Row, Row]]]:
    """The rows of the newest iteration; the rows with a reply of the first iteration that has any; and of each prompt that was
    answered in two iterations, its first and its newest row with a reply, those that lie farthest apart first.

    `paths`: those of all ranks of a watched run.
    """
    newest: list[Row] = []
    early: list[Row] = []
    pairs: dict[tuple[Any, Any], tuple[Row, Row]] = {}
    for _, row in heapq.merge(*map(read_rows, paths), key=lambda pair: pair[1]["iteration"]):
        if newest and newest[0]["iteration"] != row["iteration"]:
            newest = []
        newest.append(row)
        if "reply" not in row:
            continue
        early += [row] if not early or row["iteration"] == early[0]["iteration"] else []
        key = row.get("split"), row.get("index")
        if key[1] is not None:
            pairs[key] = pairs.get(key, (row, row))[0], row
    twice = [pair for pair in pairs.values() if pair[1]["iteration"] > pair[0]["iteration"]]
    return newest, early, sorted(twice, key=lambda pair: pair[0]["iteration"] - pair[1]["iteration"])


def cut_ledger(path: Path, iteration: int) -> None:
    """Remove the rows after `iteration`, since a resumed run will write them again; warns where rows before it are missing."""
    if not path.is_file():
        return
    kept = [(end, row["iteration"]) for end, row in read_rows(path) if row["iteration"] <= iteration]
    end, reached = kept[-1] if kept else (0, 0)
    with path.open("r+b") as file:
        file.truncate(end)
    if reached < iteration:
        logger.warning("%s: ends with iteration %d, but the run goes on after %d", path, reached, iteration)


def table_of(rows: Sequence[Row], texts: bool = True) -> tuple[list[str], list[list[Any]]]:
    """The first rows as a table for trackers: columns, and the cells of each row, None where it lacks one; lists as lines."""
    rows = rows[:MAX_TABLE]
    columns = [name for name in dict.fromkeys(name for row in rows for name in row) if texts or not is_text(name)]
    cells = [[row.get(name) for name in columns] for row in rows]
    return columns, [["\n".join(map(str, x)) if isinstance(x, list) else x for x in row] for row in cells]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The table in Markdown; its texts are shown as they are."""

    def escape(cell: Any) -> str:
        text = f"{cell:.6g}" if isinstance(cell, float) else "" if cell is None else str(cell)
        for letter, code in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("\n", " ")):
            text = text.replace(letter, code)
        return text

    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join("| " + " | ".join(map(escape, cells)) + " |" for cells in lines)
