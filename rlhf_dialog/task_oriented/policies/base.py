"""What a policy is, what it learns from, and names -> policies. N dialogues, D features, A actions, T turns."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf_dialog.config.registry import Registry
from rlhf_dialog.task_oriented.domains import AnyDomain

Features = NDArray[np.float32]
Masks = NDArray[np.bool_]
Actions = NDArray[np.int64]
Extras = dict[str, NDArray[Any]]
PolicyFactory = Registry("policy")


@dataclass(frozen=True)
class PolicySpec:
    """What a policy is built for: sizes of an observation and of a mask, its seed, and the domain where there is one.

    num_updates: how often the run calls `update`, for schedules; None: nobody knows
    """

    num_features: int
    num_actions: int
    seed: int = 0
    domain: AnyDomain | None = None
    num_updates: int | None = None


@dataclass
class Episode:
    """The T turns of a dialogue that were sampled with one policy: the whole dialogue, or a piece of it.

    observations (T, D), masks (T, A); actions, logprobs, values, rewards (T,); last_observation (D,) follows the last turn.
    A piece is neither terminated nor truncated; the next piece begins at its end. `start` is the turn of the dialogue, from
    0, that comes first here; `total_reward` is the reward of the dialogue up to here. `info` is the environment's at the end;
    `success` is False before it, None where the environment does not say it.
    logprobs and values are 0 where a policy has none; the other extras of `act` are in `extras`, (T, ...) each.
    """

    observations: Features
    masks: Masks
    actions: Actions
    logprobs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    values: NDArray[np.float32]
    terminated: bool
    truncated: bool
    last_observation: Features
    dialogue: int
    success: bool | None = False
    info: dict[str, Any] = field(default_factory=dict)
    start: int = 0
    total_reward: float = 0.0
    extras: Extras = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def ended(self) -> bool:
        """Whether the dialogue ended here, by the user or by the turn limit."""
        return self.terminated or self.truncated


class DialoguePolicy(Protocol):
    """Chooses actions, and may learn. No base class is needed; register a class whose first argument is a `PolicySpec`.

    Its constructor raises UserError for an argument that cannot be used.

    >>> @PolicyFactory.register("first")
    ... class First:
    ...     def __init__(self, setting): ...
    ...     def act(self, observations, masks, deterministic): return masks.argmax(axis=1), {}
    ...     def observe(self, episode): ...
    ...     def update(self): return {}
    ...     def save(self, folder): ...
    ...     def load(self, folder): ...
    """

    def act(self, observations: Features, masks: Masks, deterministic: bool) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A; True: allowed) -> actions (N,) and extras, (N, ...) each.

        Extras of the names `logprobs` and `values` become those of the episode. `deterministic`: no exploration. A policy that
        draws takes a fourth argument, `streams`: N generators (`random.Random`), one for this turn of each dialogue. It draws
        from nothing else, so that a dialogue does not depend on those beside it.
        """

    def observe(self, episode: Episode) -> None:
        """Take in an episode; pieces of a dialogue come in their order."""

    def update(self) -> dict[str, float]:
        """Learn from what was observed; returns metrics. Raises RunStopped when a number is not finite."""

    def save(self, folder: Path) -> None:
        """Write all that `load` needs to go on exactly, as safetensors and JSON, into an existing folder."""

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises UserError when the files do not fit."""


def choose(
    policy: DialoguePolicy, observations: Features, masks: Masks, deterministic: bool, streams: Sequence[Random]
) -> tuple[Actions, Extras]:
    """`policy.act`, with the streams where the policy takes them."""
    draws: Any = [streams] if "streams" in inspect.signature(policy.act).parameters else []
    return policy.act(observations, masks, deterministic, *draws)


def stream(seed: int, dialogue: int, turn: int) -> Random:
    """The generator of the policy for one turn of a dialogue; it is that of no user and no error channel."""
    return Random(f"{seed}/{dialogue}/{turn}/policy")
