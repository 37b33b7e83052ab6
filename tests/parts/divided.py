"""Rewards for several processes, which import them from here. `from divided import Where, started`."""

import os
import threading

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.rewards.processes import RewardProcesses

MANY = [Dialogue(["Hi ."], "word " * (i % 7) + str(i), "word by word", meta={"index": i}) for i in range(10)]


def started(count: int = 2) -> RewardProcesses:
    """Processes that are ready."""
    processes = RewardProcesses(count)
    processes.consider(1.0, 1.0)
    processes._greeting.result()
    return processes


class Where(BaseReward):
    """The process that scores, as a number."""

    name = "where"
    divisible = True

    def __call__(self, dialogues):
        return [float(os.getpid())] * len(dialogues)


class Odd(Where):
    """Does not set `divisible`, as its class may compare dialogues."""


class Digits(BaseReward):
    """A number of many digits, from the text alone."""

    name = "digits"
    divisible = True
    factor = 1.0

    def __call__(self, dialogues):
        return [self.factor * len(d.response) ** 0.5 / 7 for d in dialogues]


class Faulty(BaseReward):
    """What goes wrong for the last dialogue; `home` is the run's own process."""

    name = "faulty"
    divisible = True

    def __init__(self, how):
        self.how, self.home = how, os.getpid()

    def __call__(self, dialogues):
        scores = [float(len(d.response)) for d in dialogues]
        if dialogues[-1].response != MANY[-1].response:
            return scores
        if self.how == "raises":
            raise ValueError("bad word")
        if self.how == "dies" and os.getpid() != self.home:
            os._exit(9)
        if self.how == "exits":
            raise SystemExit(4)
        if self.how == "hangs":
            threading.Event().wait()  # a busy loop would slow down all later tests of the process, whose thread stays
        return {"too few": scores[1:], "no list": 1.0, "none": [*scores[1:], None]}.get(self.how, scores)

    def score_available(self, dialogues):
        return [None if d.response == MANY[-1].response else 1.0 for d in dialogues]
