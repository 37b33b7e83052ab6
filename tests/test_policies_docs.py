"""docs/POLICIES.md: its programs run, and its table has the defaults."""

import json
import re
from pathlib import Path

import pytest

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.task_oriented.runs.settings import PolicyConfig
from rlhf_dialog.task_oriented.world.action_list_world import StateFactory, StateFunction

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/POLICIES.md").read_text(encoding="utf-8")
PROGRAMS = (ROOT / "experiments/results/person.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE + PROGRAMS, re.DOTALL | re.MULTILINE)


def block_of(language: str, word: str) -> str:
    """The block of the page that contains the word."""
    (found,) = (block for block in blocks(language) if word in block)
    return found


def run(word: str) -> dict:
    """What the program that contains the word has defined in the end."""
    namespace: dict = {}
    exec(block_of("python", word), namespace)
    return namespace


def shown_by(word: str) -> str:
    """What the page shows behind the program."""
    return PAGE.split(f"```python\n{block_of('python', word)}```\n```\n")[1].split("```")[0]


@pytest.mark.slow
def test_an_environment_of_ones_own_is_trained_in_and_measured(tmp_path, monkeypatch, capsys):
    from rlhf_dialog.task_oriented.commands import evaluate_policy, train_policy

    (tmp_path / "my_environment.py").write_text(block_of("python", "# my_environment.py"), encoding="utf-8")
    (tmp_path / "guess.yaml").write_text(block_of("yaml", "GuessTheNumber"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(EnvironmentFactory, "classes", dict(EnvironmentFactory.classes))
    register = ["--register", "my_environment.py"]
    words = ["--config", "guess.yaml", "--eval_dialogues", "20", "--epoch", "6", "--batchsz", "256"]
    assert train_policy.main([*words, *register]) == 0
    assert evaluate_policy.main(["--agent", "runs/guess/agent", "--dialogues", "100", "--trust_config", *register]) == 0
    found = json.loads((tmp_path / "runs/guess/evaluation.json").read_text(encoding="utf-8"))
    assert found["difference_from_random"]["reward"]["low"] > 0
    assert "agent - random" in " ".join(capsys.readouterr().out.split())


def test_the_loop_runs(capsys):
    loop = block_of("python", "policy = PPO")
    exec(loop.replace("512", "32").replace("range(50)", "range(4)"), {})
    assert 0 <= float(capsys.readouterr().out) <= 1


def test_the_measurements_run():
    found = run("def learned")["learned"](0, dialogues=3, error_rate=0.15, tests=4, wrong_rewards=0.5)
    assert set(found) == {"success", "reward", "turns"}
    assert 0 <= found["success"] <= 1
    answers = run("def right_answers")
    for name, args in (("gp_sarsa", answers["GP"]), ("dqn", answers["DQN"] | {"steps_per_dialogue": 1})):
        assert all(0 <= share <= 1 for share in answers["right_answers"](name, args, rewards=6))


def test_the_lookup_behind_a_policy_runs(capsys):
    run("# look_up.py")
    assert capsys.readouterr().out == shown_by("# look_up.py")
    run("# wiki.py")


def test_the_program_for_several_domains_runs(tmp_path, monkeypatch):
    from tests.parts.small_world import write_world

    monkeypatch.chdir(tmp_path)
    (tmp_path / "DIR").mkdir()
    write_world(tmp_path / "DIR")
    run("make_abstraction(domain)")
    found = json.loads((tmp_path / "slots.json").read_text(encoding="utf-8"))
    assert set(found) == {"restaurant", "hotel"}


def test_the_topic_manager_runs_in_a_terminal(monkeypatch, capsys):
    turns = iter(re.findall(r"^> (.*)$", shown_by("topics.hear"), re.MULTILINE))

    def typed(prompt: str) -> str:
        turn = next(turns)
        print(f"{prompt}{turn}")
        return turn

    monkeypatch.setattr("builtins.input", typed)
    run("topics.hear")
    assert capsys.readouterr().out == shown_by("topics.hear")


def shown(value: object) -> str:
    """A default as the table writes it."""
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(getattr(value, "id", str(value).lower()))


def test_the_table_has_the_defaults():
    rows = dict(re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert len(rows) > 10
    defaults = {row: [getattr(PolicyConfig(), key) for key in re.findall(r"`(\w+)[^`]*`", row)] for row in rows}
    assert {row: ", ".join(map(shown, values)) for row, values in defaults.items()} == rows


def test_a_state_of_ones_own_has_always_the_same_size(monkeypatch):
    monkeypatch.setattr(StateFactory, "classes", dict(StateFactory.classes))
    run("def question_or_not")
    state = StateFunction("question_or_not", {})
    assert state([("", "Hi"), ("hello", "When do you open?")]).tolist() == pytest.approx([1, 1, 0, 0.2])
    assert state.size == 4
