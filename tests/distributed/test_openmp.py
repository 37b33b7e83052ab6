"""How long waiting threads spin: what a child process hands to libgomp, by libgomp's own account of its settings."""

import ast
import re
import sys
from pathlib import Path

import pytest
import torch

from rlhf_dialog.config.schema import Config
from rlhf_dialog.distributed import openmp, process_group
from tests.parts.processes import ROOT, environment, run_python

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="libgomp")]
KEYS = {"model_path": "m", "env": {"args": {"data_path": "d"}}, "reward_class": {"id": "LengthMatch"}, "device": "cpu"}
CONFIG = Config.model_validate(KEYS)
ACCOUNT = {"OMP_DISPLAY_ENV": "verbose", "OMP_WAIT_POLICY": None, "GOMP_SPINCOUNT": None, "OMP_NUM_THREADS": "2"}
RUN = f"""
import logging
from rlhf_dialog.distributed import process_group
from rlhf_dialog.config.schema import Config
logging.basicConfig(format="%(message)s", level=logging.WARNING)
for _ in range(2):
    process_group.start(Config.model_validate({KEYS}))
"""


def spins(program: str, **changes: str) -> tuple[str, str]:
    """GOMP_SPINCOUNT as the libgomp of a child process has read it, and the rest of what the child said."""
    ran = run_python("-c", program, env=environment(**{**ACCOUNT, **changes}))
    assert ran.returncode == 0, ran.stderr
    accounts = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", ran.stderr)
    assert accounts, "torch has no libgomp"
    return accounts[-1], ran.stdout + ran.stderr.rpartition("OPENMP DISPLAY ENVIRONMENT END\n")[2]


def test_threads_spin_briefly_when_nothing_is_said():
    assert spins("import rlhf_dialog, torch\n" + RUN) == ("2000", "")


@pytest.mark.parametrize(
    ("said", "expected"),
    [({"GOMP_SPINCOUNT": "777"}, "777"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
)
def test_what_the_user_said_stays(said, expected):
    (library,) = (Path(torch.__file__).parent / "lib").glob("libgomp*")
    program = "import os, rlhf_dialog; print(os.environ.get('OMP_WAIT_POLICY'), os.environ.get('GOMP_SPINCOUNT'))"
    found, words = spins(f"{program}; import ctypes; ctypes.CDLL({str(library)!r})", **said)
    assert found == expected
    assert words.split("\n")[0] == f"{said.get('OMP_WAIT_POLICY')} {said.get('GOMP_SPINCOUNT')}"


def test_torch_first_is_too_late_and_a_run_says_so_once():
    program = "import torch, os, rlhf_dialog; print(os.environ.get('GOMP_SPINCOUNT'))\n" + RUN
    found, words = spins(program)
    assert int(found) > 2000
    assert words.startswith("None\n")
    assert words.count("export GOMP_SPINCOUNT=2000") == 1


@pytest.mark.parametrize(
    ("threads", "rank", "calls"), [(2, "0", 1), (1, "0", 0), (2, "1", 0)], ids=["two threads", "one", "another rank"]
)
def test_only_rank_0_with_several_threads_asks_whether_it_is_too_late(threads, rank, calls, monkeypatch):
    asked = []
    monkeypatch.setattr(process_group.openmp, "warn_when_too_late", lambda: asked.append(1))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setenv("RANK", rank)
    process_group.start(CONFIG)
    assert len(asked) == calls


@pytest.mark.parametrize(("name", "lines"), [("GOMP_SPINCOUNT", 0), ("OMP_WAIT_POLICY", 0), ("OTHER", 1)])
def test_nothing_is_said_when_the_user_has_chosen(name, lines, monkeypatch, caplog):
    for variable in openmp.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "9")
    openmp.warn_when_too_late.__wrapped__()
    assert len(caplog.records) == lines


HEAVY = {"torch", "transformers", "tokenizers", "trl", "accelerate", "datasets", "benchmarks"}
SCRIPTS = [path for folder in (".", "scripts", "reward_models") for path in (ROOT / folder).glob("*.py")]
COMPUTING = [path for path in SCRIPTS if "__main__" in path.read_text() and path.stem != "write_scaling_docs"]


def is_late(path):
    """Whether the script imports something heavy before the package."""
    nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [
        (alias.name if isinstance(node, ast.Import) else node.module).split(".")[0]
        for node in nodes
        for alias in node.names
    ]
    heavy = [place for place, name in enumerate(names) if name in HEAVY]
    return bool(heavy) and "rlhf_dialog" not in names[: heavy[0]]


def test_every_script_imports_the_package_before_torch():
    assert len(COMPUTING) > 15
    assert [path.name for path in COMPUTING if is_late(path)] == []
