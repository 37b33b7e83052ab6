"""Which rows the tables have, on validation and then on test."""

from pathlib import Path
from typing import Any

from experiments.dailydialog import calls
from experiments.dailydialog.calls import Job, run_jobs
from experiments.dailydialog.measuring import Rows, check_chosen, model_row
from experiments.dailydialog.pretrained import training
from experiments.dailydialog.sizes import BEST, CHITCHAT, CHOSEN, LEARNED, MATCHED, MODEL, PREDICTED, RLOO, START, Agent
from experiments.dailydialog.systems import System
from experiments.dailydialog.work import Work, fingerprint_of
from rlhf_dialog.atomic_files import replace_json

GREEDY = "greedy"
BEST_COUNTS = (2, 4)
SAID = ("nearest_train_reply", "constant_reply", "long_constant_reply", "true_replies")
AT_ONE, AT_LOW, SEED_SAMPLING = "at_1", "at_0.7", "seed_sampling"  # folders of the test stage
SAMPLING = {"top_k": 20, "min_new_tokens": 2}  # of the published rows, at temperature 1
MATCH_PROMPTS, MATCH_STEPS = 100, 5
VALIDATED = (
    *("meteor", "meteor_margin", "rouge1", "rouge1_margin", "rougeLsum", "sacrebleu"),
    *("judge_accuracy", "judge_2_accuracy", "intent_accuracy", "score", "kl", "distinct_2", "mean_words", "copied_two"),
)


def drawn(name: str, draws: int) -> list[str]:
    """The rows of several draws."""
    return [f"{name}_{draw}" for draw in range(draws)]


def start_rows(work: Work, draws: int) -> Rows:
    return [model_row(START, work.model("sft"), draw) for draw in range(draws)]


def agent_rows(work: Work, some: list[Agent], draws: int) -> Rows:
    """Every draw of these runs, each as its own YAML says."""
    return [
        model_row(agent.folder, folder / agent.folder / "agent", draw, str(folder / f"{agent.folder}.yaml"))
        for agent in some
        for folder in [training.agent_folder(work, agent)]
        for draw in range(draws)
    ]


def setting_rows(work: Work) -> Rows:
    return start_rows(work, 1) + agent_rows(work, training.setting_agents(work), 1)


def best_rows() -> Rows:
    return [{"name": f"{BEST}_{count}", "kind": "best", "count": count} for count in BEST_COUNTS]


def predicted_rows() -> Rows:
    """The best by a prediction of the score, which reads no reference."""
    most = max(BEST_COUNTS)
    return [{**row, "name": f"{PREDICTED}_{row['name']}", "learn_from": most} for row in best_rows()]


def matched_row(work: Work) -> Rows:
    """SFT at the temperature with the distinct-2 of PPO by rloo."""
    like = [f"{agent.folder}_0" for agent in training.agents(work, RLOO)]
    return [{"name": MATCHED, "kind": "matched", "like": like}]


def said_rows(names: tuple[str, ...]) -> Rows:
    return [{"name": name, "kind": "said"} for name in names]


def test_rows(work: Work) -> dict[str, Rows]:
    """The rows of each folder of the test stage."""
    draws, ours = work.size.draws, training.agents(work)
    first = start_rows(work, draws) + agent_rows(work, ours, draws)
    first += [{"name": GREEDY, "kind": "greedy"}, *best_rows(), *predicted_rows(), {"name": LEARNED, "kind": "learned"}]
    sampled = start_rows(work, 1) + agent_rows(work, training.first_agents(work), 1)
    return {
        AT_LOW: sampled,  # first, since people read these
        AT_ONE: first + matched_row(work) + said_rows(SAID),
        SEED_SAMPLING: sampled + said_rows(("long_constant_reply",)),
    }


def table_job(work: Work, stage: str, name: str, rows: Rows, changes: dict[str, Any]) -> Job:
    """The process that makes these rows in DIR/stage/name, with the columns of OpenRL's documentation."""
    folder = work.folder(stage)
    plan: dict[str, Any] = {
        "data": str(work.data),
        "seed": 0,
        "temperature": 1.0,
        "start": str(work.model("sft")),
        "folder": str(folder / name),
        "bias_prompts": work.size.bias_prompts,
        "bias_tokens": work.size.bias_tokens,
        "bias_rates": work.size.bias_rates,
        "bias_step": work.size.bias_step,
        "match_prompts": MATCH_PROMPTS,
        "match_steps": MATCH_STEPS,
        "act_judge": str(work.model("act_judge")),
        "second_judge": str(work.model("act_judge_minilm")),
        "seed_columns": True,
        "rows": rows,
    }
    if "config" not in changes:
        plan["config"] = str(training.reward_config(work, folder))
    replace_json(folder / f"{name}.json", plan | changes)
    return calls.program("rows", folder / f"{name}.json", folder / f"{name}.log", folder / name / "rows.json")


def on_validation(work: Work) -> dict[str, Any]:
    return {"split": "validation", "prompts": work.validation_prompts}


def trained_models(work: Work) -> list[Path]:
    """The folders of what is measured."""
    return [work.model("sft"), *(work.folder("ppo") / agent.folder / "agent" for agent in training.agents(work))]


def validate(work: Work) -> None:
    """Every run on validation, then `chosen.json`: what was chosen, before the test split is read."""
    if (work.root / CHOSEN).is_file():
        return
    rows = start_rows(work, 1) + agent_rows(work, training.agents(work), 1)
    run_jobs([table_job(work, "validation", AT_ONE, rows, on_validation(work))])
    folder = work.folder("validation") / AT_ONE
    systems = {row["name"]: System.read(row["name"], folder, [[row["name"]]]) for row in rows}
    numbers = {name: {metric: one.point(metric) for metric in VALIDATED} for name, one in systems.items()}
    chosen = {"configuration": fingerprint_of(*trained_models(work)), "settings": training.chosen_settings(work)}
    replace_json(work.root / CHOSEN, chosen | {"validation": numbers})


def test(work: Work) -> None:
    """The rows of test. Raises UserError as `check_chosen`."""
    check_chosen(work, trained_models(work))
    split: dict[str, Any] = {"split": "test", "prompts": work.size.test_prompts}
    changes: dict[str, dict[str, Any]] = {AT_ONE: {}, AT_LOW: {"temperature": 0.7}, SEED_SAMPLING: dict(SAMPLING)}
    jobs = [table_job(work, "test", name, rows, split | changes[name]) for name, rows in test_rows(work).items()]
    run_jobs(jobs, side_by_side=True)


def find_leaks(work: Work) -> None:
    """How likely the start finds test dialogues that it should never have seen."""
    plan: dict[str, Any] = {"model": str(work.start(MODEL)), "chitchat": str(work.start(CHITCHAT)), "seed": 0}
    plan |= {"dialogues": work.size.leak_dialogues, "max_new_tokens": training.policy_keys(work)["max_new_tokens"]}
    run_jobs([training.read_model(work, "leak", "pretrained.leak", plan)])


def chat(work: Work) -> None:
    """Lines of other people, answered by SFT and by the first run of each way."""
    models = {"SFT": str(work.model("sft"))}
    for first in training.first_agents(work):
        models[first.name] = str(training.agent_folder(work, first) / first.folder / "agent")
    config = training.reward_config(work, work.folder("chat"))
    plan: dict[str, Any] = {"chitchat": str(work.start(CHITCHAT)), "models": models, "config": str(config)}
    plan |= {"lines": work.size.chat_lines, "seed": 0}
    run_jobs([training.read_model(work, "chat", "pretrained.chat", plan)])
