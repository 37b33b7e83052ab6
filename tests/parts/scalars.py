"""Tiny reward models and pairs."""

import json
import random

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from tests.parts.tiny import byte_tokenizer

WIDE = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
KINDS = {
    "gpt2": {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2},
    "llama": WIDE | {"max_position_embeddings": 64},
    "bert": WIDE | {"max_position_embeddings": 64},
}
WORDS = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"]


def save_scalar(folder, kind="llama", seed=0, tokenizer=None, **config):
    """A folder with a random model of one label, sharp enough that every token shows in its output."""
    tokenizer = tokenizer or byte_tokenizer()
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    rest = {"eos_token_id": tokenizer.eos_token_id, "num_labels": 1, "initializer_range": 0.5}
    torch.manual_seed(seed)
    shape = AutoConfig.for_model(kind, **{**KINDS[kind], **ids, **rest, **config})
    AutoModelForSequenceClassification.from_config(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_pairs(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def pairs_about_a_word(count):
    """The chosen reply has the word `yes`; lengths, and everything else, are drawn alike."""
    draw = random.Random(0)
    said = [[" ".join(draw.choices(WORDS, k=draw.randint(2, 4))) for _ in range(3)] for _ in range(count)]
    return [
        {"prompt": [f"{i} {prompt}"], "chosen": f"yes {one}", "rejected": f"no {other}"}
        for i, (prompt, one, other) in enumerate(said)
    ]
