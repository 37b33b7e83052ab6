"""The judge of an audit that names none: what people say after such a line."""

from collections.abc import Sequence

import numpy as np

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.intervals import Array, Numbers
from rlhf_dialog.evaluation.replies import WordIndex, count_words
from rlhf_dialog.rewards.base import BaseReward

NEAREST = 20  # prompts


class RetrievalJudge(BaseReward):
    """How near a response is to the references of the NEAREST prompts of other dialogues, the mean weighted by their nearness.

    Prompts are near by the words of their last turns, replies by their words and pairs of words: cosines of `WordIndex`.
    """

    name = "retrieval"

    def __init__(self, prompts: Sequence[Dialogue]):
        self.last_turns = WordIndex([count_words(prompt.prompt_turns[-1]) for prompt in prompts])
        self.replies = WordIndex([count_words(prompt.reference or "", pairs=True) for prompt in prompts])
        self.dialogue_ids = np.asarray([prompt.meta["dialogue"] for prompt in prompts])
        self._neighbours: dict[tuple[str, int], tuple[Numbers, Array]] = {}

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """A number from 0 to 1 for each."""
        return [self._judge(dialogue) for dialogue in dialogues]

    def _judge(self, dialogue: Dialogue) -> float:
        key = dialogue.prompt_turns[-1], dialogue.meta["dialogue"]
        if key not in self._neighbours:
            near = np.where(self.dialogue_ids == key[1], 0.0, self.last_turns.cosines(count_words(key[0])))
            rows = np.argsort(-near, kind="stable")[:NEAREST]
            self._neighbours[key] = rows, near[rows]
        rows, weights = self._neighbours[key]
        found = self.replies.cosines(count_words(dialogue.response, pairs=True))[rows]
        return float(weights @ found / max(weights.sum(), np.finfo(float).tiny))
