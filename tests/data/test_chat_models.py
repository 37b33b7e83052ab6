"""What a plain chat model's folder says of how it speaks."""

import json

import pytest

from rlhf_dialog.config.loading import find_config, load_config
from rlhf_dialog.data.chat_models import chat_settings


def folder_of(path, **files):
    for name, tree in files.items():
        (path / f"{name}.json").write_text(tree if isinstance(tree, str) else json.dumps(tree), encoding="utf-8")
    return path


def test_a_chat_model_speaks_by_its_template_and_its_makers_sampling(tmp_path):
    sampling = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
    folder_of(
        tmp_path,
        config={"max_position_embeddings": 32768},
        tokenizer_config={"chat_template": "{{ messages }}"},
        generation_config=sampling,
    )
    assert chat_settings(tmp_path) == {
        **{"turn_separator": "chat_template", "context_size": 1000, "max_new_tokens": 512, "max_prompt_length": 4096},
        **{"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    }


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json"])
def test_a_template_in_a_file_of_its_own(tmp_path, name):
    (tmp_path / name).write_text("{{ messages }}", encoding="utf-8")
    assert chat_settings(tmp_path)["turn_separator"] == "chat_template"


def test_a_model_without_a_template_says_nothing(tmp_path):
    assert chat_settings(folder_of(tmp_path, tokenizer_config={"eos_token": "</s>"})) == {}
    assert chat_settings(tmp_path / "absent") == {}


def test_a_short_model_has_room_for_prompt_and_reply(tmp_path):
    found = chat_settings(folder_of(tmp_path, config={"n_positions": 256}, tokenizer_config={"chat_template": "x"}))
    assert (found["max_new_tokens"], found["max_prompt_length"]) == (64, 192)


def test_sampling_that_cannot_be_is_left_out(tmp_path):
    sampling = {"do_sample": True, "temperature": 0.0, "top_k": "many", "top_p": None}
    folder_of(tmp_path, tokenizer_config={"chat_template": "x"}, generation_config=sampling, config="{broken")
    assert set(chat_settings(tmp_path)) == {"turn_separator", "context_size", "max_new_tokens", "max_prompt_length"}


@pytest.mark.parametrize("sampling", [{}, {"do_sample": False, "temperature": 0.2, "top_p": 0.1}])
def test_a_chat_without_recommended_sampling_is_sampled_as_the_chat_of_smollm2(tmp_path, sampling):
    found = chat_settings(folder_of(tmp_path, tokenizer_config={"chat_template": "x"}, generation_config=sampling))
    chat = {"chat_temperature": 0.7, "chat_top_p": 0.9}
    assert {key: found.get(key) for key in ("temperature", "top_p", *chat)} == {
        "temperature": None,
        "top_p": None,
        **chat,
    }
    config = load_config(find_config("chat_smollm2.yaml"))
    assert {key: getattr(config, key) for key in chat} == chat
    assert config.temperature == config.top_p == 1
