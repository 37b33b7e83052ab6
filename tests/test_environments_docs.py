"""docs/ENVIRONMENTS.md: its programs run, and its domain loads."""

import re
import shlex
from pathlib import Path

import yaml

from experiments.users.command import USERS, CompareUsersOptions
from rlhf_dialog.commands.options import parse_options
from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.models.chat_agent import AgentSettings
from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.world.act_level import ActLevel
from tests.parts.small_world import write_world

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/ENVIRONMENTS.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def block_with(text: str, language: str = "python") -> str:
    [found] = [block for block in blocks(language) if text in block]
    return found


def test_the_dialogues_by_acts_and_in_words(capsys):
    for number, ending in ((0, "{'constraints': "), (2, "")):
        exec(blocks("python")[number], {})
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("user:   ")
        assert lines[-1].startswith(ending)
    assert lines[1].startswith("[db] ")
    assert lines[-1].endswith("-1.0 False")


def test_the_dialogue_about_several_domains(tmp_path, capsys):
    program = block_with("MultiActLevel").replace('"DIR"', repr(str(write_world(tmp_path))))
    exec(program, {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("user:   ")
    assert "bye()" in lines[-3]
    assert " True {'precision': " in lines[-1]


def test_the_user_of_a_real_dialogue(capsys):
    exec(block_with("CorpusUser"), {})
    assert capsys.readouterr().out == "Is it far ? | Two streets .\nThen I will walk . | Goodbye .\n"


def test_the_users_of_the_yaml_and_the_commands():
    settings = yaml.safe_load(block_with("language_model_user", "yaml"))
    assert EnvironmentFactory.problem(settings["id"], settings["args"]) is None
    assert set(settings["args"]) - {"model", "persona", "goals", "max_turns"} <= set(AgentSettings.model_fields)
    assert set(re.findall(r"^\| `(\w+)` \| (?:the agenda|the same|`--model`|other)", PAGE, re.MULTILINE)) == set(USERS)
    commands = [line for line in "".join(blocks("bash")).splitlines() if "experiments.users" in line]
    assert [parse_options(CompareUsersOptions, shlex.split(line)[3:]).users for line in commands] == [
        ("agenda", "corpus"),
        ("language_model", "corpus"),
    ]


def test_the_domain_loads(tmp_path):
    path = tmp_path / "tea.json"
    path.write_text(blocks("json")[0])
    assert ActLevel(path).action_space.n == 2 * 3 + 7
    assert load_domain(path).type == "cafe"
