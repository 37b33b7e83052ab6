"""The stages that train on a pretrained model: SFT, settings to choose from, and PPO in two ways."""

import shutil
from pathlib import Path
from typing import Any

from experiments.dailydialog import calls, sizes, training
from experiments.dailydialog.jobs import Job
from experiments.dailydialog.scene import Scene
from experiments.dailydialog.sizes import GAE, RLOO, SEED_PPO, SMOLLM2, Agent, Keys
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.config.loading import read_yaml, shipped_folder
from rlhf_dialog.json_files import read_json

WAYS = (RLOO, GAE)
SETTING, SETTING_SEED = "setting", 3  # a seed that is in no table
WORD_PROMPTS = 400  # of validation, for the loss in nats a word
CHOSEN_SETTING = "setting.json"


def agents(scene: Scene, name: str | None = None) -> list[Agent]:
    """The runs of PPO, or those of one way; without instructions for bfloat16 one seed of each."""
    some = [agent for agent in scene.size.agents if not (scene.plan["reduced"] and agent.seed)]
    return [agent for agent in some if name in (None, agent.name)]


def first_agents(scene: Scene) -> list[Agent]:
    """The first run of each way."""
    return [agents(scene, name)[0] for name in WAYS]


def setting_agents(scene: Scene, name: str | None = None) -> list[Agent]:
    """A run with each of the settings, of both ways or of one."""
    return [
        Agent(f"{SETTING}_{agent.name}_{number}", SETTING_SEED, SEED_PPO, agent.keys | keys)
        for agent in first_agents(scene)
        if name in (None, agent.name)
        for number, keys in enumerate(scene.size.settings[agent.name], start=1)
    ]


def way_of(agent: Agent) -> str:
    return str(agent.keys["advantage_estimator"])


def is_expected(agent: Agent) -> bool:
    """Whether the run is paid the expectation of the intent match, which has less noise than the match itself."""
    return way_of(agent) == RLOO


def agent_folder(scene: Scene, agent: Agent) -> Path:
    """The stage's folder in which the run is."""
    return scene.folder("settings" if agent.name.startswith(SETTING) else "ppo")


def read_model(scene: Scene, stage: str, program: str, changes: dict[str, Any]) -> Job:
    """A program of this package that reads a model and writes `PROGRAM.json` in the stage's folder."""
    folder, name = scene.folder(stage), program.rpartition(".")[2]
    plan = {
        "output": str(folder / f"{name}.json"),
        "data": str(scene.data),
        "context_size": policy_keys(scene)["context_size"],
    }
    replace_json(folder / f"{name}.plan.json", plan | changes)
    return calls.program(program, folder / f"{name}.plan.json", folder / f"{name}.log", folder / f"{name}.json")


def train_sft(scene: Scene) -> None:
    """The fine-tuned model, and its loss in nats a word beside the one before."""
    folder = scene.folder("sft")
    calls.clear_partial(folder)
    scene.run([training.supervised_job(scene, "sft", folder, training.supervised_keys(scene, "sft"))])
    policy = policy_keys(scene)
    reading = {name: policy[name] for name in ("context_size", "max_prompt_length")}
    reading |= {"data_path": str(scene.data), "max_eval_prompts": WORD_PROMPTS}
    words: dict[str, Any] = {
        "model": str(scene.model("sft")),
        "keys": reading,
        "pretrained": str(scene.start(sizes.MODEL)),
        "prompts": WORD_PROMPTS,
    }
    scene.run([read_model(scene, "sft", "words", words)])


def policy_keys(scene: Scene) -> Keys:
    """How the models are asked and answer."""
    return sizes.POLICY | scene.small("ppo")


def chosen_settings(scene: Scene) -> dict[str, Keys]:
    """What validation has chosen for each way."""
    path = scene.folder("settings") / CHOSEN_SETTING
    chosen: dict[str, Keys] = read_json(path, end="; begin again with --again settings")["keys"]
    return chosen


def ppo_keys(scene: Scene, agent: Agent) -> Keys:
    """What is changed in the YAML of a run, without paths."""
    is_setting = agent.name.startswith(SETTING)
    keys: Keys = {
        "seed": agent.seed,
        "total_time_steps": scene.plan["setting_tokens" if is_setting else "tokens"],
        "sample_interval": 0,
        "save_interval": 2,
        "keep_checkpoints": 1,
        "precision": "bf16" if scene.plan["use_amp"] else "fp32",
    }
    return keys | agent.keys | scene.small("ppo")


def ppo_settings(scene: Scene) -> dict[str, Any]:
    """What decides the runs of PPO."""
    chosen = chosen_settings(scene)
    return {agent.folder: _decides(scene, agent, chosen[agent.name]) for agent in agents(scene)}


def settings_settings(scene: Scene) -> dict[str, Any]:
    """What decides the settings to choose from."""
    found: dict[str, Any] = {agent.folder: _decides(scene, agent, {}) for agent in setting_agents(scene)}
    return found | {"prompts": scene.plan["validation_prompts"]}


def _decides(scene: Scene, agent: Agent, setting: Keys) -> dict[str, Any]:
    keys = ppo_keys(scene, agent) | setting
    return {"yaml": read_yaml(shipped_folder("configs") / agent.yaml), "keys": keys, "expected": is_expected(agent)}


def paths(scene: Scene, models: Path, expected: bool) -> Keys:
    """Where the data, the start and the reward of a run are. models: the folder with those of the stages."""
    args = {"intent_model": str(models / "intent/model")}
    if expected:
        args |= {"intent_score": "expected", "act_model": str(models / "next_act/model")}
    found: Keys = {"model_path": str(models / "sft/model"), "env.args.data_path": str(scene.data)}
    return found | {f"reward_class.args.{name}": value for name, value in args.items()}


def job_of(scene: Scene, agent: Agent, setting: Keys) -> Job:
    keys = ppo_keys(scene, agent) | setting | paths(scene, scene.work, is_expected(agent))
    return calls.ppo(agent.folder, agent.yaml, keys, agent_folder(scene, agent))


def train(scene: Scene, some: list[Agent], chosen: dict[str, Keys]) -> None:
    """The runs, two side by side; of a run that has ended no checkpoint is kept. chosen: the settings of each way."""
    scene.run([job_of(scene, agent, chosen.get(agent.name, {})) for agent in some], side_by_side=True)
    for agent in some:
        shutil.rmtree(agent_folder(scene, agent) / agent.folder / "checkpoints", ignore_errors=True)


def train_ppo(scene: Scene) -> None:
    """All runs of PPO."""
    train(scene, agents(scene), chosen_settings(scene))


def reward_config(scene: Scene, folder: Path, models: Path | None = None) -> Path:
    """Write a YAML of PPO with everything in its place, for the rows of a table; its reward has the intent match."""
    path = folder / "reward.yaml"
    calls.write_yaml(path, SEED_PPO, policy_keys(scene) | paths(scene, models or scene.work, expected=False))
    return path


def benchmark(scene: Scene) -> None:
    """Our benchmark with the settings of OpenRL's documentation: a GPT-2 of 124 million random weights."""
    dtype = "bf16" if scene.plan["use_amp"] else "fp32"
    scene.run([calls.benchmark(scene.size.benchmark, dtype, scene.folder("speed"))])


def is_smollm2(scene: Scene) -> bool:
    """Whether the start is the model that `fetch` brings."""
    return scene.start(sizes.MODEL) == scene.pretrained(SMOLLM2)
