"""A rank's step of plain descent on stored responses: `python -m tests.parts.host_step FOLDER`, by a launcher of any kind."""

import json
import pickle
import sys
from pathlib import Path

import torch

from rlhf_dialog.distributed import process_group
from tests.parts.steps import sgd_learner, whole_step
from tests.parts.trainers import settings


def main(folder: Path) -> None:
    """Rank 0 writes what every whole parameter moved by; the folder holds the responses and the keys of the run."""
    keys = json.loads((folder / "keys.json").read_text())
    world = process_group.start(settings(device="cpu", **keys))
    collected, rows = pickle.loads((folder / "collected.pkl").read_bytes())
    found = whole_step(sgd_learner(collected, rows, world, **keys))
    if world.is_main:
        torch.save(found["moved"], folder / "moved.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
