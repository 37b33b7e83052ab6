"""The wall time of the stages of a run, for `--smoke`."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

STAGES = ("config", "data", "models", "rollout", "reward", "update", "evaluation", "checkpoint", "chat")


class StageTimes:
    """Adds up seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Count the wall time of the block as `stage`."""
        start = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - start

    def add(self, metrics: dict[str, float]) -> None:
        """Add the times of an iteration, from its metrics."""
        for stage, name in (("rollout", "rollout"), ("reward", "reward"), ("update", "update"), ("evaluation", "eval")):
            if f"time/{name}" in metrics:
                self.seconds[stage] += metrics[f"time/{name}"]

    def in_order(self) -> dict[str, float]:
        """The stages that were measured, in their order."""
        return {stage: self.seconds[stage] for stage in STAGES if stage in self.seconds}
