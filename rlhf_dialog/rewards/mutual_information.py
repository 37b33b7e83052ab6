"""A judge that never saw the dialogues: does a language model find a reply likelier behind its own prompt than another one?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.base import BaseReward, reaches_nothing
from rlhf_dialog.rewards.likelihood import LikelihoodPrice


@RewardFactory.register("MutualInformation")
class MutualInformation(BaseReward):
    """log p(reply | its prompt) - log p(reply | another prompt), in nats a token, under a frozen language model.

    A reply that suits every prompt has about 0 (Li et al. 2016, arXiv 1510.03055). The other prompt comes from the other half of
    the list and has another last turn, so a score depends on what else is asked: meant as a judge (`--judge`), not as a reward.
    0 where there is no other prompt. Arguments: as in LikelihoodPrice.
    """

    name = "mutual_information"
    uses_device = True

    reaches_out = reaches_nothing  # the model is always a folder of this machine

    def __init__(self, model: str, tokens: int = 12, system_prompt: str | None = None):
        self.likelihood = LikelihoodPrice(model, None, tokens, system_prompt)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One number for each dialogue."""
        swapped = [
            one if other is None else replace(one, prompt_turns=dialogues[other].turns_before, earlier=[])
            for one, other in zip(dialogues, others(dialogues), strict=True)
        ]
        pairs = zip(self.likelihood.means(dialogues), self.likelihood.means(swapped), strict=True)
        return [ours - theirs for ours, theirs in pairs]

    def frozen_models(self) -> dict[str, Any]:
        """The language model."""
        return self.likelihood.frozen_models()

    @classmethod
    def model_paths(cls, args: dict[str, Any]) -> dict[str, str]:
        """The folder of the language model."""
        return LikelihoodPrice.model_paths(args)


def others(dialogues: Sequence[Dialogue]) -> list[int | None]:
    """For each dialogue the number of another one, whose last turn differs; None where there is none."""
    count = len(dialogues)
    steps = [*range(count // 2, count), *range(1, count // 2)]
    last = [dialogue.turns_before[-1:] for dialogue in dialogues]
    return [
        next((place for step in steps if last[place := (number + step) % count] != last[number]), None)
        for number in range(count)
    ]
