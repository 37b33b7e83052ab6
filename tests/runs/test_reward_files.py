"""The files behind a reward: which count, and what a resumed run says of those that changed."""

import importlib.util
import sys

import pytest

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.rewards.composite import build_reward
from rlhf_dialog.runs import checkpointing
from tests.parts.classifiers import save_classifier
from tests.parts.trainers import settings

CODE = """
from rlhf_dialog import BaseReward


class Short(BaseReward):
    name = "short"

    def __call__(self, dialogues):
        return [-len(d.response) / 100 for d in dialogues]
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """The file of a user's reward, registered as Short."""
    path = tmp_path / "my_reward.py"
    path.write_text(CODE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("my_reward", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "my_reward", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(RewardFactory.classes, "Short", module.Short)
    return path


def hashes(folder):
    parts = [{"id": "Short"}, {"id": "Meteor"}, {"id": "Intent", "args": {"intent_model": str(folder)}}]
    config = settings(reward_class={"id": "CompositeReward", "args": {"parts": parts}})
    return checkpointing.hash_reward_files(config, build_reward("CompositeReward", {"parts": parts}))


def test_the_users_code_and_the_small_files_of_a_model_count(code, tmp_path, monkeypatch):
    folder = tmp_path / "intent"
    save_classifier(folder)
    before = hashes(folder)
    small = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    assert set(before) == {"reward short: my_reward.py", *(f"{folder}/{name}" for name in small)}
    assert checkpointing.list_changed_files(before, before) == []
    code.write_text(CODE.replace("100", "99"), encoding="utf-8")
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ", encoding="utf-8")
    after = hashes(folder)
    assert checkpointing.list_changed_files(after, before) == ["reward short: my_reward.py", f"{folder}/config.json"]
    monkeypatch.setattr(checkpointing, "SMALL_FILE", (folder / "model.safetensors").stat().st_size - 1)
    assert f"{folder}/model.safetensors" not in hashes(folder)  # weights are compared elsewhere


@pytest.mark.parametrize("then", [None, {}, "text", {"another file": "1"}])
def test_a_checkpoint_that_knows_no_such_file_says_nothing(then):
    assert checkpointing.list_changed_files({"a": "1"}, then) == []


def test_a_class_without_a_file_has_no_code():
    space = {"__name__": "typed_in_a_shell"}
    exec("class Typed: pass", space)
    assert checkpointing.code_file(space["Typed"]) is None
