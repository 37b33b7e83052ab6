"""Workload W of scripts/benchmark.py: its models, prompts and reward, as the configuration and the files of a real run.

W is a fixed workload: a GPT-2 with random weights answers dialogue prompts of at most 128 tokens with exactly
20 tokens each, and a classifier of RoBERTa-base's shape with random weights reads prompt and response. `--w_data` is the folder
of the tokenizers and prompts that W's own prepare.py wrote. Without it both are generated here: W-synthetic, with prompts of the
same lengths, in meaningless words.
"""

import json
import random
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from rlhf_dialog.config.loading import load_settings
from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue, render_prompt, render_reply
from rlhf_dialog.data.prompt_ids import PromptEncoder
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.cpu_linear import use_onednn
from rlhf_dialog.rewards import BaseReward
from rlhf_dialog.rewards.intent import class_logits

SEPARATOR, MAX_PROMPT, MAX_CLASSIFIED, POSITIONS = "<EOU>", 128, 200, 1024
NUM_PROMPTS = 512
SPECIAL = ["<|endoftext|>", "<pad>", SEPARATOR]  # ids 0, 1, 2 of every tokenizer of W


@dataclass(frozen=True)
class Size:
    """The shape of a policy, and of the classifier that reads its responses."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    classifier: str = "base"


SIZES = {
    "small": Size(4, 256, 4, 8192),  # 5.5 million parameters
    "base": Size(12, 768, 12, 50257),  # GPT-2 small, 124 million
    "1m": Size(2, 96, 3, 8192),
    "14m": Size(6, 384, 6, 8192),
    "30m": Size(8, 512, 8, 8192),
    "test": Size(2, 32, 2, 512, "test"),  # shows that the command works; its speed means nothing
}
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "base": {"vocab_size": 50265, "max_position_embeddings": 514},
    "test": {
        "vocab_size": 512,
        "max_position_embeddings": 258,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    },
}
CLASSIFIER_VOCABULARY = {"base": 50257, "test": 512}
# Every 40th part of the lengths of W's prompts in tokens, before the cut to 128, by size of the vocabulary.
LENGTHS = {
    8192: "4 9 10 11 12 14 15 17 19 21 22 24 26 27 30 33 35 38 40 44 46 48 50 53 56 58 61 63 66 67 73 76 81 86 93 97 102 "
    "114 126 144 322",
    50257: "4 8 9 10 11 12 14 15 17 18 20 22 24 26 28 30 32 34 37 39 42 44 46 49 52 54 55 58 59 63 66 70 72 76 80 86 91 "
    "103 113 123 236",
}
REFERENCE_WORDS = (2, 5, 8, 11, 14, 17, 24, 40)


@dataclass
class Inputs:
    """The inputs of a run of W; `items` are prompts as text with their references."""

    workload: str  # W or W-synthetic
    tokenizer: PreTrainedTokenizerFast
    classifier_tokenizer: PreTrainedTokenizerFast
    items: list[dict[str, str]]

    def expected_ids(self) -> list[list[int]]:
        """The ids of the prompts as W has them: the last 128 tokens of the text."""
        texts = [item["prompt"] for item in self.items]
        return self.tokenizer(texts, truncation=True, max_length=MAX_PROMPT)["input_ids"]


def read_inputs(size: Size, w_data: Path | None) -> Inputs:
    """W from the folder that prepare.py wrote, else W-synthetic. Raises UserError when the folder has other contents."""
    vocabulary, judged = size.vocabulary, CLASSIFIER_VOCABULARY[size.classifier]
    if w_data is None:
        tokenizer = made_up_tokenizer(vocabulary)
        judge = tokenizer if judged == vocabulary else made_up_tokenizer(judged)
        return Inputs("W-synthetic", tokenizer, judge, made_up_items(tokenizer))
    if size.classifier != "base":
        raise UserError("--size test: does not support --w_data; leave it out")
    try:
        items = json.loads((w_data / "prompts.json").read_text(encoding="utf-8"))
        first, second = (_read_tokenizer(w_data, rows) for rows in (vocabulary, judged))
    except (OSError, ValueError) as error:
        raise UserError(
            f"--w_data {w_data}: {error}; choose the folder that the workload's prepare.py wrote (prompts.json, tok8k, tok50k), "
            "or leave it out for W-synthetic"
        ) from error
    return Inputs("W", first, second, items)


def _read_tokenizer(w_data: Path, vocabulary: int) -> PreTrainedTokenizerFast:
    folder = w_data / ("tok50k" if vocabulary == 50257 else "tok8k")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    if len(tokenizer) != vocabulary:
        raise ValueError(f"{folder} has {len(tokenizer)} tokens, wanted {vocabulary}")
    return tokenizer


def made_up_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with exactly `vocabulary` tokens, learnt from made-up words.

    All sizes learn from the same words, so that the tokenizers of classifier and policy split a text into about as many tokens.
    """
    syllables = [consonant + vowel for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou"]
    rng = random.Random(0)
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(100_000)]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([" ".join(words)], trainer)
    inner.add_tokens([f"<x{i}>" for i in range(vocabulary - inner.get_vocab_size())])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=POSITIONS,
        bos_token=SPECIAL[0],
        eos_token=SPECIAL[0],
        pad_token=SPECIAL[1],
        padding_side="left",
        truncation_side="left",
    )


