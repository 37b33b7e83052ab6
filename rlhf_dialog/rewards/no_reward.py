"""The reward of a run whose environment pays for everything."""

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.base import BaseReward


@RewardFactory.register("NoReward")
class NoReward(BaseReward):
    """0 for each dialogue: what a run with an `environment` has by default, beside the rewards of the environment."""

    name = "no_reward"

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        return [0.0] * len(dialogues)
