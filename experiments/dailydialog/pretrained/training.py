"""The stages that train on a pretrained model: two rewards, settings to choose from, and PPO."""

import shutil
from pathlib import Path
from typing import Any

from experiments.dailydialog import calls, sizes, training
from experiments.dailydialog.jobs import Job
from experiments.dailydialog.scene import Scene
from experiments.dailydialog.sizes import SMOLLM2, A, Agent, B, Keys
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.config.loading import read_yaml, shipped_folder
from rlhf_dialog.json_files import read_json

SETTING, SETTING_SEED = "setting", 3  # a seed that is in no table
WORD_PROMPTS = 400  # of validation, for the loss in nats a word
FLOOR_PROMPTS = 200
CHOSEN_SETTING = "setting.json"


def agents(scene: Scene, name: str | None = None) -> list[Agent]:
    """The runs of PPO, or those of one name; without instructions for bfloat16 a single one of A."""
    some = scene.size.agents[:1] if scene.plan["reduced"] else scene.size.agents
    return [agent for agent in some if name in (None, agent.name)]


def setting_agents(scene: Scene) -> list[Agent]:
    """A run of A with each of the settings."""
    first = scene.size.agents[0]
    return [
        Agent(f"{SETTING}_{number}", SETTING_SEED, first.yaml, {**first.keys, **keys})
        for number, keys in enumerate(scene.size.settings, start=1)
    ]


def agent_folder(scene: Scene, agent: Agent) -> Path:
    """The stage's folder in which the run is."""
    return scene.folder("settings" if agent.name.startswith(SETTING) else agent.name)


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
    """The fine-tuned model, its loss in nats a word beside the one before, and the floor of the likelihood price under it."""
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
    }
    words |= {"prompts": WORD_PROMPTS}
    floor: dict[str, Any] = {"model": str(scene.model("sft")), "prompts": FLOOR_PROMPTS, "tokens": price_tokens()}
    jobs = [read_model(scene, "sft", "words", words), read_model(scene, "sft", "pretrained.floor", floor)]
    scene.run(jobs)


def policy_keys(scene: Scene) -> Keys:
    """How the models are asked and answer."""
    return scene.size.agents[0].keys | scene.small("ppo")


def price_tokens() -> int:
    """The tokens of a reply that the likelihood price of B reads."""
    parts = read_yaml(shipped_folder("configs") / sizes.PPO)["reward_class"]["args"]["parts"]
    return next(int(part["args"]["tokens"]) for part in parts if part["id"] == "LikelihoodPrice")


def chosen_setting(scene: Scene) -> Keys:
    """What validation has chosen."""
    keys: Keys = read_json(scene.folder("settings") / CHOSEN_SETTING, end="; begin again with --again settings")["keys"]
    return keys


def ppo_keys(scene: Scene, agent: Agent, setting: Keys) -> Keys:
    """What is changed in the YAML of a run, without paths."""
    tokens = {A: "tokens", B: "tokens_b"}.get(agent.name, "setting_tokens")
    keys: Keys = {
        "seed": agent.seed,
        "total_time_steps": scene.plan[tokens],
        "sample_interval": 0,
        "save_interval": 2,
        "keep_checkpoints": 1,
        "precision": "bf16" if scene.plan["use_amp"] else "fp32",
    }
    return keys | agent.keys | setting | scene.small("ppo")


def ppo_settings(scene: Scene, name: str) -> dict[str, Any]:
    """What decides the runs of A or B."""
    setting = chosen_setting(scene)
    found = {agent.folder: _decides(scene, agent, setting) for agent in agents(scene, name)}
    return found | ({"floor": price_floor(scene)} if name == B else {})


def settings_settings(scene: Scene) -> dict[str, Any]:
    """What decides the settings to choose from."""
    found: dict[str, Any] = {agent.folder: _decides(scene, agent, {}) for agent in setting_agents(scene)}
    return found | {"prompts": scene.plan["validation_prompts"]}


def _decides(scene: Scene, agent: Agent, setting: Keys) -> dict[str, Any]:
    return {"yaml": read_yaml(shipped_folder("configs") / agent.yaml), "keys": ppo_keys(scene, agent, setting)}


def price_floor(scene: Scene) -> float:
    """The floor of the likelihood price under the SFT model."""
    return float(read_json(scene.folder("sft") / "floor.json")["floor"])


def paths(scene: Scene, agent: Agent, models: Path, floor: float | None) -> Keys:
    """Where the data, the start and the reward of a run are. models: the folder with those of the stages."""
    if agent.yaml == sizes.SEED_PPO:
        start = {"model_path": str(models / "sft/model"), "env.args.data_path": str(scene.data)}
        return start | {"reward_class.args.intent_model": str(models / "intent/model")}
    found = training.ppo_paths(scene, agent, models)
    for part in found["reward_class"]["args"]["parts"]:
        if part["id"] == "LikelihoodPrice" and floor is not None:
            part["args"]["floor"] = floor
    return found


def job_of(scene: Scene, agent: Agent, setting: Keys) -> Job:
    floor = price_floor(scene) if agent.name == B else None
    keys = ppo_keys(scene, agent, setting) | paths(scene, agent, scene.work, floor)
    return calls.ppo(agent.folder, agent.yaml, keys, agent_folder(scene, agent))


def train(scene: Scene, some: list[Agent], setting: Keys) -> None:
    """The runs one after another, with all cores; of a run that has ended no checkpoint is kept."""
    scene.run([job_of(scene, agent, setting) for agent in some])
    for agent in some:
        shutil.rmtree(agent_folder(scene, agent) / agent.folder / "checkpoints", ignore_errors=True)


def train_ppo(scene: Scene, name: str) -> None:
    """The runs of A or B, if there are any."""
    train(scene, agents(scene, name), chosen_setting(scene))


def reward_config(scene: Scene, folder: Path, agent: Agent, models: Path | None = None) -> Path:
    """Write the YAML of a run with everything in its place, for the rows of a table."""
    path, floor = folder / f"{agent.name}.yaml", None if models or agent.name != B else price_floor(scene)
    calls.write_yaml(
        path, agent.yaml, agent.keys | scene.small("ppo") | paths(scene, agent, models or scene.work, floor)
    )
    return path


def benchmark(scene: Scene) -> None:
    """Our benchmark with the settings of OpenRL's documentation: a GPT-2 of 124 million random weights."""
    dtype = "bf16" if scene.plan["use_amp"] else "fp32"
    scene.run([calls.benchmark(scene.size.benchmark, dtype, scene.folder("speed"))])


def is_smollm2(scene: Scene) -> bool:
    """Whether the start is the model that `fetch` brings."""
    return scene.start(sizes.MODEL) == scene.pretrained(SMOLLM2)
