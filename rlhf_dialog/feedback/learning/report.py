"""What one `learn` says of itself: what it used and left out, what changed, whether that is promoted, and why."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from rlhf_dialog.feedback.learning.changed_answers import ChangedAnswers
from rlhf_dialog.feedback.learning.gate import GateComparison
from rlhf_dialog.feedback.store.examples import format_counts
from rlhf_dialog.runs.services.guard import GuardLimit


@dataclass
class NightReport:
    """What a night used, left out, changed and decided. `version`: the new one, None when nothing changed."""

    bot: str
    champion: str
    last_event: int
    used: dict[str, int]
    left_out: dict[str, int]
    num_heldout: int
    power: str
    why: str
    dry_run: bool = False
    people: list[str] = field(default_factory=list)  # what is said of few people
    version: str | None = None
    promoted: bool = False
    comparison: GateComparison | None = None
    guards: list[GuardLimit] = field(default_factory=list)
    changed: ChangedAnswers | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def lines(self) -> list[str]:
        """The report as text."""
        texts = [f"{self.bot}: champion {self.champion}, feedback up to event {self.last_event}", self._used_line()]
        if self.left_out:
            texts.append(f"left out: {format_counts(self.left_out)}")
        texts += self.people
        texts.append(f"held out: {self.power}")
        if self.metrics:
            losses = ", ".join(
                f"{name} {value:.{0 if isinstance(value, int) else 3}f}" for name, value in self.metrics.items()
            )
            texts.append(f"trained in {self.seconds:.0f} s: {losses}")
        if self.guards:
            texts.append(f"guards: {'; '.join(map(str, self.guards))}")
        if self.comparison:
            texts.append(_gate_line(self.comparison))
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

    def _used_line(self) -> str:
        used = self.used
        return (
            f"to learn from: {used['new']} new and {used['replayed']} older examples of {used['people']} people: "
            f"{used['liked']} liked and {used['disliked']} disliked answers, {used['pairs']} edits and choices; "
            f"{used['sft']} replies of the SFT data in {used['steps']} steps"
        )


def _gate_line(comparison: GateComparison) -> str:
    points = [100 * value for value in (comparison.difference, comparison.low, comparison.standard_error)]
    return (
        f"gate: concordance {comparison.candidate:.3f}, champion {comparison.champion:.3f}: "
        f"{points[0]:+.1f} points{comparison.people_note}, 95 % interval from {points[1]:+.1f}, "
        f"standard error {points[2]:.1f}, {comparison.num_events} held-out events"
    )
