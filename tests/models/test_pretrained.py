"""Loading from a folder or the Hub: one clear error for each folder that is wrong, and no waiting for a Hub without network."""

import json
import re
import time

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BartConfig,
    BartForSequenceClassification,
)

from rlhf_dialog.errors import UserError
from rlhf_dialog.models import pretrained
from tests.parts import tiny
from tests.parts.hub_answers import answer
from tests.parts.poisoned import edit
from tests.parts.processes import environment, run_python

pytestmark = pytest.mark.usefixtures("forget")


def test_a_folder_loads_whatever_the_network_also_one_of_the_home_folder(tmp_path, monkeypatch):
    tiny.gpt2(seed=3).save_pretrained(tmp_path / "lm")
    lm = pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path / "lm"), "model_path")
    expected = tiny.gpt2(seed=3).state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in lm.state_dict().items())
    tiny.byte_tokenizer().save_pretrained(tmp_path / "words")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pretrained.load_pretrained(AutoTokenizer, "~/words", "k").convert_tokens_to_ids("<EOU>") == 258


def test_a_hub_name_without_network_fails_at_once_with_its_key():
    start = time.perf_counter()
    with pytest.raises(UserError) as error:
        pretrained.load_pretrained(AutoModelForCausalLM, "nobody/no-such-model", "model_path")
    assert time.perf_counter() - start < 60
    text = str(error.value)
    assert text.startswith("model_path: 'nobody/no-such-model'")
    assert "cannot be reached" in text
    assert "\n" not in text


@pytest.mark.parametrize("path", ["./absent", "/absent/model", "a/b/c", __file__])
def test_a_folder_that_is_not_there_or_a_file_is_not_looked_for_on_the_hub(online, monkeypatch, path):
    asked = answer(monkeypatch, AssertionError("asked"))
    with pytest.raises(UserError, match=f"ref_model: no such folder: '{path}'"):
        pretrained.load_pretrained(AutoModelForCausalLM, path, "ref_model")
    assert asked == []


@pytest.mark.parametrize(
    ("auto_class", "kind"),
    [
        (AutoModelForCausalLM, "a causal LM"),
        (AutoTokenizer, "a tokenizer"),
        (AutoModelForSequenceClassification, "a classifier"),
    ],
)
def test_an_empty_or_damaged_folder_says_what_was_wanted(tmp_path, auto_class, kind):
    with pytest.raises(UserError, match=f"k: .* cannot be loaded as {kind}"):
        pretrained.load_pretrained(auto_class, str(tmp_path), "k")
    (tmp_path / "config.json").write_text("{ half", encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text("{ half", encoding="utf-8")
    with pytest.raises(UserError, match=f"k: .* cannot be loaded as {kind}"):
        pretrained.load_pretrained(auto_class, str(tmp_path), "k")


# -- models that are not computed here, and folders without weights, by name


TINY = {"vocab_size": 32, "d_model": 8, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
LAYERS = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads", "ffn_dim")}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *[(kind, rf"encoder-decoder \({kind}\)") for kind in ("t5", "mt5", "bart", "blenderbot", "marian", "pegasus")],
        *[(kind, "takes no past_key_values") for kind in ("mamba", "mamba2", "rwkv", "openai-gpt", "xlnet")],
        ("llava", "type llava, for which transformers has no AutoModelForCausalLM"),
    ],
)
def test_a_model_that_is_not_computed_here_is_refused_by_its_type_before_it_is_read(tmp_path, kind, words):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"not read")
    with pytest.raises(UserError, match=f"^model_path: '{tmp_path}': .*{words}"):
        pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path), "model_path")


def test_an_encoder_decoder_may_be_a_classifier(tmp_path):
    BartForSequenceClassification(BartConfig(**TINY, **LAYERS, num_labels=4)).save_pretrained(tmp_path)
    assert pretrained.load_pretrained(AutoModelForSequenceClassification, str(tmp_path), "k").config.num_labels == 4


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "bitsandbytes"])
def test_quantized_weights(tmp_path, method):
    tiny.gpt2().save_pretrained(tmp_path)
    edit(tmp_path / "config.json", quantization_config={"quant_method": method, "bits": 4})
    with pytest.raises(UserError, match=f"has {method} weights, .*16 or 32 bits"):
        pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path), "model_path")


@pytest.mark.parametrize("damage", ["shard", "index"])
def test_a_part_of_the_weights_that_is_missing_is_named(tmp_path, damage):
    tiny.gpt2().save_pretrained(tmp_path, max_shard_size="40KB")
    first, *others = sorted(tmp_path.glob("*.safetensors"))
    assert others
    missing = first if damage == "shard" else tmp_path / "model.safetensors.index.json"
    missing.unlink()
    with pytest.raises(UserError, match=re.escape(missing.name)) as error:
        pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path), "model_path")
    assert "pickle" not in str(error.value)


def test_a_folder_may_lack_shards_of_a_form_that_is_not_read(tmp_path):
    tiny.gpt2().save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "pytorch_model-1.bin"}}')
    for safe in (True, None):
        pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path), "k", use_safetensors=safe)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks pytorch_model-1\.bin"):
        pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path), "k", use_safetensors=None)


@pytest.mark.parametrize("name", ["model.Q4_K_M.gguf", "tf_model.h5", "flax_model.msgpack"])
@pytest.mark.parametrize("has_config", [True, False])
def test_weights_in_another_format_alone(tmp_path, name, has_config):
    if has_config:
        tiny.gpt2().config.save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(UserError, match=rf"another format alone \({re.escape(name)}\)"):
        pretrained.load_pretrained(AutoModelForCausalLM, str(tmp_path), "model_path")


@pytest.mark.slow
def test_saving_a_model_says_nothing_of_deepspeeds_accelerator(tmp_path):
    """Saving imports DeepSpeed where it is installed, which prints its guess of the accelerator on stdout."""
    pytest.importorskip("deepspeed", reason="the extra `deepspeed` is not installed")
    code = """
import sys
import rlhf_dialog.models.pretrained
from tests.parts.tiny import gpt2
gpt2(0).save_pretrained(sys.argv[1])
print("deepspeed" in sys.modules)
"""
    env = environment(DS_ACCELERATOR=None, CUDA_VISIBLE_DEVICES="")
    ran = run_python("-c", code, tmp_path / "model", env=env)
    assert ran.stdout.splitlines() == ["True"]
    assert "accelerator" not in ran.stderr
