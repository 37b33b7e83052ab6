"""Checks of single values. Those of OneOf are in test_schema.py, where its keys are."""

import pytest

from rlhf_dialog.config.checks import folder_name
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.errors import UserError


@pytest.mark.parametrize("name", ["a", "first try", "v1.2", "été-你好", "x" * 201, "a..b", "~", None])
def test_names_of_folders(name):
    assert folder_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".x",
        "a/b",
        "a\\b",
        "x" * 202,
        "你" * 80,
        "a\x1b[2J",
        "a\n",
        "a\tb",
        "\x00",
        "\u202egpj",
        "\udc80",
    ],
)
def test_what_cannot_be_the_name_of_a_folder(name):
    with pytest.raises(ValueError, match="the name of a folder: at most 201 letters"):
        folder_name(name)


MINIMAL = "env: {args: {data_path: ./data}}\nmodel_path: m\nreward_class: {id: NLPReward}\n"


def test_the_name_of_a_run_has_no_control_characters(tmp_path):
    (tmp_path / "a.yaml").write_text(MINIMAL, encoding="utf-8")
    with pytest.raises(UserError, match=r"experiment_name: found '.x1b\[2J', wanted the name of a folder"):
        load_config(tmp_path / "a.yaml", {"experiment_name": "\x1b[2J"})


@pytest.mark.parametrize("file", [".x.yaml", ".yaml", "a\x1b[2J.yaml", "a\nb.yaml"])
def test_the_name_of_a_file_that_is_not_the_name_of_a_run(tmp_path, file):
    (tmp_path / file).write_text(MINIMAL, encoding="utf-8")
    with pytest.raises(UserError, match=r"experiment_name: found .*so set another with --experiment_name"):
        load_config(tmp_path / file)
    assert load_config(tmp_path / file, {"experiment_name": "x"}).experiment_name == "x"
