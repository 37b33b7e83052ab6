"""A reward of your own: the reply is a short statement and then one question.

python train_ppo.py --config ask_back.yaml
"""

import re

from rlhf_dialog import BaseReward, Dialogue, RewardFactory


@RewardFactory.register("AskBack")
class AskBack(BaseReward):
    """1 for a statement and then one question, in at most `words` words; 0.3 for one question at the end without a statement."""

    name = "ask_back"

    def __init__(self, words: int = 20):
        self.words = words

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        return [self.score(dialogue.response) for dialogue in dialogues]

    def score(self, reply: str) -> float:
        *before, last = re.findall(r"[^.!?]+[.!?]+", reply) or [""]
        asks_once = last.endswith("?") and reply.rstrip().endswith(last) and reply.count("?") == 1
        if not asks_once or len(reply.split()) > self.words:
            return 0.0
        return 1.0 if before else 0.3
