"""Compare a result of scripts/benchmark.py with a peer (--vs) or with an earlier result (--compare)."""

import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.machine import RATES, program
from rlhf_dialog.errors import UserError

logger = logging.getLogger("rlhf_dialog.benchmark")
NOT_OURS = ("vs", "pairs", "compare", "json", "set")  # options that are not passed on unchanged to our run of a pair
TAIL = 2000


def in_turn(options: Namespace) -> dict[str, Any]:
    """Run the peer's command and our benchmark alternately, each in its own process; `python` in it is our interpreter.

    Returns our result of median speed, with all pairs in `vs`. Raises UserError when one of the two fails.
    """
    if options.workload == "W" and not options.w_data:
        logger.warning(
            "--vs without --w_data: we run W-synthetic; a peer that runs other prompts than W-synthetic is not comparable"
        )
    pairs, results = [], []
    for number in range(options.pairs):
        peer = peer_run(options.vs)  # first: it may not start, and ours takes minutes
        ours = own_run(options)
        pairs.append({"ours": ours["tokens_per_s"], "peer": peer, "ratio": ours["tokens_per_s"] / peer})
        results.append(ours)
        logger.info(
            "pair %d of %d: ours %.2f, peer %.2f tokens/s, ratio %.2f", number + 1, options.pairs, *pairs[-1].values()
        )
    ratios = [pair["ratio"] for pair in pairs]
    summary = {"command": options.vs, "pairs": pairs, "median_ratio": statistics.median(ratios)}
    return sorted(results, key=lambda result: result["tokens_per_s"])[(len(results) - 1) // 2] | {"vs": summary}


def own_run(options: Namespace) -> dict[str, Any]:
    """Our benchmark with the same options in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ours.json"
        given = {
            name: value for name, value in vars(options).items() if name not in NOT_OURS and value not in (None, False)
        }
        words = [f"--{name}{'' if value is True else f'={value}'}" for name, value in given.items()]
        words += [f"--set={key}={json.dumps(value)}" for key, value in options.set]
        output, code = output_of([*program("benchmark"), *words, f"--json={path}"])
        if code:
            raise UserError(f"our own run ended with exit code {code}; the end of its output:\n{output[-TAIL:]}")
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def peer_run(command: str) -> float:
    """The peer's tokens per second. Raises UserError when it fails or does not print them."""
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    output, code = output_of(command, os.environ | {"PATH": os.pathsep.join(places)})
    speed = None if code else speed_in(output)
    if speed is None:
        what = (
            f"ended with exit code {code}"
            if code
            else "printed neither `SUMMARY {json}` with tok_s nor JSON with tokens_per_s"
        )
        raise UserError(f"--vs: the peer {what}; the end of its output:\n{output[-TAIL:].rstrip() or '(nothing)'}")
    return speed


def output_of(command: str | list[str], settings: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Output and errors of a command, and its exit code. An interrupt kills the command and its children.

    settings: its environment variables, by default ours
    """
    process = subprocess.Popen(
        command,
        shell=isinstance(command, str),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=settings,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return output, process.returncode


def speed_in(output: str) -> float | None:
    """The last speed in the output: from a line of JSON, with or without SUMMARY before it, or the whole output as JSON."""
    for text in (output, *reversed(output.splitlines())):
        try:
            found = json.loads(text.strip().removeprefix("SUMMARY").strip())
        except ValueError:
            continue
        for name in ("tok_s", "tokens_per_s"):
            speed = found.get(name) if isinstance(found, dict) else None
            if isinstance(speed, int | float) and 0 < speed < float("inf"):
                return float(speed)
    return None


def read_baseline(path: Path, work: dict[str, Any]) -> dict[str, Any]:
    """An earlier result. Raises UserError when the file is not a result, or is of a different workload."""
    try:
        baseline = json.loads(path.read_text(encoding="utf-8"))
        speeds = [baseline["tokens_per_s"], *(baseline["calibration"][name] for name in RATES.values())]
        usable = isinstance(baseline["phases"], dict) and all(speed > 0 for speed in speeds)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"--compare {path}: is not a result of this script ({type(error).__name__}: {error})"
        ) from error
    if not usable:
        raise UserError(f"--compare {path}: is not a result of this script (a speed in it is not above 0)")
    if other := [
        f"{key} {baseline.get(key)!r} there, {value!r} here"
        for key, value in work.items()
        if baseline.get(key) != value
    ]:
        raise UserError(f"--compare {path}: is of a different workload and cannot be compared ({'; '.join(other)})")
    return dict(baseline)


def ratios(result: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    """Speed and times as ratios to the baseline, each in units of the matrix product of its own call.

    A phase of 2 s at 100 GFLOP/s counts as 200, like one of 1 s at 200 GFLOP/s. `tokens_per_s` above 1: faster than the
    baseline; a phase below 1: faster.
    """
    for key in ("classifier_dtype", "set"):
        if result.get(key) != baseline.get(key):
            logger.warning("--compare: %s is %r there and %r here", key, baseline.get(key), result.get(key))
    name = RATES[result["dtype"]]
    now, then = result["calibration"][name], baseline["calibration"][name]
    times = {"whole iteration": (result["seconds_per_iteration"], baseline["seconds_per_iteration"])}
    times |= {phase: (seconds, baseline["phases"].get(phase)) for phase, seconds in result["phases"].items()}
    return {
        "commit": baseline.get("versions", {}).get("commit"),
        "calibration": now / then,
        "tokens_per_s": (result["tokens_per_s"] / now) / (baseline["tokens_per_s"] / then),
        "phases": {phase: (a * now) / (b * then) if a and b else None for phase, (a, b) in times.items()},
    }


def pairs_table(found: dict[str, Any]) -> Table:
    """Every pair, and the median ratio."""
    table = Table(title="alternating with the peer", title_justify="left")
    for name in ("pair", "ours, tokens/s", "peer, tokens/s", "ratio"):
        table.add_column(name, justify="right")
    for number, pair in enumerate(found["pairs"], start=1):
        table.add_row(str(number), f"{pair['ours']:.2f}", f"{pair['peer']:.2f}", f"{pair['ratio']:.2f}")
    table.add_row("median", "", "", f"{found['median_ratio']:.2f}")
    return table


def ratio_table(found: dict[str, Any]) -> Table:
    """Every ratio to the baseline."""
    table = Table(title="ratio to the baseline, each in units of its own matrix product", title_justify="left")
    table.add_column(f"baseline: commit {found['commit']}")
    table.add_column("ratio", justify="right")
    rows = {"tokens/s (above 1: faster)": found["tokens_per_s"]}
    rows |= {f"time of {name} (below 1: faster)": ratio for name, ratio in found["phases"].items()}
    for name, ratio in {**rows, "the matrix product itself": found["calibration"]}.items():
        table.add_row(name, "-" if ratio is None else f"{ratio:.3f}")
    return table
