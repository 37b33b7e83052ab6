"""One run of pytest in a fork of a process that has the heavy libraries: what failed, and how long each file took."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module, util
from pathlib import Path

import psutil

HEAVY = (
    *("numpy", "torch", "torch.distributed", "torch.nn.parallel", "transformers", "transformers.modeling_utils"),
    *("transformers.models.auto.modeling_auto", "transformers.models.gpt2.modeling_gpt2", "transformers.trainer"),
    *("transformers.models.llama.modeling_llama", "tokenizers", "safetensors.torch", "accelerate", "datasets"),
    *("pydantic", "yaml", "rich.console", "rich.progress", "matplotlib.pyplot", "nltk", "rouge_score"),
    *("sacrebleu", "gymnasium", "pytest", "hypothesis", "hypothesis.extra.numpy", "httpx"),
)
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    **{"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "agg"},
}
PYTEST_FINISHED = (0, 1, 5)  # all passed, some failed, none collected


@dataclass
class PytestRun:
    """What one run reported; `noticed_by` is the first failed test, or the file that could not be read."""

    noticed_by: str = ""
    message: str = ""
    time_limit: bool = False
    passed: int = 0
    running: str = ""
    seconds: float = 0.0
    seconds_of_files: dict[str, float] = field(default_factory=dict)


def load_heavy_libraries() -> None:
    """Imports what is the same in every run; the package itself is left to the forks."""
    os.environ.update(ENVIRONMENT)
    sys.path[:] = [path for path in sys.path if not (Path(path or ".") / "rlhf_dialog").is_dir()]
    for name in HEAVY:
        if util.find_spec(name.partition(".")[0]):
            import_module(name)
    import_module("torch").set_num_threads(1)
    assert not [name for name in sys.modules if name.startswith("rlhf_dialog")]


def forked_pytest(tree: Path, tests: Sequence[str], options: Sequence[str], limit: float) -> PytestRun:
    """Runs pytest on the tests of the tree, in a process of its own that has at most `limit` seconds."""
    reports = tree.parent / f"{tree.name}.reports"
    reports.write_text("", encoding="utf-8")
    start = time.monotonic()
    child = os.fork()
    if not child:
        _run_in_child(tree, [*tests, *options], reports)
    code = _exit_code(child, start + limit)
    run = PytestRun(seconds=round(time.monotonic() - start, 1))
    for line in reports.read_text(encoding="utf-8").splitlines():
        _add(run, json.loads(line))
    run.time_limit = code is None and not run.noticed_by
    if code not in (None, *PYTEST_FINISHED) and not run.noticed_by:
        run.noticed_by, run.message = run.running or "the start of pytest", f"the process ended with code {code}"
    return run


def _run_in_child(tree: Path, arguments: list[str], reports: Path) -> None:
    code = 99
    try:
        os.setsid()
        os.chdir(tree)
        log = os.open(tree.parent / f"{tree.name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["PYTHONPATH"] = str(tree)
        sys.path.insert(0, str(tree))
        quiet = ["-x", "-q", "-p", "no:cacheprovider", "--tb=short", "--hypothesis-seed=0"]
        import pytest

        code = pytest.main(
            [*arguments, *quiet, f"--rootdir={tree}", f"--basetemp={tree.parent / f'{tree.name}.tests'}"],
            plugins=[_Reporter(reports)],
        )
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))


def _exit_code(child: int, deadline: float) -> int | None:
    """Waits for the child; None: its time was over, and it was ended with all that it started."""
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    family = [*psutil.Process(child).children(recursive=True), psutil.Process(child)]
    for process in family:
        process.send_signal(signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _add(run: PytestRun, report: dict) -> None:
    if report["kind"] == "start":
        run.running = report["test"]
        return
    file = report["test"].partition("::")[0]
    run.seconds_of_files[file] = round(run.seconds_of_files.get(file, 0.0) + report["seconds"], 2)
    if report["kind"] == "failed" and not run.noticed_by:
        run.noticed_by, run.message = report["test"], report["message"]
    run.passed += report["kind"] == "passed"


class _Reporter:
    """A plugin that writes each report as one line, so that an ended process leaves what it had."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _write(self, **report: object) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(kind="start", test=nodeid)

    def pytest_runtest_logreport(self, report) -> None:
        kind = "failed" if report.failed else "passed" if report.when == "call" else report.when
        self._write(kind=kind, test=report.nodeid, seconds=report.duration, message=_last_line(report))

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self._write(kind="failed", test=report.nodeid, seconds=0.0, message=_last_line(report))


def _last_line(report) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else report.longreprtext if report.failed else ""
    return next(iter(text.splitlines()), "")[:160]
