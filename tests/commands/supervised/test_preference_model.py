import json

import pytest

from rlhf_dialog.commands.supervised import preference_model as train_preference_model
from rlhf_dialog.config.registry import RewardFactory
from tests.parts import tiny
from tests.parts.scalars import pairs_about_a_word, save_scalar, write_pairs

pytestmark = pytest.mark.slow

QUICK = ["--max_steps", "1", "--device", "cpu", "--pytorch_threads", "1", "--num_samples", "2", "--max_new_tokens", "4"]


def run(*argv):
    return train_preference_model.main([*argv, *QUICK])


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
        ([ROW, ROW | {"prompt": "q"}], {"rank_with": "./nowhere.yaml"}, "nowhere.yaml' not found"),
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


def test_a_reward_of_the_users_own_ranks_the_replies(start, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(RewardFactory, "classes", dict(RewardFactory.classes))
    own = tmp_path / "own.py"
    own.write_text(
        "from rlhf_dialog import BaseReward, RewardFactory\n\n\n"
        '@RewardFactory.register("LastLetter")\nclass LastLetter(BaseReward):\n'
        "    def __call__(self, dialogues):\n        return [float(ord(d.response[0])) for d in dialogues]\n"
    )
    (tmp_path / "rank.yaml").write_text("model_path: x\nenv: {args: {data_path: x}}\nreward_class: {id: LastLetter}\n")
    data = write_pairs(tmp_path / "pairs.jsonl", [ROW | {"prompt": f"p{i}"} for i in range(8)])
    words = ["--data_path", data, "--model_path", start, "--rank_with", str(tmp_path / "rank.yaml")]
    assert run(*words, "--output", str(tmp_path / "a"), "--register_file", str(own)) == 0
    assert "the reward lastletter ranks the replies to 8 of 8 prompts" in capsys.readouterr().err
    assert run(*words, "--output", str(tmp_path / "b"), "--register_file", str(tmp_path / "no.py")) == 2
    assert "register_file: " in capsys.readouterr().err


def test_a_tokenizer_of_another_model(tmp_path, capsys):
    folder = save_scalar(tmp_path / "model", vocab_size=100, pad_token_id=0)
    data = write_pairs(tmp_path / "pairs.jsonl", pairs_about_a_word(4))
    assert run("--data_path", data, "--model_path", folder, "--output", str(tmp_path / "out")) == 2
    assert "model_path: the tokenizer of" in capsys.readouterr().err
