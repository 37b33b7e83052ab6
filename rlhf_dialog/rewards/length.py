"""Penalties on length: responses should be as long as a person's reply, or as they were at the start."""

from typing import Any

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.base import BaseReward, Purpose, number, reference_lists, whole


@RewardFactory.register("LengthMatch")
class LengthMatch(BaseReward):
    """-|w - r| / max(w, r), with w the number of words (split at white space) of the response, and r that of the reference or
    `words`, which needs no reference.

    0 for equal lengths, -1 for an empty response. Of several references the nearest counts: the one that gives the highest
    value. METEOR alone rewards longer responses; this reward limits them. Raises UserError when `words` is not a whole number,
    at least 1.
    """

    name = "length_match"

    def __init__(self, words: int | None = None):
        self.words = None if words is None else whole("words", words)
        self.needs = ("reference",) if words is None else ()

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One number in [-1, 0] for each dialogue. Raises UserError when one has no reference that it `needs`."""
        if self.words is not None:
            return [length_match(dialogue.response, self.words) for dialogue in dialogues]
        pairs = zip(dialogues, reference_lists(dialogues, self), strict=True)
        return [max(length_match(dialogue.response, len(text.split())) for text in texts) for dialogue, texts in pairs]


def length_match(response: str, r: int) -> float:
    """The formula of LengthMatch for a text and a number of words; 0 for an empty text and 0 words."""
    w = len(response.split())
    return -abs(w - r) / max(w, r, 1)


@RewardFactory.register("LengthHold")
class LengthHold(BaseReward):
    """-price * (w - held) / held, with w the words of the response (split at white space): the same price for every word.

    `held` is the mean number of words of the first rollout, or `words`. After each rollout, with e = mean / held - 1 of all
    ranks' responses: debt += rate * e, and price = gain * e + debt, both within -max_price and max_price. It changes neither in a
    validation nor in an evaluation. Raises UserError for an argument that is not a finite number above 0 (`rate`, `gain`: or 0).
    """

    name = "length_hold"

    def __init__(self, words: float | None = None, rate: float = 0.2, gain: float = 2.0, max_price: float = 4.0):
        above, from_zero = "a finite number above 0", "a finite number of at least 0"
        self.held = None if words is None else number("words", words, above, lambda x: x > 0)
        self.max_price = number("max_price", max_price, above, lambda x: x > 0)
        self.rate, self.gain = (
            number(key, value, from_zero, lambda x: x >= 0) for key, value in (("rate", rate), ("gain", gain))
        )
        self.price = self.debt = self.mean = 0.0
        self.learns = False
        self.seen = (0, 0)  # responses and words of this process since the price last moved

    def begin_scoring(self, purpose: Purpose, iteration: int) -> None:
        """Only a rollout moves the price."""
        self.learns = purpose == "rollout"

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """One number for each dialogue; 0 in the first rollout."""
        counts = [len(dialogue.response.split()) for dialogue in dialogues]
        if self.learns:
            self.seen = (self.seen[0] + len(counts), self.seen[1] + sum(counts))
        held = self.held or 1.0
        return [-self.price * (count - held) / held for count in counts]

    def metrics(self) -> dict[str, float]:
        """Move the price by what all ranks have seen; `price`, `words` (the mean of this rollout) and `held`."""
        responses, words = _over_ranks(self.seen)
        self.seen = (0, 0)
        if responses:
            self.mean = words / responses
            self._move()
        return {"price": self.price, "words": self.mean, "held": self.held or 0.0}

    def _move(self) -> None:
        if self.held is None:
            self.held = max(self.mean, 1.0)
        error = self.mean / self.held - 1
        self.debt = self._clamp(self.debt + self.rate * error)
        self.price = self._clamp(self.gain * error + self.debt)

    def _clamp(self, price: float) -> float:
        return min(max(price, -self.max_price), self.max_price)

    def state_dict(self) -> dict[str, Any]:
        """The price and what it depends on; the same on all ranks."""
        return {"held": self.held, "debt": self.debt, "price": self.price}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a stored price."""
        self.held, self.debt, self.price = state["held"], state["debt"], state["price"]


def _over_ranks(counts: tuple[int, int]) -> tuple[float, float]:
    """The sums over all processes; each of them asks at the same point."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return counts
    sums = torch.tensor(counts, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums[0].item(), sums[1].item()
