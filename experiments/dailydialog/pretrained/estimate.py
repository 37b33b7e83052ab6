"""What every stage of a pretrained size will take on this machine: a few steps of each are measured first, in five minutes."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.dailydialog import calls, training
from experiments.dailydialog.estimate import SLACK, has_bfloat16, kept, sequences, step_seconds
from experiments.dailydialog.measuring import ALL, model_row
from experiments.dailydialog.numbers import ABOUT, RowFile
from experiments.dailydialog.pretrained import dialogues, measuring
from experiments.dailydialog.pretrained import training as pretrained
from experiments.dailydialog.scene import ESTIMATE, Scene, cores
from experiments.dailydialog.sizes import LONGEST, START, A, B, Keys, Size
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.json_files import read_json

EPOCHS = {"sft": 1.0, "intent": 2.0, "act_judge_minilm": 2.0, "other_half": 2.0}  # at most
FOR_B = ("relevance", "relevance_order", "judge_convolution", "judge_bag", "other_half")
LIKE = {
    "act_judge_minilm": "intent",
    "judge_convolution": "relevance_order",
    "judge_bag": "relevance",
}  # is measured as that
RESPONSES = 16  # of an iteration of PPO that is measured
FEWEST_PROMPTS, ENOUGH_PROMPTS = 100, 300  # of test: at least, and at least to keep to TOTAL
TOTAL = 145.0  # minutes of all stages but this one
ALONE = {A: 42.0, "intent": 7.0, "act_judge_minilm": 5.0}  # minutes where A is one run and there is no B
TOKENS_A_REPLY = 15.0
READING = 0.25  # of a prompt's drawing: the seconds in which a model reads it
STEP = 500  # tokens of PPO
SFT_EVALUATED = 128  # prompts that the SFT itself reads for its validation loss


def estimate(scene: Scene) -> None:  # noqa: PLR0915 - one line for each number of the plan
    """Write the dialogues in other forms, measure, and write `estimate.json`: epochs, tokens, test prompts, and minutes."""
    from rlhf_dialog.distributed.machine import processor

    dialogues.write(scene)
    use_amp, size = has_bfloat16("avx512_bf16", "amx_bf16"), scene.size
    plan: dict[str, Any] = {"use_amp": use_amp, "reduced": not (use_amp or size.always_whole), "epochs": dict(EPOCHS)}
    plan |= {"tokens": size.tokens, "tokens_b": size.tokens, "setting_tokens": size.setting_tokens}
    plan["validation_prompts"] = size.validation_prompts
    scene.plan = plan
    if plan["reduced"] and size.budgets:
        size = replace(size, budgets=size.budgets | ALONE)
        plan["validation_prompts"] //= 2
    seeds = {name: count for name in (A, B) if (count := len(pretrained.agents(scene, name)))}
    stages = [stage for stage in size.supervised if B in seeds or stage not in FOR_B]
    some = [stage for stage in stages if stage not in LIKE]
    measured = {stage: kept(scene, stage, partial(measured_training, scene, stage)) for stage in some}
    speeds = {name: kept(scene, name, partial(measured_ppo, scene, name))["speed"] for name in seeds}
    row = kept(scene, "rows", partial(measured_rows, scene))
    minutes: dict[str, float] = {"speed": 1.5 if use_amp else 6.0, "table": 0.5, "chat": 1.0}
    for stage in stages:
        one = measured[LIKE.get(stage, stage)]
        epochs = EPOCHS.get(stage)
        if epochs and size.budgets.get(stage):
            plan["epochs"][stage] = epochs = epochs_for(size.budgets[stage], one, epochs)
        minutes[stage] = (one["beside"] + (one["epoch"] * epochs if epochs else one["whole"])) / 60
    of_token = {name: SLACK * count / speeds[name] for name, count in seeds.items()}
    tokens = {name: tokens_for(size, name, seconds) for name, seconds in of_token.items()}
    plan |= {"tokens": tokens[A], "tokens_b": tokens.get(B, 0)}
    minutes |= {name: tokens[name] * seconds / 60 for name, seconds in of_token.items()}
    whole, drawing = row["seconds"] / row["prompts"], row["drawing"] / row["prompts"]
    of_setting, count = SLACK * len(size.settings) / speeds[A], 1 + len(size.settings)
    measuring_them, iteration = count * plan["validation_prompts"] * whole, tokens_of_an_iteration(scene)
    left = 60 * size.budgets.get("settings", LONGEST) - measuring_them
    fit = max(int(left / of_setting), iteration) // iteration * iteration
    plan["setting_tokens"] = min(size.setting_tokens, fit)
    minutes["settings"] = (plan["setting_tokens"] * of_setting + measuring_them) / 60
    minutes["sft"] += (2 * pretrained.WORD_PROMPTS + pretrained.FLOOR_PROMPTS + SFT_EVALUATED) * READING * drawing / 60
    minutes["validation"] = (1 + sum(seeds.values())) * plan["validation_prompts"] * whole / 60
    minutes["leak"] = 3 * size.leak_dialogues * drawing / 60 + 0.5
    of_test = partial(test_seconds, scene, whole=whole, drawing=drawing)
    plan["test_prompts"] = prompts_for(size, of_test, sum(minutes.values()))
    minutes["test"] = of_test(plan["test_prompts"]) / 60
    plan["minutes"] = {stage: round(number, 1) for stage, number in minutes.items()}
    rounded = {name: round(speed, 1) for name, speed in speeds.items()}
    plan |= {"processor": processor()[0], "cores": cores(), "tokens_a_second": rounded}
    for name in (*some, *seeds):
        shutil.rmtree(scene.folder(ESTIMATE) / name, ignore_errors=True)  # gigabytes
    replace_json(scene.folder(ESTIMATE) / "estimate.json", plan)


def epochs_for(minutes: float, measured: dict[str, float], most: float) -> float:
    """As many epochs as the minutes allow, beside what the training does before its first step."""
    allowed = max(60 * minutes - measured["beside"], 0.0) / measured["epoch"] if measured["epoch"] else most
    return min(most, max(int(allowed * 100) / 100, 0.01))


def tokens_of_an_iteration(scene: Scene) -> int:
    """What a run of PPO generates at least, about."""
    return int(pretrained.policy_keys(scene)["rollout_batch_size"] * TOKENS_A_REPLY)


def tokens_for(size: Size, name: str, of_token: float) -> int:
    """Tokens of each run: what the stage's minutes allow, at least the fewest that fit into LONGEST; all without a budget.

    of_token: the seconds of all runs together for one token of each.
    """
    if name not in size.budgets:
        return size.tokens
    fit, longest = (int(minutes * 60 / of_token) // STEP * STEP for minutes in (size.budgets[name], LONGEST))
    return max(min(max(fit, min(size.fewest_tokens, longest) if name == A else STEP), size.tokens), STEP)


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
    """Tokens a second of a run of A or B, with the models that were measured before."""
    folder, models = scene.folder(ESTIMATE) / name, scene.folder(ESTIMATE)
    agent = next(agent for agent in scene.size.agents if agent.name == name)
    keys = pretrained.ppo_keys(scene, agent, {}) | pretrained.paths(scene, agent, models, None)
    short: Keys = {"max_iterations": 2, "total_time_steps": None, "rollout_batch_size": RESPONSES, "num_mini_batch": 1}
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
    config = pretrained.reward_config(scene, folder, scene.size.agents[0], folder)
    changes: dict[str, Any] = {"split": "validation", "prompts": scene.size.measured_prompts, "config": str(config)}
    changes |= {"start": str(folder / "sft/model"), "act_judge": str(folder / "act_judge/model")}
    changes |= {"second_judge": str(folder / "intent/model")}
    rows = [model_row(START, folder / "sft/model")]
    scene.run([measuring.table_job(scene, ESTIMATE, "rows", rows, changes)])
    arrays = RowFile(folder / "rows", f"{START}_0").read()
    return {name: float(arrays[f"{ABOUT}{name}"]) for name in ("seconds", "drawing", "prompts")}


def test_seconds(scene: Scene, prompts: int, whole: float, drawing: float) -> float:
    """Seconds of the test stage. whole, drawing: of a prompt in a row, and of its reply alone."""
    counts = {name: len(rows) for name, rows in measuring.test_rows(scene).items()}
    size = scene.size
    few = min(prompts, size.pretrained_prompts)
    asked = sum(count * (few if name == measuring.TWO else prompts) for name, count in counts.items())
    matching = (2 + measuring.MATCH_STEPS) * min(prompts, measuring.MATCH_PROMPTS)
    extra = 2 * prompts + matching  # two draws more to choose from, and the matched row
    learned = len(size.bias_rates) * (1.5 * size.bias_tokens / TOKENS_A_REPLY + size.bias_prompts)
    return asked * whole + (extra + learned) * drawing


def prompts_for(size: Size, of_test: Callable[[int], float], minutes: float) -> int:
    """The test prompts: fewer where they would take longer than LONGEST, or all stages longer than TOTAL.

    of_test: the seconds of a number of prompts; minutes: of all other stages.
    """
    prompts = size.test_prompts or ALL
    while size.budgets and prompts > FEWEST_PROMPTS:
        test = of_test(prompts) / 60
        if test <= LONGEST and (minutes + test <= TOTAL or prompts <= ENOUGH_PROMPTS):
            break
        prompts -= 50
    return prompts
