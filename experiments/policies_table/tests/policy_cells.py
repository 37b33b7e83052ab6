"""Finished cells of a table of policies, as they lie in files."""

from typing import Any

TRAINING = {"turns": 640, "updates": 10, "cpu_seconds": 2.0, "wall_seconds": 4.0, "parameters": 30, "metrics": {}}


def point(mark: int, rewards: list[float], **training: Any) -> dict[str, Any]:
    """A measurement of one dialogue for each reward, which succeeded where it is above 0; 2 turns each."""
    success = [float(reward > 0) for reward in rewards]
    test = {"success": success, "reward": rewards, "turns": [2.0] * len(rewards)}
    return {"mark": mark, "training": TRAINING | {"dialogues": mark} | training, "test": test}


def cell(policy: str, seed: int, *points: dict[str, Any], error_rate: float = 0.0) -> dict[str, Any]:
    """A cell with these points."""
    known = {"policy": policy, "error_rate": error_rate, "seed": seed}
    return {"format_version": 1, "known": known, "made_with": {"commit": "abc"}, "points": list(points)}


def few_cells() -> list[dict[str, Any]]:
    """Two dialogues: the handcrafted policy earns 10 and 6, random -5 and -5, `good` 11 and 9 on average, `bad` -8 and -8."""
    return [
        cell("random", 0, point(0, [-5.0, -5.0], parameters=0)),
        cell("handcrafted", 0, point(0, [10.0, 6.0], parameters=0)),
        cell("good", 0, point(10, [1.0, -1.0]), point(20, [12.0, 8.0])),
        cell("bad", 0, point(10, [-9.0, -9.0]), point(20, [-8.0, -8.0])),
        cell("good", 1, point(10, [3.0, -3.0]), point(20, [10.0, 10.0], cpu_seconds=6.0)),
    ]
