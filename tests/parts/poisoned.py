"""Model folders that would do harm, and a secret that must not be seen."""

import json
from pathlib import Path

import pytest
import yaml

from tests.parts import agents, tiny

MARKER = "SECRETmarker0123456789abcdefghijklmnopqrs"  # 41 characters


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def went_off(tmp_path):
    """The file that a bomb leaves."""
    return tmp_path / "went_off"


@pytest.fixture
def folder(tmp_path):
    """A whole model with its tokenizer."""
    return agents.save(tmp_path / "model")


def edit(path: Path, **values) -> None:
    """Change keys of a JSON file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(data | values), encoding="utf-8")


def with_code(folder: Path, went_off: Path) -> None:
    """Let model and tokenizer of the folder ask for code of their own."""
    auto = {"AutoConfig": "odd.Odd", "AutoModelForCausalLM": "odd.Odd", "AutoTokenizer": ["odd.Odd", None]}
    edit(folder / "config.json", model_type="odd", auto_map=auto)
    edit(folder / "tokenizer_config.json", tokenizer_class="Odd", auto_map={"AutoTokenizer": ["odd.Odd", None]})
    (folder / "odd.py").write_text(f"open({str(went_off)!r}, 'w')\nclass Odd: pass\n", encoding="utf-8")


def write_run(tmp_path: Path, folder: Path, **values) -> Path:
    settings = {
        "model_path": str(folder),
        "env": {"args": {"data_path": str(tiny.write_data(tmp_path / "data", 6))}},
        "reward_class": {"id": "LengthMatch"},
        **{"rollout_batch_size": 4, "num_mini_batch": 2, "ppo_epoch": 1, "max_new_tokens": 5, "max_prompt_length": 40},
        **{"max_iterations": 1, "device": "cpu", "pytorch_threads": 1},
    }
    (tmp_path / "ppo.yaml").write_text(yaml.safe_dump(settings | values), encoding="utf-8")
    return tmp_path / "ppo.yaml"
