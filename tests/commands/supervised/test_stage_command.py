"""What every supervised stage writes and prints around its training."""

import json

import pytest

from rlhf_dialog.commands.supervised.stage_command import make_command
from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.settings import SupervisedKeys


class Keys(SupervisedKeys):
    """Keys"""

    output: str


class Stage:
    schema, packages, report_file = Keys, ("torch",), "report.json"

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
    seeds = []
    command = make_command(Keys, lambda: Stage, "Help.", before=lambda config: seeds.append(config.seed))
    assert command(["--output", str(tmp_path / "out"), "--seed", "3"]) == 0
    assert seeds == [3]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model", "report.json", "report.md"]
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert list(report) == ["accuracy", "seconds", "settings", "local_names", "versions"]
    assert (report["settings"]["seed"], sorted(report["versions"])) == (3, ["python", "torch"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"trained\n\naccuracy 0.5\n\nwrote {tmp_path / 'out'} in ")


def test_a_report_that_holds_its_configuration_has_it_once_and_no_page(tmp_path, capsys):
    assert make_command(Keys, lambda: StageWithoutPage, "Help.")(["--output", str(tmp_path / "out")]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["training.json"]
    report = json.loads((tmp_path / "out" / "training.json").read_text(encoding="utf-8"))
    assert list(report) == ["config", "loss", "seconds", "versions"]
    assert capsys.readouterr().out.startswith("wrote ")


@pytest.mark.parametrize(("seed", "words"), [("9", "error: seed: 9 is not wanted"), ("-1", "seed: ")])
def test_what_fails_leaves_nothing(tmp_path, capsys, seed, words):
    assert make_command(Keys, lambda: Stage, "Help.")(["--output", str(tmp_path / "out"), "--seed", seed]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
