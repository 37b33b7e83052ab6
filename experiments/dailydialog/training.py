"""The stages that train: the supervised models, PPO, and what is trained on draws of the SFT model."""

import json
from pathlib import Path
from typing import Any

from experiments.dailydialog import calls, sizes
from experiments.dailydialog.calls import Job, run_jobs
from experiments.dailydialog.sizes import Agent, Keys, Size
from experiments.dailydialog.work import Work
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


def supervised_keys(work: Work, stage: str) -> Keys:
    """What is changed in the YAML, without paths."""
    keys = work.size.supervised[stage].keys
    if stage in SLOW_AMP:
        keys = keys | {"use_amp": work.plan.use_amp}
    return keys | work.small(stage)


def supervised_job(work: Work, stage: str) -> Job:
    trained, keys = work.size.supervised[stage], supervised_keys(work, stage)
    data = work.dialogues / trained.data if trained.data else work.data
    start = {"model_path": str(work.start(trained.start))} if trained.start else {}
    return calls.supervised(trained.command, trained.yaml, keys | {"data_path": str(data)} | start, work.folder(stage))


def train_supervised(work: Work, stage: str) -> None:
    """A model in the stage's folder."""
    run_jobs([supervised_job(work, stage)])


def train_sft(work: Work) -> None:
    """The SFT model, and its validation loss in nats a word."""
    train_supervised(work, "sft")
    folder, beside = work.folder("sft"), work.pretrained(sizes.SMOLLM2)
    given = {"model": str(work.model("sft")), "output": str(folder / "words.json")}
    pretrained = {"pretrained": beside and str(beside), "prompts": work.size.pretrained_prompts}
    replace_json(folder / "words.plan.json", given | pretrained)
    run_jobs([calls.program("words", folder / "words.plan.json", folder / "words.log", folder / "words.json")])


def ppo_keys(work: Work, agent: Agent) -> Keys:
    keys: Keys = {
        "seed": agent.seed,
        "total_time_steps": work.tokens,
        "sample_interval": 0,
        "save_interval": 2,
        "keep_checkpoints": KEPT if agent == work.size.agents[0] else 2,
    }
    if "num_responses_per_prompt" in agent.keys:  # of small sizes those of groups
        return keys | work.small("ppo") | agent.keys
    return keys | agent.keys | work.small("ppo")


def ppo_paths(work: Work, agent: Agent) -> Keys:
    """Where the data, the start and the reward of a run are; the reward is that of the shipped YAML of DailyDialog."""
    start = work.model("sft") if agent.start is None else work.pretrained(agent.start)
    reward = read_yaml(shipped_folder("configs") / sizes.PPO)["reward_class"]
    for part in reward["args"]["parts"]:
        if model := part.get("args", {}).get("model"):
            part["args"]["model"] = str(work.model(STAGE_OF[model]))
    return {"model_path": str(start), "env.args.data_path": str(work.data), "reward_class": reward}


def ppo_job(work: Work, agent: Agent) -> Job:
    keys = ppo_keys(work, agent) | ppo_paths(work, agent)
    return calls.ppo(agent.folder, agent.yaml, keys, work.folder("ppo"))


def train_ppo(work: Work) -> None:
    """All runs of PPO, two side by side."""
    run_jobs([ppo_job(work, agent) for agent in in_turn(work.size)], side_by_side=True)


def in_turn(size: Size) -> list[Agent]:
    """The runs of PPO as they begin: those of another start and those with a critic take longest, and come first."""
    return sorted(size.agents, key=lambda agent: (agent.start is None, "critic_lr" not in agent.keys))


def reward_config(work: Work, folder: Path) -> Path:
    """Write a YAML of PPO with the data, the start and the reward in their places, for commands that read one."""
    path, agent = folder / "reward.yaml", work.size.agents[0]
    calls.write_yaml(path, agent.yaml, work.small("ppo") | ppo_paths(work, agent))
    return path


def audit_reward(work: Work) -> None:
    """The holes of the reward, as far as an audit finds them; they are reported, and nothing depends on them."""
    folder, judge = work.folder("audit"), str(work.model("act_judge"))
    relevance = json.dumps({"id": "RelevanceReward", "args": {"model": str(work.model("judge_convolution"))}})
    config, judges = reward_config(work, folder), [judge, relevance]
    run_jobs([calls.audit(config, judges, work.pretrained(sizes.SMOLLM2), folder, work.size.audit)])


def _best_keys(work: Work) -> Keys:
    keys = {"epochs": 1, "learning_rate": LOW_RATE, "evals": 1, "patience": None, "drop_overlap": False}
    return keys | {"use_amp": work.plan.use_amp} | work.small("best_of_4")


def train_on_best(work: Work) -> None:
    """Draw, and fine-tune the SFT model on the best of its own replies."""
    folder = work.folder("best_of_4")
    plan: dict[str, Any] = {"model": str(work.model("sft")), "config": str(reward_config(work, folder))}
    plan |= {"tokens": work.tokens, "draws": DRAWS, "seed": 0, "folder": str(folder)}
    replace_json(folder / "draws.json", plan)
    run_jobs([calls.program("draws", folder / "draws.json", folder / "draws.log", folder / "drawn.json")])
    paths = {"model_path": str(work.model("sft")), "data_path": str(folder / "best")}
    run_jobs([calls.supervised("train-sft", sizes.SFT, _best_keys(work) | paths, folder)])


def train_dpo(work: Work) -> None:
    """DPO from the SFT model, on the best and the worst of its draws."""
    folder = work.folder("dpo")
    yaml = read_yaml(shipped_folder("configs") / sizes.SFT)
    plan = {"model": str(work.model("sft")), "pairs": str(work.folder("best_of_4") / "pairs.jsonl")}
    keys: Keys = {"learning_rate": LOW_RATE, "beta": 0.1, "batch_size": 16, "seed": 0} | work.small("dpo")
    keys |= {"separator": "<EOU>", "max_prompt_length": yaml["max_prompt_length"]}
    replace_json(folder / "dpo.json", plan | keys | {"output": str(work.model("dpo"))})
    run_jobs([calls.program("dpo", folder / "dpo.json", folder / "log.txt", work.model("dpo"))])
