"""Sizes of models: counts against published numbers, and what autograd keeps of real ones."""

import time
from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
    Qwen2Config,
)

from rlhf_dialog.distributed.memory.model_bytes import ForwardPass, kept_bytes, lora_parameters, model_sizes
from rlhf_dialog.models.loading import Form, load_causal_lm
from rlhf_dialog.models.policy import Policy, packs
from rlhf_dialog.models.token_batch import TokenBatch
from tests.parts.known_sizes import BILLION, LLAMA_3_8B, OPT_1B
from tests.parts.tiny import llama


@pytest.mark.parametrize(
    ("config", "parameters", "trunk"),
    [
        (GPT2Config(), 124_439_808, 124_439_808),  # "124M parameters", model card of openai-community/gpt2; tied
        (OPT_1B, 1_315_758_080, 1_315_758_080),  # facebook/opt-1.3b; tied
        (LLAMA_3_8B, 8_030_261_248, 8_030_261_248 - 128256 * 4096),  # meta-llama/Meta-Llama-3-8B; not tied
    ],
    ids=["gpt2", "opt", "llama"],
)
def test_published_parameter_counts(config, parameters, trunk):
    sizes = model_sizes(config)
    assert (sizes.parameters, sizes.trunk) == (parameters, trunk)


def test_shapes_of_known_models():
    gpt, opt, lla = (model_sizes(config) for config in (GPT2Config(), OPT_1B, LLAMA_3_8B))
    assert (gpt.layers, gpt.hidden, gpt.heads, gpt.kv_heads, gpt.head_dim) == (12, 768, 12, 12, 64)
    assert (gpt.vocab, gpt.intermediate, gpt.positions, gpt.largest) == (50257, 3072, 1024, 50257 * 768)
    assert (gpt.norm_floats, gpt.mlp_floats, gpt.explicit_attention) == (2, 2, False)
    assert (lla.kv_heads, lla.head_dim, lla.intermediate, lla.norm_floats, lla.mlp_floats) == (8, 128, 14336, 3, 4)
    assert (gpt.norm_readers, opt.norm_readers, lla.norm_readers) == (2, 4, 5)
    assert (opt.intermediate, opt.mlp_floats) == (8192, 1)
    assert len(gpt.linears) == 12 * 4
    assert set(lla.linears) == {
        ("q_proj", 4096, 4096),
        ("k_proj", 4096, 1024),
        ("v_proj", 4096, 1024),
        ("o_proj", 4096, 4096),
        ("gate_proj", 4096, 14336),
        ("up_proj", 4096, 14336),
        ("down_proj", 14336, 4096),
    }
    assert model_sizes(GPT2Config(n_inner=123)).intermediate == 123


def test_lora_counts_that_peft_prints():
    """r * (in + out): what peft's documentation shows for GPT-2 and what it prints for Llama-2-7B with its default targets."""
    llama_2_7b = model_sizes(LlamaConfig())
    assert lora_parameters(llama_2_7b, 8, ("q_proj", "v_proj")) == 4_194_304  # 0.0622 % of 6,742,609,920
    assert llama_2_7b.parameters + 4_194_304 == 6_742_609_920
    assert lora_parameters(model_sizes(GPT2Config()), 8, ("c_attn",)) == 294_912
    assert lora_parameters(BILLION, 2) == 2 * (2000 + 1200)


def test_lora_count_of_peft_itself():
    import peft  # takes six seconds

    lm = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules="all-linear"))
    trained = sum(p.numel() for p in lm.parameters() if p.requires_grad)
    assert lora_parameters(model_sizes(llama().config), 4) == trained


def test_counting_is_quick_and_leaves_no_trace():
    before, config = torch.get_rng_state(), GPT2Config()
    model_sizes(config)
    start = time.process_time()
    model_sizes(config)
    assert time.process_time() - start < 0.5
    assert torch.equal(before, torch.get_rng_state())


SMALL = {"vocab_size": 300, "bos_token_id": None, "eos_token_id": None}
LLAMA = {"intermediate_size": 192, "num_hidden_layers": 8, "num_attention_heads": 4, "max_position_embeddings": 128}
KEPT_OF = {
    "gpt2": GPT2Config(n_embd=64, n_layer=8, n_head=4, **SMALL),
    "opt": OPTConfig(
        hidden_size=64, ffn_dim=256, num_hidden_layers=8, num_attention_heads=4, word_embed_proj_dim=64, **SMALL
    ),
    "llama": LlamaConfig(hidden_size=64, num_key_value_heads=4, **LLAMA, **SMALL),
    "qwen2-grouped": Qwen2Config(hidden_size=64, num_key_value_heads=2, **LLAMA, **SMALL),
}


