"""Runs of policies that are killed before any change of the disk, that meet a full disk, or get a signal, lose no iteration."""

import os
import signal

import pytest
import yaml

from rlhf_dialog.runs.checkpoint import newest_checkpoint
from tests.parts.forked_cli import ForkedCLI, wait_for
from tests.parts.policy_runs import SMALL, domain_file, numbers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cli():
    cli = ForkedCLI("rlhf_dialog.evaluation.plot", "rlhf_dialog.task_oriented.commands.train_policy")
    yield cli
    cli.close()


@pytest.fixture
def config(tmp_path):
    keys = {"batchsz": 20, "epoch": 3, "eval_interval": 2, "eval_dialogues": 2}
    keys |= {"save_interval": 1, "keep_checkpoints": 1}
    place = {"domain": str(domain_file(tmp_path)), "run_dir": str(tmp_path / "runs"), "experiment_name": None}
    path = tmp_path / "tea.yaml"
    path.write_text(yaml.safe_dump(SMALL | keys | place), encoding="utf-8")
    return path


def words_of(name):
    return "train-policy", "--config", "tea.yaml", "--experiment_name", name, "--resume", "auto"


def left(config, name):
    """Metrics without clocks, and the weights of the agent."""
    run = config.parent / "runs" / name
    return numbers(run), {path.name: path.read_bytes() for path in (run / "agent").glob("*.safetensors")}


def position(config, name):
    """How many iterations have a line in the metrics, and a checkpoint."""
    run = config.parent / "runs" / name
    newest = newest_checkpoint(run / "checkpoints")
    lines = len(numbers(run)) if (run / "metrics.jsonl").is_file() else 0
    return lines, int(newest.name[5:]) if newest else 0


def test_a_run_that_is_killed_at_any_change_of_the_disk_goes_on_to_the_same_numbers(cli, config):
    folder, reached = config.parent, set()
    for step in range(3, cli.changes_of(folder, *words_of("whole")) - 9, 23):
        name = f"run{step}"
        assert cli.run(folder, *words_of(name), step=step) == -signal.SIGKILL
        lines, saved = position(config, name)
        assert saved >= lines - 1  # a line is written just before its checkpoint
        assert cli.run(folder, *words_of(name)) == 0, (folder / "said").read_text()
        assert left(config, name) == left(config, "whole")
        reached.add(saved)
    assert reached >= {0, 1, 2}


def test_a_full_disk_ends_with_a_message_and_the_run_goes_on(cli, config):
    folder = config.parent
    assert cli.run(folder, *words_of("whole")) == 0
    assert cli.run(folder, *words_of("full"), limit=3000) == 2
    said = (folder / "said").read_text()
    assert "cannot be written" in said
    assert "Traceback" not in said
    lines, saved = position(config, "full")
    assert saved >= lines - 1
    assert cli.run(folder, *words_of("full")) == 0
    assert left(config, "full") == left(config, "whole")


def test_a_signal_finishes_the_iteration_and_ends_with_its_code(cli, config):
    words = ["--epoch", "100000", "--eval_interval", "0", "--save_interval", "100000", "--log_interval", "1"]
    metrics = config.parent / "runs/tea/metrics.jsonl"
    pid = cli.start(config.parent, "train-policy", "--config", "tea.yaml", *words)
    wait_for(lambda: metrics.is_file() and metrics.read_bytes().count(b"\n") >= 3, pid)
    os.kill(pid, signal.SIGTERM)
    assert cli.end() == 143
    said = (config.parent / "said").read_text()
    assert position(config, "tea")[0] == position(config, "tea")[1] >= 3
    assert "continue with --resume" in said
    assert "export" not in said
