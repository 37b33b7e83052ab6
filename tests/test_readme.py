"""The README's commands name what exists, its snippets run, and the generated page is up to date."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

import rlhf_dialog.rewards  # noqa: F401
from rlhf_dialog.config import parse_arguments
from rlhf_dialog.dialogue import Dialogue
from rlhf_dialog.registry import RewardFactory, VecInfoFactory
from rlhf_dialog.rewards.composite import build_reward

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("command", commands())
def test_a_command_names_what_exists(command):
    words = command.split()
    if words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text()
        return
    assert words[0].endswith("python")
    assert (ROOT / words[1]).is_file()
    if words[1] == "train_ppo.py" or "--config" in words:
        config, _, _ = parse_arguments(words[2:], ())
        assert (ROOT / "configs" / config).is_file()
    else:
        source = (ROOT / words[1]).read_text() + (ROOT / "rlhf_dialog" / "chat.py").read_text()
        assert all(f'"{word}"' in source for word in words if word.startswith("--"))


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).is_file(), target


def test_extending_it_takes_the_snippets_as_they_stand():
    reward, metric = (block for block in blocks("python") if ".register(" in block)
    exec(reward, {})
    exec(metric, {})
    (text,) = blocks("yaml")
    alone, beside = (yaml.safe_load(part)["reward_class"] for part in text.split("# or beside others:\n"))
    dialogue = Dialogue(["Tea ?"], response="Yes , thanks .", reference="Yes , thanks .")
    assert build_reward(alone["id"], alone["args"])([dialogue]) == [1.0]
    assert build_reward(beside["id"], beside["args"])([dialogue]) == [pytest.approx(0.8, abs=0.05)]

    class TwoDialogues(list):
        dialogues = property(lambda self: self)

    rollout = TwoDialogues([Dialogue([], "Why ?"), Dialogue([], "No .")])
    assert VecInfoFactory.create("QuestionShare", {})(rollout) == {"response/questions": 0.5}
    del RewardFactory.classes["Politeness"], VecInfoFactory.classes["QuestionShare"]


def test_config_page_is_what_the_script_writes():
    spec = importlib.util.spec_from_file_location("write_config_docs", ROOT / "scripts" / "write_config_docs.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    written = (ROOT / "docs" / "CONFIG.md").read_text(encoding="utf-8")
    assert written == script.page(), "run python scripts/write_config_docs.py"
