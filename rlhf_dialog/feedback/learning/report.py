"""What one `learn` says of itself: what it used and left out, what changed, whether that is promoted, and why."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.feedback.learning.gate import GateComparison, describe_people
from rlhf_dialog.feedback.learning.guards import GuardLimit, sample_replies
from rlhf_dialog.feedback.learning.learner import Learner
from rlhf_dialog.feedback.store.examples import DialoguePrompt, format_counts
from rlhf_dialog.models.chat_agent import chat_sampling
from rlhf_dialog.models.policy import Policy

NUM_LINES, MIN_CHANGED, NUM_SHOWN = 50, 5, 5


@dataclass(frozen=True)
class AnswerChange:
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
        share = f" ({len(self.changes) / self.num_lines:.0%})" if self.num_lines else ""
        return f"{len(self.changes)} of the newest {self.num_lines} lines{share}"

    def shown_lines(self) -> list[str]:
        """The number, what became of the lengths, and the first changes, as text."""
        texts = [
            f"answered differently: {self}, with the same random numbers (at least {self.num_needed} are needed); the other "
            f"{self.num_lines - len(self.changes)} answers are the same word for word"
        ]
        if self.changes:
            before, after = (
                sum(len(answer.split()) for answer in answers) / len(answers)
                for answers in ([one.before for one in self.changes], [one.after for one in self.changes])
            )
            texts.append(f"words in the answers that changed: {before:.1f} before, {after:.1f} after")
        for change in islice(self.changes, NUM_SHOWN):
            texts += [f"  line    {_one_line(change.line)}"]
            texts += [f"  before  {_one_line(change.before)}", f"  after   {_one_line(change.after)}"]
        return texts


def compare_answers(learner: Learner, champion: Policy, prompts: Sequence[DialoguePrompt]) -> ChangedAnswers:
    """Both versions answer as in a chat, each prompt with the same random numbers."""
    dialogues = [Dialogue(list(prompt.turns), system=prompt.system) for prompt in prompts]
    sampling = chat_sampling(learner.agent.settings)
    replies = (sample_replies(learner, policy, dialogues, sampling) for policy in (champion, learner.policy))
    texts = [[reply.text for reply in some] for some in replies]
    both = [
        AnswerChange(prompt.turns[-1], before, after) for prompt, before, after in zip(prompts, *texts, strict=True)
    ]
    return ChangedAnswers(len(prompts), [one for one in both if one.before != one.after])


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "(nothing)"


@dataclass
class NightReport:
    """What a night used, left out, changed and decided. `version`: the new one, None when nothing changed."""

    bot: str
    champion: str
    last_event: int
    used: dict[str, int]
    left_out: dict[str, int]
    power: str
    why: str
    version: str | None = None
    promoted: bool = False
    comparison: GateComparison | None = None
    guards: list[GuardLimit] = field(default_factory=list)
    changed: ChangedAnswers | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    went_back: str = ""
    kept: float = 1.0  # of what the end of the night had learned of the liked replies
    removed: list[str] = field(default_factory=list)
    weighing: str = ""  # what `person_cap` has changed
    lengthened: str = ""  # what liked replies have made of max_new_tokens
    seconds: float = 0.0

    def lines(self) -> list[str]:
        texts = [f"{self.bot}: champion {self.champion}, feedback up to event {self.last_event}"]
        if used := self.used:
            texts.append(
                f"to learn from: {used['new']} new and {used['replayed']} older examples of {used['people']} people: "
                f"{used['liked']} liked and {used['disliked']} disliked answers, {used['pairs']} edits and choices; "
                f"{used['sft']} replies of the SFT data in {used['steps']} steps"
            )
        if copied := used.get("after_copies"):
            texts.append(
                f"of these, {copied} follow turns that a program sent as its history, and nobody said to the bot"
            )
        texts += [text for text in (self.weighing, self.lengthened) if text]
        if self.left_out:
            texts.append(f"left out: {format_counts(self.left_out)}")
        texts.append(f"held out: {self.power}")
        if self.metrics:
            losses = ", ".join(f"{name} {x:.{0 if isinstance(x, int) else 3}f}" for name, x in self.metrics.items())
            texts.append(f"trained in {self.seconds:.0f} s: {losses}")
        if self.went_back:
            texts.append(self.went_back)
        if self.guards:
            texts.append(f"guards: {'; '.join(map(str, self.guards))}")
        if self.comparison:
            found = self.comparison
            points = [100 * value for value in (found.difference, found.low, found.standard_error)]
            texts.append(
                f"gate: concordance {found.candidate:.3f}, champion {found.champion:.3f}: {points[0]:+.1f} points"
                f"{describe_people(found.num_people)}, 95 % interval from {points[1]:+.1f}, standard error {points[2]:.1f}, "
                f"{found.num_events} held-out events"
            )
            texts.append(
                f"what the points are: of 100 comparisons of a liked with a disliked held-out reply, training has raised the "
                f"liked one's probability more in {100 * found.candidate:.0f} ({100 * found.champion:.0f} for the champion); "
                "this ranks replies that were rated, and does not say what the version answers"
            )
        if self.changed:
            texts += self.changed.shown_lines()
        if self.removed:
            texts.append(f"removed (keep_last): {', '.join(self.removed)}")
        return [*texts, self.why]

    def gate_record(self) -> dict[str, Any]:
        """What the lineage keeps of the gate."""
        assert self.comparison is not None
        found = self.comparison
        numbers = {**asdict(found), "concordance": found.candidate, "difference": found.difference}
        return {
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "changed_lines": None if self.changed is None else [len(self.changed.changes), self.changed.num_lines],
            "guards": [guard.as_json() for guard in self.guards],
            "promoted": self.promoted,
            "why": self.why,
        }
