"""The stages that train on a pretrained model: SFT, settings to choose from, and PPO in two ways."""

import shutil
from pathlib import Path
from typing import Any

from experiments.dailydialog import calls, sizes, training
from experiments.dailydialog.calls import Job, run_jobs
from experiments.dailydialog.pretrained import dialogues
from experiments.dailydialog.sizes import GAE, RLOO, SEED_PPO, SMOLLM2, Agent, Keys
from experiments.dailydialog.work import Work
from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.json_files import read_json

WAYS = (RLOO, GAE)
SETTING, SETTING_SEED = "setting", 3  # a seed that is in no table
WORD_PROMPTS = 400  # of validation, for the loss in nats a word
CHOSEN_SETTING = "setting.json"


def agents(work: Work, name: str | None = None) -> list[Agent]:
    """The runs of PPO, or those of one way; without instructions for bfloat16 one seed of each."""
    some = [agent for agent in work.size.agents if not (work.plan.reduced and agent.seed)]
    return [agent for agent in some if name in (None, agent.name)]


def first_agents(work: Work) -> list[Agent]:
    """The first run of each way."""
    return [agents(work, name)[0] for name in WAYS]


def setting_agents(work: Work, name: str | None = None) -> list[Agent]:
    """A run with each of the settings, of both ways or of one."""
    return [
        Agent(f"{SETTING}_{agent.name}_{number}", SETTING_SEED, SEED_PPO, agent.keys | keys)
        for agent in first_agents(work)
        if name in (None, agent.name)
        for number, keys in enumerate(work.size.settings[agent.name], start=1)
    ]


def way_of(agent: Agent) -> str:
    return str(agent.keys["advantage_estimator"])


def is_expected(agent: Agent) -> bool:
    """Whether the run is paid the expectation of the intent match, which has less noise than the match itself."""
    return way_of(agent) == RLOO


def agent_folder(work: Work, agent: Agent) -> Path:
    """The stage's folder in which the run is."""
    return work.folder("settings" if agent.name.startswith(SETTING) else "ppo")


def read_model(work: Work, stage: str, program: str, changes: dict[str, Any]) -> Job:
    """A program of this package that reads a model and writes `PROGRAM.json` in the stage's folder."""
    folder, name = work.folder(stage), program.rpartition(".")[2]
    plan = {
        "output": str(folder / f"{name}.json"),
        "data": str(work.data),
        "context_size": policy_keys(work)["context_size"],
    }
    replace_json(folder / f"{name}.plan.json", plan | changes)
    return calls.program(program, folder / f"{name}.plan.json", folder / f"{name}.log", folder / f"{name}.json")


def train_sft(work: Work) -> None:
    """The fine-tuned model, and its loss in nats a word beside the one before."""
    dialogues.write(work)
    training.train_supervised(work, "sft")
    policy = policy_keys(work)
    reading = {name: policy[name] for name in ("context_size", "max_prompt_length")}
    reading |= {"data_path": str(work.data), "max_eval_prompts": WORD_PROMPTS}
    words: dict[str, Any] = {
        "model": str(work.model("sft")),
        "keys": reading,
        "pretrained": str(work.start(sizes.MODEL)),
        "prompts": WORD_PROMPTS,
    }
    run_jobs([read_model(work, "sft", "words", words)])


def policy_keys(work: Work) -> Keys:
    """How the models are asked and answer."""
    return sizes.POLICY | work.small("ppo")


def chosen_settings(work: Work) -> dict[str, Keys]:
    """What validation has chosen for each way."""
    path = work.folder("settings") / CHOSEN_SETTING
    chosen: dict[str, Keys] = read_json(path, end="; remove it, and run again")["keys"]
    return chosen


def ppo_keys(work: Work, agent: Agent) -> Keys:
    """What is changed in the YAML of a run, without paths."""
    is_setting = agent.name.startswith(SETTING)
    keys: Keys = {
        "seed": agent.seed,
        "total_time_steps": work.setting_tokens if is_setting else work.tokens,
        "sample_interval": 0,
        "save_interval": 2,
        "keep_checkpoints": 1,
        "precision": "bf16" if work.plan.use_amp else "fp32",
    }
    return keys | agent.keys | work.small("ppo")


def paths(work: Work, expected: bool) -> Keys:
    """Where the data, the start and the reward of a run are."""
    args = {"intent_model": str(work.model("intent"))}
    if expected:
        args |= {"intent_score": "expected", "act_model": str(work.model("next_act"))}
    found: Keys = {"model_path": str(work.model("sft")), "env.args.data_path": str(work.data)}
    return found | {f"reward_class.args.{name}": value for name, value in args.items()}


def job_of(work: Work, agent: Agent, setting: Keys) -> Job:
    keys = ppo_keys(work, agent) | setting | paths(work, is_expected(agent))
    return calls.ppo(agent.folder, agent.yaml, keys, agent_folder(work, agent))


def train(work: Work, some: list[Agent], chosen: dict[str, Keys]) -> None:
    """The runs, two side by side; of a run that has ended no checkpoint is kept. chosen: the settings of each way."""
    run_jobs([job_of(work, agent, chosen.get(agent.name, {})) for agent in some], side_by_side=True)
    for agent in some:
        shutil.rmtree(agent_folder(work, agent) / agent.folder / "checkpoints", ignore_errors=True)


def train_ppo(work: Work) -> None:
    """All runs of PPO."""
    train(work, agents(work), chosen_settings(work))


def reward_config(work: Work, folder: Path) -> Path:
    """Write a YAML of PPO with everything in its place, for the rows of a table; its reward has the intent match."""
    path = folder / "reward.yaml"
    calls.write_yaml(path, SEED_PPO, policy_keys(work) | paths(work, expected=False))
    return path


def benchmark(work: Work) -> None:
    """Our benchmark with the settings of OpenRL's documentation: a GPT-2 of 124 million random weights."""
    dtype = "bf16" if work.plan.use_amp else "fp32"
    run_jobs([calls.benchmark(work.size.benchmark, dtype, work.folder("speed"))])


def is_smollm2(work: Work) -> bool:
    """Whether the start is the model that `fetch` brings."""
    return work.start(sizes.MODEL) == work.pretrained(SMOLLM2)
