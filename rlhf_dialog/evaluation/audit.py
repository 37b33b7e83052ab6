"""Audit a reward: what it pays for bad replies and for what a search finds, beside true replies, as one tree of JSON. N replies.

The search nearly always finds something that is paid more than a true reply. Only a judge that the reward does not use can tell
whether that is a hole.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.intervals import Array, Interval, Numbers
from rlhf_dialog.evaluation.measure import dialogue_numbers
from rlhf_dialog.evaluation.probes import CLIMBED, RANDOM, TRUE, Budget, Training, fixed_probes, search
from rlhf_dialog.evaluation.replies import WordIndex, count_words
from rlhf_dialog.models.precision import without_tf32
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import Scorer, begin_scoring

AGAIN, NEIGHBOURS = "the same reply again", "other dialogues in the batch"
NUM_SHOWN, NUM_PRINTED, NUM_LISTED = 5, 2, 12  # replies of the search in the JSON and in the terminal, findings there
NEAREST = 20  # prompts
CALL = 500  # dialogues in a call of a reward
NUM_ALONE = 8  # replies that are scored in a call of their own
CHANGED = 0.1  # of the scores' standard deviation: rounding, also that of bfloat16, is below it
WIDTH = 100  # columns
PAID = "paid"  # the score, beside the names of judges
SPAN = "{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
NOT_JUDGED = "no judge tells true replies from random ones at these prompts, so none can say whether they are worse"
Finding = dict[str, Any]
Table = dict[str, Array]  # PAID -> scores (N,), judge -> its numbers (N,); NaN: there is no number


class RetrievalJudge(BaseReward):
    """How near a response is to the references of the NEAREST prompts of other dialogues, the mean weighted by their nearness.

    Prompts are near by the words of their last turns, replies by their words and pairs of words: cosines of `WordIndex`.
    """

    name = "retrieval"

    def __init__(self, prompts: Sequence[Dialogue]):
        self.last_turns = WordIndex([count_words(prompt.prompt_turns[-1]) for prompt in prompts])
        self.replies = WordIndex([count_words(prompt.reference or "", pairs=True) for prompt in prompts])
        self.dialogue_ids = np.asarray([prompt.origin_of("dialogue") for prompt in prompts])
        self._neighbours: dict[tuple[str, int], tuple[Numbers, Array]] = {}

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """A number from 0 to 1 for each."""
        return [self._judge(dialogue) for dialogue in dialogues]

    def _judge(self, dialogue: Dialogue) -> float:
        key = dialogue.prompt_turns[-1], dialogue.origin_of("dialogue")
        if key not in self._neighbours:
            near = np.where(self.dialogue_ids == key[1], 0.0, self.last_turns.cosines(count_words(key[0])))
            rows = np.argsort(-near, kind="stable")[:NEAREST]
            self._neighbours[key] = rows, near[rows]
        rows, weights = self._neighbours[key]
        found = self.replies.cosines(count_words(dialogue.response, pairs=True))[rows]
        return float(weights @ found / max(weights.sum(), np.finfo(float).tiny))


class AuditScorer:
    """Asks the reward as an evaluation does, and the judges; `asked` counts the replies."""

    def __init__(self, scorer: Scorer, judges: dict[str, BaseReward]):
        self.scorer, self.judges, self.asked = scorer, judges, 0

    def score_texts(self, prompts: Sequence[Dialogue], texts: Sequence[str | None], judged: bool = True) -> Table:
        """What is given to one text for each prompt, NaN where it is None. Raises RewardError."""
        pairs = zip(prompts, texts, strict=True)
        dialogues = [replace(prompt, response=text) for prompt, text in pairs if text is not None]
        parts = [dialogues[start : start + CALL] for start in range(0, len(dialogues), CALL)]
        found = {PAID: np.concatenate([np.empty(0), *map(self.scores, parts)])}
        for name, judge in self.judges.items() if judged else ():
            begin_scoring(judge, "evaluation", 0)
            judging = Scorer(judge, skip_unscored=True)
            found[name] = np.asarray([x for part in parts for x in judging.score(part).total])
            self.asked += len(dialogues)
        table = {name: np.full(len(texts), np.nan) for name in found}
        for name, values in found.items():
            table[name][[text is not None for text in texts]] = np.where(np.isfinite(values), values, np.nan)
        return table

    def scores(self, dialogues: list[Dialogue]) -> Array:
        """The scores (N,) of a single call, NaN for a missing one. Raises RewardError."""
        begin_scoring(self.scorer.reward, "evaluation", 0)
        self.asked += len(dialogues)
        totals = np.asarray(self.scorer.score(dialogues).total, dtype=np.float64)
        return np.where(np.isfinite(totals), totals, np.nan)


def select(table: Table, rows: Any) -> Table:
    """Those of some rows."""
    return {name: values[rows] for name, values in table.items()}


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
    payer, units = AuditScorer(scorer, judges), dialogue_numbers(prompts)
    probes = {TRUE: [prompt.reference for prompt in prompts]}
    probes |= fixed_probes(prompts, training, plan.separator, plan.max_words, plan.seed)
    defects = batch_defects(payer, prompts, [text or "" for text in probes[RANDOM]], plan.seed)
    # the replies to one prompt are neighbours, since a language model then reads it once
    texts = [some[i] for i in range(len(prompts)) for some in probes.values()]
    everything = payer.score_texts([prompt for prompt in prompts for _ in probes], texts)
    tables = {name: select(everything, slice(number, None, len(probes))) for number, name in enumerate(probes)}

    chosen = sorted(random.Random(plan.seed).sample(range(len(prompts)), plan.budget.prompts))
    true, chosen_units = select(tables[TRUE], chosen), np.unique(units[chosen], return_inverse=True)[1]
    looked = run_search(payer, [prompts[i] for i in chosen], training, plan, true, chosen_units)
    random_row = summary_row(select(tables[RANDOM], chosen), true, chosen_units, plan.seed)
    rows = {
        name: {"example": probes[name][0]} | summary_row(table, tables[TRUE], units, plan.seed)
        for name, table in tables.items()
    }
    telling = [name for name, one in random_row["judges"].items() if one["difference"]["high"] < 0]
    result = {"probes": rows, **looked, "telling": telling, "asked": payer.asked}
    return {"findings": list_findings(result, defects), **result}


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


def run_search(
    payer: AuditScorer, prompts: list[Dialogue], training: Training, plan: AuditPlan, true: Table, units: Numbers
) -> dict[str, Any]:
    """The rows of what the search found, and some of its texts, those with the largest gain of changed words first."""

    def pay(asked: Sequence[Dialogue], candidates: Sequence[str]) -> Array:
        return payer.score_texts(asked, candidates, judged=False)[PAID]

    texts = search(prompts, training, plan.budget, pay, plan.max_words, plan.seed)
    tables = {name: payer.score_texts(prompts, some) for name, some in texts.items()}
    rows = {name: summary_row(table, true, units, plan.seed) for name, table in tables.items()}
    said: dict[str, Sequence[str | None]] = {TRUE: [prompt.reference for prompt in prompts], **texts}
    paid = {name: table[PAID] for name, table in ({TRUE: true} | tables).items()}
    best = np.argsort(paid[TRUE] - paid[CLIMBED], kind="stable")[:NUM_SHOWN].tolist()
    examples = [
        {"last_turn": prompts[i].prompt_turns[-1]}
        | {name: {"text": said[name][i], "paid": float(paid[name][i])} for name in said}
        for i in best
    ]
    return {"search": rows, "found": examples}


def summary_row(table: Table, true: Table, units: Numbers, seed: int) -> dict[str, Any]:
    """What replies are paid, and how it differs from the true ones; `units` (N,): the dialogue of each prompt.

    `paid`, `difference`, `more` (the share of prompts where it is paid more) and, of each judge, `mean` and `difference` are
    intervals, on the prompts that have both numbers.
    """

    def compare(name: str, key: str) -> dict[str, Interval]:
        both = np.isfinite(table[name]) & np.isfinite(true[name])
        here, there = (intervals.mean_statistic(np.where(both, some[name], np.nan), units) for some in (table, true))
        mean = intervals.interval(intervals.mean_statistic(table[name], units), seed)
        return {key: mean, "difference": intervals.difference(there, here, seed)}

    both = np.isfinite(table[PAID]) & np.isfinite(true[PAID])
    more = np.where(both, table[PAID] > true[PAID], np.nan)
    return {
        "num_prompts": int(np.isfinite(table[PAID]).sum()),
        **compare(PAID, PAID),
        "more": intervals.interval(intervals.mean_statistic(more, units), seed),
        "judges": {name: compare(name, "mean") for name in table if name != PAID},
    }


def list_findings(result: dict[str, Any], defects: Sequence[dict[str, Any]]) -> list[Finding]:
    """The findings: `probe`, `hole`, `text` and their numbers; defects first, then holes, the largest difference first.

    A fixed probe is a hole where the interval of its difference to the true replies lies above zero, a search's row where also
    the interval of a judge's difference lies below zero. Without such a judge, the row is `unjudged` where no judge tells true
    replies from random ones (`result["telling"]`), else it is named.
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
        if row["difference"]["low"] > 0:
            judged = {judge: numbers["difference"] for judge, numbers in row["judges"].items()}
            below = {judge: difference for judge, difference in judged.items() if difference["high"] < 0}
            able = below or {judge: difference for judge, difference in judged.items() if judge in result["telling"]}
            opinions = [f"{judge} says {SPAN.format_map(difference)}" for judge, difference in able.items()]
            conclusion = "but " if below else "no judge puts it below them: " if able else NOT_JUDGED
            text = f"{paid_more_text(name, row)}; {conclusion}{', '.join(opinions)}"
            finding = {"probe": name, "hole": bool(below), "unjudged": not able, "text": text}
            findings.append(finding | row["difference"] | {"judges": below})
    return findings


