"""Relevance: does the response fit its own prompt better than other prompts?"""

import math
from typing import TYPE_CHECKING, Any, ClassVar

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.base import ARGS, BaseReward, number, whole

if TYPE_CHECKING:
    from torch import Tensor

MODEL = "relevance model"  # its name among the frozen models of a reward
HIGHEST_FLOOR = -1.0  # above it, the mean of a constant response could be above 0


@RewardFactory.register("RelevanceReward")
class RelevanceReward(BaseReward):
    """log(exp s / mean(exp s, exp s_1 .. exp s_n)) in nats, from `floor` to `ceiling`: the InfoNCE margin of the own prompt.

    s is the model's score of the response with its own prompt, s_i with the i-th of the n prompts of a bank that is stored with
    the model; at most log(n + 1), and the mean over the model's members. A prompt that is itself in the bank is left out there.
    The mean of one and the same response over prompts like those of the bank is at most 0, also with a floor of at most -1.

    `model`: a folder that reward_models/train_relevance_model.py wrote. `bank_size`: only the first prompts of the
    bank (default: all).
    Raises UserError for a model that cannot be loaded and for arguments that cannot work.
    """

    name = "relevance"
    model_args: ClassVar = {"model": MODEL}
    uses_device = True

    def __init__(
        self, model: str, floor: float | None = -3.0, bank_size: int | None = None, ceiling: float | None = None
    ):
        from rlhf_dialog.models.relevance import load_relevance

        why = "with a higher one, the mean of a constant response could be above 0"
        low = f"a number of at most {HIGHEST_FLOOR:g} ({why}), or null for none"
        high = "a number above 0: nats, such as 1; or null for none"
        self.floor = -math.inf if floor is None else number("floor", floor, low, lambda x: x <= HIGHEST_FLOOR)
        self.ceiling = math.inf if ceiling is None else number("ceiling", ceiling, high, lambda x: x > 0)
        size = None if bank_size is None else whole("bank_size", bank_size)
        self.model = load_relevance(str(model), f"{ARGS}.model")
        self.bank = self.model.bank[:size]

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """The margin of each dialogue in nats, from `floor` to the smaller one of `ceiling` and log(n + 1)."""
        return [min(max(margin, self.floor), self.ceiling) for margin in self.margins(dialogues)]

    def margins(self, dialogues: list[Dialogue]) -> list[float]:
        """The margins without floor and ceiling."""
        import torch

        contexts, size = [dialogue.turns_before for dialogue in dialogues], self.model.sizes.context_size
        rows, others = torch.arange(len(contexts)).unsqueeze(1), torch.arange(len(self.bank)) + len(contexts)
        candidates = torch.cat([rows, others.expand(len(contexts), -1)], dim=1)
        replies = [dialogue.response for dialogue in dialogues]
        scores = self.model.scores([*contexts, *self.bank], replies, candidates)
        equal = [[turns[-size:] == other[-size:] for other in self.bank] for turns in contexts]
        same = torch.tensor(equal, dtype=torch.bool)
        return margins(scores, same.reshape(len(contexts), len(self.bank))).tolist()

    def frozen_models(self) -> dict[str, Any]:
        return {MODEL: self.model}


def margins(scores: "Tensor", left_out: "Tensor") -> "Tensor":
    """Margins (B,) of scores (M, B, 1 + n), those of the own prompt first; prompts of `left_out` (B, n) do not count."""
    import torch

    others = scores[..., 1:].masked_fill(left_out, -math.inf)
    known = torch.cat([scores[..., :1], others], dim=-1)
    count = 1 + (~left_out).sum(dim=-1)
    return (known[..., 0] - known.logsumexp(dim=-1) + count.log()).mean(dim=0)
