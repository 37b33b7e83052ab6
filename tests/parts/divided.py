"""Processes that compute METEOR, and dialogues for them."""

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.processes import RewardProcesses

MANY = [Dialogue(["Hi ."], "word " * (i % 7) + str(i), "word by word", meta={"index": i}) for i in range(10)]


def started(count: int = 2) -> RewardProcesses:
    """Processes that are ready."""
    processes = RewardProcesses(count)
    processes.consider(1.0, 1.0)
    processes._greeting.result()
    return processes
