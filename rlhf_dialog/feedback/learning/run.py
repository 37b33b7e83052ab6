"""What a night sees, and a night at work: what all methods of learning share."""

from dataclasses import dataclass
from typing import Any

from rlhf_dialog.atomic_files import atomic_folder
from rlhf_dialog.feedback.learning.learner import Learner
from rlhf_dialog.feedback.learning.tokenized_examples import SFTExamples
from rlhf_dialog.feedback.store.bot import NIGHT, Bot
from rlhf_dialog.feedback.store.examples import Examples, HeldOut, TrainingSet
from rlhf_dialog.feedback.store.settings import BotSettings


@dataclass
class Snapshot:
    """What a night sees: the examples up to the event `last_event`, those to train on, and those held out."""

    champion: str
    last_event: int
    examples: Examples
    training: TrainingSet
    heldout: HeldOut
    fingerprint: str  # of all that decides what the night makes of the champion


@dataclass
class Night:
    """A night at work. `state` is kept in `night/`, as JSON: "plan", "done" and "sums" of `Learner.train`, and the snapshot's."""

    bot: Bot
    settings: BotSettings
    snapshot: Snapshot
    learner: Learner
    sft: SFTExamples
    state: dict[str, Any]

    def save(self, progress: dict[str, Any]) -> None:
        """Write the learner and the state into `night/`, whole. Raises UserError when they cannot be written."""
        self.state |= progress
        with atomic_folder(self.bot.folder / NIGHT) as folder:
            self.learner.save(folder, {"night": self.state})
