"""What is taken out of settings and texts before they are published."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.publishing.privacy import (
    clean_json,
    hide_names,
    hide_private,
    refuse_secrets,
    without_places,
    without_token,
)

TOKEN = "hf_" + "Zz09" * 9


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("The judge /home/ada/judges/b is new", "The judge b is new"),
        ("read ~/runs/x.json, then ../ada/y", "read x.json, then y"),
        ("(configs/judge_dailydialog_small.yaml)", "(configs/judge_dailydialog_small.yaml)"),
        (
            "yes and/or no, 1 / 2, 95 %, li2017dailydialog/daily_dialog",
            "yes and/or no, 1 / 2, 95 %, li2017dailydialog/daily_dialog",
        ),
        ("see https://ada:secret@host.example/score?key=1 now", "see (a URL) now"),
        (r"C:\Users\ada\run", "run"),
    ],
)
def test_of_a_path_in_a_text_the_last_name_stays(text, left):
    assert without_places(text) == left


def test_names_that_were_places_lose_their_folders_wherever_they_stand():
    text = "runs/a/b, `runs/a`: and/or ./ data runs/ab/c other/runs/a"
    names = ["runs/a", "runs/a/b", "./", "/", "..", "data"]
    assert hide_names(text, names) == "b, `a`: and/or ./ data ab/c other/runs/a"


def test_settings_keep_numbers_and_names_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ada").mkdir()
    wanted = {"lr": 1e-6, "model": "openai/gpt2", "list": [True, None, "<EOU>"], "here": "run"}
    given = wanted | {"here": "ada/run", "api_key": "x", "list": [True, None, "<EOU>"]}
    assert hide_private(given) == wanted


def test_the_home_folder_has_no_name(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert hide_private("/home/ada") == ""
    assert hide_private("/home/ada/") == ""
    assert hide_private("~") == "~"


def test_the_settings_of_a_model_lose_where_they_were_loaded_from():
    given = {
        "_name_or_path": "/home/ada/m",
        "is_local": True,
        "vocab_size": 3,
        "deep": [{"file": "/home/ada/vocab.txt", "template": "{% if a / b %}\n/x/y z"}],
    }
    left = json.loads(clean_json(json.dumps(given).encode()))
    assert left == {"vocab_size": 3, "deep": [{"file": "vocab.txt", "template": "{% if a / b %}\n/x/y z"}]}


@pytest.mark.parametrize("content", [f'{{"a": "{TOKEN}"}}', "key wandb-secret-1234"])
def test_a_file_with_a_token_is_refused_without_showing_it(content, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "wandb-secret-1234")
    with pytest.raises(UserError, match=r"--agent: vocab\.json holds an access token") as caught:
        refuse_secrets("vocab.json", content.encode(), "--agent")
    assert TOKEN not in str(caught.value)
    refuse_secrets("vocab.json", b"hf_short and all else", "--agent")


def test_the_token_file_counts_too(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (tmp_path / "token").write_text("token-of-the-file")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(UserError, match="access token"):
        refuse_secrets("merges.txt", b"a token-of-the-file b", "--agent")
    assert without_token(f"bad token-of-the-file and {TOKEN}") == "bad (the token) and (the token)"
