"""The metrics of replies as `evaluate.Metric` classes; `compute`, `add_batch` and `evaluate.combine` work as usual.

>>> import evaluate
>>> from rlhf_dialog.metrics.modules import Distinct, Rouge, SacreBleu
>>> evaluate.combine([Rouge(), SacreBleu(), Distinct()]).compute(predictions=replies, references=references)

A reference is a text, or a list of texts of which the best counts. Columns that a metric does not use are ignored.
Everything is computed on this machine by nltk, rouge-score and sacrebleu; nothing is downloaded.
"""

from typing import Any

import evaluate
import numpy as np
from datasets import Features, Value
from datasets import Sequence as ListOf

from rlhf_dialog.metrics.acts import NUM_ACTS, act_counts, macro_f1
from rlhf_dialog.metrics.meteor import load_wordnet, meteor
from rlhf_dialog.metrics.overlap import ROUGE_KINDS, bleu_counts, corpus_bleu, rouge
from rlhf_dialog.metrics.text import blocked_distinct_n, copied_from, copied_share, others

TEXT = Value("string")
NUMBER = Value("int64")
Column = list[Any]
Result = dict[str, float]


class ReplyMetric(evaluate.Metric):
    """A metric of replies; a subclass names its columns and defines `_compute`."""

    columns: tuple[dict[str, Any], ...] = (
        {"predictions": TEXT, "references": ListOf(TEXT)},
        {"predictions": TEXT, "references": TEXT},
    )

    def __init__(self, **options: Any):
        options.setdefault("keep_in_memory", True)
        super().__init__(**options)

    def compute(self, **columns: Any) -> Any:
        """As `evaluate.Metric.compute`. Raises ValueError for columns without rows."""
        if any(column is not None and not len(column) for column in columns.values()):
            raise ValueError("there are no predictions; give at least one")
        return super().compute(**columns)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation="",
            inputs_description=", ".join(self.columns[0]),
            features=[Features(columns) for columns in self.columns],
        )


class Rouge(ReplyMetric):
    """`rouge1` and `rougeLsum`: mean F-measures with Porter stems (Lin 2004), 0 to 1."""

    def _compute(self, predictions: Column, references: Column, **_: Any) -> Result:
        found = [rouge(texts(reference), reply) for reply, reference in zip(predictions, references, strict=True)]
        return {kind: mean(scores[kind] for scores in found) for kind in ROUGE_KINDS}


class SacreBleu(ReplyMetric):
    """`sacrebleu`: corpus BLEU with the international tokenizer (Papineni et al. 2002; Post 2018), 0 to 1."""

    def _compute(self, predictions: Column, references: Column, **_: Any) -> Result:
        pairs = zip(predictions, references, strict=True)
        counts = [bleu_counts(texts(reference), reply) for reply, reference in pairs]
        return {"sacrebleu": float(corpus_bleu(np.asarray(counts, dtype=np.float64).sum(axis=0)))}


class MeteorMetric(ReplyMetric):
    """`meteor`, the same against another prompt's references, and the margin between the two, each 0 to 1.

    `meteor_wordnet`: auto, require or off, as for the reward. `seed` determines the other prompts. Raises UserError when
    WordNet is required and not found.
    """

    def __init__(self, meteor_wordnet: str = "auto", seed: int = 0, **options: Any):
        super().__init__(**options)
        self.wordnet, self.shuffle_seed = load_wordnet(meteor_wordnet), seed

    def _compute(self, predictions: Column, references: Column, **_: Any) -> Result:
        tokens = [texts(reference) for reference in references]
        foreign = [tokens[i] for i in others(len(tokens), self.shuffle_seed)]
        score, shuffled = (
            mean(meteor(texts, reply, self.wordnet) for texts, reply in zip(wanted, predictions, strict=True))
            for wanted in (tokens, foreign)
        )
        return {"meteor": score, "meteor_shuffled": shuffled, "meteor_margin": score - shuffled}


class Distinct(ReplyMetric):
    """`distinct_1`, `distinct_2`: mean over fixed blocks of 100 replies (Li et al. 2016), 0 to 1."""

    columns = ({"predictions": TEXT},)

    def _compute(self, predictions: Column, **_: Any) -> Result:
        return {f"distinct_{n}": mean(blocked_distinct_n(predictions, n)) for n in (1, 2)}


class Copied(ReplyMetric):
    """`copied`: mean share of a reply's bigrams that also occur in the last turn before it, 0 to 1."""

    columns = ({"predictions": TEXT, "last_turns": TEXT},)

    def _compute(self, predictions: Column, last_turns: Column, **_: Any) -> Result:
        return {"copied": mean(copied_share(turn, reply) for turn, reply in zip(last_turns, predictions, strict=True))}


class CopiedTwo(ReplyMetric):
    """`copied_two`: mean share of a reply's bigrams that also occur in one of the last two `turns` before it, 0 to 1."""

    columns = ({"predictions": TEXT, "turns": ListOf(TEXT)},)

    def _compute(self, predictions: Column, turns: Column, **_: Any) -> Result:
        pairs = zip(turns, predictions, strict=True)
        return {"copied_two": mean(copied_from(before[-2:], reply) for before, reply in pairs)}


class Acts(ReplyMetric):
    """`intent_accuracy` and `intent_macro_f1` of a classifier's classes (0 to 3) against acts (1 to 4), 0 to 1."""

    columns = ({"predictions": NUMBER, "references": NUMBER},)

    def _compute(self, predictions: Column, references: Column, **_: Any) -> Result:
        if not (set(predictions) <= set(range(NUM_ACTS)) and set(references) <= set(range(1, NUM_ACTS + 1))):
            raise ValueError("predictions must be classes from 0 to 3, and references acts from 1 to 4")
        hits = [found == act - 1 for found, act in zip(predictions, references, strict=True)]
        return {
            "intent_accuracy": mean(hits),
            "intent_macro_f1": float(macro_f1(act_counts(predictions, references).sum(axis=0))),
        }


def texts(reference: str | list[str]) -> list[str]:
    """A reference as the list of its texts. Raises ValueError when there is none."""
    found = [reference] if isinstance(reference, str) else list(reference)
    if not found:
        raise ValueError("a reply has an empty list of references; give at least one text for each")
    return found


def mean(values: Any) -> float:
    return float(np.mean(list(values)))
