"""The JSON schema of a class of keys: by hand for a small one, and beside what the command accepts for the real ones."""

from typing import Any, Literal

import pytest
from pydantic import Field

from rlhf_dialog.config.json_schema import json_schema
from rlhf_dialog.config.loading import load_config
from rlhf_dialog.config.schema import ClassConfig, Config
from rlhf_dialog.config.settings import Settings
from rlhf_dialog.config.synonyms import NO_EFFECT
from rlhf_dialog.errors import UserError
from tests.parts.schemas import faults


class TeaKeys(Settings):
    """How tea is made"""

    water: float = Field(description="litres", gt=0)
    kind: Literal["green", "black"] = Field("green", description="of the leaves")
    cup: str | None = Field(None, description="whose")
    steep: ClassConfig = Field(default_factory=lambda: ClassConfig(id="Slowly"), description="how")


def test_by_hand():
    schema = json_schema(TeaKeys, {"steep": ["Slowly", "Fast"]}, {"milk": "there is none"})
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False
    assert "required" not in schema
    water, kind, cup, steep, milk = (schema["properties"][key] for key in ("water", "kind", "cup", "steep", "milk"))
    assert water == {"description": "litres", "type": "number", "exclusiveMinimum": 0}
    assert (kind["enum"], kind["default"]) == (["green", "black"], "green")
    assert cup == {"anyOf": [{"type": ["string", "number"]}, {"type": "null"}], "default": None, "description": "whose"}
    assert steep["default"] == {"id": "Slowly", "args": {}}
    assert steep["properties"]["id"]["anyOf"] == [{"enum": ["Fast", "Slowly"]}, {"type": ["string", "number"]}]
    assert milk == {"description": "has no effect here; there is none", "deprecated": True}


BASE: dict[str, Any] = {
    "model_path": "m",
    "env": {"args": {"data_path": "d"}},
    "reward_class": {"id": "LengthMatch"},
}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"experiment_name": 2026},
        {"num_responses_per_prompt": None},
        {"advantage_estimator": "rloo"},
        {"reward_class": {"id": "Mine", "args": {"anything": [1, {"a": None}]}}},
        {"reward_class": {"id": "LengthMatch", "args": None}},
        {"kl_coef_max": None, "stop_token_ids": [1, 2]},
        {key: 1 for key in NO_EFFECT},
    ],
    ids=lambda keys: " ".join(keys)[:30] or "nothing else",
)
def test_what_the_yaml_accepts_the_schema_accepts(keys, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf_dialog.config.registry.RewardFactory.classes", {})  # ids are not looked up
    path = tmp_path / "a.yaml"
    path.write_text("", encoding="utf-8")
    load_config(path, BASE | keys)
    assert faults(BASE | keys, json_schema(Config, {"reward_class": ["LengthMatch"]}, NO_EFFECT)) == []


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"lrr": 1}, "lrr: unknown"),
        ({"lr": 0}, "lr: exclusiveMinimum"),
        ({"lr": "fast"}, "lr: not number"),
        ({"seed": True}, "seed: not integer"),
        ({"advantage_estimator": "rlooo"}, "advantage_estimator: not one of"),
        ({"reward_class": {"name": "x"}}, "reward_class.name: unknown"),
        ({"env": {"args": {"path": "x"}}}, "env.args.path: unknown"),
    ],
)
def test_what_it_refuses_the_command_refuses(keys, fault, tmp_path):
    (said,) = faults(BASE | keys, json_schema(Config, {"reward_class": ["LengthMatch"]}, NO_EFFECT))
    assert said.startswith(fault)
    path = tmp_path / "a.yaml"
    path.write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"\d problems?"):
        load_config(path, BASE | keys)
