"""DeepSpeed configurations of a test."""

import json
from pathlib import Path

from rlhf_dialog.config.schema import Config

ZERO3 = {"stage": 3, "stage3_param_persistence_threshold": 0}


def write_json(folder: Path, zero: dict, **blocks) -> str:
    path = folder / f"zero{len(list(folder.glob('zero*.json')))}.json"
    path.write_text(json.dumps({"zero_optimization": zero, **blocks}))
    return str(path)


def config(folder: Path | None = None, args: dict | None = None, **keys) -> Config:
    reward = {"id": "NLPReward", "args": {"intent_coef": 0, **(args or {})}}
    raw = {"model_path": "m", "env": {"args": {"data_path": "d"}}, "reward_class": reward, "device": "cpu"}
    made = Config.model_validate(raw | {"use_deepspeed": True} | keys)
    made._folder = folder
    return made
