"""What every stage will take on this machine: a few steps of each are measured first.

Each estimate is a measured speed times the amount of work, plus what the measured command took beside its steps.
"""

import re
import shutil
from itertools import pairwise
from typing import Any

from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.commands.dailydialog import calls, measuring, training
from rlhf_dialog.commands.dailydialog.jobs import Ended
from rlhf_dialog.commands.dailydialog.scene import ESTIMATE, SIDE_BY_SIDE, Scene, cores
from rlhf_dialog.commands.dailydialog.sizes import FEWEST, STEP, Agent, Keys, Size
from rlhf_dialog.config.loading import read_yaml, shipped
from rlhf_dialog.own_files import read_json
from rlhf_dialog.runs.tracking import read_metrics

STEPS = re.compile(r"step (\d+) of (\d+): loss")
SEQUENCES = re.compile(r"are learned in (\d+) sequences")
EPOCHS, EPOCHS_FAST = 2, 3  # of the SFT: without and with bfloat16 products in hardware
TOKENS_A_REPLY = 13.0
DPO_COST = 3.0  # of a pair, in examples of the SFT: two models read two replies each, and one learns
AUDITED = 10_000  # replies that an audit asks about, in prompts of a row
SLACK = 1.1  # validations and checkpoints


def estimate(scene: Scene) -> None:
    """Measure, and write `estimate.json`: epochs, use_amp, tokens of a run of PPO, minutes of each stage."""
    from rlhf_dialog.distributed.machine import processor

    folder = scene.folder(ESTIMATE)
    for path in (one for one in folder.iterdir() if one.is_dir()):
        shutil.rmtree(path)  # an interrupted measurement says nothing
    fast = has_bfloat16()
    plan: dict[str, Any] = {"use_amp": fast, "epochs": EPOCHS_FAST if fast else EPOCHS, "tokens": scene.size.tokens}
    scene.plan = plan
    seconds, of_example = measured_trainings(scene)
    speed = measured_ppo(scene)
    plan["tokens"] = tokens_for(scene.size, speed)
    seconds["ppo"] = SLACK * _waves(len(scene.size.agents)) * plan["tokens"] / speed
    seconds |= seconds_of_draws(scene, of_example)
    plan["minutes"] = {stage: round(number / 60, 1) for stage, number in seconds.items()}
    plan |= {"processor": processor()[0], "cores": cores(), "tokens_a_second": round(speed, 1)}
    replace_json(folder / "estimate.json", plan)


def has_bfloat16() -> bool:
    """Whether the processor has instructions for bfloat16 products."""
    import torch

    from rlhf_dialog.distributed.machine import processor

    flags = processor()[1]
    return torch.cuda.is_available() or bool({"avx512_bf16", "amx_bf16"} & flags)


def tokens_for(size: Size, speed: float) -> int:
    """Tokens of a run of PPO: all, or what the minutes allow, in steps of 10,000 and at least 40,000."""
    if size.minutes is None:
        return size.tokens
    allowed = int(speed * size.minutes * 60 / SLACK) // STEP * STEP
    return min(max(allowed, FEWEST), size.tokens)


def measured_trainings(scene: Scene) -> tuple[dict[str, float], float]:
    """The seconds of each supervised stage, by its first steps, and those of the SFT for one example."""
    seconds, of_example = dict[str, float](), 0.0
    for stage in training.SUPERVISED:
        folder = scene.folder(ESTIMATE) / stage
        keys, steps = training.supervised_keys(scene, stage), scene.size.measured_steps
        short: Keys = {"max_steps": steps} | ({"evals": 1} if stage == "sft" else {})
        job = training.supervised_job(scene, stage, folder, keys | short)
        ended = scene.run([job])[job.name]
        yaml = read_yaml(shipped("configs") / training.SUPERVISED[stage][1]) | keys
        examples = _sequences(ended) if stage == "sft" else read_json(folder / "model/report.json")["num_train_pairs"]
        members = yaml.get("members", 1)
        all_steps = members * max(round(yaml["epochs"] * examples / yaml["batch_size"]), 1)
        seconds[stage] = ended.end - ended.start + step_seconds(ended) * (all_steps - steps * members)
        of_example = step_seconds(ended) / yaml["batch_size"] if stage == "sft" else of_example
    return seconds, of_example


def step_seconds(ended: Ended) -> float:
    """Seconds of a step, between the lines that name two of them; of several members the mean."""
    seen = [(time, int(match[1])) for time, line in ended.lines if (match := STEPS.search(line))]
    pairs = [(a, b) for a, b in pairwise(seen) if b[1] > a[1]]
    count = sum(b[1] - a[1] for a, b in pairs)
    return sum(b[0] - a[0] for a, b in pairs) / count if count else 0.0


def measured_ppo(scene: Scene) -> float:
    """Tokens a second of a run, two of which are measured side by side, with random weights of the same size."""
    folder, work = scene.folder(ESTIMATE) / "ppo", scene.folder(ESTIMATE)
    small: Keys = {"max_iterations": 2, "rollout_batch_size": 128, "eval_interval": 0} | scene.small("ppo")
    runs = []
    for agent in (Agent("measured", seed) for seed in range(min(SIDE_BY_SIDE, cores()))):
        keys = training.ppo_keys(scene, agent) | training.ppo_paths(scene, agent, work) | small
        runs.append(calls.ppo(agent.folder, agent.yaml, keys | {"total_time_steps": None}, folder))
    scene.run(runs, side_by_side=True)
    last = [read_metrics(folder / job.name / "metrics.jsonl")[-1]["FPS"] for job in runs]
    return float(min(last))


def seconds_of_draws(scene: Scene, of_example: float) -> dict[str, float]:
    """The stages that draw replies: for SFT and DPO, for the audit, and for the rows of tables."""
    row = measuring.measured_speed(scene)
    whole, drawing = row["seconds"] / row["prompts"], row["drawing"] / row["prompts"]
    examples = scene.plan["tokens"] / TOKENS_A_REPLY / training.DRAWS
    seconds = {"audit": AUDITED * whole, "best_of_4": examples * (training.DRAWS * drawing + of_example)}
    seconds |= {"dpo": DPO_COST * examples * of_example, "table": 30.0}
    at_once = min(SIDE_BY_SIDE, cores())
    return seconds | {stage: count * whole / at_once for stage, count in measuring.amounts(scene).items()}


def _sequences(ended: Ended) -> int:
    return next(int(match[1]) for _, line in ended.lines if (match := SEQUENCES.search(line)))


def _waves(jobs: int) -> int:
    return -(-jobs // min(SIDE_BY_SIDE, cores()))
