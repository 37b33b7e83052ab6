"""A chat template that does not end, or ends the process, is an error; what it raises is left to its users."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.models import template_trial
from rlhf_dialog.models.loading import read_tokenizer
from tests.parts import agents, tiny

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"


@pytest.fixture
def folder(tmp_path):
    return agents.save(tmp_path / "agent")


def write(folder, template):
    (folder / "chat_template.jinja").write_text(template)


def test_a_template_that_ends_is_tried_once_and_used(folder, monkeypatch):
    monkeypatch.setattr(template_trial, "TRIED", {})
    write(folder, tiny.CHATML)
    for _ in range(2):
        assert read_tokenizer(str(folder), "model_path").chat_template == tiny.CHATML
    assert template_trial.TRIED == {tiny.CHATML: True}


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% if %}", "{{ messages[9].content }}"])
def test_a_template_that_raises_is_no_endless_one(folder, template):
    write(folder, template)
    assert read_tokenizer(str(folder), "model_path").chat_template == template


@pytest.mark.slow
@pytest.mark.parametrize("where", ["file", "settings", "second"])
def test_a_template_that_never_ends_is_refused(folder, monkeypatch, where):
    monkeypatch.setattr(template_trial, "SECONDS", 1)
    monkeypatch.setattr(template_trial, "TRIED", {})
    template = f"{{% if messages | length > 1 %}}{LOOP}{{% endif %}}"
    if where == "file":
        write(folder, template)
    else:
        names = {"default": tiny.CHATML, "other": template} if where == "second" else {"default": template}
        path = folder / "tokenizer_config.json"
        templates = [{"name": name, "template": one} for name, one in names.items()]
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": templates}))
    for _ in range(2):
        with pytest.raises(UserError, match=r"model_path.*agent.*template.* processor seconds"):
            read_tokenizer(str(folder), "model_path")
