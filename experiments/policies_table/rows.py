"""The table of dialogue policies: the cells of a policy at an error rate, one for each seed, become one row for each mark.

A cell is what `table` writes: `known` has policy, error_rate and seed, `points` one entry for each mark.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.seed_intervals import difference, interval
from rlhf_dialog.evaluation.intervals import Array, mean_statistic

MEASURES = ("success", "reward", "turns")
COSTS = ("dialogues", "turns", "updates", "cpu_seconds", "wall_seconds", "parameters")
Cells = Sequence[dict[str, Any]]
Row = dict[str, Any]


def rows_of(cells: Cells) -> list[Row]:
    """For each policy, error rate and mark: measures with intervals over seeds and dialogues, what training cost, and the
    difference from the handcrafted policy, or None. `loses_to_random`: the mean reward is below that of `random`."""
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["known"]["error_rate"], cell["known"]["policy"]), []).append(cell)
    rows = []
    for (error_rate, policy), of_policy in groups.items():
        others = [groups.get((error_rate, name), []) for name in ("handcrafted", "random")]
        seeds = sorted(cell["known"]["seed"] for cell in of_policy)
        for number, point in enumerate(of_policy[0]["points"]):
            place = {"policy": policy, "error_rate": error_rate, "mark": point["mark"], "seeds": seeds}
            rows.append(place | _row([cell["points"][number] for cell in of_policy], *others))
    return rows


def without_dialogues(cells: Cells) -> list[dict[str, Any]]:
    """The cells with the mean of each measure in place of the number of each dialogue."""
    return [cell | {"points": [_point(point) for point in cell["points"]]} for cell in cells]


def missing(wanted: Sequence[tuple[str, float, int]], cells: Cells) -> list[str]:
    """`dqn at 15 % error: seeds 3, 4` for the wanted (policy, error rate, seed) of which there is no cell."""
    there = {tuple(cell["known"][name] for name in ("policy", "error_rate", "seed")) for cell in cells}
    groups: dict[str, list[int]] = {}
    for policy, error_rate, seed in wanted:
        if (policy, error_rate, seed) not in there:
            groups.setdefault(f"{policy} at {100 * error_rate:g} % error", []).append(seed)
    return [f"{name}: seed{'s'[: len(seeds) - 1]} {', '.join(map(str, seeds))}" for name, seeds in groups.items()]


def _row(points: Cells, handcrafted: Cells, random: Cells) -> Row:
    tables = {name: _table(points, name) for name in MEASURES}
    row: Row = {name: interval(mean_statistic(table)) for name, table in tables.items()}
    row["seed_means"] = {name: table.mean(axis=1).tolist() for name, table in tables.items()}
    costs = {name: [point["training"][name] for point in points] for name in COSTS}
    row["training"] = {name: float(np.mean(own)) if None not in own else None for name, own in costs.items()}
    row["difference_from_handcrafted"] = None
    rules = points[0].get("handcrafted") or next((cell["points"][0]["test"] for cell in handcrafted), None)
    if rules is not None:
        before = {name: mean_statistic(np.array([rules[name]], dtype=np.float64)) for name in MEASURES}
        row["difference_from_handcrafted"] = {
            name: difference(before[name], mean_statistic(tables[name])) for name in MEASURES
        }
    least = next((np.mean(cell["points"][0]["test"]["reward"]) for cell in random), -np.inf)
    row["loses_to_random"] = bool(row["reward"]["mean"] < least)
    return row


def _table(points: Cells, name: str) -> Array:
    """One measure as (seeds, dialogues)."""
    return np.array([point["test"][name] for point in points], dtype=np.float64)


def _point(point: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in point.items() if key != "handcrafted"}
    return kept | {"test": {name: float(np.mean(point["test"][name])) for name in MEASURES}}
