"""Whether a new version answers differently at all: the newest lines of the store, answered by it and by the champion."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.feedback.learning.guards import make_responder, sample_replies
from rlhf_dialog.feedback.learning.learner import Learner
from rlhf_dialog.feedback.store.examples import Prompt
from rlhf_dialog.models.chat_agent import chat_sampling
from rlhf_dialog.models.policy import Policy

NUM_LINES, MIN_CHANGED, NUM_SHOWN = 50, 5, 3


@dataclass(frozen=True)
class AnswerChange:
    """What a person said, and the two answers.

    >>> AnswerChange("Is it far ?", before="Two streets .", after="Two streets , madam .").line
    'Is it far ?'
    """

    line: str
    before: str
    after: str


@dataclass(frozen=True)
class ChangedAnswers:
    """Of `num_lines` lines, those whose answer is another one, newest first."""

    num_lines: int
    changes: list[AnswerChange]

    @property
    def num_needed(self) -> int:
        """How many a promotion needs; of fewer lines than that, all."""
        return min(MIN_CHANGED, self.num_lines)

    @property
    def is_enough(self) -> bool:
        return len(self.changes) >= self.num_needed

    def __str__(self) -> str:
        return f"{len(self.changes)} of the newest {self.num_lines} lines"

    def shown_lines(self) -> list[str]:
        """The number, and the first changes, as text."""
        texts = [f"answered differently: {self}, with the same random numbers (at least {self.num_needed} are needed)"]
        for change in islice(self.changes, NUM_SHOWN):
            texts += [f"  line    {_one_line(change.line)}"]
            texts += [f"  before  {_one_line(change.before)}", f"  after   {_one_line(change.after)}"]
        return texts


def compare_answers(learner: Learner, champion: Policy, prompts: Sequence[Prompt]) -> ChangedAnswers:
    """Both versions answer as in a chat, each prompt with the same random numbers."""
    dialogues = [Dialogue(list(turns)) for turns in prompts]
    texts = []
    for policy in (champion, learner.policy):
        responder = make_responder(learner, policy)
        responder.sampling = chat_sampling(learner.agent.settings)
        texts.append([reply.text for reply in sample_replies(responder, dialogues, learner.settings.seed)])
    changes = [
        AnswerChange(turns[-1], before, after)
        for turns, before, after in zip(prompts, *texts, strict=True)
        if before != after
    ]
    return ChangedAnswers(len(prompts), changes)


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "(nothing)"
