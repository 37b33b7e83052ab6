"""A module in place of wandb: what it was asked for, and how it fails. The fixture `wandb`."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class FakeRun:
    """Keeps what is logged; `errors` of the module, by the name of the call, are raised."""

    def __init__(self, module: "FakeWandb", words: dict[str, Any]):
        self.module, self.words, self.steps, self.is_finished = module, words, [], False
        self.tables: dict[int, SimpleNamespace] = {}
        self.names: set[str] = set()  # of metrics
        self.dir = f"{words['dir']}/wandb/run-{len(module.runs)}-{words['id']}/files"

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self.module.fail("log")
        if "ledger" in metrics:
            self.tables[step] = metrics["ledger"]
        else:
            self.steps.append(step)
            self.names |= set(metrics)

    def finish(self) -> None:
        self.module.fail("finish")
        self.is_finished = True


class FakeWandb(ModuleType):
    """`runs`: those that were opened; `asked`: the arguments of every `init`."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[FakeRun] = []
        self.asked: list[dict[str, Any]] = []
        self.errors: dict[str, Exception] = {}
        self.api, self.torn_down = SimpleNamespace(api_key=None), 0

    def fail(self, name: str) -> None:
        if name in self.errors:
            raise self.errors[name]

    def Table(self, **words: Any) -> SimpleNamespace:
        return SimpleNamespace(**words)

    def Settings(self, **words: Any) -> SimpleNamespace:
        return SimpleNamespace(**words)

    def init(self, **words: Any) -> FakeRun:
        self.asked.append(words)
        self.fail("offline" if words["mode"] == "offline" else "online")
        self.runs.append(FakeRun(self, words))
        return self.runs[-1]

    def teardown(self) -> None:
        self.torn_down += 1


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    """The module that `import wandb` finds, without anything of the environment but a key."""
    for name in ("WANDB_MODE", "WANDB_RUN_ID", "WANDB_INIT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module
