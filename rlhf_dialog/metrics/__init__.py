"""Formulas on texts, and the vec-info classes: extra metrics of a run.

- **METEOR without WordNet is another metric**, `meteor_exact_stem`. Nothing is downloaded during a run.
- **A corpus metric keeps its counts for each reply** (`bleu_counts`, `act_counts`), so that the evaluation can
  resample it.
"""

from rlhf_dialog.metrics.evaluate_modules import EvaluateInfo
from rlhf_dialog.metrics.nlp import NLPVecInfo, VecInfo

__all__ = ["EvaluateInfo", "NLPVecInfo", "VecInfo"]
