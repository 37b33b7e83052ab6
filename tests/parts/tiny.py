"""A tiny world without network: a byte tokenizer, two small models, and invented dialogues."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf_dialog.models.packing import ATTENTION

SEPARATOR = "<EOU>"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_USER_FIRST = "{% if messages[0].role != 'user' %}{{ raise_exception('a user begins') }}{% endif %}" + CHATML
LLAMA2 = (
    "{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message.role == 'user' %}{{ bos_token + '[INST] ' + message.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + message.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
SPLITS = ("train", "validation", "test")
NAMES = (
    *("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June", "Kai", "Lena", "Milo", "Nora"),
    "Otto",
)
PLACES = ("the harbour", "the old mill", "the library", "the garden", "the museum", "the station", "the bakery")
TEMPLATES: tuple[tuple[tuple[str, int], ...], ...] = (
    (
        ("Good morning , {name} . Did you sleep well ?", 2),
        ("Not really , {name} . The wind at {place} was loud .", 1),
        ("Then take a nap later , {name} .", 3),
        ("I will try that after lunch at {place} .", 4),
    ),
    (("Could you bring the blue ladder to {place} , {name} ?", 3), ("Sure , I will carry it to {place} tonight .", 4)),
    (
        ("Where is {name} today ?", 2),
        ("I saw {name} near {place} an hour ago .", 1),
        ("Was {name} alone at {place} ?", 2),
        ("No , a tall dog walked beside {name} .", 1),
        ("Please call {name} and ask about the dog .", 3),
        ("All right , {name} will hear from me soon .", 4),
        ("Thanks !", 1),
    ),
    (
        ("Two tickets to {place} , please .", 3),
        ("That makes nine coins , {name} .", 1),
        ("Is there a window seat on the way to {place} ?", 2),
    ),
    (
        ("{name} baked bread for the feast at {place} .", 1),
        ("How many loaves did {name} bake ?", 2),
        ("Six , and {name} ate one of them .", 1),
        ("Let us walk to {place} before they are gone .", 3),
        ("Yes , meet me and {name} at noon .", 4),
        ("I am hungry already , {name} !", 1),
    ),
)


def byte_tokenizer(separator_token: bool = True) -> PreTrainedTokenizerFast:
    """256 byte tokens, <pad>, <eos>, and <EOU>: one special token that takes the space before it, or text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<pad>", "<eos>"])
    if separator_token:
        tokenizer.add_special_tokens([AddedToken(SEPARATOR, lstrip=True, special=True)])
    names = {"pad_token": "<pad>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=256, **names)


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """As `byte_tokenizer` without <EOU>, but it merges "##", "###", and both "###" and "|" with the space before them."""
    tokenizer = byte_tokenizer(separator_token=False)
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("#", "#"), ("##", "#"), ("Ġ", "###"), ("Ġ", "|")]
    merged = {left + right: 258 + i for i, (left, right) in enumerate(merges)}
    tokenizer.backend_tokenizer.model = models.BPE(vocab={**letters, **merged}, merges=merges)
    return tokenizer


def chat_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """256 byte tokens, <pad>, <eos>, <s> (which it puts in front of plain texts), <|im_start|>, <|im_end|>; 261 in all."""
    tokenizer = byte_tokenizer(separator_token=False)
    tokenizer.add_special_tokens({"bos_token": "<s>", "extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    bos = [("<s>", tokenizer.bos_token_id)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", bos)
    tokenizer.chat_template = template
    return tokenizer


def packed(lm):
    """The model with the attention that computes packed rows; called in the usual way it is the library's own."""
    lm.set_attn_implementation(ATTENTION)
    return lm


def gpt2(seed: int = 0, **config: Any) -> GPT2LMHeadModel:
    """A random GPT-2 with 2 layers; its dropout stays at GPT-2's default 0.1 so that turning it off is tested."""
    tokenizer = byte_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 2}
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(seed)
    return packed(GPT2LMHeadModel(GPT2Config(**{**sizes, **ids, **config})))


def llama(seed: int = 0, **config: Any) -> LlamaForCausalLM:
    """A random Llama with 2 layers: rotary positions, no dropout."""
    tokenizer = byte_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 256, "hidden_size": 32, "intermediate_size": 64}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(seed)
    return packed(LlamaForCausalLM(LlamaConfig(**{**sizes, **layers, **ids, **config})))


def dialogues(count: int = len(TEMPLATES), start: int = 0) -> list[tuple[list[str], list[int]]]:
    """`count` invented dialogues as (turns, acts); another `start` gives other names and places."""
    filled = []
    for i in range(start, start + count):
        fill = {"name": f"{NAMES[i % len(NAMES)]} {i}", "place": f"{PLACES[i % len(PLACES)]} {i}"}
        template = TEMPLATES[i % len(TEMPLATES)]
        filled.append(([turn.format(**fill) for turn, _ in template], [act for _, act in template]))
    return filled


def write_data(folder: Path, count: int = 20) -> Path:
    """Write `count` dialogues per split in the original DailyDialog layout, none of them twice; returns `folder`."""
    for position, split in enumerate(SPLITS):
        (folder / split).mkdir(parents=True, exist_ok=True)
        rows = dialogues(count, start=position * count)
        text = "".join("".join(f"{turn} __eou__ " for turn in turns).rstrip() + "\n" for turns, _ in rows)
        acts = "".join(" ".join(map(str, acts)) + " \n" for _, acts in rows)
        (folder / split / f"dialogues_{split}.txt").write_text(text, encoding="utf-8")
        (folder / split / f"dialogues_act_{split}.txt").write_text(acts, encoding="utf-8")
    return folder
