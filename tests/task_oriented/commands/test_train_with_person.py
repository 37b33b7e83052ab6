"""train-policy with a person: what the terminal shows, and how the program ends."""

import io
import signal

import pytest
import yaml

from rlhf_dialog.task_oriented.commands import evaluate_policy, train_policy
from rlhf_dialog.task_oriented.world.states import StateFactory
from tests.parts.persons import ASKED, GOOD
from tests.parts.policy_runs import domain_file


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tea.yaml"
    keys = {"domain": str(domain_file(tmp_path)), "user": "person", "run_dir": str(tmp_path / "runs")}
    path.write_text(yaml.safe_dump(keys | {"policy": {"id": "gp_sarsa"}}), encoding="utf-8")
    return str(path)


def test_a_day_in_the_terminal_and_the_next_one(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*GOOD[:-1], "30", "20", ""])))
    assert train_policy.main(["--config", config]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[1].startswith("Your reward at its end, from -20 (bad) to 20 (good)")
    assert "/quit, Ctrl-D or Ctrl-C ends the day" in lines[2]
    assert lines[3].startswith("day 1: no dialogue yet; gp_sarsa learns in ")
    assert "'30' is not a reward" in shown
    assert lines[-1].startswith("1 dialogue kept in ")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert train_policy.main(["--config", config, "--resume", "auto"]) == 0
    assert "1 dialogue so far, 1 of them rewarded" in capsys.readouterr().out


def test_the_agent_is_measured_with_simulated_users(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*GOOD, ""])))
    assert train_policy.main(["--config", config]) == 0
    agent = ["--agent", str(tmp_path / "runs" / "tea" / "agent"), "--dialogues", "3"]
    assert evaluate_policy.main(agent) == 2
    assert "measure with a simulated user, --user friendly" in capsys.readouterr().err
    assert evaluate_policy.main([*agent, "--user", "friendly"]) == 0


def test_ctrl_c_at_a_prompt_is_the_end_of_the_day(config, monkeypatch, capsys):
    typed = iter(GOOD)

    def read(prompt):
        line = next(typed, None)
        if line is None:
            signal.raise_signal(signal.SIGINT)
        return line

    monkeypatch.setattr("rlhf_dialog.task_oriented.commands.train_with_person.read_text", read)
    assert train_policy.main(["--config", config]) == 130
    assert "1 dialogue kept in " in capsys.readouterr().out


def test_a_list_of_actions_and_a_state_of_the_users_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "own.py").write_text(
        "from rlhf_dialog.task_oriented.world.states import StateFactory\n"
        "StateFactory.register('longer', lambda turns, than=1: [float(len(turns) > than), 1.0])\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(StateFactory, "classes", dict(StateFactory.classes))
    words = ["--config", "actions.yaml", "--run_dir", str(tmp_path), "--register", str(tmp_path / "own.py")]
    words += ["--domain.state.id", "longer", "--domain.state.args.than", "2"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*ASKED, ""])))
    assert train_policy.main(words) == 0
    shown = capsys.readouterr().out
    assert "Your reward for each answer, from -1 (bad) to 1 (good)" in shown
    assert "gp_sarsa learns in " in shown
    assert "2 dialogues kept in " in shown
    assert train_policy.main([*words[:-1], "3"]) == 2
    assert "was trained on an earlier state of it" in capsys.readouterr().err
    assert evaluate_policy.main(["--agent", str(tmp_path / "actions" / "agent")]) == 2
    assert "only people talk about a list of actions" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--error_rate", "0.1"], "leave error_rate and imitation_dialogues out"),
        (["--rewards", "[3, 1]"], "rewards: the first number is the lowest reward, found [3.0, 1.0]"),
        (["--reward_after", "week"], "reward_after: found 'week', wanted 'dialogue' or 'turn'"),
        (["--domain", "{actions: nowhere.json}"], "domain.actions: there is no file 'nowhere.json'"),
        (["--policy", "gp_sarse"], "unknown policy 'gp_sarse'"),
    ],
)
def test_a_mistake_ends_with_code_2(config, words, said, capsys):
    assert train_policy.main(["--config", config, *words]) == 2
    assert said in capsys.readouterr().err
