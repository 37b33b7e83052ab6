"""The types in which an agent is saved whose model has 16 bits."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlhf_dialog.models.loading import load_models
from rlhf_dialog.models.lora import merged_weights
from rlhf_dialog.models.policy import Policy
from rlhf_dialog.models.saved_agent import save_agent, state_to_save, surviving_change
from tests.parts import tiny
from tests.parts.saved_models import CPU, save
from tests.parts.trainers import settings

HALF, WHOLE = torch.bfloat16, torch.float32


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def start(request, tmp_path_factory):
    lm = tiny.llama(tie_word_embeddings=request.param, initializer_range=0.3).bfloat16()
    return save(tmp_path_factory.mktemp("start"), lm)


def agent_of(start, folder, size, **keys):
    """An agent whose trained weights were moved by about `size`: what is saved, its settings, and the weights in training."""
    config = settings(model_path=start, **keys)
    models = load_models(config, CPU)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in models.policy.lm.named_parameters():
            if p.requires_grad and "embed_tokens" not in name:
                p.add_(torch.randn(p.shape, generator=generator) * size)
    save_agent(folder, models.policy, models.tokenizer, config)
    weights = dict(merged_weights(models.policy.lm, models.policy.adapter))
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text()), weights


def types_of(state, names):
    return {state[name].dtype for name in names}


@pytest.mark.parametrize(
    ("use_lora", "size", "keys", "expected"),
    [
        (True, 1e-6, {}, WHOLE),
        (True, 0.1, {}, HALF),
        (False, 0.1, {}, HALF),
        (False, 1e-6, {"agent_dtype": "checkpoint"}, HALF),
        (True, 0.1, {"agent_dtype": "float32"}, WHOLE),
    ],
)
def test_trained_weights_are_rounded_where_most_of_their_change_is_left(
    start, tmp_path, use_lora, size, keys, expected, caplog
):
    caplog.set_level("INFO")
    state, config, weights = agent_of(start, tmp_path / "agent", size, use_lora=use_lora, lora_r=2, **keys)
    before = load_file(f"{start}/model.safetensors")
    assert set(state) == set(before)
    trained = {name for name in state if ("_proj" in name if use_lora else "embed_tokens" not in name)}
    untrained = set(state) - trained
    assert types_of(state, trained) == {expected}
    assert types_of(state, untrained) == {WHOLE if keys.get("agent_dtype") == "float32" else HALF}
    assert all(torch.equal(state[name].float(), before[name].float()) for name in untrained)
    assert all(torch.allclose(x.float(), weights[name], rtol=0.01) for name, x in state.items())
    assert config["dtype"] == ("bfloat16" if expected == HALF else "float32")
    assert ("saved in float32" in caplog.text) == (expected == WHOLE and not keys)


@torch.no_grad()
@pytest.mark.parametrize(("num_lost", "expected"), [(1, HALF), (2, WHOLE)])
def test_a_weight_is_rounded_where_95_hundredths_of_its_change_are_left(start, num_lost, expected):
    """One number moves by a step of bfloat16, others by a quarter of it, which rounding loses: cosines of .97 and .94."""
    lm = AutoModelForCausalLM.from_pretrained(start, dtype=WHOLE)
    change = torch.zeros(len(lm.model.norm.weight))
    change[0], change[1 : 1 + num_lost] = 1 / 128, 1 / 512
    lm.model.norm.weight += change
    state = state_to_save(Policy(lm), settings(model_path=start))
    assert {x.dtype for name, x in state.items() if name != "model.norm.weight"} == {HALF}
    assert state["model.norm.weight"].dtype == expected
    assert set(state) == set(load_file(f"{start}/model.safetensors"))  # a tied one once
    assert state["model.norm.weight"][0] == 1 + 1 / 128


def test_a_model_of_32_bits_or_one_that_is_gone_is_saved_in_float32(tmp_path, caplog):
    whole = save(tmp_path / "whole", tiny.llama())
    state, _, _ = agent_of(whole, tmp_path / "agent", 0.1)
    assert types_of(state, state) == {WHOLE}
    config = settings(model_path=save(tmp_path / "half", tiny.llama().bfloat16()))
    models = load_models(config, CPU)
    shutil.rmtree(tmp_path / "half")
    save_agent(tmp_path / "agent", models.policy, models.tokenizer, config)
    state = load_file(tmp_path / "agent" / "model.safetensors")
    assert types_of(state, state) == {WHOLE}
    assert "the agent is saved in float32, because" in caplog.text


def test_the_change_that_survives_by_hand():
    """bfloat16 has steps of 1/128 from 1 to 2: the first and the last move by a step, the second loses its change."""
    before = torch.tensor([1.0, 1.0, 1.0], dtype=HALF)
    change = torch.tensor([1 / 128, 1 / 512, 3 / 256])
    after = {"a": before.float() + change, "b": before.float(), "other": torch.ones(1)}
    cosine, changed = surviving_change(after.items(), {"a": before, "b": before})
    left = torch.tensor([1 / 128, 0, 2 / 128])  # half a step goes to the even number
    assert cosine == pytest.approx(torch.cosine_similarity(change, left, dim=0).item(), abs=1e-6)
    assert changed == {"a"}
    lost = {"a": before.float() + torch.tensor([1 / 512, 0, 0])}
    assert surviving_change(lost.items(), {"a": before}) == (0.0, {"a"})
    assert surviving_change({"a": before.float()}.items(), {"a": before}) == (1.0, set())
