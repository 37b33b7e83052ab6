"""Extra metrics of a run: the vec-info classes."""

from rlhf_dialog.metrics.base import VecInfo
from rlhf_dialog.metrics.nlp import NLPVecInfo

__all__ = ["NLPVecInfo", "VecInfo"]
