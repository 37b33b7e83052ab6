"""What cannot work is one sentence and exit code 2, before anything is computed."""

import pytest

from experiments.dailydialog import command
from experiments.dailydialog.command import main
from tests.parts import tiny


@pytest.fixture
def words(tmp_path):
    """A call that has all it needs, by the names of its options."""
    tiny.write_data(tmp_path / "data", 4)
    for name in ("minilm", "chitchat"):
        (tmp_path / "fetched" / name).mkdir(parents=True)
    tiny.llama(vocab_size=300).save_pretrained(tmp_path / "model")
    tiny.chat_tokenizer().save_pretrained(tmp_path / "model")
    given = {"data_path": tmp_path / "data", "work": tmp_path / "work", "size": "pretrained_tiny"}
    return given | {"fetched": tmp_path / "fetched", "model": tmp_path / "model"}


def refusal(words, capsys):
    code = main([str(word) for name, value in words.items() for word in (f"--{name}", value)])
    said = capsys.readouterr().err
    assert code == 2
    assert said.count("\n") == 1
    assert not words["work"].exists()
    return said


def test_data_without_acts(words, capsys):
    (words["data_path"] / "validation/dialogues_act_validation.txt").unlink()
    assert "has no validation/dialogues_act_validation.txt" in refusal(words, capsys)


def test_a_model_without_a_template(words, capsys):
    tiny.chat_tokenizer(None).save_pretrained(words["model"])
    (words["model"] / "chat_template.jinja").unlink(missing_ok=True)
    assert "has no chat template" in refusal(words, capsys)


def test_a_folder_that_is_no_model(words, capsys, tmp_path):
    assert "has no config.json" in refusal(words | {"model": tmp_path}, capsys)


def test_what_was_not_fetched_is_named(words, capsys):
    (words["fetched"] / "chitchat").rmdir()
    del words["model"]
    assert "fetch smollm2 chitchat --output" in refusal(words, capsys)


def test_a_model_for_another_size(words, capsys):
    assert "--model: is for the pretrained sizes" in refusal(words | {"size": "tiny"}, capsys)


def test_a_stage_of_another_size(words, capsys):
    said = refusal(words | {"until": "dpo"}, capsys)
    assert "the size pretrained_tiny has no stage 'dpo'" in said
    assert "next_act" in said


def test_a_full_disk(words, capsys, monkeypatch):
    monkeypatch.setitem(command.DISK, "pretrained_tiny", 2**60)
    assert "GiB free" in refusal(words, capsys)
