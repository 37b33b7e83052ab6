"""What every stage will take on this machine: a few steps of each are measured first.

Each estimate is a measured speed times the amount of work, plus what the measured command took beside its steps.
"""

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from experiments.dailydialog import calls, measuring, training
from experiments.dailydialog.jobs import Ended
from experiments.dailydialog.scene import ESTIMATE, SIDE_BY_SIDE, Scene, cores
from experiments.dailydialog.sizes import BIAS_RATES, FEWEST, RLOO, STEP, TEMPERATURES, Agent, Keys, Size
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.json_files import read_json
from rlhf_dialog.runs.metrics_file import read_metrics

STEPS = re.compile(r"step (\d+) of (\d+): loss")
SEQUENCES = re.compile(r"are learned in (\d+) sequences")
EPOCHS, EPOCHS_FAST = (
    2,
    3,
)  # of the SFT: fast is a GPU, or AMX, which halves the seconds of a step; avx512_bf16 saves a fifth
TOKENS_A_REPLY = 13.0
DPO_COST = 3.0  # of a pair, in examples of the SFT: two models read two replies each, and one learns
AUDITED = 10_000  # replies that an audit asks about, in prompts of a row
RESPONSES = 128  # of an iteration of PPO that is measured
RESPONSES_OF_LARGE = 16  # the same from another start than the SFT model
SLACK = 1.1  # validations and checkpoints


def estimate(scene: Scene) -> None:
    """Measure, and write `estimate.json`: epochs, use_amp, tokens of a run of PPO, minutes of each stage."""
    import torch

    from rlhf_dialog.commands.doctor import processor
    from rlhf_dialog.models.device import cpu_bfloat16

    has_gpu, bfloat16 = torch.cuda.is_available(), cpu_bfloat16()
    use_amp, fast = has_gpu or bool(bfloat16), has_gpu or bfloat16 == "amx"
    plan: dict[str, Any] = {"use_amp": use_amp, "epochs": EPOCHS_FAST if fast else EPOCHS, "tokens": scene.size.tokens}
    scene.plan = plan
    trainings = {stage: kept(scene, stage, partial(measured_training, scene, stage)) for stage in scene.size.supervised}
    agents = {agent.name: agent for agent in scene.size.agents}
    speeds = {
        name: kept(scene, f"ppo_{name}", partial(measured_ppo, scene, one))["speed"] for name, one in agents.items()
    }
    of_token = SLACK * side_by_side([1 / speeds[agent.name] for agent in training.in_turn(scene.size)])
    plan["tokens"] = tokens_for(scene.size, of_token)
    seconds = {stage: one["seconds"] for stage, one in trainings.items()}
    seconds["ppo"] = plan["tokens"] * of_token
    row = kept(scene, "rows", partial(measuring.measured_speed, scene))
    slower = sum(speeds[RLOO] / speeds[agent.name] for agent in scene.size.agents if agent.start)
    seconds |= seconds_of_draws(scene, trainings["sft"]["example"], row, slower)
    plan["minutes"] = {stage: round(number / 60, 1) for stage, number in seconds.items()}
    rounded = {name: round(speed, 1) for name, speed in speeds.items()}
    plan |= {"processor": processor(), "cores": cores(), "tokens_a_second": rounded}
    replace_json(scene.folder(ESTIMATE) / "estimate.json", plan)


