"""docs/POLICIES.md: its programs run, and its table has the defaults."""

import inspect
import json
import re
from pathlib import Path

import pytest

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.task_oriented.policies.base import PolicyFactory
from rlhf_dialog.task_oriented.policies.built_in import BUILT_IN
from rlhf_dialog.task_oriented.policies.ppo import PPO
from rlhf_dialog.task_oriented.runs.settings import PolicyConfig, load_policy_config
from rlhf_dialog.task_oriented.world.action_list_world import ActionList, StateFactory, StateFunction

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/POLICIES.md").read_text(encoding="utf-8")
PROGRAMS = (ROOT / "experiments/results/person.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE + PROGRAMS, re.DOTALL | re.MULTILINE)


def block_of(language: str, word: str) -> str:
    """The block of the page that contains the word."""
    (found,) = (block for block in blocks(language) if word in block)
    return found


def shown_by(code: str) -> str:
    """What the page shows behind a program."""
    return PAGE.split(f"```python\n{code}```\n```\n")[1].split("```")[0]


def program(word: str) -> str:
    """The program of the page that contains the word."""
    return block_of("python", word)


@pytest.mark.slow
def test_an_environment_of_ones_own_is_trained_in_and_measured(tmp_path, monkeypatch, capsys):
    from rlhf_dialog.task_oriented.commands import evaluate_policy, train_policy

    (tmp_path / "my_environment.py").write_text(program("# my_environment.py"), encoding="utf-8")
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
    loop = program("policy = PPO")
    exec(compile(loop.replace("512", "32").replace("range(50)", "range(4)"), "POLICIES.md", "exec"), {})
    assert 0 <= float(capsys.readouterr().out) <= 1


def test_the_measurement_of_gp_sarsa_runs():
    namespace: dict = {}
    exec(compile(program("def learned"), "POLICIES.md", "exec"), namespace)
    found = namespace["learned"](0, dialogues=3, error_rate=0.15, tests=4, wrong_rewards=0.5)
    assert set(found) == {"success", "reward", "turns"}
    assert 0 <= found["success"] <= 1


def test_the_lookup_behind_a_policy_runs(capsys):
    code = program("# look_up.py")
    exec(compile(code, "POLICIES.md", "exec"), {})
    assert capsys.readouterr().out == shown_by(code)
    exec(compile(program("# wiki.py"), "POLICIES.md", "exec"), {})


def test_the_topic_manager_runs_in_a_terminal(monkeypatch, capsys):
    code = program("topics.hear")
    turns = iter(re.findall(r"^> (.*)$", shown_by(code), re.MULTILINE))

    def typed(prompt: str) -> str:
        turn = next(turns)
        print(f"{prompt}{turn}")
        return turn

    monkeypatch.setattr("builtins.input", typed)
    exec(compile(code, "POLICIES.md", "exec"), {})
    assert capsys.readouterr().out == shown_by(code)


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


def test_the_arguments_of_ppo_are_all_named():
    text = PAGE[PAGE.index("`policy.args`") :].split("\n\n")[0]
    assert set(inspect.signature(PPO).parameters) - {"setting"} == set(re.findall(r"`(\w+)`", text))


@pytest.mark.parametrize("row", re.findall(r"^\| (\w+) \| [^|]+ \| ([^|]+) \| [\d., ]+ \|$", PAGE, re.MULTILINE))
def test_the_arguments_of_the_learners_from_replay_are_theirs(row):
    text = PAGE[PAGE.index("All take `hidden_sizes`") :].split("\n\n")[0]
    common = set(re.findall(r"`(\w+)`", text)) - (
        {"lr", "capacity", "in_memory", "max_grad_norm"} if row[0] == "enac" else set()
    )
    others = {"tracer": re.search(r"^\| a2c \|.*$", PAGE, re.MULTILINE)[0]}
    named = set(re.findall(r"`(\w+)`", row[1] + others.get(row[0], "")))
    assert row[0] in BUILT_IN
    assert set(inspect.signature(PolicyFactory.find(row[0])).parameters) == {"setting"} | common | named


def test_the_measurement_of_learned_answers_runs():
    namespace: dict = {}
    exec(compile(program("def right_answers"), "POLICIES.md", "exec"), namespace)
    for name, args in (("gp_sarsa", namespace["GP"]), ("dqn", namespace["DQN"] | {"steps_per_dialogue": 1})):
        assert all(0 <= share <= 1 for share in namespace["right_answers"](name, args, rewards=6))


def test_the_settings_of_the_measurement_are_those_that_ship():
    shipped = load_policy_config(ROOT / "configs/actions.yaml")
    namespace: dict = {}
    exec(compile(program("def right_answers"), "POLICIES.md", "exec"), namespace)
    assert (shipped.policy.id, shipped.policy.args) == ("gp_sarsa", namespace["GP"])


def test_a_state_of_ones_own_has_always_the_same_size(monkeypatch):
    monkeypatch.setattr(StateFactory, "classes", dict(StateFactory.classes))
    exec(compile(program("def question_or_not"), "my_state.py", "exec"), {})
    state = StateFunction("question_or_not", {})
    assert state([("", "Hi"), ("hello", "When do you open?")]).tolist() == pytest.approx([1, 1, 0, 0.2])
    assert state.size == 4


def test_the_list_of_actions_on_the_page_can_be_used():
    (listed,) = (json.loads(block) for block in blocks("json"))
    assert ActionList(listed, "POLICIES.md").names == ["hello", "ask_genre", "recommend", "again", "goodbye"]
