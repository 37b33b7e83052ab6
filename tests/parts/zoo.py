"""Tiny random language models of many kinds, in float64 and sharp enough that a wrong token or position shows."""

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlhf_dialog.models.load_checks import SingleRowPredictions, use_packing

VOCABULARY, PAD, END = 61, 0, 1
IDS = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": END, "bos_token_id": None}
WIDE = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
LIKE_LLAMA = {**IDS, **WIDE, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
LIKE_LLAMA["tie_word_embeddings"] = False
GROUPED = LIKE_LLAMA | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
LIKE_GPT2 = {**IDS, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
LAYERS = ["sliding_attention", "full_attention"]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # name -> type in transformers and sizes
    "gpt2": ("gpt2", LIKE_GPT2),
    "gpt2_untied": ("gpt2", LIKE_GPT2 | {"tie_word_embeddings": False}),
    "gpt2_scaled": ("gpt2", LIKE_GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "llama": ("llama", LIKE_LLAMA),
    "llama_tied": ("llama", LIKE_LLAMA | {"tie_word_embeddings": True}),
    "llama_grouped": ("llama", GROUPED),
    "llama_one_key": ("llama", LIKE_LLAMA | {"num_key_value_heads": 1}),
    "mistral": ("mistral", GROUPED | {"sliding_window": 4}),
    "qwen2": ("qwen2", LIKE_LLAMA | {"use_sliding_window": True, "layer_types": LAYERS, "sliding_window": 5}),
    "qwen3": ("qwen3", GROUPED),
    "neox": ("gpt_neox", IDS | WIDE | {"max_position_embeddings": 64}),
    "opt": ("opt", IDS | WIDE | {"ffn_dim": 24, "max_position_embeddings": 64, "word_embed_proj_dim": 12}),
    "cohere": ("cohere", LIKE_LLAMA | {"logit_scale": 0.3, "bos_token_id": 2}),
    "granite": ("granite", LIKE_LLAMA | {"logits_scaling": 0.4, "attention_multiplier": 0.2}),
    "bloom": ("bloom", IDS | {"hidden_size": 16, "n_layer": 2, "n_head": 2}),
}
CAPPED = ("cohere", "granite")  # their logits are more than a matrix product
NEVER_PACKED = ("bloom",)
SOME = ("gpt2", "llama_grouped", "mistral", "granite", "bloom")  # one of each kind of path, where all would take long


def new_lm(kind: str, seed: int = 0, packing: bool = True, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """A model in eval mode that packs if it can and `packing` lets it."""
    name, sizes = KINDS[kind]
    torch.manual_seed(seed)
    lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes))
    with torch.no_grad():
        for name, p in lm.named_parameters():
            spread = 0.02 if p.dim() == 1 else 0.35
            nn.init.normal_(p, mean=1.0 if p.dim() == 1 and name.endswith("weight") else 0.0, std=spread)
    lm.eval().to(dtype)
    if packing:
        use_packing(lm, SingleRowPredictions(lm))
    return lm
