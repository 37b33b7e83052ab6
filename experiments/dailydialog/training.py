"""The stages that train: the supervised models, PPO, and what is trained on draws of the SFT model."""

import json
from pathlib import Path
from typing import Any

from experiments.dailydialog import calls, sizes
from experiments.dailydialog.jobs import Job
from experiments.dailydialog.scene import Scene
from experiments.dailydialog.sizes import Agent, Keys, Size
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.config.loading import read_yaml, shipped_folder

STAGE_OF = {  # a model in the YAML of PPO: the stage that makes it
    "runs/dailydialog_sft": "sft",
    "runs/dailydialog_relevance": "relevance",
    "runs/dailydialog_relevance_order": "relevance_order",
}
SLOW_AMP = (
    "sft",
    "act_judge",
    "intent",
    "act_judge_minilm",
    "other_half",
)  # their YAMLs have use_amp, which is slow without instructions for bfloat16
DRAWS = 4  # to each training prompt
KEPT = 1000  # checkpoints of the first run of PPO: all, of which some become points of a curve
LOW_RATE = 1e-4  # of training on draws, a tenth of the SFT's


def supervised_keys(scene: Scene, stage: str) -> Keys:
    """What is changed in the YAML, without paths."""
    keys = scene.size.supervised[stage].keys
    if stage in SLOW_AMP:
        keys = keys | {"use_amp": scene.plan["use_amp"]}
    epochs = scene.plan["epochs"] if scene.size.pretrained else {"sft": scene.plan["epochs"]}
    return keys | ({"epochs": epochs[stage]} if stage in epochs else {}) | scene.small(stage)


def supervised_job(scene: Scene, stage: str, folder: Path, keys: Keys) -> Job:
    trained = scene.size.supervised[stage]
    data = scene.dialogues / trained.data if trained.data else scene.data
    start = {"model_path": str(scene.start(trained.start))} if trained.start else {}
    return calls.supervised(trained.command, trained.yaml, keys | {"data_path": str(data)} | start, folder)


def yaml_of(scene: Scene, stage: str) -> Keys:
    """The shipped YAML of a supervised stage."""
    return read_yaml(shipped_folder("configs") / scene.size.supervised[stage].yaml)


def supervised_settings(scene: Scene, stage: str) -> dict[str, Any]:
    """What decides a supervised stage."""
    return {"yaml": yaml_of(scene, stage), "keys": supervised_keys(scene, stage)}


def train_supervised(scene: Scene, stage: str) -> None:
    """A model in the stage's folder; for the SFT model also its validation loss in nats a word."""
    folder = scene.folder(stage)
    calls.clear_partial(folder)
    scene.run([supervised_job(scene, stage, folder, supervised_keys(scene, stage))])
    if stage == "sft":
        plan, beside = folder / "words.plan.json", scene.pretrained(sizes.SMOLLM2)
        given = {"model": str(scene.model("sft")), "output": str(folder / "words.json")}
        pretrained = {"pretrained": beside and str(beside), "prompts": scene.size.pretrained_prompts}
        replace_json(plan, given | pretrained)
        scene.run([calls.program("words", plan, folder / "words.log", folder / "words.json")])


def ppo_settings(scene: Scene, agent: Agent) -> dict[str, Any]:
    """The YAML of a run and what is changed there, without paths."""
    return {"yaml": read_yaml(shipped_folder("configs") / agent.yaml), "keys": ppo_keys(scene, agent)}


def ppo_keys(scene: Scene, agent: Agent) -> Keys:
    keys: Keys = {
        "seed": agent.seed,
        "total_time_steps": scene.plan["tokens"],
        "sample_interval": 0,
        "save_interval": 2,
        "keep_checkpoints": KEPT if agent == scene.size.agents[0] else 2,
    }
    if "num_responses_per_prompt" in agent.keys:  # of small sizes those of groups
        return keys | scene.small("ppo") | agent.keys
    return keys | agent.keys | scene.small("ppo")


