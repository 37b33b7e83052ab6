"""The command that prints the schema of a YAML."""

import json

import pytest

from rlhf_dialog.commands.schema import KINDS, main
from tests.parts.schemas import faults


def printed(capsys, *words):
    assert main([*words]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_prints_that_of_train(capsys):
    schema = printed(capsys)
    assert schema["properties"]["lr"]["default"] == 1e-6  # as OpenRL's
    assert faults({"reward_class": {"id": "MyOwn", "args": {"word": "please"}}}, schema) == []


@pytest.mark.parametrize(
    ("key", "kinds"),
    [
        ("kl_coef", ["ppo"]),
        ("tokenizer_texts", ["sft"]),
        ("evaluate_test", ["intent", "relevance"]),
        ("held_out", ["preference"]),
        ("members", ["relevance"]),
        ("imitation_dialogues", ["policy"]),
    ],
)
def test_each_kind_has_its_own_keys(key, kinds, capsys):
    assert [kind for kind in KINDS if key in printed(capsys, "--kind", kind)["properties"]] == kinds


def test_another_kind_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--kind", "dpo"])
    assert end.value.code == 2
    assert "invalid choice: 'dpo'" in capsys.readouterr().err
