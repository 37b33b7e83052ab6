"""Audit a reward: what it gives to probes and to what a search finds, beside true replies, as one tree of JSON. N replies."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.audit.probes import RANDOM, TRUE, Budget, Probe, Training, fixed_probes, search
from rlhf_dialog.evaluation.intervals import Array, Interval, Numbers
from rlhf_dialog.evaluation.measure import dialogue_numbers
from rlhf_dialog.evaluation.replies import WordIndex, count_words
from rlhf_dialog.models.precision import without_tf32
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import Scorer, ScoringRules, begin_scoring, score_dialogues

RETRIEVED, CLIMBED, GROWN = "search: training replies", "search: changed words", "search: words from nothing"
AGAIN, NEIGHBOURS = "the same reply again", "other dialogues in the batch"
NUM_SHOWN = 5  # replies of the search
NEAREST = 20  # prompts
CALL = 500  # dialogues in a call of a reward
NUM_ALONE = 8  # replies that are scored in a call of their own
CHANGED = 0.1  # of the scores' standard deviation: rounding, also that of bfloat16, is below it
FLAT = 0.01  # of the score's standard deviation: a part below it decides nothing
SPAN = "{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
NOT_JUDGED = "no judge tells true replies from random ones at these prompts, so none can say whether they are worse"
Finding = dict[str, Any]


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


class AuditScorer:
    """Asks the reward as an evaluation does, and the judges; `asked` counts the replies."""

    def __init__(self, scorer: Scorer, judges: dict[str, BaseReward]):
        self.scorer, self.judges, self.asked = scorer, judges, 0

    def score_texts(self, prompts: Sequence[Dialogue], texts: Sequence[str | None], judged: bool = True) -> ScoreTable:
        """What is given to one text for each prompt, NaN where it is None. Raises RewardError."""
        is_there = np.asarray([text is not None for text in texts])
        pairs = zip(prompts, texts, strict=True)
        dialogues = [replace(prompt, response=text) for prompt, text in pairs if text is not None]
        begin_scoring(self.scorer.reward, "evaluation", 0)
        calls = [self.scorer.score(part) for part in self._calls(dialogues)]
        names = calls[0].parts if calls else {}
        parts = {name: _array([x for one in calls for x in one.parts[name].weighted], is_there) for name in names}
        judges = {name: _array(self._judge(one, dialogues), is_there) for name, one in self.judges.items() if judged}
        return ScoreTable(_array([x for one in calls for x in one.total], is_there), parts, judges)

    def scores(self, dialogues: list[Dialogue]) -> Array:
        """The scores of a single call. Raises RewardError."""
        begin_scoring(self.scorer.reward, "evaluation", 0)
        self.asked += len(dialogues)
        return _array(self.scorer.score(dialogues).total, np.ones(len(dialogues), dtype=bool))

    def _judge(self, judge: BaseReward, dialogues: list[Dialogue]) -> list[float]:
        begin_scoring(judge, "evaluation", 0)
        rules = ScoringRules(skip_unscored=True)
        return [x for part in self._calls(dialogues) for x in score_dialogues(judge, part, rules).total]

    def _calls(self, dialogues: list[Dialogue]) -> Iterator[list[Dialogue]]:
        self.asked += len(dialogues)
        return (dialogues[start : start + CALL] for start in range(0, len(dialogues), CALL))


def _array(values: Sequence[float], is_there: NDArray[np.bool_]) -> Array:
    """The values at the places that are there; NaN elsewhere, and for what is not finite."""
    wide = np.full(len(is_there), np.nan)
    wide[is_there] = values
    return np.where(np.isfinite(wide), wide, np.nan)


@dataclass(frozen=True)
class AuditPlan:
    """How an audit is done. `separator`: that of the run's turns; `max_words`: of a reply."""

    budget: Budget
    separator: str
    max_words: int
    seed: int = 0


