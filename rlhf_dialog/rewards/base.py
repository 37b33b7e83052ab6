"""What a reward is: a class that reads finished dialogues and returns one number each. Text only, no tensors."""

from collections.abc import Sequence
from typing import Any

from rlhf_dialog.dialogue import Dialogue


class BaseReward:
    """A reward on whole responses.

    Subclass it, register it under a name, and name it in the YAML; `args` there become the arguments of `__init__`.

    >>> @RewardFactory.register("Politeness")
    ... class Politeness(BaseReward):
    ...     def __init__(self, word: str = "please"):
    ...         self.word = word
    ...
    ...     def __call__(self, dialogues):
    ...         return [float(self.word in dialogue.response.lower()) for dialogue in dialogues]
    """

    needs: tuple[str, ...] = ()  # of "reference" and "act": what every prompt must carry; checked before training
    uses_device: bool = False  # True: it keeps the GPU or all cores busy, so it waits for the models that need them too

    @property
    def name(self) -> str:
        """The name in logs and tables: `reward/<name>`."""
        return type(self).__name__.lower()

    @classmethod
    def reaches_out(cls, args: dict[str, Any]) -> dict[str, str]:
        """What of these arguments opens a connection, reads an environment variable or a pickle, or runs other code.

        `{"args.url": "sends every dialogue to a server"}`; empty for none. A configuration that was found beside an agent may
        build only a class that returns nothing here. It must define this itself: what it inherits is not about its own code.
        """
        return {"id": "is no built-in reward, and its code may do anything with its arguments"}

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """Return one finite number for each dialogue, in their order."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, dialogues) -> list[float]")

    def score_available(self, dialogues: list[Dialogue]) -> Sequence[float | None]:
        """As `__call__`, but with None for a dialogue without a score; asked under `on_reward_error: skip`.

        A reward that can fail for some dialogues and not for others (a server) overrides it; None and NaN from `__call__`
        count as no score anyway.
        """
        return self(dialogues)

    def to(self, device: str) -> "BaseReward":
        """Move whatever model the reward holds to `device`; a reward without one has nothing to do."""
        return self