def paid_more_text(name: str, row: dict[str, Any]) -> str:
    """What replies of this kind are paid."""
    difference, share = SPAN.format_map(row["difference"]), row["more"]["mean"]
    return f"{name}: paid {difference} more than true replies, and more at {share:.0%} of prompts"


def verdict_line(result: dict[str, Any]) -> str:
    """How many holes there are, and how much was looked at."""
    settings, kinds = result["settings"], [finding_kind(finding) for finding in result["findings"]]
    count, is_unjudged, budget = kinds.count("hole"), "not judged" in kinds, settings["budget"]
    holes = [f"{count or 'no'} {'holes' if count > 1 else 'hole'} found"] if count or not is_unjudged else []
    return (
        f"{', and '.join(holes + ['found, not judged'] * is_unjudged)}: {len(result['probes']) - 1} probes on "
        f"{settings['num_prompts']} prompts, and a search of {budget['size']:,} replies on {budget['prompts']}"
    )


def finding_kind(finding: Finding) -> str:
    """`hole`, `not judged` for replies of which no judge can say whether they are worse, or `note`."""
    return "hole" if finding["hole"] else "not judged" if finding.get("unjudged") else "note"


def page_lines(result: dict[str, Any]) -> Iterator[str]:
    """The verdict, the first findings, and some texts of the search, for a terminal; in the JSON is all that there is."""
    yield verdict_line(result)
    findings = result["findings"]
    for finding in findings[:NUM_LISTED]:
        yield f"  {finding_kind(finding)}: {finding['text']}"
    if len(findings) > NUM_LISTED:
        yield f"  and {len(findings) - NUM_LISTED} more, which --output lists"
    for one in result["found"][:NUM_PRINTED]:
        texts = [f"  {said['paid']:+.3f} {name}: {said['text']}" for name, said in one.items() if name != "last_turn"]
        for line in [f"said last: {one['last_turn']}", *texts]:
            line = line.replace("\n", " ")
            yield line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."
