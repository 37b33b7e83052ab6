"""The rows of supervised fine-tuning, encoded when they are drawn, are those that were encoded and merged at once."""

import random

from rlhf_dialog.data.prompt_ids import PromptEncoder
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.training.supervised import sft
from tests.parts.data_files import jsonl_bytes
from tests.parts.tiny import byte_tokenizer


def merged_at_once(rows):
    """A second merging: a row takes the place of the one before it that its ids begin with, and learns what that learned."""
    merged = []
    for row in rows:
        before = merged[-1]["input_ids"] if merged else [None]
        if row["input_ids"][: len(before)] == before:
            labels = [max(pair) for pair in zip(merged.pop()["labels"], row["labels"], strict=False)]
            row = {**row, "labels": labels + row["labels"][len(before) :]}
        merged.append(row)
    return merged


def test_rows_that_are_drawn_are_the_merged_ones(tmp_path):
    rows = [{"dialog": [f"a{i}", "b", "c", "d", "e"][: 2 + i % 4]} for i in range(20)]
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes(rows))
    prompts, encoder = (
        PromptRules(4).load(str(tmp_path / "a.jsonl"), "train"),
        PromptEncoder(byte_tokenizer(), "<EOU>", 64),
    )
    expected = merged_at_once([sft.example(encoder, one) for one in prompts])
    assert len(expected) < len(prompts)
    examples = sft.Examples(prompts, lambda one: sft.example(encoder, one))
    assert (list(examples), list(examples.lengths)) == (expected, [row["length"] for row in expected])
    order = random.Random(0).sample(range(len(expected)), len(expected))
    assert [examples[i] for i in order] == [expected[i] for i in order]
