"""A chat template that does not end, or ends the process, is an error; what it raises is left to its users."""

import os
import resource
import signal
from types import SimpleNamespace

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.models import pretrained
from rlhf_dialog.models.loading import read_tokenizer
from tests.parts import agents, tiny


@pytest.fixture
def folder(tmp_path):
    return agents.save(tmp_path / "agent")


def write(folder, template):
    (folder / "chat_template.jinja").write_text(template)


def test_a_template_that_ends_is_tried_once_and_used(folder, monkeypatch):
    monkeypatch.setattr(pretrained, "TRIED_TEMPLATES", {})
    write(folder, tiny.CHATML)
    for _ in range(2):
        assert read_tokenizer(str(folder), "model_path").chat_template == tiny.CHATML
    assert pretrained.TRIED_TEMPLATES == {tiny.CHATML: True}


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% if %}", "{{ messages[9].content }}"])
def test_a_template_that_raises_is_no_endless_one(folder, template):
    write(folder, template)
    assert read_tokenizer(str(folder), "model_path").chat_template == template


def test_a_template_that_ends_its_process_or_could_run_for_ever_is_refused(monkeypatch):
    def render(chat, chat_template, **_):
        crashes = chat_template == "crashes" and len(chat) > 1  # at the first answer of the agent
        if crashes or resource.getrlimit(resource.RLIMIT_CPU) != (10, 10):
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(pretrained, "TRIED_TEMPLATES", {})
    tokenizer = SimpleNamespace(chat_template="ends", apply_chat_template=render)
    pretrained.try_template(tokenizer, "there", "model_path")
    for tokenizer.chat_template in ("crashes", {"default": "ends", "other": "crashes"}):
        with pytest.raises(UserError, match=r"model_path: 'there': the chat template"):
            pretrained.try_template(tokenizer, "there", "model_path")
