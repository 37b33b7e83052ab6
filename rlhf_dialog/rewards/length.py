"""A penalty on length: responses should be as long as a person's reply."""

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.base import BaseReward, reference_lists


@RewardFactory.register("LengthMatch")
class LengthMatch(BaseReward):
    """-|w - r| / max(w, r), with w and r the numbers of words (split at white space) of response and reference.

    0 for equal lengths, -1 for an empty response. Of several references the nearest counts: the one that gives the highest
    value. METEOR alone rewards longer responses; this reward limits them.
    """

    needs = ("reference",)
    name = "length_match"

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One number in [-1, 0] for each dialogue. Raises UserError when one has no reference."""
        pairs = zip(dialogues, reference_lists(dialogues, self.name), strict=True)
        return [max(length_match(dialogue.response, text) for text in texts) for dialogue, texts in pairs]


def length_match(response: str, reference: str) -> float:
    """The formula of LengthMatch on two texts; two empty texts give 0."""
    w, r = len(response.split()), len(reference.split())
    return -abs(w - r) / max(w, r, 1)
