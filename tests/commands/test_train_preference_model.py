import json

import pytest

from rlhf_dialog.commands.supervised import train_preference_model
from tests.parts import tiny
from tests.parts.scalars import pairs_about_a_word, save_scalar, write_pairs

pytestmark = pytest.mark.slow

QUICK = ["--max_steps", "1", "--device", "cpu", "--pytorch_threads", "1", "--num_samples", "2", "--max_new_tokens", "4"]


def run(*argv):
    return train_preference_model([*argv, *QUICK])


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    tiny.gpt2().save_pretrained(folder)
    tiny.byte_tokenizer().save_pretrained(folder)
    return str(folder)


def test_it_writes_a_model_with_its_report(start, tmp_path, capsys):
    data = write_pairs(tmp_path / "pairs.jsonl", pairs_about_a_word(40))
    out = tmp_path / "out"
    assert run("--data_path", data, "--model_path", start, "--output", str(out)) == 0
    names = ["config.json", "model.safetensors", "report.json", "report.md", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["settings"]["max_steps"] == 1
    assert report["num_pairs"] == 4
    page = (out / "report.md").read_text(encoding="utf-8")
    assert page in capsys.readouterr().out
    assert run("--data_path", data, "--model_path", start, "--output", str(out)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1, "it is there already"
    assert run("--data_path", data, "--model_path", start, "--output", str(out), "--seed", "1") == 2
    assert "is not empty" in capsys.readouterr().err


ROW = {"prompt": "p", "chosen": "a", "rejected": "b"}


@pytest.mark.parametrize(
    ("rows", "keys", "words"),
    [
        ([ROW, ROW | {"rejected": "a"}], {}, "line 2: 'chosen' and 'rejected' are the same"),
        ([ROW, ROW | {"rejected": ""}], {}, "line 2: 'rejected' is empty"),
        ([{"prompt": "p", "good": "a", "bad": "b"}], {}, "no column 'chosen'"),
        ([ROW, ROW], {}, "2 pairs have 1 prompt"),
        ([ROW, ROW | {"prompt": "q"}], {"model_path": "./nowhere"}, "model_path: no such folder"),
        ([ROW], {"data_path": "./nowhere.jsonl"}, "no such file"),
        ([ROW], {"trust_remote_code": "true"}, "trust_remote_code: unknown key"),
    ],
)
def test_mistakes_are_one_message_and_write_nothing(start, tmp_path, capsys, rows, keys, words):
    given = {
        "data_path": write_pairs(tmp_path / "pairs.jsonl", rows),
        "model_path": start,
        "output": str(tmp_path / "out"),
    }
    assert run(*(word for key, value in (given | keys).items() for word in (f"--{key}", value))) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_another_model(tmp_path, capsys):
    folder = save_scalar(tmp_path / "model", vocab_size=100, pad_token_id=0)
    data = write_pairs(tmp_path / "pairs.jsonl", pairs_about_a_word(4))
    assert run("--data_path", data, "--model_path", folder, "--output", str(tmp_path / "out")) == 2
    assert "model_path: the tokenizer of" in capsys.readouterr().err