def ppo_paths(scene: Scene, agent: Agent, models: Path) -> Keys:
    """Where the data, the start and the reward of a run are; the reward is that of the shipped YAML of DailyDialog.

    models: the folder with those of the SFT and of the reward.
    """
    start = models / "sft/model" if agent.start is None else scene.pretrained(agent.start)
    reward = read_yaml(shipped_folder("configs") / sizes.PPO)["reward_class"]
    for part in reward["args"]["parts"]:
        if model := part.get("args", {}).get("model"):
            part["args"]["model"] = str(models / STAGE_OF[model] / "model")
    return {"model_path": str(start), "env.args.data_path": str(scene.data), "reward_class": reward}


def ppo_job(scene: Scene, agent: Agent) -> Job:
    keys = ppo_keys(scene, agent) | ppo_paths(scene, agent, scene.work)
    return calls.ppo(agent.folder, agent.yaml, keys, scene.folder("ppo"))


def train_ppo(scene: Scene) -> None:
    """All runs of PPO, two side by side."""
    scene.run([ppo_job(scene, agent) for agent in in_turn(scene.size)], side_by_side=True)


def in_turn(size: Size) -> list[Agent]:
    """The runs of PPO as they begin: those of another start and those with a critic take longest, and come first."""
    return sorted(size.agents, key=lambda agent: (agent.start is None, "critic_lr" not in agent.keys))


def reward_config(scene: Scene, folder: Path, models: Path | None = None) -> Path:
    """Write a YAML of PPO with the data, the start and the reward in their places, for commands that read one."""
    path, agent = folder / "reward.yaml", scene.size.agents[0]
    calls.write_yaml(path, agent.yaml, scene.small("ppo") | ppo_paths(scene, agent, models or scene.work))
    return path


def audit_reward(scene: Scene) -> None:
    """The holes of the reward, as far as an audit finds them; they are reported, and nothing depends on them."""
    folder, judge = scene.folder("audit"), str(scene.model("act_judge"))
    relevance = json.dumps({"id": "RelevanceReward", "args": {"model": str(scene.model("judge_convolution"))}})
    config, judges = reward_config(scene, folder), [judge, relevance]
    scene.run([calls.audit(config, judges, scene.pretrained(sizes.SMOLLM2), folder, scene.size.audit)])


def draws_settings(scene: Scene) -> dict[str, Any]:
    """What decides the draws, and the SFT on the best of them."""
    return {"draws": DRAWS, "tokens": scene.plan["tokens"], "keys": _best_keys(scene)}


def _best_keys(scene: Scene) -> Keys:
    keys = {"epochs": 1, "learning_rate": LOW_RATE, "evals": 1, "patience": None, "drop_overlap": False}
    return keys | {"use_amp": scene.plan["use_amp"]} | scene.small("best_of_4")


def train_on_best(scene: Scene) -> None:
    """Draw, and fine-tune the SFT model on the best of its own replies."""
    folder = scene.folder("best_of_4")
    plan: dict[str, Any] = {"model": str(scene.model("sft")), "config": str(reward_config(scene, folder))}
    plan |= {"tokens": scene.plan["tokens"], "draws": DRAWS, "seed": 0, "folder": str(folder)}
    replace_json(folder / "draws.json", plan)
    scene.run([calls.program("draws", folder / "draws.json", folder / "draws.log", folder / "drawn.json")])
    calls.clear_partial(folder)
    paths = {"model_path": str(scene.model("sft")), "data_path": str(folder / "best")}
    scene.run([calls.supervised("train-sft", sizes.SFT, _best_keys(scene) | paths, folder)])


def dpo_settings(scene: Scene) -> dict[str, Any]:
    """What decides DPO beside its pairs."""
    return {"learning_rate": LOW_RATE, "beta": 0.1, "batch_size": 16, "seed": 0} | scene.small("dpo")


def train_dpo(scene: Scene) -> None:
    """DPO from the SFT model, on the best and the worst of its draws."""
    folder = scene.folder("dpo")
    yaml = read_yaml(shipped_folder("configs") / sizes.SFT)
    plan = {"model": str(scene.model("sft")), "pairs": str(scene.folder("best_of_4") / "pairs.jsonl")}
    sizes_ = {"separator": "<EOU>", "max_prompt_length": yaml["max_prompt_length"]}
    replace_json(folder / "dpo.json", plan | sizes_ | dpo_settings(scene) | {"output": str(scene.model("dpo"))})
    scene.run([calls.program("dpo", folder / "dpo.json", folder / "log.txt", scene.model("dpo"))])
