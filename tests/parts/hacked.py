"""A reward that rises while a judge falls, for runs with a guard."""

from rlhf_dialog.rewards import BaseReward

JUDGE = {
    "up": "{action: %s, judge: {id: ByIteration, args: {slope: 1.0}}}",
    "down": "{action: %s, judge: {id: ByIteration}}",
}
EVERY = ("--eval_interval", "1", "--eval_episodes", "6", "--save_interval", "1", "--keep_checkpoints", "5")


class ByIteration(BaseReward):
    name = "by_iteration"

    def __init__(self, slope: float = -1.0):
        self.slope, self.now = slope, 0

    def begin_scoring(self, purpose, iteration):
        self.now = iteration

    def __call__(self, dialogues):
        return [self.slope * self.now + 0.01 * self.now * (i % 5) for i in range(len(dialogues))]