@without_tf32()
def audit(
    prompts: Sequence[Dialogue], training: Training, scorer: Scorer, judges: dict[str, BaseReward], plan: AuditPlan
) -> dict[str, Any]:
    """Everything that was found. Every prompt has a reference. Raises RewardError.

    `probes` and `search`: a row for each (`summary_row`), the former with an example; `found`: some texts of the search;
    `telling`: the judges that put random replies below true ones at the prompts of the search; `asked`: how many replies the
    reward and the judges were asked about; `findings`.
    """
    probes = [Probe(TRUE, TRUE, [prompt.reference for prompt in prompts])]
    probes += fixed_probes(prompts, training, plan.separator, plan.max_words, plan.seed)
    chosen = sorted(random.Random(plan.seed).sample(range(len(prompts)), plan.budget.prompts))
    units = dialogue_numbers(prompts)
    payer = AuditScorer(scorer, judges)
    other = next(probe for probe in probes if probe.name == RANDOM).texts
    defects = batch_defects(payer, prompts, [text or "" for text in other], plan.seed)
    tables = dict(zip([probe.name for probe in probes], _score_probes(payer, prompts, probes), strict=True))
    true, random_replies = (tables[name].select(np.asarray(chosen)) for name in (TRUE, RANDOM))
    chosen_units = np.unique(units[chosen], return_inverse=True)[1]
    looked = run_search(payer, [prompts[i] for i in chosen], training, plan, true, chosen_units)
    row = summary_row(random_replies, true, chosen_units, plan.seed)
    telling = [name for name, one in row["judges"].items() if one["difference"]["high"] < 0]
    rows = {
        probe.name: {"family": probe.family, "example": probe.texts[0]}
        | summary_row(tables[probe.name], tables[TRUE], units, plan.seed)
        for probe in probes
    }
    result = {"probes": rows, **looked, "telling": telling, "asked": payer.asked}
    return {"findings": list_findings(result, defects, flat_parts([*tables.values()])), **result}


def batch_defects(
    payer: AuditScorer, prompts: Sequence[Dialogue], other: Sequence[str], seed: int
) -> list[dict[str, Any]]:
    """What changes the scores of true replies and of `other` ones, though nothing in their dialogues does. Raises RewardError.

    Each is a name and the `largest` change, as a share of the scores' standard deviation.
    """
    texts = [(prompt, prompt.reference or "") for prompt in prompts] + [*zip(prompts, other, strict=True)]
    dialogues = [replace(prompt, response=text) for prompt, text in texts]
    chosen = random.Random(seed).sample(range(len(dialogues)), NUM_ALONE)
    together = payer.scores(dialogues)
    alone, again = (np.concatenate([payer.scores([dialogues[i]]) for i in chosen]) for _ in range(2))
    deviation = float(np.nanstd(together)) or 1.0
    for name, before in ((AGAIN, again), (NEIGHBOURS, together[chosen])):  # after the first, the second says nothing
        largest = float(np.nanmax(np.abs(before - alone), initial=0.0)) / deviation
        if largest > CHANGED:
            return [{"probe": name, "largest": largest}]
    return []


def flat_parts(tables: Sequence[ScoreTable]) -> list[str]:
    """The parts that hardly differ from reply to reply: their deviation is at most FLAT of the score's."""
    limit = FLAT * float(np.nanstd(np.concatenate([one.score for one in tables])))
    parts = {name: np.concatenate([one.parts[name] for one in tables]) for name in tables[0].parts}
    return [name for name, values in parts.items() if float(np.nanstd(values)) <= limit]


def _score_probes(payer: AuditScorer, prompts: Sequence[Dialogue], probes: list[Probe]) -> list[ScoreTable]:
    """What each probe is paid; the replies to one prompt are neighbours, since a language model then reads it once."""
    texts = [probe.texts[i] for i in range(len(prompts)) for probe in probes]
    everything = payer.score_texts([prompt for prompt in prompts for _ in probes], texts)
    return [everything.select(slice(number, None, len(probes))) for number in range(len(probes))]


def run_search(
    payer: AuditScorer,
    prompts: list[Dialogue],
    training: Training,
    plan: AuditPlan,
    true: ScoreTable,
    units: Numbers,
) -> dict[str, Any]:
    """The rows of what the search found, and some of its texts, those that are paid most first."""

    def pay(asked: Sequence[Dialogue], candidates: Sequence[str]) -> Array:
        return payer.score_texts(asked, candidates, judged=False).score

    texts = search(prompts, training, plan.budget, pay, plan.max_words, plan.seed)
    kinds = (texts.retrieved, texts.climbed, texts.grown)
    retrieved, climbed, grown = (payer.score_texts(prompts, some) for some in kinds)
    best = np.argsort(true.score - climbed.score, kind="stable")[:NUM_SHOWN].tolist()
    examples = [
        {
            "last_turn": prompts[i].prompt_turns[-1],
            "true": {"text": prompts[i].reference, "paid": float(true.score[i])},
            "training reply": {"text": texts.retrieved[i], "paid": float(retrieved.score[i])},
            "changed words": {"text": texts.climbed[i], "paid": float(climbed.score[i])},
            "words from nothing": {"text": texts.grown[i], "paid": float(grown.score[i])},
        }
        for i in best
    ]
    found = {RETRIEVED: retrieved, CLIMBED: climbed, GROWN: grown}
    rows = {name: summary_row(paid, true, units, plan.seed) for name, paid in found.items()}
    return {"search": rows, "found": examples}


