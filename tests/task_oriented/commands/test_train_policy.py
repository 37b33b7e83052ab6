"""train-policy: the command line, its exit codes, and a whole run with a plot."""

import json

import pytest
import yaml

from rlhf_dialog.commands import plot_run
from rlhf_dialog.task_oriented.commands import evaluate_policy, train_policy
from tests.parts import own_environments
from tests.parts.policy_runs import SMALL, domain_file


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


@pytest.mark.slow
def test_another_policy_takes_the_place_of_the_files_and_of_its_arguments(config, tmp_path):
    words = ["--config", config, "--policy.args.scale", "2", "--policy", "gp_sarsa", "--epoch", "1"]
    assert train_policy.main(words) == 0
    agent = json.loads((tmp_path / "runs" / "run" / "agent" / "policy_agent.json").read_text(encoding="utf-8"))
    assert agent["policy"] == {"id": "gp_sarsa", "args": {"scale": 2}}


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


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("Endless", "after 4 turns (max_turns)"),
        ("Raises", "Raises.step raised KeyError: 'no such venue'"),
        ("Words", "needs an observation_space"),
        ("Gess", "did you mean 'Guess'"),
    ],
)
def test_a_wrong_environment_ends_with_code_2(tmp_path, own, said, capsys):
    path = tmp_path / "own.yaml"
    keys = {"environment": {"id": own, "args": {}}, "max_turns": 4, "run_dir": str(tmp_path / "runs")}
    path.write_text(yaml.safe_dump(keys), encoding="utf-8")
    assert train_policy.main(["--config", str(path), "--register", own_environments.__file__]) == 2
    assert said in capsys.readouterr().err
