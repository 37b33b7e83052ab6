"""The default vec-info of the dialogue task."""

from collections.abc import Sequence
from typing import Any

from rlhf_dialog.config.registry import VecInfoFactory
from rlhf_dialog.metrics.base import VecInfo
from rlhf_dialog.metrics.text import distinct_n


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
