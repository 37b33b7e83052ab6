"""What a tiny simulated month is made of."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.parts.taught_bots import SETTINGS
from tests.parts.tiny import byte_tokenizer, gpt2

SCRIPTS = [
    ["Hello .", "Who is there ?", "It is me .", "Come in , please .", "Thank you .", "You are very welcome ."],
    ["Is it far ?", "Two streets from here .", "Where is the bus ?", "Behind you .", "Thanks ."],
]
KEYS: dict[str, Any] = {
    "nights": 2,
    "eval_prompts": 5,
    "dialogues_per_night": 30,
    "max_new_tokens": 5,
    "taste": {"max_words": 1},
    "feedback_share": 1,
    "learning": SETTINGS,
}


@pytest.fixture(scope="session")
def month_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an agent and data."""
    folder = tmp_path_factory.mktemp("inputs")
    gpt2(0, n_embd=16, n_layer=1, n_positions=128).save_pretrained(folder / "agent")
    byte_tokenizer().save_pretrained(folder / "agent")
    (folder / "data").mkdir()
    for split in ("train", "validation", "test"):
        rows = [json.dumps({"dialog": script}) for script in SCRIPTS]
        (folder / "data" / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def month_keys(inputs: Path, output: Path, **keys: Any) -> dict[str, Any]:
    """The keys of a month with these inputs."""
    where = {"agent": str(inputs / "agent"), "data_path": str(inputs / "data"), "output": str(output)}
    return where | KEYS | keys
