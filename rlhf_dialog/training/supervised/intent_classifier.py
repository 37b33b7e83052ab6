"""Intent classifier: train an encoder to recognize the act of a turn (inform, question, directive, commissive)."""

import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.halves import Half
from rlhf_dialog.data.learned_half import KEY as HALF_KEY
from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.errors import UserError
from rlhf_dialog.metrics.acts import macro_f1
from rlhf_dialog.models.loading import trained_parameters
from rlhf_dialog.models.pretrained import load_pretrained, warn_of_remote_code
from rlhf_dialog.rewards.intent import Intent
from rlhf_dialog.training.supervised.data_halves import of_half
from rlhf_dialog.training.supervised.hugging_face_trainer import (
    SupervisedKeys,
    ordered_dataset,
    prepare,
    train_quietly,
    trainer_arguments,
)
from rlhf_dialog.training.supervised.new_tokenizers import new_bert, new_pair_tokenizer

LABELS = ["inform", "question", "directive", "commissive"]  # class = DailyDialog's act - 1


class IntentConfig(SupervisedKeys):
    """Intent classifier"""

    data_path: str = Field(description="data file, folder, zip or Hub name; docs/DATA.md shows every format")
    output: str = Field(description="folder to write: model, tokenizer, report.json; refused when it holds something")
    drop_overlap: bool = Field(
        False, description="leave out training dialogues that nearly repeat one of validation or test"
    )
    half: Half = Field(
        "all",
        description="training dialogues to learn from: all, or the reward's or the judge's half, which share no dialogue and "
        "nothing that repeats one: whole clusters of dialogues with the same utterances go to one half",
    )
    model_path: str | None = Field(None, description="encoder to start from: folder or Hub name; null: from scratch")
    tokenizer_path: str | None = Field(None, description="tokenizer of model_path; default: model_path")
    trust_remote_code: bool = Field(False, description="let a model folder run its own code")
    allow_pickle_weights: bool = Field(
        False, description="read pickled weights (pytorch_model.bin) where there are no safetensors"
    )
    max_length: int = Field(128, ge=16, description="tokens; of a longer pair, the start of the last turn is cut off")
    vocab_size: int = Field(4000, ge=200, description="from scratch: tokens of the new lower-case tokenizer")
    num_layers: int = Field(2, ge=1, description="from scratch: layers of the BERT")
    num_heads: int = Field(2, ge=1, description="from scratch: attention heads")
    hidden_size: int = Field(128, ge=8, description="from scratch: width, a multiple of num_heads")
    learning_rate: float = Field(5e-4, gt=0, description="peak; 2e-5 suits a pretrained encoder")
    evaluate_test: bool = Field(False, description="report the test split too; do this once, at the end")


