"""Intent classifier: train an encoder to recognize the act of a turn (inform, question, directive, commissive), or the next."""

from functools import partial
from typing import Any

import numpy as np
import torch
import transformers

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules, Prompts, count_missing
from rlhf_dialog.errors import UserError
from rlhf_dialog.metrics.acts import macro_f1
from rlhf_dialog.models.loading import read_tokenizer
from rlhf_dialog.models.pretrained import load_pretrained, warn_of_remote_code
from rlhf_dialog.rewards.intent import NEXT_ACT, Intent, NextAct
from rlhf_dialog.training.supervised.new_tokenizers import new_bert, new_pair_tokenizer
from rlhf_dialog.training.supervised.stage import Encoded, StageOfHalves, answered, drawn

LABELS = ["inform", "question", "directive", "commissive"]  # class = DailyDialog's act - 1


def scores(matrix: list[list[int]]) -> dict[str, Any]:
    """Accuracy, macro-F1 and the rest from a confusion matrix (rows: true class, columns: predicted class).

    A ratio without a denominator is 0; the macro-F1 is that of `metrics.acts.macro_f1`, as in an evaluation. `majority` always
    answers the most frequent true class.
    """
    counts = np.asarray(matrix, dtype=np.float64)
    hits, predicted, support = counts.diagonal(), counts.sum(axis=0), counts.sum(axis=1)

    def ratio(part: float, whole: float) -> float:
        return float(part / whole) if whole else 0.0

    per_class = {
        name: {
            "precision": ratio(hits[i], predicted[i]),
            "recall": ratio(hits[i], support[i]),
            "f1": ratio(2 * hits[i], predicted[i] + support[i]),
            "support": int(support[i]),
        }
        for i, name in enumerate(LABELS)
    }
    return {
        "num_pairs": int(counts.sum()),
        "accuracy": ratio(hits.sum(), counts.sum()),
        "macro_f1": float(macro_f1(np.concatenate([hits, predicted, support]))),
        "majority": {"class": LABELS[support.argmax()], "accuracy": ratio(support.max(), counts.sum())},
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
    accuracy = f"accuracy **{result['accuracy']:.3f}**, macro-F1 **{result['macro_f1']:.3f}**"
    always = f"always `{majority['class']}`: accuracy {majority['accuracy']:.3f}"
    lines = [
        f"## {split}: {result['num_pairs']} of {result['num_held_out']} true replies",
        "",
        f"{accuracy}; {always}",
        "",
    ]
    lines += ["| act | precision | recall | F1 | support |", "|---|---|---|---|---|", *rows, ""]
    lines += [f"| true \\ predicted | {' | '.join(LABELS)} |", "|---|---|---|---|---|", *matrix, ""]
    return "\n".join(lines)


class IntentClassifier(StageOfHalves):
    """Pairs of neighbouring turns become a classifier of the second one, or of the turn that follows them (`next_act`)."""

    page_of_split = staticmethod(markdown)

    @property
    def reads(self) -> type[Intent]:
        """What encodes a dialogue for the classifier, in this training and later in the reward."""
        return NextAct if self.config.target == NEXT_ACT else Intent

    def pairs(self, split: str) -> Prompts:
        data_path = self.config.data_path
        size = 2 if self.reads is NextAct else 1
        pairs = PromptRules.from_keys(self.config, context_size=size).load(data_path, split)
        if without := count_missing(pairs, "act"):
            raise UserError(
                f"data_path: {without} of {len(pairs)} turns in the {split} split of '{data_path}' have no act, but "
                "the classifier learns the acts; use data in which every turn has one"
            )
        self.report(f"{split}: {len(pairs)} pairs of turns")
        return pairs

    def start(self) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
        """The encoder with a new head, and its tokenizer; without `model_path` both are made from scratch."""
        config = self.config
        names, classes = dict(enumerate(LABELS)), {name: i for i, name in enumerate(LABELS)}
        if config.model_path is None:
            texts = [pair.prompt_turns[-1] if self.reads is NextAct else pair.reference or "" for pair in self.training]
            tokenizer: transformers.PreTrainedTokenizerBase = new_pair_tokenizer(
                texts, config.vocab_size, config.max_length
            )
            sizes = {name: getattr(config, name) for name in ("num_layers", "num_heads", "hidden_size", "max_length")}
            model = new_bert(tokenizer, **sizes, id2label=names, label2id=classes)
        else:
            source = config.tokenizer_path or config.model_path
            key = "tokenizer_path" if config.tokenizer_path else "model_path"
            if config.trust_remote_code:
                warn_of_remote_code({"model_path": config.model_path, "tokenizer_path": config.tokenizer_path})
            tokenizer = read_tokenizer(source, key, config.trust_remote_code)
            tokenizer.model_max_length = min(tokenizer.model_max_length, config.max_length)
            model = load_pretrained(
                transformers.AutoModelForSequenceClassification,
                config.model_path,
                "model_path",
                only_trunk=True,
                num_labels=len(LABELS),
                use_safetensors=None if config.allow_pickle_weights else True,
                dtype=torch.float32,
                id2label=names,
                label2id=classes,
                trust_remote_code=config.trust_remote_code,
            )
        model.config.rlhf_dialog_input = "pair"
        if self.reads is NextAct:
            model.config.rlhf_dialog_target = NEXT_ACT
        return model, tokenizer

    def learn(self) -> None:
        self.save()  # the pairs are encoded as the reward does that loads the folder
        reward = self.reads(str(self.folder))

        def encode(pair: Dialogue) -> dict[str, Any]:
            (encoded,) = reward.encode([answered(pair)])
            return {**encoded, "labels": act_class(pair), "length": len(encoded["input_ids"])}

        rows = Encoded(self.training, encode)
        trainer = partial(transformers.Trainer, data_collator=transformers.DataCollatorWithPadding(self.tokenizer))
        self.run_trainer(rows, trainer, transformers.TrainingArguments)

    def measure_split(self, pairs: Prompts) -> dict[str, Any]:
        """The model is loaded and used exactly as the reward does, on at most `max_report_pairs` of the pairs."""
        reward = self.reads(str(self.folder), precision="fp32").move_to(str(self.model.device))
        matrix = [[0] * len(LABELS) for _ in LABELS]
        shown = [answered(pair) for pair in drawn(pairs, self.config.max_report_pairs, self.config.seed)]
        for pair, predicted in zip(shown, reward.predict(shown), strict=True):
            matrix[act_class(pair)][predicted] += 1
        return {**scores(matrix), "num_held_out": len(pairs)}


def act_class(pair: Dialogue) -> int:
    """The class of the true reply: its act - 1."""
    return (pair.act or 0) - 1
