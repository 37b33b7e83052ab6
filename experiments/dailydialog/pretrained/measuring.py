"""Which rows the tables have, on validation and then on test."""

from typing import Any

from experiments.dailydialog import calls
from experiments.dailydialog.jobs import Job
from experiments.dailydialog.measuring import Rows, check_chosen, configuration, model_row
from experiments.dailydialog.pretrained import training
from experiments.dailydialog.scene import Scene
from experiments.dailydialog.sizes import BEST, CHITCHAT, CHOSEN, LEARNED, MATCHED, MODEL, PREDICTED, RLOO, START, Agent
from experiments.dailydialog.systems import System
from rlhf_dialog.atomic_files import replace_json

GREEDY = "greedy"
BEST_COUNTS = (2, 4)
SAID = ("nearest_train_reply", "constant_reply", "long_constant_reply", "true_replies")
AT_ONE, AT_LOW, SEED_SAMPLING = "at_1", "at_0.7", "seed_sampling"  # folders of the test stage
SAMPLING = {"top_k": 20, "min_new_tokens": 2}  # of the published rows, at temperature 1
MATCH_PROMPTS, MATCH_STEPS = 100, 5
MEASURED = ("sft", "settings", "ppo")  # the stages that decide what is measured
VALIDATED = (
    *("meteor", "meteor_margin", "rouge1", "rouge1_margin", "rougeLsum", "sacrebleu"),
    *("judge_accuracy", "judge_2_accuracy", "intent_accuracy", "score", "kl", "distinct_2", "mean_words", "copied_two"),
)


def drawn(name: str, draws: int) -> list[str]:
    """The rows of several draws."""
    return [f"{name}_{draw}" for draw in range(draws)]


def start_rows(scene: Scene, draws: int) -> Rows:
    return [model_row(START, scene.model("sft"), draw) for draw in range(draws)]


def agent_rows(scene: Scene, some: list[Agent], draws: int) -> Rows:
    """Every draw of these runs, each as its own YAML says."""
    return [
        model_row(agent.folder, folder / agent.folder / "agent", draw, str(folder / f"{agent.folder}.yaml"))
        for agent in some
        for folder in [training.agent_folder(scene, agent)]
        for draw in range(draws)
    ]


def setting_rows(scene: Scene) -> Rows:
    return start_rows(scene, 1) + agent_rows(scene, training.setting_agents(scene), 1)


def best_rows() -> Rows:
    return [{"name": f"{BEST}_{count}", "kind": "best", "count": count} for count in BEST_COUNTS]


def predicted_rows() -> Rows:
    """The best by a prediction of the score, which reads no reference."""
    most = max(BEST_COUNTS)
    return [{**row, "name": f"{PREDICTED}_{row['name']}", "learn_from": most} for row in best_rows()]


def matched_row(scene: Scene) -> Rows:
    """SFT at the temperature with the distinct-2 of PPO by rloo."""
    like = [f"{agent.folder}_0" for agent in training.agents(scene, RLOO)]
    return [{"name": MATCHED, "kind": "matched", "like": like}]


def said_rows(names: tuple[str, ...]) -> Rows:
    return [{"name": name, "kind": "said"} for name in names]


def test_rows(scene: Scene) -> dict[str, Rows]:
    """The rows of each folder of the test stage."""
    draws, ours = scene.size.draws, training.agents(scene)
    first = start_rows(scene, draws) + agent_rows(scene, ours, draws)
    first += [{"name": GREEDY, "kind": "greedy"}, *best_rows(), *predicted_rows(), {"name": LEARNED, "kind": "learned"}]
    sampled = start_rows(scene, 1) + agent_rows(scene, training.first_agents(scene), 1)
    return {
        AT_LOW: sampled,  # first, since people read these
        AT_ONE: first + matched_row(scene) + said_rows(SAID),
        SEED_SAMPLING: sampled + said_rows(("long_constant_reply",)),
    }


