"""The reward of a run whose environment pays for everything."""

from typing import Any

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.base import BaseReward


@RewardFactory.register("NoReward")
class NoReward(BaseReward):
    """0 for each dialogue: what a run with an `environment` has by default, beside the rewards of the environment."""

    name = "no_reward"

    @classmethod
    def reaches_out(cls, args: dict[str, Any]) -> dict[str, str]:
        """Nothing."""
        return {}

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """Zeros."""
        return [0.0] * len(dialogues)
