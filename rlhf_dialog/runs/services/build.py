"""Which services accompany a run of PPO, and in which order."""

from pathlib import Path

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed.world import World
from rlhf_dialog.runs.services.base import Service
from rlhf_dialog.runs.services.guard import RunGuard
from rlhf_dialog.runs.services.interrupts import Interrupts
from rlhf_dialog.runs.services.ledger import LedgerService
from rlhf_dialog.runs.services.report import ReportService
from rlhf_dialog.runs.services.trackers import TrackerService
from rlhf_dialog.runs.services.validation import ValidationService


def build_services(
    config: Config, folder: Path, world: World, validation: ValidationService | None, goes_on: bool
) -> tuple[Service, ...]:
    """The services in the order in which an iteration calls them; they end in the opposite order.

    All ranks call it, under the lock of the run folder, since wandb opens here. `goes_on`: the run is resumed.
    """
    trackers = TrackerService(config, folder, world, goes_on)
    guard = RunGuard(config, config.guard, validation) if validation and config.guard else None
    if validation:
        validation.pause = trackers.pause
    return (
        LedgerService(config, trackers.show_table),  # before anything can raise: a saved iteration has its rows
        *((validation,) if validation else ()),
        *((guard,) if guard else ()),  # reads what the validation has measured
        trackers,  # write the line with the metrics of all services above
        ReportService(config.report),  # reads that line
        Interrupts(config.grace_seconds, world.is_main, folder),  # the first to end, before what takes long
    )