def kept(scene: Scene, name: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What was measured before an interruption; else it is measured now, from its beginning."""
    path = scene.folder(ESTIMATE) / f"{name}.measured.json"
    if not path.is_file():
        shutil.rmtree(scene.folder(ESTIMATE) / name, ignore_errors=True)
        replace_json(path, measure())
    return dict(read_json(path, end=f"; begin again with --again {ESTIMATE}", shape=dict[str, float]))


def tokens_for(size: Size, of_token: float) -> int:
    """Tokens of each run of PPO: all, or what the minutes allow, in steps of 10,000 and at least 40,000.

    of_token: the seconds of all runs together for one token of each.
    """
    if size.minutes is None:
        return size.tokens
    allowed = int(size.minutes * 60 / of_token) // STEP * STEP
    return min(max(allowed, FEWEST), size.tokens)


def measured_training(scene: Scene, stage: str) -> dict[str, float]:
    """The seconds of a supervised stage, by its first steps, and of a step for one `example`."""
    folder, steps = scene.folder(ESTIMATE) / stage, scene.size.measured_steps
    keys = training.supervised_keys(scene, stage)
    short: Keys = {"max_steps": steps} | ({"evals": 1} if stage == "sft" else {})
    job = training.supervised_job(scene, stage, folder, keys | short)
    ended = scene.run([job])[job.name]
    yaml = training.yaml_of(scene, stage) | keys
    examples = sequences(ended) if stage == "sft" else read_json(folder / "model/report.json")["num_train_pairs"]
    members = yaml.get("members", 1)
    all_steps = members * max(round(yaml["epochs"] * examples / yaml["batch_size"]), 1)
    seconds = ended.end - ended.start + step_seconds(ended) * (all_steps - steps * members)
    return {"seconds": seconds, "example": step_seconds(ended) / yaml["batch_size"]}


def step_seconds(ended: Ended) -> float:
    """Seconds of a step, between the lines that name two of them; of several members the mean."""
    seen = [(time, int(match[1])) for time, line in ended.lines if (match := STEPS.search(line))]
    pairs = [(a, b) for a, b in pairwise(seen) if b[1] > a[1]]
    count = sum(b[1] - a[1] for a, b in pairs)
    return sum(b[0] - a[0] for a, b in pairs) / count if count else 0.0


def measured_ppo(scene: Scene, agent: Agent) -> dict[str, float]:
    """Tokens a second of a run of this kind, two of which are measured side by side; an SFT model has random weights."""
    folder, work = scene.folder(ESTIMATE) / f"ppo_{agent.name}", scene.folder(ESTIMATE)
    responses = RESPONSES_OF_LARGE if agent.start else RESPONSES
    small: Keys = {"max_iterations": 2, "rollout_batch_size": responses, "eval_interval": 0} | scene.small("ppo")
    runs = []
    for seed in range(min(SIDE_BY_SIDE, cores())):
        one = replace(agent, name=f"measured_{agent.name}", seed=seed)
        keys = training.ppo_keys(scene, one) | training.ppo_paths(scene, one, work) | small
        runs.append(calls.ppo(one.folder, one.yaml, keys | {"total_time_steps": None}, folder))
    scene.run(runs, side_by_side=True)
    last = [read_metrics(folder / job.name / "metrics.jsonl")[-1]["FPS"] for job in runs]
    return {"speed": float(min(last))}


def seconds_of_draws(scene: Scene, of_example: float, row: dict[str, float], slower: float) -> dict[str, float]:
    """The stages that draw replies: for SFT and DPO, for the audit, and for the rows of tables.

    slower: how many times as long the agents of other starts take for a token, added up; their starts take as long.
    """
    whole, drawing = row["seconds"] / row["prompts"], row["drawing"] / row["prompts"]
    examples = scene.plan["tokens"] / TOKENS_A_REPLY / training.DRAWS
    seconds = {"audit": AUDITED * whole, "best_of_4": examples * (training.DRAWS * drawing + of_example)}
    seconds |= {"dpo": DPO_COST * examples * of_example, "table": 30.0}
    at_once = min(SIDE_BY_SIDE, cores())
    larger = {stage: 2 * slower * drawing * count for stage, count in measuring.draws_of_an_agent(scene).items()}
    counts = measuring.amounts(scene)
    counts["test"] += round(len(TEMPERATURES) * len(BIAS_RATES) * scene.size.bias_tokens / TOKENS_A_REPLY)
    return seconds | {stage: (count * whole + larger[stage]) / at_once for stage, count in counts.items()}


def sequences(ended: Ended) -> int:
    return next(int(match[1]) for _, line in ended.lines if (match := SEQUENCES.search(line)))


def side_by_side(seconds: Sequence[float]) -> float:
    """How long jobs of these seconds take, of which as many run at once as there is room for, in their order."""
    ends = [0.0] * min(SIDE_BY_SIDE, cores())
    for one in seconds:
        ends[ends.index(min(ends))] += one
    return max(ends)
