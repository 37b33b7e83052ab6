import io
import json
import signal

import pytest
import yaml

from rlhf_dialog.commands import chat, plot_run
from rlhf_dialog.commands.chat_screen import Screen
from rlhf_dialog.task_oriented.commands import evaluate_policy, train_policy
from rlhf_dialog.task_oriented.commands.chat_environment import converse_in
from rlhf_dialog.task_oriented.world.action_list_world import StateFactory
from tests.parts import own_environments
from tests.parts.persons import ASKED, GOOD
from tests.parts.policy_runs import SMALL, domain_file
from tests.parts.small_domain import DATA


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tea.yaml"
    settings = SMALL | {"domain": str(domain_file(tmp_path)), "run_dir": str(tmp_path / "runs"), "epoch": 2}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return str(path)


@pytest.mark.slow
def test_a_run_from_the_command_line_and_its_plot(config, tmp_path, capsys):
    words = ["--config", config, "--batchsz", "40", "--epoch", "3", "--error_rate", "0"]
    assert train_policy.main(words) == 0
    run = tmp_path / "runs" / "run"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["time_steps"] for row in rows] == [40, 80, 120]
    assert plot_run.main(["--run", str(run)]) == 0
    assert (run / "plot.png").is_file()
    assert train_policy.main(words) == 2
    assert "already contains a run" in capsys.readouterr().err
    assert train_policy.main([*words, "--resume", "--epoch", "4"]) == 0
    assert train_policy.main([*words, "--overwrite", "--epoch", "1"]) == 0
    assert len((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--config is missing"),
        (["--config", "there_is_none.yaml"], "'there_is_none.yaml' not found"),
        (["--config", "CONFIG", "--overwrite", "--resume"], "give one of them"),
        (["--config", "CONFIG", "--domain", "nowhere"], "domain 'nowhere'"),
        (["--config", "CONFIG", "--policy", "gp_sarse"], "did you mean 'gp_sarsa'"),
        (["--config", "CONFIG", "--policy.id", "pppo"], "did you mean 'ppo'"),
        (["--config", "CONFIG", "--resume", "perhaps"], "--resume: found 'perhaps'"),
        (["--config", "CONFIG", "--transcripts", "-1"], "--transcripts: found '-1'"),
        (["--config", "CONFIG", "--register", "nowhere.py"], "--register nowhere.py"),
        (["--config", "CONFIG", "--resume"], "no checkpoint to resume from"),
    ],
)
def test_a_mistake_ends_with_code_2(config, words, said, capsys):
    assert train_policy.main([config if word == "CONFIG" else word for word in words]) == 2
    assert said in capsys.readouterr().err


def test_help_and_settings(config, capsys):
    assert train_policy.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"--{key}" in text for key in ("batchsz", "epoch", "process_num", "policy.id", "resume"))
    assert train_policy.main(["--config", config, "--print_config", "--seed", "5"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["seed"] == 5
    words = ["--config", config, "--policy.args.scale", "2", "--policy", "gp_sarsa", "--print_config"]
    assert train_policy.main(words) == 0  # another policy, without the arguments of the file's
    assert yaml.safe_load(capsys.readouterr().out)["policy"] == {"id": "gp_sarsa", "args": {"scale": 2}}


@pytest.mark.slow
def test_an_environment_that_a_file_registers_is_trained_in_and_measured(config, tmp_path, capsys):
    yaml_file = tmp_path / "guess.yaml"
    keys = {"environment": {"id": "Guess", "args": {}}, "epoch": 2, "run_dir": str(tmp_path / "runs"), "batchsz": 40}
    yaml_file.write_text(yaml.safe_dump(keys | {"policy": SMALL["policy"]}), encoding="utf-8")
    register = ["--register", own_environments.__file__]
    words = ["--config", str(yaml_file), *register, "--transcripts", "2", "--eval_dialogues", "5"]
    assert train_policy.main(words) == 0
    assert capsys.readouterr().out.count("dialogue ") == 2
    agent = ["--agent", str(tmp_path / "runs" / "guess" / "agent"), "--trust_config", *register]
    assert evaluate_policy.main([*agent, "--dialogues", "20", "--transcripts", "1"]) == 0
    assert "agent - random" in capsys.readouterr().out.replace("\n", " ")
    assert evaluate_policy.main([*agent, "--error_rate", "0.1"]) == 2
    assert "--error_rate: the agent's environment Guess does not read it" in capsys.readouterr().err


@pytest.fixture
def person_config(tmp_path):
    path = tmp_path / "tea.yaml"
    keys = {"domain": str(domain_file(tmp_path)), "user": "person", "run_dir": str(tmp_path / "runs")}
    path.write_text(yaml.safe_dump(keys | {"policy": {"id": "gp_sarsa"}}), encoding="utf-8")
    return str(path)


def test_a_day_in_the_terminal_the_next_one_and_what_was_learned(person_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*GOOD[:-1], "30", "20", ""])))
    assert train_policy.main(["--config", person_config]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[1].startswith("Your reward at its end, from -20 (bad) to 20 (good)")
    assert "/quit, Ctrl-D or Ctrl-C ends the day" in lines[2]
    assert lines[3].startswith("0 dialogues so far, 0 of them rewarded; gp_sarsa learns in ")
    assert "'30' is not a reward" in shown
    assert lines[-1].startswith("1 dialogue kept in ")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert train_policy.main(["--config", person_config, "--resume", "auto"]) == 0
    assert "1 dialogue so far, 1 of them rewarded" in capsys.readouterr().out
    agent = ["--agent", str(tmp_path / "runs" / "tea" / "agent"), "--dialogues", "3"]
    assert evaluate_policy.main(agent) == 2
    assert "measure with a simulated user, --user friendly" in capsys.readouterr().err
    assert evaluate_policy.main([*agent, "--user", "friendly"]) == 0


def test_ctrl_c_at_a_prompt_is_the_end_of_the_day(person_config, monkeypatch, capsys):
    typed = iter(GOOD)

    def read(prompt):
        return next(typed, None) or signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("rlhf_dialog.task_oriented.commands.train_with_person.read_text", read)
    assert train_policy.main(["--config", person_config]) == 130
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
    return converse_in(str(path), lambda: waiter, lambda prompt: next(typed), Screen(shown.append), seed=0), shown


def test_a_goal_that_is_reached_and_one_that_is_missed(tmp_path):
    waiter, goal = Waiter(), talked(tmp_path, ["quit", "quit"], Waiter())[1][0]
    wanted = goal.partition(": ")[2].partition(". Find")[0]
    typed = ["", f"I want {wanted}", "phone number and opening hours ?", "thanks, bye"]
    success, shown = talked(tmp_path, typed, waiter)
    assert shown[0] == goal
    assert goal.startswith("You are looking for a cafe: ")
    assert (success, shown[-1], waiter.ended) == (True, "The dialogue has succeeded (turns: 2).", True)
    assert "[db]" in waiter.asked[0]
    assert not any("[db]" in line for line in shown)
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
