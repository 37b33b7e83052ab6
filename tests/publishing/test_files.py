"""What is published: named files, without places, accounts and tokens."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import AgentSettings
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.saved_agent import save_agent
from rlhf_dialog.publishing.files import check_model, published_files, write
from rlhf_dialog.publishing.privacy import (
    clean_json,
    hide_names,
    hide_private,
    refuse_secrets,
    without_places,
    without_token,
)
from tests.parts import tiny
from tests.parts.agents import save
from tests.parts.relevance_models import save_letters

TOKEN = "hf_" + "Zz09" * 9
GITHUB, AMAZON = "ghp_" + "Zz09" * 9, "AKIA" + "Z9" * 8


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "agent", {"max_new_tokens": 7, "temperature": 0.5, "top_k": 0, "top_p": 0.9})


def test_only_named_files_are_published(folder, tmp_path):
    for name in ("pytorch_model.bin", "evil.py", "config.yaml", "report.json", "optimizer.pt", ".env"):
        (folder / name).write_text("x")
    found = published_files(folder, "--agent")
    assert set(found) == {
        *("model.safetensors", "config.json", "generation_config.json", "rlhf_dialog.json"),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    (tmp_path / "out").mkdir()
    write(found, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_template_and_sampling_of_an_agent_are_published_as_they_are(tmp_path):
    save_agent(tmp_path / "agent", Policy(tiny.gpt2()).eval(), tiny.byte_tokenizer(), AgentSettings(temperature=0.5))
    found = published_files(tmp_path / "agent", "--agent")
    assert found["chat_template.jinja"] == (tmp_path / "agent" / "chat_template.jinja").read_bytes()
    stored = json.loads((tmp_path / "agent" / "generation_config.json").read_text())
    assert json.loads(found["generation_config.json"]) == stored
    assert stored["temperature"] == 0.5


def test_a_link_is_refused_because_it_may_be_of_any_file(folder, tmp_path):
    (tmp_path / "secret").write_text("key")
    (folder / "vocab.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match=r"vocab\.txt: is a link"):
        published_files(folder, "--agent")


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("config.json", "is not an agent: it has no config.json; give the folder agent/ of a finished run"),
        ("model.safetensors", "has no weights (model.safetensors)"),
        ("tokenizer_config.json", "has no tokenizer: it has no tokenizer_config.json"),
        ("rlhf_dialog.json", "is neither an agent (it has no rlhf_dialog.json) nor a reward model"),
    ],
)
def test_a_folder_that_lacks_a_part_is_refused_with_its_name(missing, says, folder):
    (folder / "value_head.safetensors").touch()
    assert check_model(folder, "--agent")
    (folder / missing).unlink()
    with pytest.raises(UserError, match=f"--agent: .*{re.escape(says)}"):
        check_model(folder, "--agent")


def test_the_texts_in_a_relevance_model_stay_here(tmp_path):
    with pytest.raises(UserError, match="is a relevance model, whose bank holds texts of its data"):
        check_model(Path(save_letters(tmp_path / "relevance")), "--agent")


def test_a_classifier_is_a_reward_model(classifier):
    assert not check_model(Path(classifier), "--agent")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("The judge /home/ada/judges/b is new", "The judge b is new"),
        ("read ~/runs/x.json, then ../ada/y", "read x.json, then y"),
        ("(configs/judge_dailydialog_small.yaml)", "(configs/judge_dailydialog_small.yaml)"),
        ("yes and/or no, 1 / 2, 95 %, li2017dailydialog/daily_dialog",) * 2,
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
    monkeypatch.setenv("HOME", "/home/ada")
    (tmp_path / "ada").mkdir()
    wanted = {"lr": 1e-6, "model": "openai/gpt2", "list": [True, None, "<EOU>"], "here": "run", "home": ""}
    assert hide_private(wanted | {"here": "ada/run", "api_key": "x", "home": "/home/ada/"}) == wanted


def test_the_settings_of_a_model_lose_where_they_were_loaded_from():
    given = {
        "_name_or_path": "/home/ada/m",
        "is_local": True,
        "vocab_size": 3,
        "deep": [{"file": "/home/ada/vocab.txt", "template": "{% if a / b %}\n/x/y z"}],
    }
    left = json.loads(clean_json(json.dumps(given).encode()))
    assert left == {"vocab_size": 3, "deep": [{"file": "vocab.txt", "template": "{% if a / b %}\n/x/y z"}]}


def test_the_token_file_counts_too(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (tmp_path / "token").write_text("token-of-the-file")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(UserError, match="access token"):
        refuse_secrets("merges.txt", b"a token-of-the-file b", "--agent")
    assert without_token(f"bad token-of-the-file and {TOKEN}") == "bad (the token) and (the token)"


SECRET_VALUE = 'pass"word\\of \u00fcber 12'


@pytest.mark.parametrize(
    ("variable", "written", "says"),
    [
        ("OPENAI_API_KEY", SECRET_VALUE, "OPENAI_API_KEY"),
        ("my_token", json.dumps(SECRET_VALUE), "my_token"),
        ("DB_PASSWORD", json.dumps(SECRET_VALUE, ensure_ascii=False), "DB_PASSWORD"),
        ("CLIENT_SECRET", SECRET_VALUE, "CLIENT_SECRET"),
        ("OTHER", TOKEN, "an access token"),
        ("OTHER", "-----BEGIN PRIVATE KEY-----\nb3Blbn", "a private key"),
        ("OTHER", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn", "a private key"),
    ],
)
def test_a_secret_in_a_file_is_refused_and_not_shown(folder, monkeypatch, variable, written, says):
    monkeypatch.setenv(variable, f"{SECRET_VALUE}\n")
    (folder / "chat_template.jinja").write_text(f"PATH=x {written} {{{{ messages }}}}", encoding="utf-8")
    with pytest.raises(UserError, match=rf"--agent: chat_template\.jinja holds .*{says}") as error:
        published_files(folder, "--agent")
    assert not any(one in str(error.value) for one in ("pass", TOKEN, "b3Blbn"))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *((name, "a-secret-of-25-characters") for name in ("OPENAI_API_KEY_2", "TOKEN3", "DB_PWD", "GH_PAT", "pass")),
        *(
            (name, "a-secret-of-25-characters")
            for name in ("GPG_PASSPHRASE", "AWS_CREDENTIALS", "PGPASSWORD", "APIKEY")
        ),
        ("API_KEYS_1", "the-first-is-another,a-secret-of-25-characters"),
        ("DATABASE_URL", "postgres://ada:a-secret-of-25-characters@db.example/x"),
        ("CACHE", "redis://:a%2Dsecret-of-25-characters@db:6379"),
        ("JDBC", "jdbc:postgresql://db/x?user=ada&password=a-secret-of-25-characters&ssl=true"),
    ],
)
def test_a_secret_of_a_variable_is_known_by_the_last_word_of_its_name_or_by_its_place_in_a_url(
    monkeypatch, variable, value
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=rf"vocab\.json holds .* {variable}"):
        refuse_secrets("vocab.json", b"x a-secret-of-25-characters y", "--agent")


@pytest.mark.parametrize("variable", ["PWD", "OLDPWD", "COMPASS", "OPENAI_API_KEY_FILE", "PATH"])
def test_a_directory_and_words_that_only_sound_like_it_are_no_secrets(monkeypatch, variable):
    monkeypatch.setenv(variable, "/home/ada/projects")
    refuse_secrets("vocab.json", b"/home/ada/projects", "--agent")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"a {GITHUB}", "an access token"),
        (f"g{GITHUB}", None),
        (json.dumps(f"a\n{GITHUB}"), "an access token"),
        (f"'{AMAZON}'", "an access token"),
        (f"{AMAZON}Z", None),
        ("machine api.example login ada password x1", "netrc"),
        (json.dumps("machine api.example\n  login ada\n  password x1"), "netrc"),
        ("default login ada password x1", "netrc"),
        ("the default password of a machine, login: and password", None),
        ("see postgres://ada:x1@db.example/x", "URL"),
        ('{"://": 1, "a:b": 2, "@": 3, "http://host:80/a@b": 4}', None),
    ],
)
def test_secrets_have_known_forms(text, says):
    if says is None:
        refuse_secrets("vocab.json", text.encode(), "--agent")
    else:
        with pytest.raises(UserError, match=rf"vocab\.json holds .*{says}"):
            refuse_secrets("vocab.json", text.encode(), "--agent")


def test_the_header_of_weights_is_read_for_secrets(folder):
    save_file({"x": np.zeros(2)}, folder / "value_head.safetensors", {"format": "pt", "note": f"of {GITHUB}"})
    with pytest.raises(UserError, match=r"value_head\.safetensors holds an access token") as error:
        published_files(folder, "--agent")
    assert GITHUB not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"my notes, which are longer than eight bytes", (2).to_bytes(8, "little") + b"{} and notes"],
    ids=["empty", "text", "text behind a header"],
)
def test_a_file_that_is_no_safetensors_is_not_published(folder, content):
    (folder / "notes.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"--agent: .*notes\.safetensors is no safetensors file"):
        published_files(folder, "--agent")


def test_what_is_short_or_of_another_variable_is_no_secret(monkeypatch):
    for name, value in (("OPENAI_API_KEY", "elevenchars"), ("HOMEPAGE", "a text of twelve")):
        monkeypatch.setenv(name, value)
    refuse_secrets("vocab.json", b"hf_short, elevenchars, a text of twelve and all else", "--agent")
    monkeypatch.setenv("OPENAI_API_KEY", "twelve chars")
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        refuse_secrets("vocab.json", b"a twelve chars b", "--agent")
