"""A model folder that is damaged, edited, or written by a newer library: it loads and answers, or a UserError says why."""

import io
import logging
import re

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.loading import load_causal_lm, read_tokenizer
from rlhf_dialog.models.pretrained import readable
from rlhf_dialog.rewards.intent import Intent
from tests.parts import agents, tiny
from tests.parts.classifiers import save_classifier
from tests.parts.poisoned import edit

NEWER = {"type": "SentencePieceUnigram2027", "trim": True}  # a pre-tokenizer that no version has yet


@pytest.mark.parametrize(
    ("save", "load", "key"), [(agents.save, ChatAgent.load, "--agent"), (save_classifier, Intent, "intent_model")]
)
def test_a_tokenizer_of_a_newer_library(tmp_path, save, load, key):
    save(tmp_path)
    edit(tmp_path / "tokenizer.json", pre_tokenizer=NEWER)
    with pytest.raises(UserError, match=f"{key}: .*tokenizer.json.* untagged enum PreTokenizer.* newer transformers"):
        load(str(tmp_path))


class PanicException(BaseException):
    """As pyo3 makes it of a panic in Rust: not an Exception."""


def test_what_a_parser_raises_is_the_users_error():
    errors = PanicException("no entry"), MemoryError("no entry"), KeyboardInterrupt(), SystemExit(143), UserError("x")
    for number, error in enumerate(errors):
        with pytest.raises(UserError if number < 2 else type(error)) as caught, readable("./agent", "k", "a tokenizer"):
            raise error
        if number < 2:
            assert re.search(r"'./agent' cannot be loaded as a tokenizer .*\. no entry; ", str(caught.value))
        else:
            assert caught.value is error


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


def test_what_the_library_logs_cannot_steer_the_terminal(monkeypatch):
    handler = next(one for one in logging.getLogger("transformers").handlers if type(one) is logging.StreamHandler)
    monkeypatch.setattr(handler, "stream", io.StringIO())
    logging.getLogger("transformers.modeling_utils").warning("the tensor %s", "\x1b]0;owned\x07")
    shown = handler.stream.getvalue()
    assert r"\x1b]0;owned\x07" in shown
    assert "\x1b" not in shown
