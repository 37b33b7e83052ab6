"""What every stage of a pretrained size will take on this machine: a few steps of each are measured first, in some minutes."""

import shutil
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.dailydialog import calls, training
from experiments.dailydialog.estimate import SLACK, kept, sequences, step_seconds
from experiments.dailydialog.measuring import model_row
from experiments.dailydialog.numbers import ABOUT, RowFile
from experiments.dailydialog.pretrained import dialogues, measuring
from experiments.dailydialog.pretrained import training as pretrained
from experiments.dailydialog.scene import ESTIMATE, SIDE_BY_SIDE, Scene, cores
from experiments.dailydialog.sizes import START, Keys
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.json_files import read_json

EPOCHS = {"sft": 1.0, "intent": 2.0, "next_act": 2.0, "act_judge_minilm": 2.0}  # at most
LIKE = {"next_act": "intent", "act_judge_minilm": "intent"}  # is measured as that
RESPONSES = 64  # of an iteration of PPO that is measured
TOKENS_A_REPLY = 15.0
READING = 0.25  # of a prompt's drawing: the seconds in which a model reads it
SFT_EVALUATED = 128  # prompts that the SFT itself reads for its validation loss


def estimate(scene: Scene) -> None:
    """Write the dialogues in other forms, measure, and write `estimate.json`: epochs, tokens, and minutes.

    Without instructions for bfloat16 a run has half of the tokens and of the validation prompts, and there is one seed.
    """
    import torch

    from rlhf_dialog.commands.doctor import processor
    from rlhf_dialog.models.device import cpu_bfloat16

    dialogues.write(scene)
    use_amp, size = torch.cuda.is_available() or bool(cpu_bfloat16()), scene.size
    reduced = not (use_amp or size.always_whole)
    plan: dict[str, Any] = {"use_amp": use_amp, "reduced": reduced, "epochs": dict(EPOCHS)}
    for name in ("tokens", "setting_tokens", "validation_prompts"):
        plan[name] = getattr(size, name) // (2 if reduced else 1)
    scene.plan = plan
    some = [stage for stage in size.supervised if stage not in LIKE]
    measured = {stage: kept(scene, stage, partial(measured_training, scene, stage)) for stage in some}
    speeds = {name: kept(scene, name, partial(measured_ppo, scene, name))["speed"] for name in pretrained.WAYS}
    row = kept(scene, "rows", partial(measured_rows, scene))
    minutes: dict[str, float] = {"speed": 1.5 if use_amp else 6.0, "table": 0.5, "chat": 1.0}
    for stage in size.supervised:
        one = measured[LIKE.get(stage, stage)]
        epochs = EPOCHS.get(stage)
        if epochs and size.budgets.get(stage):
            plan["epochs"][stage] = epochs = epochs_for(size.budgets[stage], one, epochs)
        minutes[stage] = (one["beside"] + (one["epoch"] * epochs if epochs else one["whole"])) / 60
    whole, drawing = row["seconds"] / row["prompts"], row["drawing"] / row["prompts"]
    at_once, validation = min(SIDE_BY_SIDE, cores()), plan["validation_prompts"] * whole
    for stage, runs, tokens in (
        ("settings", pretrained.setting_agents(scene), plan["setting_tokens"]),
        ("ppo", pretrained.agents(scene), plan["tokens"]),
    ):
        minutes[stage] = SLACK * sum(tokens / speeds[pretrained.way_of(agent)] for agent in runs) / 60
    minutes["settings"] += (1 + len(pretrained.setting_agents(scene))) * validation / 60
    minutes["sft"] += (2 * pretrained.WORD_PROMPTS + SFT_EVALUATED) * READING * drawing / 60
    minutes["validation"] = (1 + len(pretrained.agents(scene))) * validation / 60
    minutes["leak"] = 3 * size.leak_dialogues * drawing / 60 + 0.5
    minutes["test"] = test_seconds(scene, whole, drawing) / 60 / at_once
    plan["minutes"] = {stage: round(number, 1) for stage, number in minutes.items()}
    rounded = {name: round(speed, 1) for name, speed in speeds.items()}
    plan |= {"processor": processor(), "cores": cores(), "tokens_a_second": rounded}
    for name in (*some, *pretrained.WAYS):
        shutil.rmtree(scene.folder(ESTIMATE) / name, ignore_errors=True)  # gigabytes
    replace_json(scene.folder(ESTIMATE) / "estimate.json", plan)


