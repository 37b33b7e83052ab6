"""Vec-infos, which read a finished rollout and return numbers to log: the base class, and that of the dialogue task."""

from collections.abc import Sequence
from typing import Any

from rlhf_dialog.config.registry import VecInfoFactory
from rlhf_dialog.metrics.text import distinct_n


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


@VecInfoFactory.register("NLPVecInfo")
class NLPVecInfo(VecInfo):
    """Words per response, distinct-2 of the rollout, and the sum of the token rewards of an episode, KL penalty included."""

    def __call__(self, rollout: Any) -> dict[str, float]:
        texts = [dialogue.response for dialogue in rollout.dialogues]
        return {
            "response/words": sum(len(text.split()) for text in texts) / len(texts),
            "response/distinct_2": distinct_n(texts, 2),
            "objective/episode_reward": rollout.rewards.sum(dim=1).mean().item(),
        }

    def pool(self, responses: Sequence[str]) -> dict[str, float]:
        """distinct-2: a word pair that two processes have is counted once."""
        return {"response/distinct_2": distinct_n(responses, 2)}
