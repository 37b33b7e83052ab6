"""A price on copying: a response should not repeat what was just said."""

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.metrics.text import copied_from
from rlhf_dialog.rewards.base import BaseReward, whole


@RewardFactory.register("CopyPrice")
class CopyPrice(BaseReward):
    """-(the share of the response's bigrams that also occur in one of the last `turns` turns before it), in [-1, 0].

    Bigrams are those of words in lower case, split at white space; a response of fewer than two words costs nothing.
    Raises UserError when `turns` is not a whole number, at least 1.
    """

    name = "copy_price"

    def __init__(self, turns: int = 2):
        self.turns = whole("turns", turns)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One number in [-1, 0] for each dialogue."""
        return [-copied_from(dialogue.turns_before[-self.turns :], dialogue.response) for dialogue in dialogues]
