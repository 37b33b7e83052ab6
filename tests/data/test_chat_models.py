"""What a plain chat model's folder says of how it speaks."""

import json

import pytest

from rlhf_dialog.config.loading import find_config, load_config
from rlhf_dialog.data.chat_models import chat_settings


def folder_of(path, **files):
    for name, tree in files.items():
        (path / f"{name}.json").write_text(tree if isinstance(tree, str) else json.dumps(tree), encoding="utf-8")
    return path


SIZES = {"turn_separator": "chat_template", "context_size": 1000, "max_new_tokens": 512, "max_prompt_length": 4096}
CHAT = {"chat_temperature": 0.7, "chat_top_p": 0.9}
MAKERS = {"temperature": 0.7, "top_k": 20, "top_p": 0.8}


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"do_sample": True, **MAKERS}, MAKERS),
        ({"do_sample": True, "temperature": 0.0, "top_k": "many", "top_p": None}, {}),  # what cannot be
        ({}, CHAT),
        ({"do_sample": False, "temperature": 0.2, "top_p": 0.1}, CHAT),
    ],
)
def test_a_chat_model_speaks_by_its_template_and_its_makers_sampling(tmp_path, sampling, kept):
    """Where they recommend none, a chat is sampled as that of SmolLM2."""
    folder_of(tmp_path, tokenizer_config={"chat_template": "x"}, generation_config=sampling, config="{broken")
    assert chat_settings(tmp_path) == SIZES | kept
    config = load_config(find_config("chat_smollm2.yaml"))
    assert {key: getattr(config, key) for key in CHAT} == CHAT
    assert config.temperature == config.top_p == 1


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json"])
def test_a_template_in_a_file_of_its_own_and_none(tmp_path, name):
    assert chat_settings(folder_of(tmp_path, tokenizer_config={"eos_token": "</s>"})) == {}
    assert chat_settings(tmp_path / "absent") == {}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).write_text("{{ messages }}", encoding="utf-8")
    assert chat_settings(tmp_path, tmp_path / "other")["turn_separator"] == "chat_template"
    assert chat_settings(tmp_path / "other", tmp_path) == {}


@pytest.mark.parametrize(("positions", "sizes"), [(256, (64, 192)), (32768, (512, 4096)), (2, (1, 2))])
def test_a_model_has_room_for_prompt_and_reply(tmp_path, positions, sizes):
    found = chat_settings(
        folder_of(tmp_path, config={"n_positions": positions}, tokenizer_config={"chat_template": "x"})
    )
    assert (found["max_new_tokens"], found["max_prompt_length"]) == sizes
