"""Random models of 12 layers on the bytes' vocabulary, whose 16-bit noise is that of deep models."""

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rlhf_dialog.models.load_checks import predicted_on_texts, use_packing
from tests.parts.tiny import byte_tokenizer

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
OUTLIER = 24_761.0  # the largest activation of SmolLM2-135M-Instruct on English text
KINDS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "outlier": (LlamaForCausalLM, LlamaConfig, {}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 24}),
}


def deep_lm(kind, seed=0, spread=0.1, layers=12):
    """`spread` is that of the weights: the larger it is, the sharper are the predictions, and the more does rounding change."""
    tokenizer = byte_tokenizer()
    words = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": 257, "pad_token_id": 256}
    torch.manual_seed(seed)
    if kind == "gpt2":
        sizes = {"n_positions": 256, "n_embd": 64, "n_layer": layers, "n_head": 4}
        lm = GPT2LMHeadModel(GPT2Config(**words, **sizes, initializer_range=spread))
    else:
        model, config, more = KINDS[kind]
        shape = SIZES | {"num_hidden_layers": layers, "max_position_embeddings": 256, "initializer_range": spread}
        lm = model(config(**words, **shape, **more))
    if kind == "outlier":  # the channels beside it are not normalised any more: use a `spread` of 0.07, or they grow
        with torch.no_grad():
            lm.model.embed_tokens.weight[:, 0] = OUTLIER
            for name, weight in lm.named_parameters():
                if "norm" in name:  # what the outlier takes from the other channels
                    weight[1:] *= OUTLIER / SIZES["hidden_size"] ** 0.5
    assert use_packing(lm.eval(), predicted_on_texts(lm))
    return lm
