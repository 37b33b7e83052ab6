"""Blind reading: pairs of replies on a page that does not say whose they are, and what readers' verdicts amount to."""

import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import read_json

VERDICTS = ("left", "right", "tie")
TEMPLATE = Path(__file__).parent / "page.html"


@dataclass(frozen=True)
class Reading:
    """A page to read, and the key that says whose replies are on the left; both as text."""

    page: str
    key: str


@dataclass(frozen=True)
class Outcome:
    """The verdicts of one reader on a pair of systems: of the first, wins, losses and ties."""

    reader: str
    wins: int
    losses: int
    ties: int

    @property
    def interval(self) -> tuple[float, float]:
        return exact_interval(self.wins, self.wins + self.losses)


def reading(rows: list[dict[str, Any]], systems: Sequence[str], num_pairs: int, seed: int) -> Reading:
    """`num_pairs` of the rows, drawn by the seed, with the replies of both systems in random order and on random sides.

    Raises UserError when a row lacks a system's reply, or there are fewer rows.
    """
    if missing := [name for name in systems if any(name not in row["replies"] for row in rows)]:
        there = ", ".join(rows[0]["replies"])
        raise UserError(f"--systems: {missing[0]!r} has no reply to each prompt; there are {there}")
    if num_pairs > len(rows):
        raise UserError(f"--pairs: found {num_pairs}, but the file has {len(rows)} prompts")
    draw, pairs, sides = random.Random(seed), [], []
    for row in draw.sample(rows, num_pairs):
        order = draw.sample(list(systems), 2)
        left, right = (row["replies"][name]["response"] for name in order)
        pairs.append({"turns": row["prompt"], "left": left, "right": right})
        sides.append({"index": row.get("index"), "left": order[0], "right": order[1]})
    number = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:16]
    data = json.dumps({"page": number, "pairs": pairs}).replace("<", "\\u003c")
    key = {"page": number, "systems": list(systems), "seed": seed, "pairs": sides}
    return Reading(TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", data), json.dumps(key, indent=1) + "\n")


def outcome_of(key: dict[str, Any], path: Path) -> tuple[Outcome, list[str]]:
    """One reader's outcome, and for each pair the name of the system that won, or `tie`.

    Raises UserError when the verdicts are of another page, or not complete.
    """
    saved = read_json(path, shape=dict[str, Any])
    if saved.get("page") != key["page"]:
        raise UserError(
            f"{path}: holds verdicts of another page than the key's; read the page that was written with it"
        )
    verdicts = saved.get("verdicts")
    count = len(key["pairs"])
    if not isinstance(verdicts, list) or len(verdicts) != count or any(one not in VERDICTS for one in verdicts):
        judged = sum(one in VERDICTS for one in verdicts) if isinstance(verdicts, list) else 0
        raise UserError(f"{path}: {judged} of {count} pairs are judged; judge all of them and save again")
    winners = [one if one == "tie" else pair[one] for one, pair in zip(verdicts, key["pairs"], strict=True)]
    first, second = key["systems"]
    counts = (winners.count(name) for name in (first, second, "tie"))
    return Outcome(str(saved.get("reader") or path.stem), *counts), winners


def read_key(path: Path) -> dict[str, Any]:
    """The key of a page. Raises UserError when the file is something else."""
    key = read_json(path, shape=dict[str, Any])
    pairs, systems = key.get("pairs"), key.get("systems")
    whole = isinstance(systems, list) and len(systems) == 2 and isinstance(pairs, list) and "page" in key
    if not whole or not all(
        isinstance(pair, dict) and [pair.get("left"), pair.get("right")] in (systems, systems[::-1]) for pair in pairs
    ):
        raise UserError(f"--key: {path} is not a key that this command wrote")
    return key


def agreement(first: Sequence[str], second: Sequence[str]) -> tuple[float, float]:
    """The share of pairs on which two readers say the same, and Cohen's kappa (1960), the share beyond chance.

    >>> agreement(["a", "a", "b", "tie"], ["a", "b", "b", "tie"])
    (0.75, 0.6363636363636364)
    """
    count = len(first)
    same = sum(a == b for a, b in zip(first, second, strict=True)) / count
    chance = sum(first.count(name) * second.count(name) for name in {*first, *second}) / count**2
    return same, 1.0 if chance == 1 else (same - chance) / (1 - chance)


def exact_interval(wins: int, decided: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper and Pearson 1934): no share outside of it makes the count that likely.

    >>> exact_interval(0, 10)
    (0.0, 0.3084971078187608)
    """
    tail = (1 - level) / 2
    low = 0.0 if wins == 0 else _root(lambda share: _at_least(wins, decided, share) - tail)
    high = 1.0 if wins == decided else _root(lambda share: tail - (1 - _at_least(wins + 1, decided, share)))
    return low, high


def _at_least(wins: int, decided: int, share: float) -> float:
    """The probability of at least so many wins."""
    chances = (math.comb(decided, k) * share**k * (1 - share) ** (decided - k) for k in range(wins, decided + 1))
    return math.fsum(chances)


def _root(rising: Any) -> float:
    """Where a rising function passes 0 between 0 and 1."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
