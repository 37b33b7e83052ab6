"""Loading from a folder or the Hub: what is local, one clear error, and no waiting when the Hub cannot be reached."""

import socket
import time
import urllib.error
import urllib.request

import pytest
import tiny
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rlhf_dialog.data import hub
from rlhf_dialog.errors import UserError
from rlhf_dialog.models import pretrained


@pytest.fixture(autouse=True)
def forget():
    """`hub_reachable` remembers its answer for the life of the process."""
    hub.hub_reachable.cache_clear()
    yield
    hub.hub_reachable.cache_clear()


@pytest.fixture
def online(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def answer(monkeypatch, result):
    """Let the next request to the Hub end with `result`, and count the requests."""
    asked = []

    def urlopen(request, timeout):
        asked.append(request.full_url)
        assert timeout <= 5
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    return asked


def test_offline_by_setting_asks_nobody(monkeypatch):
    asked = answer(monkeypatch, AssertionError("asked"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not hub.hub_reachable()
    assert asked == []


@pytest.mark.parametrize(
    ("result", "reachable"),
    [
        (urllib.error.URLError(socket.gaierror("no such host")), False),
        (urllib.error.URLError(ConnectionRefusedError()), False),
        (TimeoutError(), False),
        (ConnectionResetError(), False),
        (urllib.error.HTTPError("u", 503, "busy", {}, None), True),  # type: ignore[arg-type]
    ],
)
def test_reachable_is_asked_once(online, monkeypatch, result, reachable):
    asked = answer(monkeypatch, result)
    assert [hub.hub_reachable() for _ in range(3)] == [reachable] * 3
    assert len(asked) == 1


def test_what_can_only_be_a_place_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "gpt2").mkdir()
    for path in ("./x", "../x", "/x/y", "~/x", "a/b/c", "x/", "data.jsonl", "gpt2", "models", "models/absent"):
        assert hub.is_local(path), path
    for path in ("distilgpt2", "someone/model", "daily_dialog"):
        assert not hub.is_local(path), path


def test_a_folder_loads_whatever_the_network(tmp_path):
    tiny.gpt2(seed=3).save_pretrained(tmp_path / "lm")
    lm = pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path / "lm"), "model_path")
    expected = tiny.gpt2(seed=3).state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in lm.state_dict().items())


def test_the_home_folder_is_expanded(tmp_path, monkeypatch):
    tiny.byte_tokenizer().save_pretrained(tmp_path / "words")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pretrained.load_pretrained(AutoTokenizer, "~/words", "k").convert_tokens_to_ids("<EOU>") == 258


def test_a_hub_name_without_network_fails_at_once_with_its_key():
    start = time.perf_counter()
    with pytest.raises(UserError) as error:
        pretrained.load_pretrained(AutoModelForCausalLM, "nobody/no-such-model", "model_path")
    assert time.perf_counter() - start < 60
    text = str(error.value)
    assert text.startswith("model_path: 'nobody/no-such-model'")
    assert "cannot be reached" in text
    assert "\n" not in text


@pytest.mark.parametrize("path", ["./absent", "/absent/model", "a/b/c"])
def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub(online, monkeypatch, path):
    asked = answer(monkeypatch, AssertionError("asked"))
    with pytest.raises(UserError, match=f"ref_model: there is no folder '{path}'"):
        pretrained.load_pretrained(AutoModelForCausalLM, path, "ref_model")
    assert asked == []


def test_a_file_is_no_model_folder(tmp_path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(UserError, match="there is no folder"):
        pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path / "model.bin"), "model_path")


@pytest.mark.parametrize(
    ("auto_class", "kind"),
    [
        (AutoModelForCausalLM, "a causal LM"),
        (AutoTokenizer, "a tokenizer"),
        (AutoModelForSequenceClassification, "a classifier"),
    ],
)
def test_an_empty_or_damaged_folder_says_what_was_wanted(tmp_path, auto_class, kind):
    with pytest.raises(UserError, match=f"k: .* cannot be loaded as {kind}"):
        pretrained.load_pretrained(auto_class, str(tmp_path), "k")
    (tmp_path / "config.json").write_text("{ half", encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text("{ half", encoding="utf-8")
    with pytest.raises(UserError, match=f"k: .* cannot be loaded as {kind}"):
        pretrained.load_pretrained(auto_class, str(tmp_path), "k")


def test_damaged_weights_are_the_users_error(tmp_path):
    tiny.gpt2().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="model_path"):
        pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path), "model_path", use_safetensors=True)


def test_pickled_weights_are_named_and_only_read_when_allowed(tmp_path):
    lm = tiny.gpt2()
    lm.config.save_pretrained(tmp_path)
    torch.save(lm.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="allow_pickle_weights"):
        pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path), "model_path", use_safetensors=True)


def test_code_of_a_model_folder_is_not_run_unasked(tmp_path):
    tiny.gpt2().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(
        '{"model_type": "odd", "auto_map": {"AutoConfig": "odd.OddConfig", "AutoModelForCausalLM": "odd.Odd"}}',
        encoding="utf-8",
    )
    (tmp_path / "odd.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')\n", encoding="utf-8")
    with pytest.raises(UserError, match="trust_remote_code: true"):
        pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path), "model_path", trust_remote_code=False)
    assert not (tmp_path / "was_run").exists()
