"""train-policy: the command line, its exit codes, and a whole run with a plot."""

import json

import pytest
import yaml
from policy_runs import SMALL, domain_file

from rlhf_dialog.commands import plot_run, train_policy


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tea.yaml"
    settings = SMALL | {"domain": str(domain_file(tmp_path)), "run_dir": str(tmp_path / "runs"), "epoch": 2}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return str(path)


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


def test_another_policy_takes_the_place_of_the_files_and_of_its_arguments(config, tmp_path):
    words = ["--config", config, "--policy.args.scale", "2", "--policy", "gp_sarsa", "--epoch", "1"]
    assert train_policy.main(words) == 0
    agent = json.loads((tmp_path / "runs" / "run" / "agent" / "policy_agent.json").read_text(encoding="utf-8"))
    assert agent["policy"] == {"id": "gp_sarsa", "args": {"scale": 2}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--config is missing"),
        (["--config", "there_is_none.yaml"], "config file 'there_is_none.yaml' not found"),
        (["--config", "CONFIG", "--overwrite", "--resume"], "give one of them"),
        (["--config", "CONFIG", "--batchsize", "3"], "batchsize: unknown key; did you mean 'batchsz'"),
        (["--config", "CONFIG", "--domain", "nowhere"], "domain 'nowhere': there is no such file or folder"),
        (["--config", "CONFIG", "--policy", "gp_sarse"], "unknown policy 'gp_sarse'; did you mean 'gp_sarsa'"),
        (["--config", "CONFIG", "--policy.id", "pppo"], "unknown policy 'pppo'; did you mean 'ppo'"),
        (["--config", "CONFIG", "--resume"], "contains no checkpoint to resume from; start without --resume"),
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
