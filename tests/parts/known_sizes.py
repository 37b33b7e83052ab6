"""Configurations of known models, and a made-up one whose numbers are easy to multiply."""

from transformers import LlamaConfig, OPTConfig

from rlhf_dialog.distributed.memory.model_bytes import Sizes

OPT_1B = OPTConfig(
    hidden_size=2048,
    num_hidden_layers=24,
    ffn_dim=8192,
    num_attention_heads=32,
    word_embed_proj_dim=2048,
    max_position_embeddings=2048,
    vocab_size=50272,
)
LLAMA_3_8B = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
)
# a made-up model of one billion parameters whose numbers are easy to multiply
BILLION = Sizes(
    parameters=10**9,
    trunk=9 * 10**8,
    layers=10,
    hidden=1000,
    heads=10,
    kv_heads=2,
    head_dim=100,
    vocab=10_000,
    intermediate=4000,
    positions=2048,
    largest=10**8,
    linears=(("q_proj", 1000, 1000), ("v_proj", 1000, 200)),
)