def table_job(scene: Scene, stage: str, name: str, rows: Rows, changes: dict[str, Any]) -> Job:
    """The process that makes these rows in DIR/stage/name, with the columns of OpenRL's documentation."""
    folder = scene.folder(stage)
    plan: dict[str, Any] = {
        "data": str(scene.data),
        "seed": 0,
        "temperature": 1.0,
        "start": str(scene.model("sft")),
        "folder": str(folder / name),
        "bias_prompts": scene.size.bias_prompts,
        "bias_tokens": scene.size.bias_tokens,
        "bias_rates": scene.size.bias_rates,
        "bias_step": scene.size.bias_step,
        "match_prompts": MATCH_PROMPTS,
        "match_steps": MATCH_STEPS,
        "act_judge": str(scene.model("act_judge")),
        "second_judge": str(scene.model("act_judge_minilm")),
        "seed_columns": True,
        "rows": rows,
    }
    if "config" not in changes:
        plan["config"] = str(training.reward_config(scene, folder))
    replace_json(folder / f"{name}.json", plan | changes)
    return calls.program("rows", folder / f"{name}.json", folder / f"{name}.log", folder / name / "rows.json")


def on_validation(scene: Scene) -> dict[str, Any]:
    return {"split": "validation", "prompts": scene.plan["validation_prompts"]}


def validate(scene: Scene) -> None:
    """Every run on validation, then `chosen.json`: what was chosen, before the test split is read."""
    rows = start_rows(scene, 1) + agent_rows(scene, training.agents(scene), 1)
    scene.run([table_job(scene, "validation", AT_ONE, rows, on_validation(scene))])
    folder = scene.folder("validation") / AT_ONE
    systems = {row["name"]: System.read(row["name"], folder, [[row["name"]]]) for row in rows}
    numbers = {name: {metric: one.point(metric) for metric in VALIDATED} for name, one in systems.items()}
    chosen = {"configuration": configuration(scene, MEASURED), "settings": training.chosen_settings(scene)}
    replace_json(scene.work / CHOSEN, chosen | {"validation": numbers})


def test(scene: Scene) -> None:
    """The rows of test. Raises UserError as `check_chosen`."""
    check_chosen(scene, MEASURED)
    split: dict[str, Any] = {"split": "test", "prompts": scene.size.test_prompts}
    changes: dict[str, dict[str, Any]] = {AT_ONE: {}, AT_LOW: {"temperature": 0.7}, SEED_SAMPLING: dict(SAMPLING)}
    jobs = [table_job(scene, "test", name, rows, split | changes[name]) for name, rows in test_rows(scene).items()]
    scene.run(jobs, side_by_side=True)


def test_settings(scene: Scene) -> dict[str, Any]:
    """What decides the test stage."""
    size = scene.size
    found: dict[str, Any] = {"prompts": size.test_prompts, "draws": size.draws}
    found |= {"bias_tokens": size.bias_tokens, "bias_rates": list(size.bias_rates), "bias_step": size.bias_step}
    return found | {"match_prompts": MATCH_PROMPTS, "match_steps": MATCH_STEPS}


def find_leaks(scene: Scene) -> None:
    """How likely the start finds test dialogues that it should never have seen. Raises UserError as `check_chosen`."""
    check_chosen(scene, MEASURED)
    plan: dict[str, Any] = {"model": str(scene.start(MODEL)), "chitchat": str(scene.start(CHITCHAT)), "seed": 0}
    plan |= {"dialogues": scene.size.leak_dialogues, "max_new_tokens": training.policy_keys(scene)["max_new_tokens"]}
    scene.run([training.read_model(scene, "leak", "pretrained.leak", plan)])


def chat(scene: Scene) -> None:
    """Lines of other people, answered by SFT and by the first run of each way."""
    models = {"SFT": str(scene.model("sft"))}
    for first in training.first_agents(scene):
        models[first.name] = str(training.agent_folder(scene, first) / first.folder / "agent")
    config = training.reward_config(scene, scene.folder("chat"))
    plan: dict[str, Any] = {"chitchat": str(scene.start(CHITCHAT)), "models": models, "config": str(config)}
    plan |= {"lines": scene.size.chat_lines, "seed": 0}
    scene.run([training.read_model(scene, "chat", "pretrained.chat", plan)])
