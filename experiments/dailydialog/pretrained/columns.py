"""The columns of OpenRL's documentation that `measure` does not have: with ` <EOU>`, as margins, by a second judge.

N units.
"""

import numpy as np

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation import measure
from rlhf_dialog.evaluation.intervals import Statistic
from rlhf_dialog.evaluation.measure import Measured
from rlhf_dialog.evaluation.replies import Replies
from rlhf_dialog.metrics.acts import act_counts
from rlhf_dialog.metrics.overlap import rouge
from rlhf_dialog.metrics.text import others
from rlhf_dialog.rewards import Intent

WITH_END = ("rouge1", "rougeLsum", "meteor")


def add(measured: Measured, answers: list[Dialogue], second_judge: Intent | None, seed: int) -> None:
    """Add `rouge1_margin` (own reference less that of another prompt, drawn as METEOR's), `*_eou`, `judge_2_accuracy`."""
    references = [one.reference or "" for one in answers]
    foreign = [references[i] for i in others(len(references), seed)]
    shuffled = [rouge([text], one.response)["rouge1"] for text, one in zip(foreign, answers, strict=True)]
    measured.per_prompt["rouge1_margin"] = measured.per_prompt["rouge1"] - np.asarray(shuffled)
    with_end = measure.measure(Replies(answers, [0] * len(answers)), measure.Judges(legacy_eou=True))
    measured.per_prompt |= {f"{name}_eou": with_end.per_prompt[name] for name in WITH_END}
    measured.pooled["sacrebleu_eou"] = with_end.pooled["sacrebleu"]
    if second_judge is not None:
        counts = act_counts(second_judge.predict(answers), [one.act or 0 for one in answers])
        hits = np.split(counts, 3, axis=1)[0]
        measured.per_prompt["judge_2_accuracy"] = hits.sum(axis=1)


def ratio_of(numerators: list[float], denominators: list[float]) -> Statistic:
    """A ratio of sums over N units."""
    from rlhf_dialog.evaluation.intervals import ratio

    return Statistic(np.stack([np.asarray(numerators, float), np.asarray(denominators, float)], axis=1), ratio)