def kept_by_autograd(lm, amp, packed, rows=8, prompt=31, response=10, shared=1):
    """Bytes of all tensors that a policy's forward keeps for its backward, without parameters and their bf16 copies."""
    copies = {shape for p in lm.parameters() for shape in (p.shape, p.shape[::-1])} if amp else set()
    weights = {p.untyped_storage().data_ptr() for p in lm.parameters()}
    alive, sizes = [], {}  # alive: nobody may take the place of a freed tensor

    def keep(x):
        if x.shape not in copies and x.untyped_storage().data_ptr() not in weights:
            alive.append(x)
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    ids, real = torch.randint(3, 250, (rows, prompt + response)), torch.ones(rows, prompt + response, dtype=torch.bool)
    numbers = torch.arange(rows) // shared
    ids[:, :prompt] = ids[numbers * shared, :prompt]
    batch = TokenBatch(ids[:, :prompt], real[:, :prompt], ids[:, prompt:], real[:, prompt:], numbers).pack()
    policy = Policy(lm, use_amp=amp)
    assert packs(lm) == packed
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        output = policy.features(batch)
    del output
    return sum(sizes.values())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x == "qwen2-grouped" else pytest.mark.slow) for x in KEPT_OF]
)
def test_activations_of_real_models(name, amp, packed, tmp_path):
    """Left out: statistics of norms and attention, masks, the last norm and token. amp + packed: explicit attention on a CPU."""
    AutoModelForCausalLM.from_config(KEPT_OF[name]).save_pretrained(tmp_path)
    lm = load_causal_lm(str(tmp_path), "model_path", form=Form(packing=packed))
    sizes = replace(model_sizes(KEPT_OF[name]), explicit_attention=amp and packed)
    expected = kept_bytes(sizes, 8 * 40, 40, ForwardPass(float_bytes=2 if amp else 4, packed=packed))
    assert 0.94 < expected / kept_by_autograd(lm, amp, packed) < 1.05


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x == "qwen2-grouped" else pytest.mark.slow) for x in KEPT_OF]
)
def test_activations_of_shared_prompts(name, amp, tmp_path):
    """Two prompts of 32 tokens with four responses each, of which 16 tokens are fed: 192 tokens, which need no rounding.

    With explicit attention the scores are counted as if each token saw a whole row.
    """
    AutoModelForCausalLM.from_config(KEPT_OF[name]).save_pretrained(tmp_path)
    lm = load_causal_lm(str(tmp_path), "model_path")
    sizes = replace(model_sizes(KEPT_OF[name]), explicit_attention=amp)
    keys = 2 * 32 + 8 * (32 + 16)
    expected = kept_bytes(sizes, 2 * 32 + 8 * 16, 32 + 16, ForwardPass(float_bytes=2 if amp else 4), keys)
    most = 1.25 if amp else 1.05
    assert 0.94 < expected / kept_by_autograd(lm, amp, True, prompt=32, response=17, shared=4) < most


def test_activations_by_hand():
    """2 x 2 x 1000 for norms, 4 x 1000 for attention, 2 x 4000 for the MLP: 16,000 floats for each of 10 layers."""

    def kept(sizes, tokens, length, **how):
        return kept_bytes(sizes, tokens, length, ForwardPass(packed=False, **how))

    assert kept(BILLION, 7, 7) == 7 * 10 * 16_000 * 4
    assert kept(BILLION, 7, 7, float_bytes=2) == 7 * 10 * (16_000 * 2 + 2 * 1000 * 2)
    readers = replace(BILLION, norm_readers=5)
    assert kept(readers, 7, 7, float_bytes=2) == 7 * 10 * (16_000 * 2 + 2 * 1000 * 2 + 3 * 1000 * 2)
    assert kept(readers, 7, 7) == kept(BILLION, 7, 7)
    explicit = replace(BILLION, explicit_attention=True)
    assert kept(explicit, 21, 7) == 21 * 10 * (16_000 + 10 * 7) * 4  # 3 rows x 10 heads x 7 x 7 each
    assert kept(BILLION, 7, 7, checkpointing=True) == 7 * (10 * 1000 + 16_000) * 4
    assert kept_bytes(BILLION, 7, 7, ForwardPass()) == 7 * 10 * (16_000 + 1000) * 4  # packed: the result twice
