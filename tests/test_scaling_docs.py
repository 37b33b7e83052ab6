"""docs/SCALING.md: its numbers are what a run forecasts, and its names are there."""

import re

import pytest

from rlhf_dialog.distributed.memory.forecast import forecast
from rlhf_dialog.distributed.memory.model_bytes import lora_parameters, model_sizes
from rlhf_dialog.distributed.memory.setting import memory_setting
from tests.parts.processes import ROOT, load_script
from tests.parts.trainers import settings

PAGE = (ROOT / "docs/SCALING.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script():
    return load_script("scripts/write_scaling_docs.py")


def test_a_table_by_hand(script):
    """GPT-2 has 124,439,808 parameters: 4 bytes each for weights, gradients and reference, 8 for Adam (12 under ZeRO).

    The gradients of a single microbatch (stage 0) come as its activations go, so they are not there at the peak; nor are those of
    stage 3, whose peak is the rollout with gathered weights.
    """
    sizes, gib = model_sizes(script.MODELS["GPT-2"]), 2**30
    count = 124_439_808
    for stage, gpus, by_hand in (
        ("0", 1, (4, 0, 8, 4)),
        ("1", 8, (4, 4, 12 / 8, 4)),
        ("2", 8, (4, 4 / 8, 12 / 8, 4)),
        ("3", 8, (4 / 8, 0, 12 / 8, 4 / 8)),
        ("2, offload", 8, (4, 0, 0, 4)),
        ("3, offload", 8, (0, 0, 0, 0)),
    ):
        found = forecast(sizes, None, None, script.setting_for(stage, gpus, 0))
        columns = script.columns(found)
        assert [round(x / gib, 3) for x in columns[:4]] == [round(b * count / gib, 3) for b in by_hand], stage
        assert sum(columns) == found.total
    lora = 12 * 16 * (768 + 3 * 768 + 768 + 768 + 768 + 4 * 768 + 4 * 768 + 768)
    assert lora_parameters(sizes, 16) == lora
    columns = script.columns(forecast(sizes, None, None, script.setting_for("0", 1, 16)))
    assert columns[:4] == [4 * (count + lora), 0, 8 * lora, 0]


def test_a_run_forecasts_with_its_own_keys():
    keys = {"use_lora": True, "lora_r": 4, "lora_target_modules": ["attn.c_attn"], "activation_checkpointing": True}
    setting = memory_setting(settings(**keys))
    assert (setting.lora_rank, setting.lora_targets, setting.activation_checkpointing) == (4, ("c_attn",), True)
    assert not setting.holds_reference
    assert memory_setting(settings(use_lora=True, ref_model="other")).holds_reference
    plain = memory_setting(settings(lora_r=4))
    assert (plain.lora_rank, plain.lora_targets, plain.activation_checkpointing) == (0, (), False)


def test_the_commands_name_what_ships():
    named = set(re.findall(r"[\w/]+\.(?:py|yaml)\b", PAGE))
    assert {"train_ppo.py", "nlp_ppo.yaml", "configs/nlp_ppo_lora.yaml"} <= named
    for name in named:
        assert any((ROOT / folder / name).exists() for folder in (".", "configs")), name


def test_all_keys_that_it_names_exist():
    from rlhf_dialog.config.schema import Config

    for key in re.findall(r"`(\w+): (?:true|false|fp16)`", PAGE):
        assert key in Config.model_fields, key
