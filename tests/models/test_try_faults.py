"""A model that fails a try when it is loaded: the message names the cause that was put into it."""

import pytest
from faulty import (
    CountsFromOne,
    CountsPadding,
    DrawsItself,
    Drops,
    HidesEnds,
    Narrows,
    SeesPadding,
    new,
)
from transformers import GPT2LMHeadModel

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.tries import check_left_padding, predicted_on_texts


def refusal(lm):
    with pytest.raises(UserError) as caught:
        check_left_padding(lm, predicted_on_texts(lm), "x", "model_path")
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Drops, "draws random numbers (dropout that acts in eval mode). Call eval() on the model"),
        (DrawsItself, "draws random numbers (not by torch's dropout). Call eval() on the model"),
        (Narrows, "computes in 16 bits in part, and passes in 32 bits. Let precision in the YAML"),
        (CountsFromOne, "Positions are one too large where tokens come one by one. Let the model use the position_ids"),
        (
            HidesEnds,
            "hides the pad or end token (id 257) where it is part of a text. Let the model use the attention_mask",
        ),
        (CountsPadding, "does not see the padding, but counts its positions. Use a model that takes position_ids"),
        (SeesPadding, "sees the tokens that pad a prompt. Let the model use the attention_mask"),
    ],
)
def test_the_cause_is_named(kind, words):
    message = refusal(new(kind, packing=False))
    assert words in message
    assert message.startswith("model_path: ")


def test_a_healthy_model_passes():
    lm = new(GPT2LMHeadModel, packing=False)
    check_left_padding(lm, predicted_on_texts(lm), "x", "model_path")
