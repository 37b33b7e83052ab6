"""The plot of a comparison of users: how far each measure of each kind of simulated users is from real ones."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

MOST = 12  # measures
LIMIT = 2.0  # standard deviations; a bar that is longer is cut


def plot_differences(users: dict[str, dict[str, Any]], output: Path) -> None:
    """Draw the standardised differences of the users (at least one) as bars into the PNG file `output`.

    users: name -> `measures` (`fidelity.compared`) and `classifier` (`two_sample.distinguished`)
    """
    largest: dict[str, float] = {}
    for one in users.values():
        for name, found in one["measures"].items():
            largest[name] = max(largest.get(name, 0.0), abs(found["d"]))
    names = sorted(largest, key=lambda name: largest[name])[-MOST:]
    figure = Figure(figsize=(8, 1.2 + 0.25 * len(names) * max(len(users), 2)), layout="constrained")
    axis, height = figure.subplots(), 0.8 / len(users)
    for number, (user, one) in enumerate(users.items()):
        bars = [float(np.clip(one["measures"].get(name, {"d": 0.0})["d"], -LIMIT, LIMIT)) for name in names]
        places = np.arange(len(names)) + height * (number - (len(users) - 1) / 2)
        turns = 100 * one["classifier"]["turns"]["mean"]
        axis.barh(places, bars, height, label=f"{user}: {turns:.0f} % of turns recognised (50 % is chance)")
    axis.set_yticks(np.arange(len(names)), names, fontsize=8)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_xlim(-LIMIT, LIMIT)
    axis.set_xlabel("simulated - real users, in standard deviations", fontsize=9)
    axis.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", fontsize=8)
    figure.savefig(output, dpi=110)
