"""The base class of vec-infos, which read a finished rollout and return numbers to log."""

from collections.abc import Sequence
from typing import Any


class VecInfo:
    """Your own metrics, computed once per iteration and logged beside the standard ones.

    >>> @VecInfoFactory.register("QuestionShare")
    ... class QuestionShare(VecInfo):
    ...     def __call__(self, rollout):
    ...         return {"response/questions": sum("?" in d.response for d in rollout.dialogues) / len(rollout)}
    """

    def __call__(self, rollout: Any) -> dict[str, float]:
        """Numbers by name for a `rlhf_dialog.training.rollout.Rollout`; a slash in the name makes a group."""
        return {}

    def pool(self, responses: Sequence[str]) -> dict[str, float]:
        """With several processes: numbers that a mean over episodes would not give, from the responses of all of them, in order.

        They replace the means under these names; every other number is averaged over the episodes.
        """
        return {}
