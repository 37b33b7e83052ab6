"""The command that prints the schema of a YAML."""

import json

import pytest

from rlhf_dialog.commands.schema import KINDS, main


def printed(capsys, *words):
    assert main([*words]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("key", "kinds"),
    [
        ("kl_coef", ["ppo"]),
        ("tokenizer_texts", ["sft"]),
        ("evaluate_test", ["intent", "relevance"]),
        ("held_out", ["preference"]),
        ("imitation_dialogues", ["policy"]),
    ],
)
def test_each_kind_has_its_own_keys(key, kinds, capsys):
    assert [kind for kind in KINDS if key in printed(capsys, "--kind", kind)["properties"]] == kinds


def test_a_key_has_its_default_and_none_is_required(capsys):
    schema = printed(capsys)
    assert schema["properties"]["lr"]["default"] == 1e-6  # as OpenRL's
    assert "required" not in schema
