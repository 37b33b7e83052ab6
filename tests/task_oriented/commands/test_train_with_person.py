"""The commands that talk with a person."""

import io
import json
import signal

import pytest
import yaml

from rlhf_dialog.commands import chat
from rlhf_dialog.commands.chat_screen import Screen
from rlhf_dialog.task_oriented.commands import evaluate_policy, train_policy
from rlhf_dialog.task_oriented.commands.chat_environment import build_environment, converse_about_a_goal
from rlhf_dialog.task_oriented.world.action_list_world import StateFactory
from tests.parts.persons import ASKED, GOOD
from tests.parts.policy_runs import domain_file
from tests.parts.small_domain import DATA


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tea.yaml"
    keys = {"domain": str(domain_file(tmp_path)), "user": "person", "run_dir": str(tmp_path / "runs")}
    path.write_text(yaml.safe_dump(keys | {"policy": {"id": "gp_sarsa"}}), encoding="utf-8")
    return str(path)


def test_a_day_in_the_terminal_the_next_one_and_what_was_learned(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*GOOD[:-1], "30", "20", ""])))
    assert train_policy.main(["--config", config]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[1].startswith("Your reward at its end, from -20 (bad) to 20 (good)")
    assert "/quit, Ctrl-D or Ctrl-C ends the day" in lines[2]
    assert lines[3].startswith("0 dialogues so far, 0 of them rewarded; gp_sarsa learns in ")
    assert "'30' is not a reward" in shown
    assert lines[-1].startswith("1 dialogue kept in ")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert train_policy.main(["--config", config, "--resume", "auto"]) == 0
    assert "1 dialogue so far, 1 of them rewarded" in capsys.readouterr().out
    agent = ["--agent", str(tmp_path / "runs" / "tea" / "agent"), "--dialogues", "3"]
    assert evaluate_policy.main(agent) == 2
    assert "measure with a simulated user, --user friendly" in capsys.readouterr().err
    assert evaluate_policy.main([*agent, "--user", "friendly"]) == 0


def test_ctrl_c_at_a_prompt_is_the_end_of_the_day(config, monkeypatch, capsys):
    typed = iter(GOOD)

    def read(prompt):
        return next(typed, None) or signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("rlhf_dialog.task_oriented.commands.train_with_person.read_text", read)
    assert train_policy.main(["--config", config]) == 130
    assert "1 dialogue kept in " in capsys.readouterr().out


def test_a_list_of_actions_and_a_state_of_the_users_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "own.py").write_text(
        "from rlhf_dialog.task_oriented.world.action_list_world import StateFactory\n"
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


def test_a_mistake_ends_with_code_2(config, capsys):
    assert train_policy.main(["--config", config, "--domain", "{actions: nowhere.json}"]) == 2
    assert "'nowhere.json'" in capsys.readouterr().err


class Waiter:
    """An agent that answers with the venue of the data base's line."""

    version, problem = "0001", None

    def __init__(self, venue=None):
        self.venue, self.asked, self.ended = venue, [], False

    def say(self, text):
        self.asked.append(text)
        shown = dict(pair.split("=", 1) for pair in text.split(": ", 1)[1].split(", "))
        name = self.venue or shown["name"]
        yield "How"
        known = {"phone number": shown.get("phone"), "opening hours": shown.get("hours")}
        yield " ".join([f"How about {name} ?", *(f"Its {slot} is {x} ." for slot, x in known.items() if x)])

    def end(self):
        self.ended = True


def talked(tmp_path, lines, waiter):
    """What was shown in a dialogue with a person who types these lines, and whether it succeeded."""
    path = tmp_path / "tea.json"
    path.write_text(json.dumps(DATA))
    shown, typed = [], iter(lines)
    screen = Screen(shown.append)
    environment = build_environment(str(path), lambda prompt: next(typed), screen)
    return converse_about_a_goal(environment, waiter, screen, seed=0), shown


def test_a_goal_that_is_reached(tmp_path):
    waiter, goal = Waiter(), talked(tmp_path, ["quit", "quit"], Waiter())[1][0]
    wanted = goal.partition(": ")[2].partition(". Find")[0]
    typed = ["", f"I want {wanted}", "phone number and opening hours ?", "thanks, bye"]
    success, shown = talked(tmp_path, typed, waiter)
    assert shown[0] == goal
    assert goal.startswith("You are looking for a cafe: ")
    assert (success, shown[-1], waiter.ended) == (True, "The dialogue has succeeded (turns: 2).", True)
    assert "[db]" in waiter.asked[0]
    assert not any("[db]" in line for line in shown)


def test_a_goal_that_is_missed(tmp_path):
    success, shown = talked(tmp_path, ["hello", "bye"], Waiter("zoe"))
    assert (success, shown[-1]) == (False, "The dialogue has failed (turns: 1).")
    assert shown[-2] == "(zoe is not in the data base)"


def test_words_with_a_slash_are_not_said(tmp_path):
    waiter = Waiter()
    _, shown = talked(tmp_path, ["/help", "//help", "/QUIT"], waiter)
    assert "(there is only the word /quit here; // begins a message with a slash)" in shown
    assert [text.split("\n")[0] for text in waiter.asked] == ["/help"]


def test_the_command(agent_folder, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nbye\n"))
    assert chat.main(["--agent", str(agent_folder), "--environment", "restaurant", "--seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert "You are looking for a restaurant: " in shown
    assert "The dialogue has failed (turns: " in shown