def train(config: IntentConfig, folder: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """Train, and write model and tokenizer into `folder`; returns the scores of each held-out split, and counts.

    `report` is called with one line for each thing that is read or made. Raises UserError when data or model do not fit.
    """
    prepare(config)
    training, half = of_half(read_pairs(config, "train", report), config.half, config.data_path, report)
    held_out = {split: read_pairs(config, split, report) for split in splits(config)}
    model, tokenizer = starting_point(config, training)
    report(f"{trained_parameters([model]) / 1e6:.2f} million parameters, {len(tokenizer)} tokens in the vocabulary")
    save(folder, model, tokenizer)
    fine_tune(config, model, tokenizer, Intent(str(folder)).encode(training), [act_class(pair) for pair in training])
    save(folder, model, tokenizer)
    results: dict[str, Any] = {split: measure(folder, pairs, str(model.device)) for split, pairs in held_out.items()}
    counts = {"num_train_pairs": len(training), "num_parameters": trained_parameters([model])}
    return results | counts | {HALF_KEY: asdict(half) if half else None}


def splits(config: IntentConfig) -> list[str]:
    """The splits that the report measures."""
    return ["validation", "test"] if config.evaluate_test else ["validation"]


def read_pairs(config: IntentConfig, split: str, report: Callable[[str], None]) -> list[Dialogue]:
    """One dialogue for every pair of neighbouring turns: the first is the prompt, the second (the true reply) the response."""
    found = load_prompts(config.data_path, split, 1, 1, config.drop_overlap)
    pairs = [replace(dialogue, response=dialogue.reference or "") for dialogue in found]
    without = sum(pair.act is None for pair in pairs)
    if without or not pairs:
        raise UserError(
            f"data_path: {without} of {len(pairs)} turns in the {split} split of '{config.data_path}' have no act, but "
            "the classifier learns the acts; use data in which every turn has one"
        )
    report(f"{split}: {len(pairs)} pairs of turns")
    return pairs


def act_class(pair: Dialogue) -> int:
    """The class of the true reply: its act - 1."""
    return (pair.act or 0) - 1


def starting_point(config: IntentConfig, train: list[Dialogue]) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The encoder with a new head, and its tokenizer; without `model_path` both are made from scratch."""
    names, classes = dict(enumerate(LABELS)), {name: i for i, name in enumerate(LABELS)}
    if config.model_path is None:
        tokenizer = new_pair_tokenizer([pair.response for pair in train], config.vocab_size, config.max_length)
        sizes = {name: getattr(config, name) for name in ("num_layers", "num_heads", "hidden_size", "max_length")}
        model = new_bert(tokenizer, **sizes, id2label=names, label2id=classes)
    else:
        source = config.tokenizer_path or config.model_path
        key = "tokenizer_path" if config.tokenizer_path else "model_path"
        if config.trust_remote_code:
            warn_of_remote_code({"model_path": config.model_path, "tokenizer_path": config.tokenizer_path})
        tokenizer = load_pretrained(AutoTokenizer, source, key, trust_remote_code=config.trust_remote_code)
        tokenizer.model_max_length = min(tokenizer.model_max_length, config.max_length)
        model = load_pretrained(
            AutoModelForSequenceClassification,
            config.model_path,
            "model_path",
            num_labels=len(LABELS),
            ignore_mismatched_sizes=True,
            use_safetensors=None if config.allow_pickle_weights else True,
            dtype=torch.float32,
            id2label=names,
            label2id=classes,
            trust_remote_code=config.trust_remote_code,
        )
    model.config.rlhf_dialog_input = "pair"
    return model, tokenizer


def save(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the model and tokenizer into `folder`, from which the reward loads them."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def fine_tune(
    config: IntentConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    inputs: list[dict[str, list[int]]],
    classes: list[int],
) -> None:
    """Train `model` in place on the encoded pairs; it ends in eval mode."""
    rows = [
        {**encoded, "labels": label, "length": len(encoded["input_ids"])}
        for encoded, label in zip(inputs, classes, strict=True)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**trainer_arguments(config, scratch, len(rows))),
            train_dataset=ordered_dataset(rows, config),
            data_collator=DataCollatorWithPadding(tokenizer),
            processing_class=tokenizer,
        )
        train_quietly(trainer)
    model.eval()


def measure(folder: Path, pairs: list[Dialogue], device: str) -> dict[str, Any]:
    """The scores of the classifier in `folder` on the true replies; it is loaded and used exactly as the reward does."""
    reward = Intent(str(folder), precision="fp32").to(device)
    matrix = [[0] * len(LABELS) for _ in LABELS]
    for pair, predicted in zip(pairs, reward.predict(pairs), strict=True):
        matrix[act_class(pair)][predicted] += 1
    return scores(matrix)


def scores(matrix: list[list[int]]) -> dict[str, Any]:
    """Accuracy, macro-F1 and the rest from a confusion matrix (rows: true class, columns: predicted class).

    A ratio without a denominator is 0; the macro-F1 is that of `metrics.acts.macro_f1`, as in an evaluation. `majority` always
    answers the most frequent true class.
    """
    total = sum(map(sum, matrix))
    support = [sum(row) for row in matrix]
    counts = np.asarray(matrix, dtype=np.float64)
    sums = np.concatenate([counts.diagonal(), counts.sum(axis=0), counts.sum(axis=1)])
    per_class = {}
    for i, name in enumerate(LABELS):
        hits, predicted = matrix[i][i], sum(row[i] for row in matrix)
        per_class[name] = {
            "precision": hits / predicted if predicted else 0.0,
            "recall": hits / support[i] if support[i] else 0.0,
            "f1": 2 * hits / (predicted + support[i]) if predicted + support[i] else 0.0,
            "support": support[i],
        }
    return {
        "num_pairs": total,
        "accuracy": sum(matrix[i][i] for i in range(len(LABELS))) / total,
        "macro_f1": float(macro_f1(sums)),
        "majority": {"class": LABELS[support.index(max(support))], "accuracy": max(support) / total},
        "per_class": per_class,
        "confusion_matrix": matrix,
    }


def markdown(split: str, result: dict[str, Any]) -> str:
    """The scores of one split as Markdown tables."""
    majority = result["majority"]
    rows = [
        f"| {name} | {row['precision']:.3f} | {row['recall']:.3f} | {row['f1']:.3f} | {row['support']} |"
        for name, row in result["per_class"].items()
    ]
    matrix = [
        f"| {name} | {' | '.join(map(str, row))} |"
        for name, row in zip(LABELS, result["confusion_matrix"], strict=True)
    ]
    return "\n".join(
        [
            f"## {split}: {result['num_pairs']} true replies",
            "",
            f"accuracy **{result['accuracy']:.3f}**, macro-F1 **{result['macro_f1']:.3f}**; "
            f"always `{majority['class']}`: accuracy {majority['accuracy']:.3f}",
            "",
            "| act | precision | recall | F1 | support |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"| true \\ predicted | {' | '.join(LABELS)} |",
            "|---|---|---|---|---|",
            *matrix,
            "",
        ]
    )
