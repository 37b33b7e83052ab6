"""METEOR as a reward."""

import logging
from typing import Any

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.metrics.meteor import load_wordnet, meteor, meteor_variant
from rlhf_dialog.rewards.base import BaseReward, reference_lists, walk

logger = logging.getLogger(__name__)


@RewardFactory.register("Meteor")
class Meteor(BaseReward):
    """METEOR in [0, 1] against the best of a prompt's references; an empty response gets 0.

    `meteor_wordnet`: `auto` uses WordNet when nltk's copy is on this machine, `require` raises an error without it, `off`
    does not use it: then there is no synonym stage, and the metric has another name. Nothing is downloaded.
    """

    needs = ("reference",)

    def __init__(self, meteor_wordnet: str | bool = "auto"):
        self.wordnet = load_wordnet(meteor_wordnet)
        logger.info("METEOR %s WordNet (%s)", "without" if self.wordnet is None else "with", self.name)

    @property
    def name(self) -> str:
        """`meteor` with WordNet, `meteor_exact_stem` without."""
        return meteor_variant(self.wordnet)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One number in [0, 1] for each dialogue. Raises UserError when one has no reference."""
        pairs = zip(dialogues, reference_lists(dialogues, self.name), strict=True)
        return [meteor(references, dialogue.response, self.wordnet) for dialogue, references in pairs]


def reward_wordnet(reward: BaseReward | None) -> Any:
    """The WordNet of the first Meteor in a reward, at any depth (None: not used); without a Meteor, that of this machine."""
    found = next((one for one in walk(reward) if isinstance(one, Meteor)), None) if reward else None
    return found.wordnet if found else load_wordnet("auto")
