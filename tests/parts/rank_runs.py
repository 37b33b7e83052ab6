"""Whole runs of several ranks: the fixture `ppo`, its reward, and what such a run left."""

import json
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from rlhf_dialog import BaseReward, RewardFactory, main
from tests.parts.forked_cli import kill_at
from tests.parts.ppo_runs import rows, settings
from tests.parts.ranks import runs_in_ranks
from tests.parts.trainers import numbers_of

RUN = Path("run_results/ppo")


class Moody(BaseReward):
    """Draws from all generators, notes what it is asked (`seen<rank>`), and ends badly on one rank at one call."""

    calls = 0

    def __init__(self, rank: int = -1, at: int = 2, end: str = "raise"):
        self.rank, self.at, self.end = rank, at, end

    def __call__(self, dialogues):
        Moody.calls += 1
        rank = int(os.environ.get("RANK", "0"))
        rows = [[d.meta["split"], d.meta["index"], d.response] for d in dialogues]
        with open(f"seen{rank}", "a") as file:
            file.write(json.dumps(rows) + "\n")
        if rank == self.rank and Moody.calls == self.at:
            self.bad_end()
        drawn = random.random() + np.random.random() + torch.rand(()).item()
        return [drawn + len(d.response) / 10 for d in dialogues]

    def bad_end(self):
        if self.end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.end == "term":
            os.kill(os.getpid(), signal.SIGTERM)
            return
        raise ZeroDivisionError("a bad day")


@pytest.fixture
def ppo(world, tmp_path, monkeypatch):
    """A folder with ppo.yaml; `ppo(2, "--key", "value")` runs two ranks there and returns code, stdout and stderr of each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RewardFactory, "classes", RewardFactory.classes | {"Moody": Moody})
    keys = {"reward_class": {"id": "Moody"}, "rollout_batch_size": 7, "per_device_microbatch_size": 2}
    keys |= {"max_iterations": 4, "save_interval": 2}
    Path("ppo.yaml").write_text(yaml.safe_dump(settings(world) | keys), encoding="utf-8")

    def run(size: int, *words: str, kill: tuple[int, float] | None = None) -> list[tuple[int, str, str]]:
        """`kill`: a rank and at which of its changes of the disk it dies; their number is in the file `changes`."""

        def work(rank: int) -> int:
            Moody.calls = 0
            done = kill_at(kill[1]) if kill and kill[0] == rank else None
            try:
                return main(["--config", "ppo.yaml", *words])
            except SystemExit as end:
                return end.code
            finally:
                if done is not None:
                    Path("changes").write_text(str(done[0]))

        return runs_in_ranks(size, work, tmp_path)

    return run


def codes(ended) -> list:
    return [code for code, *_ in ended]


def lines(folder: Path = RUN) -> list[dict]:
    return rows(folder)


def numbers(lines: list[dict]) -> list[dict]:
    return [numbers_of({name: x for name, x in line.items() if x is not None}) for line in lines]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {f"{path.name}.{name}": x for path in folder.glob("*.safetensors") for name, x in load_file(path).items()}


def seen(rank: int) -> list[list]:
    return [json.loads(line) for line in Path(f"seen{rank}").read_text().splitlines()]
