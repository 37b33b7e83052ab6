"""Dialogue environments: the policy's partner in a dialogue, and the reward of each reply. Text only, no tensors."""

from rlhf_dialog.environments.base import Environment
from rlhf_dialog.environments.single_turn import SingleTurn

__all__ = ["Environment", "SingleTurn"]
