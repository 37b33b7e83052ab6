"""What every supervised stage writes and prints around its training."""

import json

import pytest
import torch

from rlhf_dialog.commands.supervised import (
    make_command,
    train_intent_classifier,
    train_preference_model,
    train_relevance_model,
    train_sft,
)
from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.settings import (
    IntentConfig,
    PreferenceConfig,
    RelevanceConfig,
    SFTConfig,
    SupervisedKeys,
)
from tests.parts import tiny


class Keys(SupervisedKeys):
    """Keys"""

    data_path: str
    output: str


DATA = __file__


class Stage:
    report_file = "report.json"

    def __init__(self, config, folder, report):
        self.config, self.folder, self.report = config, folder, report

    def train(self):
        if self.config.seed == 9:
            raise UserError("seed: 9 is not wanted")
        (self.folder / "model").write_text("weights")
        self.report("trained")
        return {"accuracy": 0.5}

    def page(self, report):
        return f"accuracy {report['accuracy']}\n"


class StageWithoutPage(Stage):
    report_file = "training.json"

    def train(self):
        return {"config": self.config.model_dump(), "loss": 1.0}

    def page(self, report):
        return ""


def test_the_folder_its_report_and_the_closing_lines(tmp_path, capsys):
    command = make_command(Keys, f"{__name__}:Stage", "Help.")
    assert command(["--data_path", DATA, "--output", str(tmp_path / "out"), "--seed", "3"]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model", "report.json", "report.md"]
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert list(report) == ["accuracy", "seconds", "settings", "local_names", "versions", "fingerprint"]
    assert (report["settings"]["seed"], report["versions"]["torch"]) == (3, torch.__version__)
    printed = capsys.readouterr().out
    assert printed.startswith(f"trained\n\naccuracy 0.5\n\nwrote {tmp_path / 'out'} in ")


def test_a_report_that_holds_its_configuration_has_it_once_and_no_page(tmp_path, capsys):
    assert (
        make_command(Keys, f"{__name__}:StageWithoutPage", "Help.")(
            ["--data_path", DATA, "--output", str(tmp_path / "out")]
        )
        == 0
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["training.json"]
    report = json.loads((tmp_path / "out" / "training.json").read_text(encoding="utf-8"))
    assert list(report) == ["config", "loss", "seconds", "versions", "fingerprint"]
    assert capsys.readouterr().out.startswith("wrote ")


@pytest.mark.parametrize(("seed", "words"), [("9", "error: seed: 9 is not wanted"), ("-1", "seed: ")])
def test_what_fails_leaves_nothing(tmp_path, capsys, seed, words):
    assert (
        make_command(Keys, f"{__name__}:Stage", "Help.")(
            ["--data_path", DATA, "--output", str(tmp_path / "out"), "--seed", seed]
        )
        == 2
    )
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "extra", "words"),
    [
        (train_sft, "--data_path /nowhere/data", ["/nowhere/data"]),
        (train_sft, "--model_path /nowhere/model", ["model_path: ", "/nowhere/model"]),
        (train_sft, "--n_embd 30 --n_head 4", ["n_embd", "multiple"]),
        (train_sft, "--max_prompt_length 256", ["max_prompt_length", "256 positions"]),
        (train_sft, "--learning_rate -1", ["learning_rate"]),
        (train_sft, "--lr 1", ["lr: unknown key"]),
        (train_intent_classifier, "--data_path /nowhere/data", ["/nowhere/data"]),
        (train_intent_classifier, "--model_path /nowhere/model", ["model_path: ", "/nowhere/model"]),
        (train_intent_classifier, "--hidden_size 30 --num_heads 4", ["hidden_size", "multiple"]),
        (train_intent_classifier, "--context_size 5", ["context_size: unknown key"]),
        (train_relevance_model, "--data_path /nowhere/data", ["/nowhere/data"]),
        (train_relevance_model, "--architecture tree", ["architecture: found 'tree'"]),
    ],
)
def test_mistakes_are_exit_code_2_and_write_nothing(command, extra, words, tmp_path, tmp_path_factory, capsys):
    data = str(tiny.write_data(tmp_path_factory.mktemp("data"), 20))
    argv = ["--data_path", data, "--output", str(tmp_path / "out"), "--max_steps", "1", "--device", "cpu"]
    assert command([*argv, *extra.split(), "--pytorch_threads", "1"]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words), error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "keys", "line"),
    [
        (train_sft, SFTConfig, "learning_rate: 5.0e-05"),
        (train_intent_classifier, IntentConfig, "num_layers: 2"),
        (train_preference_model, PreferenceConfig, None),
        (train_relevance_model, RelevanceConfig, "bank_size: 512"),
    ],
)
def test_help_and_print_config(command, keys, line, capsys):
    assert command(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"--{key}" in text for key in keys.model_fields)
    if line:
        assert command(["--data_path", "x", "--output", "y", "--print_config"]) == 0
        assert line in capsys.readouterr().out
