"""The whole audit: probes, defects and search, each with what was paid, as one tree of JSON."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation import intervals
from rlhf_dialog.evaluation.audit import checks
from rlhf_dialog.evaluation.audit.probes import RANDOM, TRUE, Probe, Training, fixed_probes
from rlhf_dialog.evaluation.audit.scoring import AuditProgress, CountingScorer, ScoreTable
from rlhf_dialog.evaluation.audit.search import Budget, search
from rlhf_dialog.evaluation.intervals import Array, Interval, Numbers
from rlhf_dialog.evaluation.measure import dialogue_numbers
from rlhf_dialog.models.precision import without_tf32
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.scoring import Scorer

RETRIEVED, CLIMBED, GROWN = "search: training replies", "search: changed words", "search: words from nothing"
NUM_SHOWN = 5  # replies of the search


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
    `telling`: the judges that put random replies below true ones at the prompts of the search; `parts`: each part's share of
    the score's variance over all replies of the probes; `calibration`; `findings`.
    """
    probes = [Probe(TRUE, TRUE, [prompt.reference for prompt in prompts])]
    probes += fixed_probes(prompts, training, plan.separator, plan.max_words, plan.seed)
    chosen = sorted(random.Random(plan.seed).sample(range(len(prompts)), plan.budget.prompts))
    number = [probe.name for probe in probes].index(RANDOM)
    units = dialogue_numbers(prompts)
    num_texts = sum(text is not None for probe in probes for text in probe.texts) + 3 * plan.budget.prompts
    total = (1 + len(judges)) * num_texts + checks.batch_calls(len(prompts)) + plan.budget.size
    payer = CountingScorer(scorer, judges, progress := AuditProgress(total))
    defects = checks.batch_defects(payer, prompts, [text or "" for text in probes[number].texts], plan.seed)
    tables = _score_probes(payer, prompts, probes)
    true = tables[0].select(np.asarray(chosen))
    chosen_units = np.unique(units[chosen], return_inverse=True)[1]
    looked = run_search(payer, [prompts[i] for i in chosen], training, plan, true, chosen_units)
    row = summary_row(tables[number].select(np.asarray(chosen)), true, chosen_units, plan.seed)
    telling = [name for name, one in row["judges"].items() if one["difference"]["high"] < 0]
    rows = {}
    for probe, table in zip(probes, tables, strict=True):
        row = summary_row(table, tables[0], units, plan.seed)
        rows[probe.name] = {"family": probe.family, "example": probe.texts[0]} | row
    score = np.concatenate([one.score for one in tables])
    parts = {name: np.concatenate([one.parts[name] for one in tables]) for name in tables[0].parts}
    result = {
        "probes": rows,
        **looked,
        "telling": telling,
        "parts": checks.variance_shares(score, parts),
        "calibration": checks.calibrations(scorer.reward, prompts),
        "asked": progress.done,
    }
    return {"findings": checks.list_findings(result, defects, checks.flat_parts(score, parts)), **result}


def _score_probes(payer: CountingScorer, prompts: Sequence[Dialogue], probes: list[Probe]) -> list[ScoreTable]:
    """What each probe is paid; the replies to one prompt are neighbours, since a language model then reads it once."""
    texts = [probe.texts[i] for i in range(len(prompts)) for probe in probes]
    everything = payer.score_texts([prompt for prompt in prompts for _ in probes], texts)
    return [everything.select(slice(number, None, len(probes))) for number in range(len(probes))]


def run_search(
    payer: CountingScorer,
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
