"""What a reward and the judges give to many replies, and how long the rest of them takes. N replies."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.intervals import Array, Numbers
from rlhf_dialog.evaluation.replies import WordIndex, count_words
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import Scorer, ScoringRules, begin_scoring, score_dialogues
from rlhf_dialog.terminal import TimeLeft

logger = logging.getLogger(__name__)
CALL = 500  # dialogues in a call of a reward
LOGGED_EVERY = 30.0  # seconds, where no terminal shows the line


NEAREST = 20  # prompts


class RetrievalJudge(BaseReward):
    """How near a response is to the references of the NEAREST prompts of other dialogues, the mean weighted by their nearness.

    Prompts are near by the words of their last turns, replies by their words and pairs of words: cosines of `WordIndex`.
    """

    name = "retrieval"

    def __init__(self, prompts: Sequence[Dialogue]):
        self.last_turns = WordIndex([count_words(prompt.prompt_turns[-1]) for prompt in prompts])
        self.replies = WordIndex([count_words(prompt.reference or "", pairs=True) for prompt in prompts])
        self.dialogue_ids = np.asarray([prompt.meta["dialogue"] for prompt in prompts])
        self._neighbours: dict[tuple[str, int], tuple[Numbers, Array]] = {}

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """A number from 0 to 1 for each."""
        return [self._judge(dialogue) for dialogue in dialogues]

    def _judge(self, dialogue: Dialogue) -> float:
        key = dialogue.prompt_turns[-1], dialogue.meta["dialogue"]
        if key not in self._neighbours:
            near = np.where(self.dialogue_ids == key[1], 0.0, self.last_turns.cosines(count_words(key[0])))
            rows = np.argsort(-near, kind="stable")[:NEAREST]
            self._neighbours[key] = rows, near[rows]
        rows, weights = self._neighbours[key]
        found = self.replies.cosines(count_words(dialogue.response, pairs=True))[rows]
        return float(weights @ found / max(weights.sum(), np.finfo(float).tiny))


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
            sys.stderr.write(f"\r\x1b[2K{line if share < 1 else ''}")  # in place of the last one
            sys.stderr.flush()
        elif time.monotonic() - self.said >= LOGGED_EVERY:
            self.said = time.monotonic()
            logger.info("%s", line)


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
        is_there = np.asarray([text is not None for text in texts])
        pairs = zip(prompts, texts, strict=True)
        dialogues = [replace(prompt, response=text) for prompt, text in pairs if text is not None]
        begin_scoring(self.scorer.reward, "evaluation", 0)
        calls = [self.scorer.score(part) for part in self._calls(dialogues)]
        names = calls[0].parts if calls else {}
        parts = {name: _array((x for one in calls for x in one.parts[name].weighted), is_there) for name in names}
        judges = {name: _array(self._judge(one, dialogues), is_there) for name, one in self.judges.items() if judged}
        return ScoreTable(_array((x for one in calls for x in one.total), is_there), parts, judges)

    def asked_at_once(self, dialogues: list[Dialogue]) -> Array:
        """The scores of a single call. Raises RewardError."""
        begin_scoring(self.scorer.reward, "evaluation", 0)
        scores = self.scorer.score(dialogues)
        self.progress.advance(len(dialogues))
        return _array(scores.total, np.ones(len(dialogues), dtype=bool))

    def _judge(self, judge: BaseReward, dialogues: list[Dialogue]) -> Iterator[float]:
        begin_scoring(judge, "evaluation", 0)
        for part in self._calls(dialogues):
            yield from score_dialogues(judge, part, ScoringRules(skip_unscored=True)).total

    def _calls(self, dialogues: list[Dialogue]) -> Iterator[list[Dialogue]]:
        """The dialogues of each call, which are counted when it is over."""
        for start in range(0, len(dialogues), CALL):
            yield (part := dialogues[start : start + CALL])
            self.progress.advance(len(part))


def _array(values: Iterable[float], is_there: NDArray[np.bool_]) -> Array:
    """The values at the places that are there; NaN elsewhere, and for what is not finite."""
    wide = np.full(len(is_there), np.nan)
    wide[is_there] = list(values)
    return np.where(np.isfinite(wide), wide, np.nan)
