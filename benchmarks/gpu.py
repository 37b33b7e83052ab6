"""Measure what only a GPU can show, in ten minutes: speed, memory against its forecast, a profile, TRL beside it, and the tests.

python scripts/benchmark_gpu.py [--out FOLDER]
python scripts/benchmark_gpu.py --out /tmp/try --device cpu --tiny      (every piece with a model that takes a second: no GPU)

Writes into FOLDER, after each piece: summary.md (for docs/PERFORMANCE.md), results.json and log.txt; the profile also writes
profile.txt and trace.json.gz (for https://ui.perfetto.dev). Each piece has its own time limit, and does not stop the others when
it fails.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, report
from rlhf_dialog.atomic_files import replace_json, replace_text
from rlhf_dialog.commands.command_line import exit_code, exit_on_sigterm, set_up_logging
from rlhf_dialog.errors import UserError

TRL = "trl==1.12.0"
SUMMARY, RESULTS, LOG = "summary.md", "results.json", "log.txt"
LEAST = 5.0  # seconds; a piece with less time is left out
TINY_LIMITS = 3.0  # the limits of --tiny, as a multiple of those on a GPU
ENDING = 5.0  # seconds that a piece has to end after its limit


@dataclass(frozen=True)
class Piece:
    """One command with its time limit in seconds. `{json}` in its words becomes the file for its result."""

    name: str
    limit: float
    words: list[str]
    obstacle: Callable[[], str | None] = lambda: None  # why it cannot run, found out when its turn comes


@dataclass
class Outcome:
    """What became of a piece: `status` is "done", or says why there is no result; `result` is what it measured."""

    name: str
    status: str
    seconds: float = 0.0
    result: Any = None
    output: str = field(default="", repr=False)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--out",
        type=Path,
        default=Path(os.environ.get("OUT") or "gpu_results"),
        metavar="FOLDER",
        help="folder for the results (default: $OUT, else gpu_results)",
    )
    add("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: only with --tiny (default: cuda)")
    add("--tiny", action="store_true", help="a tiny model and few responses; the speeds mean nothing")
    add("--minutes", type=float, default=10.0, help="time for everything (default: 10)")
    add("--only", nargs="+", metavar="PIECE", help="only these pieces (--dry_run lists their names)")
    add("--trl", type=Path, metavar="FOLDER", help=f"folder that holds TRL 1.12; default: installed by pip, {TRL}")
    add("--dry_run", action="store_true", help="print the pieces with their limits and commands, and end")
    add("--debug", action="store_true", help="show the traceback of an error")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code: 0 if every piece ran, 1 if one failed, 2 for the user's error."""
    options = parse(argv)
    set_up_logging()
    exit_on_sigterm()
    outcomes: list[Outcome] = []
    with exit_code(options.debug) as ending:
        outcomes.extend(run(options))
    failed = any(outcome.status != "done" and not outcome.status.startswith("skipped") for outcome in outcomes)
    return ending.code or int(failed)


def run(options: argparse.Namespace) -> list[Outcome]:
    """All pieces, one after the other. Raises UserError without a GPU, and for a folder that has results already."""
    with tempfile.TemporaryDirectory(prefix="rlhf_dialog_gpu_") as folder:
        pieces = chosen(plan(options, Path(folder)), options.only)
        if options.tiny:  # a CPU may be busy with other things
            pieces = [replace(piece, limit=TINY_LIMITS * piece.limit) for piece in pieces]
        if options.dry_run:
            print("\n".join(f"{p.name:8} at most {p.limit:3.0f} s  {' '.join(p.words)}" for p in pieces))
            return []
        check(options)
        options.out.mkdir(parents=True, exist_ok=True)
        return run_pieces(pieces, options.out, Path(folder), options.minutes * 60)


def check(options: argparse.Namespace) -> None:
    if options.device == "cpu" and not options.tiny:
        raise UserError("--device cpu: takes hours with the models of W; add --tiny")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "no GPU: torch finds no CUDA device here; run this on a machine that has one, or try it with --device cpu --tiny"
        )
    if (options.out / SUMMARY).exists():
        raise UserError(f"--out {options.out}: already contains results; choose another folder")


def chosen(pieces: list[Piece], names: list[str] | None) -> list[Piece]:
    """The pieces of these names; all without names. Raises UserError for a name that no piece has."""
    if unknown := set(names or ()) - {piece.name for piece in pieces}:
        raise UserError(
            f"--only {' '.join(sorted(unknown))}: wanted some of {', '.join(piece.name for piece in pieces)}"
        )
    return [piece for piece in pieces if not names or piece.name in names]


# -- the plan


def plan(options: argparse.Namespace, folder: Path) -> list[Piece]:
    """The pieces in their order, the most telling first; their limits add up to ten minutes."""
    batches = (8, 16, 32) if options.tiny else (64, 256, 1024)
    limits = (60.0, 65.0, 90.0)
    speeds = [
        Piece(f"w{batch}", limit, ours(options, batch, "--json={json}"))
        for batch, limit in zip(batches, limits, strict=True)
    ]
    profile = ours(options, batches[0], "--json={json}", f"--profile={options.out}")
    return [
        *speeds,
        Piece("profile", 75, profile),
        beside_trl(options, batches[0], folder),
        Piece("tests", 160, tests(options), lambda: missing_for_tests()),
    ]


