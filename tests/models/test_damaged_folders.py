"""A model folder that is damaged, edited, or written by a newer library: it loads and answers, or a UserError says why."""

import io
import logging
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.loading import load_causal_lm, read_tokenizer
from rlhf_dialog.models.pretrained import readable
from rlhf_dialog.rewards.intent import Intent
from tests.parts import agents, tiny
from tests.parts.classifiers import save_classifier
from tests.parts.damage import wreck
from tests.parts.poisoned import edit

NEWER = {"type": "SentencePieceUnigram2027", "trim": True}  # a pre-tokenizer that no version has yet


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    agents.save(root / "agent", {"max_new_tokens": 4, "max_prompt_length": 100})
    save_classifier(root / "classifier", rlhf_dialog_input="pair")
    return root


def talk(folder: Path) -> None:
    ChatAgent.load(folder).chat("Hello there .", ["Hi .", "Good ."])


def classify(folder: Path) -> None:
    Intent(str(folder)).predict([Dialogue(["a b c"], "d e"), Dialogue(["a " * 30], "d " * 40)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_classifier_loads_or_says_what_is_wrong(whole, tmp_path, seed):
    folder = shutil.copytree(whole / "classifier", tmp_path / "classifier")
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors"))
    wreck(random.Random(seed).choice(files), seed)
    with suppress(UserError):
        classify(folder)


@pytest.mark.parametrize(("name", "key"), [("agent", "--agent"), ("classifier", "intent_model")])
def test_a_tokenizer_of_a_newer_library(whole, tmp_path, name, key):
    folder = tmp_path / name
    shutil.copytree(whole / name, folder)
    edit(folder / "tokenizer.json", pre_tokenizer=NEWER)
    with pytest.raises(UserError, match=f"{key}: .*tokenizer.json.* untagged enum PreTokenizer.* newer transformers"):
        talk(folder) if name == "agent" else classify(folder)


class PanicException(BaseException):
    """As pyo3 makes it of a panic in Rust: not an Exception."""


def raise_in_block(error: BaseException) -> None:
    with readable("./agent", "--agent", "a tokenizer"):
        raise error


def test_what_a_parser_raises_is_the_users_error():
    for error in (PanicException("no entry"), MemoryError("no entry")):
        with pytest.raises(UserError, match=r"'./agent' cannot be loaded as a tokenizer .*\. no entry; "):
            raise_in_block(error)
    for other in (KeyboardInterrupt(), SystemExit(143), UserError("as it is")):
        with pytest.raises(type(other)) as caught:
            raise_in_block(other)
        assert caught.value is other


@pytest.mark.parametrize("end", ["</s>", [257, 2.0], True])
def test_end_tokens_that_are_not_ids(tmp_path, end):
    """-1, as some write for none, is one."""
    tiny.gpt2().save_pretrained(tmp_path)
    edit(tmp_path / "generation_config.json", eos_token_id=[-1, 2**31 - 1])
    assert load_causal_lm(str(tmp_path), "model_path").generation_config.eos_token_id == [-1, 2**31 - 1]
    edit(tmp_path / "generation_config.json", eos_token_id=end)
    with pytest.raises(UserError, match=r"model_path: eos_token_id"):
        load_causal_lm(str(tmp_path), "model_path")


@pytest.mark.parametrize("limit", ["long", True, 0.5])
def test_a_limit_that_is_not_a_length(tmp_path, limit):
    tiny.byte_tokenizer().save_pretrained(tmp_path)
    edit(tmp_path / "tokenizer_config.json", model_max_length=limit)
    with pytest.raises(UserError, match=r"model_path: model_max_length of"):
        read_tokenizer(str(tmp_path), "model_path")


def test_the_name_of_a_tensor_cannot_steer_the_terminal(tmp_path, monkeypatch):
    tiny.gpt2().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"\x1b]0;owned\x07": torch.zeros(1)}, tmp_path / "model.safetensors", {"format": "pt"})
    handler = next(one for one in logging.getLogger("transformers").handlers if type(one) is logging.StreamHandler)
    monkeypatch.setattr(handler, "stream", io.StringIO())
    load_causal_lm(str(tmp_path), "model_path")
    shown = handler.stream.getvalue()
    assert r"\x1b]0;owned\x07" in shown
    assert "\x1b" not in shown
