"""What was measured, read again: every system of a stage, and the means of validation."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.dailydialog.numbers import RowFile
from experiments.dailydialog.sizes import (
    BEST,
    BEST_SFT,
    COUNTS,
    DPO,
    LEARNED,
    MATCHED,
    RLOO,
    SAID,
    SHIFT,
    SMOLLM2,
    START,
    TEMPERATURES,
)
from experiments.dailydialog.systems import System
from experiments.dailydialog.work import Work

WITH_INTERVAL = {
    "relevance_r1": "R@1 convolution",
    "relevance_r10": "R@10 convolution",
    "relevance_2_r1": "R@1 bag",
    "relevance_2_r10": "R@10 bag",
    "encoder_similarity": "MiniLM",
    "mutual_information": "SmolLM2, mutual information",
    "likelihood": "SmolLM2, log-probability",
    "meteor_margin": "METEOR margin",
    "judge_macro_f1": "act F1",
}
POINTS = {
    "kl": "KL a reply",
    "distinct_2": "distinct-2",
    "mean_words": "words",
    "truncated": "truncated",
    "copied_two": "copied, two turns",
    "score": "reward",
    "relevance": "part: bags",
    "relevance_2": "part: order",
    "likelihood_price": "part: word price",
    "copy_price": "part: copy price",
    "length_hold": "part: length hold",
}
UNTRAINED = (*SAID, SMOLLM2)
TITLES = {START: "SFT", BEST_SFT: "SFT on best of 4", DPO: "DPO", RLOO: "PPO, rloo"}
TITLES |= {SHIFT: "SFT, mean logit shift", LEARNED: "SFT, learned bias", MATCHED: "SFT, distinct-2 of PPO"}


def systems(work: Work, stage: str, temperature: float) -> dict[str, System]:
    """Every system that the stage has measured, by its title, in the order of the table."""
    folder, draws = work.folder(stage) / f"at_{temperature:g}", work.size.draws if stage == "test" else 1
    names: dict[str, list[list[str]]] = {START: [_draws(START, draws)]}
    names |= {agent.start: [_draws(agent.start, draws)] for agent in work.size.agents if agent.start}
    for agent in work.size.agents:
        names.setdefault(agent.name, []).append(_draws(agent.folder, draws))
    names |= {f"{BEST}_{count}": [[f"{BEST}_{count}"]] for count in COUNTS}
    first = work.size.agents[0]
    names |= {f"{first.name}_{BEST}_{count}": [[f"{first.folder}_{BEST}_{count}"]] for count in COUNTS}
    names |= {one: [[f"{one}_0"]] for one in (BEST_SFT, DPO)}
    names[SHIFT] = [[f"{SHIFT}_{agent.seed}"] for agent in work.size.agents if agent.name == RLOO]
    names |= {name: [[name]] for name in (LEARNED, MATCHED, *SAID)}
    found = {name: _read(name, folder, rows) for name, rows in names.items()}
    return {one.title: one for one in found.values() if one is not None}


def pretrained(work: Work) -> Iterator[System]:
    """What a pretrained language model has read, if one was there."""
    folder = work.folder("test") / "pretrained"
    names: dict[str, list[list[str]]] = {START: [[f"{START}_0"]]}
    for agent in work.size.agents:
        names.setdefault(agent.name, []).append([f"{agent.folder}_0"])
    names |= {f"{BEST}_2": [[f"{BEST}_2"]], BEST_SFT: [[f"{BEST_SFT}_0"]], "true_replies": [["true_replies"]]}
    yield from (one for name, rows in names.items() if (one := _read(name, folder, rows)))


def _draws(name: str, count: int) -> list[str]:
    return [f"{name}_{draw}" for draw in range(count)]


def _read(name: str, folder: Path, rows: Sequence[Sequence[str]]) -> System | None:
    if not all(RowFile(folder, row).is_there() for some in rows for row in some):
        return None
    return System.read(title_of(name), folder, rows)


def title_of(name: str) -> str:
    if f"{BEST}_" in name:
        chosen, _, count = name.rpartition(f"{BEST}_")
        return f"{title_of(chosen.rstrip('_') or START)}, best of {count}"
    return TITLES.get(name, name.replace("_", " ") if name in UNTRAINED else f"PPO, {name}")


def validation_table(work: Work) -> dict[str, dict[str, dict[str, float | None]]]:
    """Temperature -> system -> metric -> mean, for `chosen.json`."""
    metrics = [*WITH_INTERVAL, *POINTS]
    return {
        f"{t:g}": {
            title: {metric: system.point(metric) for metric in metrics}
            for title, system in systems(work, "validation", t).items()
        }
        for t in TEMPERATURES
    }
