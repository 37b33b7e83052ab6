"""The hook for what accompanies a run. Every rank has the same services, in the same order, and calls all of them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.world import World

if TYPE_CHECKING:
    from rlhf_dialog.training.rollout import Rollout
    from rlhf_dialog.training.trainer import PPOTrainer

Metrics = dict[str, float]


class Run(Protocol):
    """What services see of a run: of PPO, or of a policy of acts.

    progress: the share that is done, 0 to 1; rollout: the responses of the newest iteration, if there are any
    """

    @property
    def folder(self) -> Path: ...
    @property
    def world(self) -> World: ...
    @property
    def iteration(self) -> int: ...
    @property
    def progress(self) -> float: ...
    @property
    def done(self) -> bool: ...
    @property
    def rollout(self) -> "Rollout | None": ...


@dataclass(frozen=True)
class PPORun:
    """A run of PPO, as its services and its checkpoints see it. `is_trial`: it is a smoke test."""

    config: Config
    folder: Path
    trainer: "PPOTrainer"
    is_trial: bool = False
    pause: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def world(self) -> World:
        return self.trainer.world

    @property
    def iteration(self) -> int:
        return self.trainer.iteration

    @property
    def progress(self) -> float:
        return self.trainer.progress

    @property
    def done(self) -> bool:
        return self.trainer.done

    @property
    def rollout(self) -> "Rollout | None":
        return self.trainer.rollout


class Service:
    """Something that accompanies a run. A method that a service does not need does nothing.

    key: under which `state_dict` is in a checkpoint; empty for a service without a state
    files: a folder in the run folder that the service writes to before `begin`, which `overwrite` must not remove
    """

    key = ""
    files: Path | None = None

    def begin(self, run: Any) -> None:
        """Called before the first iteration, when a checkpoint has been restored."""

    def after_iteration(self, run: Any, metrics: Metrics) -> Metrics:
        """Called after each iteration; returns metrics to add. What it raises ends the run, which is saved first."""
        return {}

    def wants_checkpoint(self, run: Any) -> bool:
        """Whether the iteration is to have a checkpoint; called after `after_iteration`."""
        return False

    def iteration_ended(self, run: Any, saved: bool) -> None:
        """Called at the end of each iteration; `saved`: it has a checkpoint. Raises what ends the run."""

    def complete(self, run: Any, metrics: Metrics) -> bool:
        """Write what the service keeps of an iteration after which something raised; whether all of it is written."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint; JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restore a stored state; None from a checkpoint that has none."""

    def end(self, error: BaseException | None) -> None:
        """Called once, in any case, when the run is over; `error` is what it ends with. It may not have begun."""


def end_with(stack: ExitStack, services: Sequence[Service]) -> None:
    """Let the services end with the stack, from the last to the first."""
    for service in services:
        stack.push(lambda kind, error, trace, service=service: service.end(error))


def after_iteration(run: Run, services: Sequence[Service], metrics: Metrics) -> None:
    """Call the services in their order; the metrics of each are added at once."""
    for service in services:
        metrics.update(service.after_iteration(run, metrics))


def end_iteration(run: Run, services: Sequence[Service], is_due: bool, save: Callable[[], object]) -> None:
    """Save the iteration if it `is_due`, if a service wants it, and at the end; then the run may stop."""
    saves = any([service.wants_checkpoint(run) for service in services]) or run.done or is_due  # asks all of them
    if saves:
        save()
    for service in reversed(services):
        service.iteration_ended(run, saves)
