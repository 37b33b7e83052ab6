"""Reading many texts with a classifier: the same logits as one text at a time, in every precision and batch size."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from rlhf_dialog.rewards import classifier
from rlhf_dialog.rewards.classifier import class_logits
from tests.parts.tiny import byte_tokenizer

TEXTS = [
    "a",
    "How are you ?",
    "",
    "Bring the blue ladder to the old mill , please , and then call Ada about the dog .",
    "Yes .",
]


def make_model(positions=128):
    tokenizer = byte_tokenizer()
    tokenizer.model_max_length = positions
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(
        vocab_size=len(tokenizer), num_labels=4, max_position_embeddings=positions, initializer_range=0.5, **sizes
    )
    return BertForSequenceClassification(config).eval(), tokenizer


def inputs_of(tokenizer, texts=TEXTS):
    encoded = tokenizer([f"{text}<eos>" for text in texts])
    return [{key: column[i] for key, column in encoded.items()} for i in range(len(texts))]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 16])
def test_logits_equal_those_of_one_text_at_a_time(batch_size):
    model, tokenizer = make_model()
    inputs = inputs_of(tokenizer)
    found = class_logits(model, tokenizer, inputs, batch_size, "fp32")
    alone = [model(**{key: torch.tensor([value]) for key, value in row.items()}).logits[0] for row in inputs]
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-4, atol=1e-5)
    assert found.std(dim=0).min() > 1e-3  # the texts differ
    assert not found.requires_grad


def test_bf16_is_close_and_another_computation():
    model, tokenizer = make_model()
    exact, rough = (class_logits(model, tokenizer, inputs_of(tokenizer), 2, word) for word in ("fp32", "bf16"))
    assert rough.dtype == torch.float32
    assert 0 < (exact - rough).abs().max() < 0.1


@pytest.mark.parametrize("faster", [True, False])
def test_auto_is_what_is_faster(monkeypatch, faster):
    monkeypatch.setattr(classifier, "bf16_is_faster", lambda device: faster)
    model, tokenizer = make_model()
    auto, same = (
        class_logits(model, tokenizer, inputs_of(tokenizer), 2, word) for word in ("auto", "bf16" if faster else "fp32")
    )
    assert torch.equal(auto, same)


def test_padding_to_a_round_length_stays_within_the_positions():
    model, tokenizer = make_model(positions=21)
    long = inputs_of(tokenizer, ["x" * 19])  # 20 tokens, 21 positions: 24 would be too many
    assert len(long[0]["input_ids"]) == 20
    assert class_logits(model, tokenizer, long, 2, "fp32").shape == (1, 4)
