"""Options of the program that writes the dialogues of a restaurant guide."""

import pytest

from rlhf_dialog.task_oriented.commands.write_restaurant import main


@pytest.mark.parametrize(
    "words", [["--dialogues", "0"], ["--lessons", "-1"], ["--domain", "nowhere"], ["--seed", "-1"]]
)
def test_what_cannot_be_written_is_refused(tmp_path, capsys, words):
    assert main(["--output", str(tmp_path / "a"), *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "a").exists()
