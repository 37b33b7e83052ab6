"""What a reward and the judges give to many replies, and how long the rest of them takes. N replies."""

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.intervals import Array
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import Scorer, ScoringRules, begin_scoring, score_dialogues
from rlhf_dialog.terminal import TimeLeft

logger = logging.getLogger(__name__)
CALL = 500  # dialogues in a call of a reward
LOGGED_EVERY = 30.0  # seconds, where no terminal shows the line


class AuditProgress:
    """A line on a terminal, a line of the log now and then elsewhere: how much is done, and how long the rest takes."""

    def __init__(self, total: int):
        self.total, self.done, self.left, self.said = total, 0, TimeLeft(), time.monotonic()
        self.left.text(0.0)

    def advance(self, count: int) -> None:
        """`count` more replies were asked about."""
        self.done += count
        share = self.done / self.total
        line = f"audit: {self.done:,} of {self.total:,} replies, {share:.0%}, {self.left.text(share)}".rstrip(", ")
        if sys.stderr.isatty():
            self._show(line)
        elif time.monotonic() - self.said >= LOGGED_EVERY:
            self.said = time.monotonic()
            logger.info("%s", line)

    def __enter__(self) -> "AuditProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if sys.stderr.isatty():
            self._show("")

    def _show(self, line: str) -> None:
        sys.stderr.write(f"\r\x1b[2K{line}")  # in place of the last one
        sys.stderr.flush()


@dataclass(frozen=True)
class ScoreTable:
    """Arrays (N,): the score, each part of it times its weight, and what each judge gives. NaN: there is no number."""

    score: Array
    parts: dict[str, Array]
    judges: dict[str, Array] = field(default_factory=dict)

    def select(self, rows: Array | slice) -> "ScoreTable":
        """Those of some rows."""
        parts, judges = ({name: one[rows] for name, one in some.items()} for some in (self.parts, self.judges))
        return ScoreTable(self.score[rows], parts, judges)


class CountingScorer:
    """Asks the reward as an evaluation does, and the judges, and counts."""

    def __init__(self, scorer: Scorer, judges: dict[str, BaseReward], progress: AuditProgress):
        self.scorer, self.judges, self.progress = scorer, judges, progress

    def score_texts(self, prompts: Sequence[Dialogue], texts: Sequence[str | None], judged: bool = True) -> ScoreTable:
        """What is given to one text for each prompt, NaN where it is None. Raises RewardError."""
        rows = [row for row, text in enumerate(texts) if text is not None]
        dialogues = [replace(prompts[row], response=texts[row] or "") for row in rows]
        by_reward = self._scores(dialogues)
        by_judges = {name: self._judge(judge, dialogues) for name, judge in self.judges.items() if judged}
        everywhere = ScoreTable(by_reward.score, by_reward.parts, by_judges)
        return everywhere if len(rows) == len(texts) else _spread(everywhere, rows, len(texts))

    def asked_at_once(self, dialogues: list[Dialogue]) -> Array:
        """The scores of a single call. Raises RewardError."""
        begin_scoring(self.scorer.reward, "evaluation", 0)
        scores = self.scorer.score(dialogues)
        self.progress.advance(len(dialogues))
        return _array(scores.total)

    def _scores(self, dialogues: list[Dialogue]) -> ScoreTable:
        begin_scoring(self.scorer.reward, "evaluation", 0)
        calls = []
        for part in _calls(dialogues):
            calls.append(self.scorer.score(part))
            self.progress.advance(len(part))
        names = calls[0].parts if calls else {}
        parts = {name: _array([value for one in calls for value in one.parts[name].weighted]) for name in names}
        return ScoreTable(_array([value for one in calls for value in one.total]), parts)

    def _judge(self, judge: BaseReward, dialogues: list[Dialogue]) -> Array:
        begin_scoring(judge, "evaluation", 0)
        values: list[float] = []
        for part in _calls(dialogues):
            values += score_dialogues(judge, part, ScoringRules(skip_unscored=True)).total
            self.progress.advance(len(part))
        return _array(values)


def _calls(dialogues: list[Dialogue]) -> list[list[Dialogue]]:
    return [dialogues[start : start + CALL] for start in range(0, len(dialogues), CALL)]


def _spread(table: ScoreTable, rows: list[int], count: int) -> ScoreTable:
    """The same numbers in `rows` of `count`, NaN elsewhere."""

    def spread(values: Array) -> Array:
        wide = np.full(count, np.nan)
        wide[rows] = values
        return wide

    parts, judges = ({name: spread(one) for name, one in some.items()} for some in (table.parts, table.judges))
    return ScoreTable(spread(table.score), parts, judges)


def _array(values: list[float]) -> Array:
    """As numbers; what is not finite is NaN."""
    found = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(found), found, np.nan)