def epochs_for(minutes: float, measured: dict[str, float], most: float) -> float:
    """As many epochs as the minutes allow, beside what the training does before its first step."""
    allowed = max(60 * minutes - measured["beside"], 0.0) / measured["epoch"] if measured["epoch"] else most
    return min(most, max(int(allowed * 100) / 100, 0.01))


def measured_training(scene: Scene, stage: str) -> dict[str, float]:
    """Seconds of a supervised stage `beside` its steps, of an `epoch`, and of all steps as its YAML has them, `whole`."""
    folder, steps = scene.folder(ESTIMATE) / stage, scene.size.measured_steps
    keys = training.supervised_keys(scene, stage)
    short: Keys = {"max_steps": steps} | ({"evals": 1, "max_eval_prompts": 8} if "evals" in keys else {})
    job = training.supervised_job(scene, stage, folder, keys | short)
    ended = scene.run([job])[job.name]
    yaml = training.yaml_of(scene, stage) | keys
    of_report = "evals" not in keys
    examples = read_json(folder / "model/report.json")["num_train_pairs"] if of_report else sequences(ended)
    members, step = yaml.get("members", 1), step_seconds(ended)
    epoch = step * members * examples / yaml["batch_size"]
    beside = max(ended.end - ended.start - step * members * steps, 0.0)
    return {"beside": beside, "epoch": epoch, "whole": epoch * yaml["epochs"]}


def measured_ppo(scene: Scene, name: str) -> dict[str, float]:
    """Tokens a second of a run by rloo or gae, with the models that were measured before."""
    folder, models = scene.folder(ESTIMATE) / name, scene.folder(ESTIMATE)
    agent = pretrained.agents(scene, name)[0]
    # the classifier of acts stands for that of the next act, which is as large
    keys = pretrained.ppo_keys(scene, agent) | pretrained.paths(scene, models, expected=False)
    short: Keys = {"max_iterations": 2, "total_time_steps": None, "rollout_batch_size": RESPONSES, "num_mini_batch": 1}
    short |= {"critic_warmup": 0}
    scene.run([calls.ppo("measured", agent.yaml, keys | short, folder)])
    shutil.rmtree(folder / "measured" / "checkpoints", ignore_errors=True)
    return {"speed": speed_of(folder / "measured")}


def speed_of(run: Path) -> float:
    """Generated tokens a second of the whole loop."""
    from rlhf_dialog.runs.metrics_file import read_metrics

    rows = read_metrics(run / "metrics.jsonl")
    steps = [0.0, *(row["time_steps"] for row in rows)]
    counts = [now - before for before, now in pairwise(steps)]
    return float(steps[-1] / sum(count / row["FPS"] for count, row in zip(counts, rows, strict=True)))


def measured_rows(scene: Scene) -> dict[str, float]:
    """`seconds` and `drawing` of one row of this number of `prompts`."""
    folder = scene.folder(ESTIMATE)
    config = pretrained.reward_config(scene, folder, models=folder)
    changes: dict[str, Any] = {"split": "validation", "prompts": scene.size.measured_prompts, "config": str(config)}
    changes |= {"start": str(folder / "sft/model"), "act_judge": str(folder / "act_judge/model")}
    changes |= {"second_judge": str(folder / "intent/model")}
    rows = [model_row(START, folder / "sft/model")]
    scene.run([measuring.table_job(scene, ESTIMATE, "rows", rows, changes)])
    arrays = RowFile(folder / "rows", f"{START}_0").read()
    return {name: float(arrays[f"{ABOUT}{name}"]) for name in ("seconds", "drawing", "prompts")}


def test_seconds(scene: Scene, whole: float, drawing: float) -> float:
    """Seconds of the test stage. whole, drawing: of a prompt in a row, and of its reply alone."""
    size, prompts = scene.size, scene.size.test_prompts or 0
    count = sum(len(rows) for rows in measuring.test_rows(scene).values())
    matching = (2 + measuring.MATCH_STEPS) * min(prompts, measuring.MATCH_PROMPTS)
    extra = 2 * prompts + matching  # two draws more to choose from, and the matched row
    learned = len(size.bias_rates) * (1.5 * size.bias_tokens / TOKENS_A_REPLY + size.bias_prompts)
    return count * prompts * whole + (extra + learned) * drawing
