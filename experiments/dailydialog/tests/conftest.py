"""What rows and draws are made of."""

import pytest
import yaml

from tests.parts import tiny

REWARD = {"id": "CompositeReward", "args": {"parts": [{"id": "CopyPrice"}, {"id": "Meteor", "weight": 2.0}]}}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with two models, dialogues, and the YAML of a reward."""
    root = tmp_path_factory.mktemp("world")
    for name, seed in (("start", 0), ("agent", 1)):
        tiny.gpt2(seed=seed).save_pretrained(root / name)
        tiny.byte_tokenizer().save_pretrained(root / name)
    data = str(tiny.write_data(root / "data", 6))
    config = {"model_path": str(root / "start"), "env": {"args": {"data_path": data}}, "reward_class": REWARD}
    (root / "reward.yaml").write_text(yaml.safe_dump({**config, "max_new_tokens": 7}))
    return root
