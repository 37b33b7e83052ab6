"""Does a reply depend on its prompt? A judge for tables; with `--register experiments/mutual_information.py` also for --judge."""

from collections.abc import Sequence
from dataclasses import replace

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import LikelihoodPrice


@RewardFactory.register("MutualInformation")
class MutualInformation(LikelihoodPrice):
    """log p(reply | its prompt) - log p(reply | another prompt), in nats a token, under a frozen language model.

    A reply that suits every prompt has about 0 (Li et al. 2016, arXiv 1510.03055). The other prompt comes from the other half of
    the list and has another last turn, so a score depends on what else is asked. 0 where there is no other prompt. Arguments: as
    in LikelihoodPrice.
    """

    name = "mutual_information"

    def __init__(self, model: str, tokens: int = 12, system_prompt: str | None = None):
        super().__init__(model, None, tokens, system_prompt)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One number for each dialogue."""
        swapped = [
            one
            if other is None
            else replace(one, prompt_turns=dialogues[other].turns_before, earlier=[], system=dialogues[other].system)
            for one, other in zip(dialogues, others(dialogues), strict=True)
        ]
        return [ours - theirs for ours, theirs in zip(self.means(dialogues), self.means(swapped), strict=True)]


def others(dialogues: Sequence[Dialogue]) -> list[int | None]:
    """For each dialogue the number of another one, whose last turn differs; None where there is none."""
    count = len(dialogues)
    steps = [*range(count // 2, count), *range(1, count // 2)]
    last = [dialogue.turns_before[-1:] for dialogue in dialogues]
    return [
        next((place for step in steps if last[place := (number + step) % count] != last[number]), None)
        for number in range(count)
    ]
