"""The random policy: every allowed action is equally likely."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from rlhf_dialog.config.registry import AccessDeclaration
from rlhf_dialog.task_oriented.policies.base import Actions, Episode, Extras, Features, Masks, PolicyFactory, PolicySpec


@PolicyFactory.register("random", reach=AccessDeclaration())
class RandomPolicy:
    """Draws from the allowed actions, also when it is asked to be deterministic."""

    def __init__(self, setting: PolicySpec):
        self.setting = setting

    def act(
        self, observations: Features, masks: Masks, deterministic: bool = False, streams: Sequence[Random] = ()
    ) -> tuple[Actions, Extras]:
        """observations (N, D), masks (N, A) -> actions (N,) and their logprobs (N,)."""
        pairs = zip(masks, streams, strict=True)
        actions = [stream.choice(np.flatnonzero(mask).tolist()) for mask, stream in pairs]
        return np.array(actions, dtype=np.int64), {"logprobs": -np.log(masks.sum(axis=1)).astype(np.float32)}

    def observe(self, episode: Episode) -> None:
        """Nothing is learned."""

    def update(self) -> dict[str, float]:
        """No metrics."""
        return {}

    def save(self, folder: str | Path) -> Any:
        """Nothing is stored."""

    def load(self, folder: str | Path) -> Any:
        """Nothing is stored."""
