"""A config.yaml that an earlier version stored, with every key of that day, is read by every command that reads one.

`tests/parts/every_key/config.yaml` is of 2026-11-24: all keys, with other values than the defaults where the keys allow it.
"""

import json
from pathlib import Path

import pytest
import yaml

from rlhf_dialog import main
from rlhf_dialog.commands.export import _read_config
from rlhf_dialog.config.loading import dump_yaml, load_config
from rlhf_dialog.config.synonyms import NO_EFFECT
from rlhf_dialog.evaluation.untrusted import read_run_config
from rlhf_dialog.publishing.package import read_run as read_for_card
from rlhf_dialog.runs.run_reader import read_run
from tests.parts.processes import ROOT

STORED = ROOT / "tests/parts/every_key/config.yaml"


@pytest.fixture
def run_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("run", "model", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "run/config.yaml").write_bytes(STORED.read_bytes())
    (tmp_path / "run/metrics.jsonl").write_text(json.dumps({"iteration": 1}) + "\n")
    return tmp_path / "run"


def test_training_reads_it_and_says_what_has_no_effect(run_folder, capsys, caplog):
    caplog.set_level("INFO")
    keys = yaml.safe_load(STORED.read_text())
    assert main(["--config", str(run_folder / "config.yaml"), "--resume", "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    deleted = set(keys) & set(NO_EFFECT)
    assert set(keys) - deleted <= set(printed)
    changed = {key for key in set(keys) - deleted if printed[key] != keys[key]}
    assert changed == {"env", "guard", "ledger_texts"}
    assert printed["env"]["args"] == keys["env"]["args"] | {"columns": {}}
    assert printed["ledger_texts"] == "all"  # true
    assert printed["guard"] == keys["guard"] | {"action": "stop"}
    lines = [one.getMessage() for one in caplog.records]
    assert sum(line.startswith("guard.action: go_back is read as stop") for line in lines) == 1
    assert sum("has no effect here" in line for line in lines) == len(deleted)


def test_what_is_stored_of_it_is_read_again(run_folder, tmp_path):
    config = load_config(run_folder / "config.yaml")
    (tmp_path / "again.yaml").write_text(dump_yaml(config))
    assert load_config(tmp_path / "again.yaml").model_dump() == config.model_dump()


@pytest.mark.parametrize("trust", [True, False])
def test_commands_that_find_it_beside_an_agent_or_in_a_checkpoint_read_it(run_folder, trust):
    assert _read_config(run_folder / "config.yaml", {}, trust).seed == 1
    assert read_run_config(None, run_folder / "config.yaml", trust).config.seed == 1
    assert read_run_config(run_folder / "config.yaml", Path("none")).config.seed == 1


def test_the_report_and_the_card_read_it(run_folder):
    assert read_run(run_folder).config["seed"] == 1
    assert read_for_card(run_folder, None, {}, {}).config["seed"] == 1
