"""What a failed identity check adds to its error: the cause, found by switching off one possible cause after the other.

The checks compare log-probabilities that must be equal: of the policy as it sampled, and of its reference at the start or of the
update. When one fails, all ranks make the comparison again on a few responses (`comparison`), once for each of `causes.CAUSES`.
While checks pass nothing of this runs. Models and random states are afterwards as they were.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from rlhf_dialog.distributed.placement import Placement
from rlhf_dialog.distributed.random_states import random_states_kept
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models.chat_agent import Speaker
from rlhf_dialog.models.masks import masked
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.sizes import num_positions
from rlhf_dialog.training.causes import CAUSES, explanations
from rlhf_dialog.training.comparison import Comparison, batch_of
from rlhf_dialog.training.noise import Noise
from rlhf_dialog.training.rollout import Rollout

# A rollout in segments, and rows of it on the host, those with the largest difference first
Suspects = Callable[[], tuple[Rollout, Tensor]]


@dataclass
class Findings:
    """What one rank has found: whether its responses differ, and still do now; by cause a sentence, or why it was not tested."""

    differs: bool = False
    is_back: bool = False
    sentences: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


class Diagnosis:
    """Names the cause of a failed check. All ranks call it at the same point, and raise the same."""

    def __init__(self, speaker: Speaker, placement: Placement, world: World, temperature: float):
        self.speaker, self.placement, self.world, self.temperature = speaker, placement, world, temperature

    @contextmanager
    def explaining(self, other: Policy, noise: Noise, suspects: Suspects) -> Iterator[None]:
        """Add the cause to a RunStopped of the block, which all ranks raise or none.

        `other` is what the policy was compared with: its reference, or itself in the update.
        """
        try:
            yield
        except RunStopped as error:
            raise RunStopped(f"{error} {self._cause(other, noise, suspects)}") from error.__cause__

    def _cause(self, other: Policy, noise: Noise, suspects: Suspects) -> str:
        with random_states_kept(), self.placement.rollout():
            found = self._findings(other, noise, suspects)
        return verdict(self.world.gather(found))

    def _findings(self, other: Policy, noise: Noise, suspects: Suspects) -> Findings:
        """What this rank finds; it waits for no other."""
        findings, policy = Findings(), self.speaker.policy
        try:
            rollout, rows = suspects()
            batch = batch_of(rollout, rows, num_positions(policy.lm))
            sides = Comparison(policy, other, batch, self.speaker.sampling, self.speaker.stop, self.temperature, noise)
            if not len(batch.mask) or sides.is_equal:
                return findings
            findings = Findings(True, sides.is_back)
            for cause, sentence, error in explanations(sides):
                if sentence:
                    findings.sentences[cause.name] = sentence
                if error:
                    findings.errors[cause.name] = error
        except Exception as error:  # the run ends with what the check said
            findings.differs, findings.errors = (
                True,
                {"all": f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"},
            )
        return findings


def verdict(found: list[Findings]) -> str:
    """The first cause that explains the difference on each rank that has one, with its remedy; else what was excluded."""
    differ = [one for one in found if one.differs]
    for cause in CAUSES:
        if differ and all(cause.name in one.sentences for one in differ):
            return f"Cause ({cause.name}): {differ[0].sentences[cause.name]}. {cause.remedy}"
    errors = {name: text for one in differ for name, text in one.errors.items()}
    if "all" in errors:
        return f"The cause is not known, because the comparison could not be made again ({errors['all']})"
    excluded = ", ".join(cause.name for cause in CAUSES if cause.name not in errors)
    untested = "".join(f"; not tested: {name} ({text})" for name, text in errors.items())
    if any(one.is_back for one in differ):
        seen = "The difference is there again when the same tokens are computed once more: report it with the model"
    else:
        seen = (
            "The difference is gone when the same tokens are computed once more: look for code that changes the models, or what "
            "was stored, between sampling and check"
        )
    return f"None of the known causes explains it alone (excluded: {excluded}{untested}). {seen}"


def far_from_reference(rollout: Rollout) -> tuple[Rollout, Tensor]:
    """The rollout in segments, and its rows, those that are furthest from the reference first."""
    rollout = rollout.in_segments()
    size = masked(rollout.logprobs - rollout.ref_logprobs, rollout.response_mask).abs()
    return rollout, size.sum(dim=1).argsort(descending=True, stable=True).cpu()
