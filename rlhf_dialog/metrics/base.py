"""The base class of vec-infos, which read a finished rollout and return numbers to log."""

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
