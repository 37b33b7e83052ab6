"""Dialogue environments: who talks with the policy, and what each of its replies is worth. Text only, no tensors.

- **Any class with `reset` and `step` is an environment** (`base.Environment` is a Protocol). Both return Gymnasium's
  tuples; Gymnasium itself is imported by the worlds of acts alone.
- **A YAML names environments as it names rewards** (`EnvironmentFactory`); `corpus` is registered here.
- **A single-turn prompt is an environment too** (`SingleTurn`), so that the trainer has one way to collect a rollout.
- **Tokens are not here.** `training/episodes.py` plays many environments at once and turns their turns into tokens.
"""

from rlhf_dialog.environments import corpus  # noqa: F401  registers its class
from rlhf_dialog.environments.base import Environment, SingleTurn

__all__ = ["Environment", "SingleTurn"]