def prompt_lengths(vocabulary: int) -> list[int]:
    """The lengths of the made-up prompts: evenly spaced quantiles of the distribution of W, shuffled."""
    quantiles = [int(word) for word in LENGTHS.get(vocabulary, LENGTHS[8192]).split()]
    places = (np.arange(NUM_PROMPTS) + 0.5) / NUM_PROMPTS * (len(quantiles) - 1)
    lengths = np.interp(places, np.arange(len(quantiles)), quantiles).round().astype(int).tolist()
    random.Random(1).shuffle(lengths)
    return lengths


def made_up_items(tokenizer: PreTrainedTokenizerFast) -> list[dict[str, str]]:
    """Prompts of exactly those lengths, of one to five turns, and references."""
    first, later = single_words(tokenizer)
    rng = random.Random(2)
    items = []
    for length in prompt_lengths(len(tokenizer)):
        num_turns = min(rng.choices((1, 2, 3, 4, 5), (118, 92, 86, 59, 157))[0], length // 3)
        turns = [[rng.choice(first)] for _ in range(num_turns)]  # with space and separator three tokens each
        for _ in range(length - 3 * num_turns):
            rng.choice(turns).append(rng.choice(later))
        prompt = render_prompt([" ".join(words) for words in turns], SEPARATOR)
        items.append({"prompt": prompt, "reference": " ".join(rng.choices(later, k=rng.choice(REFERENCE_WORDS)))})
    return items


def single_words(tokenizer: PreTrainedTokenizerFast) -> tuple[list[str], list[str]]:
    """Words that are one token with and without a space before them, and words that are one token after a space."""
    vocabulary = tokenizer.get_vocab()
    spaced = (token[1:] for token in vocabulary if token.startswith("Ġ"))
    later = sorted(word for word in spaced if word.isalpha() and word.isascii())
    later = [word for word in later if len(tokenizer(f" {word}")["input_ids"]) == 1]
    return [word for word in later if len(tokenizer(word)["input_ids"]) == 1], later


def write_files(inputs: Inputs, size: Size, architecture: str, folder: Path) -> None:
    """The policy with its tokenizer, the classifier's tokenizer, and the prompts as a data file."""
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(policy_config(size, architecture), dtype=torch.float32)
    lm.save_pretrained(folder / "policy")
    inputs.tokenizer.save_pretrained(folder / "policy")
    inputs.classifier_tokenizer.save_pretrained(folder / "classifier_tokenizer")
    lengths = [len(ids) for ids in inputs.tokenizer([item["prompt"] for item in inputs.items])["input_ids"]]
    rows = [
        {"prompt": turns_of(item["prompt"], length), "reference": item["reference"]}
        for item, length in zip(inputs.items, lengths, strict=True)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def turns_of(prompt: str, length: int) -> list[str]:
    """The turns of a prompt. One that is too long stays a single turn.

    This program drops whole oldest turns, while W cuts tokens from the left. A single turn is cut from the left here too, so
    that every prompt gets exactly the ids of W.
    """
    text = prompt.removesuffix(f" {SEPARATOR}")
    return [text] if length > MAX_PROMPT else text.split(f" {SEPARATOR} ")


class WholeTexts(PromptEncoder):
    """Separators inside a turn stay, because a prompt of W that is too long is a single turn."""

    def spoken(self, turn: str) -> str:
        """The turn as it is."""
        return turn


def policy_config(size: Size, architecture: str) -> PretrainedConfig:
    """GPT-2 as in W, or a Llama or Qwen2 of the same depth, width and vocabulary."""
    if architecture == "gpt2":
        return GPT2Config(
            n_layer=size.layers,
            n_head=size.heads,
            n_embd=size.width,
            n_positions=POSITIONS,
            vocab_size=size.vocabulary,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=1,
        )
    config_class = {"llama": LlamaConfig, "qwen2": Qwen2Config}[architecture]
    return config_class(
        hidden_size=size.width,
        intermediate_size=max(round(8 * size.width / 3 / 64), 1) * 64,  # as many weights as GPT-2's two matrices
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        vocab_size=size.vocabulary,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
    )


@RewardFactory.register("BenchmarkClassifier")
class BenchmarkClassifier(BaseReward):
    """The probability that W's random classifier gives its first class for prompt + response."""

    name = "classifier"
    uses_device = True

    def __init__(self, tokenizer: str, size: str = "base", dtype: str = "fp32", batch_size: int | None = None):
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer, local_files_only=True, padding_side="right")
        self.model, self.dtype, self.batch_size = classifier(size), dtype, batch_size

    def __call__(self, dialogues: list[Dialogue]) -> list[float]:
        """A number in [0, 1] for each dialogue."""
        texts = [render_prompt(d.prompt_turns, SEPARATOR) + render_reply(d.response) for d in dialogues]
        encoded = self.tokenizer(texts, truncation=True, max_length=MAX_CLASSIFIED)
        inputs = [{key: column[i] for key, column in encoded.items()} for i in range(len(texts))]
        logits = class_logits(self.model, self.tokenizer, inputs, self.batch_size, self.dtype)
        return logits.softmax(-1)[:, 0].tolist()

    def move_to(self, device: str) -> "BenchmarkClassifier":
        """Move the classifier to `device`."""
        self.model.to(device)  # type: ignore[arg-type]
        return self


def classifier_config(size: str) -> RobertaConfig:
    """The shape of the classifier, with four classes."""
    return RobertaConfig(type_vocab_size=1, num_labels=4, **CLASSIFIERS[size])  # type: ignore[call-arg]


def classifier(size: str) -> RobertaForSequenceClassification:
    """A random classifier of four classes, the same at every call; does not change the random state of torch."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = RobertaForSequenceClassification(classifier_config(size)).eval()
    use_onednn(model)
    return model.requires_grad_(False)


def run_config(options: Namespace, folder: Path) -> Config:
    """The configuration of the run: the numbers of W, then `--set`, and defaults for the rest. Raises UserError."""
    classified = {
        "tokenizer": str(folder / "classifier_tokenizer"),
        "size": SIZES[options.size].classifier,
        "dtype": options.classifier_dtype,
    }
    parts = [
        {"id": "BenchmarkClassifier", "weight": 0.5, "args": classified},
        {"id": "Meteor", "weight": 0.5, "args": {"meteor_wordnet": "off"}},
    ]
    keys: dict[str, Any] = {
        "model_path": str(folder / "policy"),
        "env.args.data_path": str(folder / "prompts.jsonl"),
        "reward_class": {"id": "CompositeReward", "args": {"parts": parts}},
        "run_dir": str(folder),
        "experiment_name": "run",
        "device": options.device,
        "max_prompt_length": MAX_PROMPT,
        "turn_separator": SEPARATOR,
        "max_new_tokens": options.max_new_tokens,
        "rollout_batch_size": options.rollout_batch_size,
        "num_mini_batch": options.rollout_batch_size // options.minibatch,
        "ppo_epoch": options.epochs,
        "per_device_microbatch_size": 16,
        "lr": 1e-6,
        "critic_lr": 1e-6,
        "kl_coef": 0.05,
        "entropy_coef": 0.0,
        "temperature": 1.0,
        "use_share_model": options.critic == "shared",
        "precision": options.dtype,
        "max_iterations": options.iterations,
        "sample_interval": 0,
        "seed": 0,
    }
    return load_settings(Config, None, keys | dict(options.set))
