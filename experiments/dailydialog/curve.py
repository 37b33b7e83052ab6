"""R@10 on validation against generated tokens: checkpoints of the first run of PPO, each measured like an agent."""

from collections.abc import Iterator
from pathlib import Path

from experiments.dailydialog import calls
from experiments.dailydialog.calls import Job
from experiments.dailydialog.numbers import RowFile
from experiments.dailydialog.sizes import START, Agent
from experiments.dailydialog.systems import System
from experiments.dailydialog.work import Work
from rlhf_dialog.runs.checkpoint import checkpoints_of, iteration_of
from rlhf_dialog.runs.metrics_file import read_metrics

POINTS = 4  # checkpoints, beside the SFT model and the agent of the end
TEMPERATURE = 1.0
RECALLS = {"relevance_r10": "R@10 convolution", "relevance_2_r10": "R@10 bag"}


def first_agent(work: Work) -> Agent:
    return work.size.agents[0]


def run_folder(work: Work) -> Path:
    return work.folder("ppo") / first_agent(work).folder


def iterations(work: Work) -> list[int]:
    """At most POINTS iterations with a checkpoint, about equally far from each other, without the last one."""
    found = [iteration_of(path) for path in checkpoints_of(run_folder(work) / "checkpoints")]
    before = found[:-1]
    if len(before) <= POINTS:
        return before
    return [before[round(i * len(before) / (POINTS + 1)) - 1] for i in range(1, POINTS + 1)]


def agent_folder(work: Work, iteration: int) -> Path:
    return work.folder("validation") / "curve" / f"{iteration:06}"


def row_name(iteration: int) -> str:
    return f"curve_{iteration:06}"


def exports(work: Work) -> list[Job]:
    """What writes the checkpoints as agents."""
    return [calls.export(run_folder(work), number, agent_folder(work, number)) for number in iterations(work)]


def curve(work: Work) -> Iterator[tuple[int, dict[str, float | None]]]:
    """Generated tokens, and the recalls there; the first point is the SFT model, the last one the agent of the end."""
    agent, folder = first_agent(work), work.folder("validation") / f"at_{TEMPERATURE:g}"
    steps = {int(one["iteration"]): int(one["time_steps"]) for one in read_metrics(run_folder(work) / "metrics.jsonl")}
    names = {0: f"{START}_0"} | {steps[number]: f"{row_name(number)}_0" for number in iterations(work)}
    names[max(steps.values())] = f"{agent.folder}_0"
    for tokens, name in names.items():
        if RowFile(folder, name).is_there():
            system = System.read(name, folder, [[name]])
            yield tokens, {metric: system.point(metric) for metric in RECALLS}


def markdown(work: Work) -> Iterator[str]:
    """The curve as a table."""
    yield from ("## R@10 on validation against tokens", "")
    yield f"{first_agent(work).folder}, temperature {TEMPERATURE:g}, {work.size.validation_prompts} prompts."
    yield from ("", f"| generated tokens | {' | '.join(RECALLS.values())} |", "|---" * (len(RECALLS) + 1) + "|")
    for tokens, points in curve(work):
        cells = " | ".join("-" if point is None else f"{point:.3f}" for point in points.values())
        yield f"| {tokens:,} | {cells} |"
