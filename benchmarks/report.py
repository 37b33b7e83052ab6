"""The summary that scripts/benchmark_gpu.py writes: its results as Markdown, with tables for docs/PERFORMANCE.md."""

import datetime
from collections.abc import Iterable
from typing import Any

Results = dict[
    str, dict[str, Any]
]  # by piece: status, seconds, and the result, which is a text for a piece without JSON
NUM_OPERATIONS = 12


def summary(results: Results, seconds: float) -> str:
    """The tables of what there is so far: machine, pieces, speeds and memory, the pairs with TRL, the profile."""
    measured = [piece["result"] for piece in results.values() if isinstance(piece["result"], dict)]
    parts = [
        f"### On a GPU ({datetime.date.today().isoformat()})",
        *map(machine, measured[:1]),
        pieces(results, seconds),
    ]
    if speeds := [piece["result"] for name, piece in results.items() if is_speed(name, piece)]:
        parts.append(speed_table(speeds))
    for name, part in (("trl", trl_table), ("profile", profile_table)):
        if isinstance(found := results.get(name, {}).get("result"), dict):
            parts.append(part(found))
    return "\n\n".join(parts) + "\n"


def is_speed(name: str, piece: dict[str, Any]) -> bool:
    """Whether the piece measured W with one number of responses."""
    return name.startswith("w") and isinstance(piece["result"], dict)


def machine(result: dict[str, Any]) -> str:
    """The GPU or processor, the versions, and what the pieces have in common."""
    where, rates = result["machine"], result["calibration"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return (
        f"{where['gpu'] or where['cpu']} ({versions}); matrix products: {rates['bf16_gflops'] / 1e3:.1f} TFLOP/s in bf16, "
        f"{rates['fp32_gflops'] / 1e3:.1f} in fp32; copy {rates['copy_gb_per_s']:.0f} GB/s. "
        f"{result['workload']} of size {result['size']} in {result['dtype']} on {result['device']}, "
        f"{result['max_new_tokens']} tokens a response."
    )


def pieces(results: Results, seconds: float) -> str:
    """What became of each piece."""
    rows = ((name, escaped(status_of(piece)), f"{piece['seconds']:.0f}") for name, piece in results.items())
    return table(("piece", "status", "seconds"), [*rows, ("in all", "", f"{seconds:.0f}")])


def status_of(piece: dict[str, Any]) -> str:
    """The status; with it the last line of a piece that has no numbers."""
    last = piece["result"]
    return f"{piece['status']}: {last}" if piece["status"] == "done" and isinstance(last, str) else str(piece["status"])


def speed_table(results: list[dict[str, Any]]) -> str:
    """One row for each number of responses: speed, phases, and the peak of memory beside its forecast."""
    names = ("responses", "tokens/s", "s an iteration", "rollout", "reward", "update", "of the matrix product")
    rows = [
        (
            str(result["rollout_batch_size"]),
            f"{result['tokens_per_s']:.0f}",
            f"{result['seconds_per_iteration']:.2f}",
            *(f"{result['phases'][name]:.2f}" for name in ("rollout", "reward", "update")),
            f"{result['update']['share_of_matmul']:.1%}",
            *memory_cells(result["memory"]),
        )
        for result in results
    ]
    return table((*names, "memory forecast, GiB", "measured, GiB", "forecast / measured"), rows)


def memory_cells(memory: dict[str, Any]) -> tuple[str, str, str]:
    """Forecast, measured, and their ratio; without a GPU the measured one is that of the process above its imports."""
    told, found = memory["forecast_gib"], memory["cuda_gib"]
    found = memory["above_imports_gib"] if found is None else found
    return ("-" if told is None else f"{told:.2f}", f"{found:.2f}", "-" if told is None else f"{told / found:.2f}")


def trl_table(result: dict[str, Any]) -> str:
    """Each pair of ours with a separate critic and TRL, and the median ratio."""
    pairs = enumerate(result["vs"]["pairs"], start=1)
    rows = [(str(i), f"{pair['ours']:.1f}", f"{pair['peer']:.1f}", f"{pair['ratio']:.2f}") for i, pair in pairs]
    names = (f"pair, {result['rollout_batch_size']} responses, {result['critic']} critic", "ours, tokens/s")
    median = ("median", "", "", f"{result['vs']['median_ratio']:.2f}")
    return table((*names, "TRL 1.12, tokens/s", "ratio"), [*rows, median])


def profile_table(result: dict[str, Any]) -> str:
    """The operations that take the most time of one iteration."""
    rows = [
        (f"`{row['name']}`", str(row["calls"]), f"{row['ms']:.1f}", f"{row['share']:.1%}")
        for row in (result["profile"] or [])[:NUM_OPERATIONS]
    ]
    return table((f"operation, {result['rollout_batch_size']} responses", "calls", "ms", "share"), rows)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escaped(text: str) -> str:
    """A text as one cell."""
    return text.replace("|", "\\|").replace("\n", " ")