def work(options: argparse.Namespace, batch: int) -> list[str]:
    """W of one size, in the words that our benchmark and that of TRL both read."""
    size, tokens, iterations = ("test", 5, 2) if options.tiny else ("base", 20, 4)
    numbers = {"rollout_batch_size": batch, "minibatch": batch // 4, "max_new_tokens": tokens, "iterations": iterations}
    names = {"size": size, "dtype": "bf16", "device": options.device}
    return [f"--{name}={value}" for name, value in {**names, **numbers}.items()]


def ours(options: argparse.Namespace, batch: int, *more: str) -> list[str]:
    """The command of scripts/benchmark.py. A GPU takes large microbatches, and samples all responses side by side."""
    sizes = ["--set=per_device_microbatch_size=128", f"--set=per_device_rollout_size={batch}"]
    return [*machine.program("benchmark"), *work(options, batch), *sizes, *more]


def beside_trl(options: argparse.Namespace, batch: int, folder: Path) -> Piece:
    """Two pairs of ours with a separate critic, as TRL has one, and TRL."""
    trl = options.trl or folder / "trl"
    peer = [*machine.program("trl"), *work(options, batch), f"--trl={trl}"]
    pairs = ["--critic=separate", f"--pairs={1 if options.tiny else 2}", f"--vs={' '.join(peer)}"]
    words = ours(options, batch, "--json={json}", *pairs)
    return Piece("trl", 150, words, lambda: None if options.trl else install_trl(trl))


def install_trl(folder: Path) -> str | None:
    """TRL alone into a folder, beside the installed libraries; the reason when pip cannot do it."""
    pip = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-deps", "--retries", "0", "--timeout", "10"]
    try:
        done = subprocess.run([*pip, "--target", folder, TRL], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        if not done.returncode:
            return None
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"pip cannot install {TRL} ({reason}); `pip install --no-deps --target FOLDER {TRL}`, then --trl FOLDER"


def tests(options: argparse.Namespace) -> list[str]:
    """The tests marked `gpu`; without a GPU one of them on the CPU."""
    folder = machine.ROOT / "tests"
    where = [str(folder)] if options.device == "cuda" else [str(folder / "whole_runs" / "test_devices.py"), "-kpacked"]
    marked = "gpu" if options.device == "cuda" else "not gpu"
    return [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--rootdir={folder.parent}",
        "-m",
        marked,
        *where,
    ]


def missing_for_tests() -> str | None:
    if not (machine.ROOT / "tests").is_dir():
        return "the tests are not here; run this from a checkout"
    return None if find_spec("pytest") else "pytest is not installed; `pip install pytest`"


# -- running it


def run_pieces(pieces: list[Piece], out: Path, folder: Path, seconds: float) -> list[Outcome]:
    """Run the pieces within `seconds`; after each of them the results so far are in `out`."""
    started, outcomes = time.monotonic(), []
    for piece in pieces:
        left = seconds - (time.monotonic() - started)
        outcomes.append(run_piece(piece, min(piece.limit, left), folder))
        print(f"{piece.name:8} {outcomes[-1].seconds:6.1f} s  {outcomes[-1].status}", flush=True)
        with (out / LOG).open("a", encoding="utf-8") as log:
            log.write(f"== {piece.name}: {' '.join(piece.words)}\n{outcomes[-1].output}\n")
        found = {o.name: {"status": o.status, "seconds": o.seconds, "result": o.result} for o in outcomes}
        replace_json(out / RESULTS, found)
        replace_text(out / SUMMARY, report.summary(found, time.monotonic() - started))
    print(f"summary: {out / SUMMARY}")
    return outcomes


def run_piece(piece: Piece, limit: float, folder: Path) -> Outcome:
    """Run one command; it is killed with its children at the limit. Never raises for what the command does."""
    if limit < LEAST:
        return Outcome(piece.name, "skipped: no time left; use --minutes")
    started = time.monotonic()
    if reason := piece.obstacle():
        return Outcome(piece.name, f"skipped: {reason}", time.monotonic() - started)
    path = folder / f"{piece.name}.json"
    words = [word.replace("{json}", str(path)) for word in piece.words]
    output, code = output_within(words, limit - (time.monotonic() - started))
    result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else last_line(output)
    status = {0: "done", None: f"stopped after {limit:.0f} s"}.get(
        code, f"failed with exit code {code}: {last_line(output)}"
    )
    return Outcome(piece.name, status, time.monotonic() - started, result, output)


def last_line(output: str) -> str:
    return (output.strip().splitlines() or [""])[-1].strip()[:300]


def output_within(words: list[str], seconds: float) -> tuple[str, int | None]:
    """Output and errors of a command, and its exit code, or None when it was killed at the limit."""
    process = subprocess.Popen(
        words,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        return process.communicate(timeout=max(seconds, 0))[0], process.returncode
    except subprocess.TimeoutExpired:
        return ended(process), None
    except BaseException:
        ended(process)
        raise


def ended(process: subprocess.Popen[str]) -> str:
    """End a process and its group; returns its output. It is asked first, since it ends children of other groups itself."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=ENDING)[0]
    return ""


if __name__ == "__main__":
    sys.exit(main())