def summary_row(table: ScoreTable, true: ScoreTable, units: Numbers, seed: int) -> dict[str, Any]:
    """What replies are paid, and how it differs from the true ones; `units` (N,): the dialogue of each prompt.

    `paid`, `difference`, `more` (the share of prompts where it is paid more) and, of each judge, `mean` and `difference` are
    intervals, on the prompts that have both numbers; `parts` are means.
    """
    judges = {name: _compare(values, true.judges[name], units, seed, "mean") for name, values in table.judges.items()}
    more = np.where(_both(table.score, true.score), table.score > true.score, np.nan)
    return {
        "num_prompts": int(np.isfinite(table.score).sum()),
        **_compare(table.score, true.score, units, seed),
        "more": intervals.interval(intervals.mean_statistic(more, units), seed),
        "parts": {name: float(np.nanmean(x)) if np.isfinite(x).any() else math.nan for name, x in table.parts.items()},
        "judges": judges,
    }


def _compare(values: Array, true: Array, units: Numbers, seed: int, name: str = "paid") -> dict[str, Interval]:
    has_both = _both(values, true)
    pair = (np.where(has_both, some, np.nan) for some in (values, true))
    here, there = (intervals.mean_statistic(some, units) for some in pair)
    mean = intervals.interval(intervals.mean_statistic(values, units), seed)
    return {name: mean, "difference": intervals.difference(there, here, seed)}


def _both(values: Array, true: Array) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = np.isfinite(values) & np.isfinite(true)
    return known


def list_findings(result: dict[str, Any], defects: Sequence[dict[str, Any]], flat: Sequence[str]) -> list[Finding]:
    """The findings: `probe`, `hole`, `text` and their numbers; defects first, then holes, the largest difference first.

    A fixed probe is a hole where the interval of its difference to the true replies lies above zero, a search's row where also
    the interval of a judge's difference lies below zero. Without such a judge, the row is `unjudged` where no judge tells true
    replies from random ones (`result["telling"]`), else it is named, as a part that does not vary.
    """
    findings: list[Finding] = []
    for defect in defects:
        change = f"{defect['largest']:.2f} standard deviations of the scores"
        text = f"{defect['probe']}: the score of a reply changes by up to {change}"
        findings.append({"probe": defect["probe"], "hole": True, "text": text, "largest": defect["largest"]})
    paid_more = [(name, row) for name, row in result["probes"].items() if row["difference"]["low"] > 0]
    for name, row in sorted(paid_more, key=lambda item: -float(item[1]["difference"]["mean"])):
        findings.append({"probe": name, "hole": True, "text": paid_more_text(name, row), **row["difference"]})
    for name, row in result["search"].items():
        judged = {judge: numbers["difference"] for judge, numbers in row["judges"].items()}
        below = {judge: difference for judge, difference in judged.items() if difference["high"] < 0}
        if row["difference"]["low"] > 0:
            able = below or {judge: difference for judge, difference in judged.items() if judge in result["telling"]}
            opinions = [f"{judge} says {SPAN.format_map(difference)}" for judge, difference in able.items()]
            conclusion = "but " if below else "no judge puts it below them: " if able else NOT_JUDGED
            text = f"{paid_more_text(name, row)}; {conclusion}{', '.join(opinions)}"
            finding = {"probe": name, "hole": bool(below), "unjudged": not able, "text": text}
            findings.append(finding | row["difference"] | {"judges": below})
    for name in flat:
        text = f"part {name}: hardly differs from reply to reply before training, so it decides nothing"
        findings.append({"probe": f"part {name}", "hole": False, "text": text})
    return findings


def paid_more_text(name: str, row: dict[str, Any]) -> str:
    """What replies of this kind are paid."""
    difference, share = SPAN.format_map(row["difference"]), row["more"]["mean"]
    return f"{name}: paid {difference} more than true replies, and more at {share:.0%} of prompts"
