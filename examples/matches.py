r"""A reward of your own: the whole reply matches a regular expression.

python train_ppo.py --config ask_back.yaml --register examples/matches.py --experiment_name ten_words \
    --reward_class '{id: Matches, args: {pattern: "(\\S+\\s+){0,9}\\S+[.!?]"}}' --max_iterations 16
"""

import re

from rlhf_dialog import BaseReward, Dialogue, RewardFactory


@RewardFactory.register("Matches")
class Matches(BaseReward):
    """1 for a reply that matches `pattern` from its first to its last letter, else 0."""

    name = "matches"

    def __init__(self, pattern: str):
        self.pattern = re.compile(pattern)

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        return [float(bool(self.pattern.fullmatch(dialogue.response.strip()))) for dialogue in dialogues]
