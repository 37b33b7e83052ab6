"""Dialogue environments: who talks with the policy, and what each of its replies is worth. Text only, no tensors."""

from rlhf_dialog.environments.base import Environment
from rlhf_dialog.environments.single_turn import SingleTurn

__all__ = ["Environment", "SingleTurn"]
