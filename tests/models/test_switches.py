"""What each switch switches off, and that it leaves the model as it was."""

import pytest
import torch
from faulty import lora_trainer, new
from torch.nn import functional
from trainers import parameters
from transformers import GPT2LMHeadModel

from rlhf_dialog.errors import RunStopped
from rlhf_dialog.models import switches
from rlhf_dialog.models.lora import lora_layers
from rlhf_dialog.models.packing import ATTENTION
from rlhf_dialog.models.policy import Policy

ONES = torch.ones(4, 4)


@pytest.mark.parametrize(
    "drop",
    [
        torch.nn.Dropout(0.5),
        torch.nn.AlphaDropout(0.5),
        lambda x: functional.dropout(x, 0.5, training=True),
        lambda x: torch.dropout(x, 0.5, True),
        lambda x: functional.dropout(input=x, p=0.5),
        lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.9),
        lambda x: functional.scaled_dot_product_attention(x, x, x, None, 0.9),
    ],
)
def test_dropout_is_off_in_the_block_alone(drop):
    with switches.WithoutDropout():
        torch.testing.assert_close(drop(ONES), ONES)
    assert not torch.equal(drop(ONES), ONES)


def test_casts_are_off_in_the_block_alone():
    third = ONES / 3
    casts = [lambda x: x.bfloat16(), lambda x: x.half(), lambda x: x.to(torch.bfloat16), lambda x: x.type(torch.half)]
    with switches.WithoutCasts():
        assert all(cast(third) is third for cast in casts)
        assert third.to(torch.float64).dtype == torch.float64
        with torch.autocast("cpu", torch.bfloat16):
            assert (third @ third).dtype == torch.float32
    assert {cast(third).dtype for cast in casts} == {torch.bfloat16, torch.float16}
    with torch.autocast("cpu", torch.bfloat16):
        assert (third @ third).dtype == torch.bfloat16


def test_positions_are_shifted_and_held_within_the_model():
    lm = new(GPT2LMHeadModel, n_positions=4)
    ids = torch.tensor([[5, 6, 7]])
    by_hand = lm(input_ids=ids, position_ids=torch.tensor([[2, 3, 3]])).logits
    with switches.shifted(lm, 2, 3):
        assert torch.equal(lm(input_ids=ids, position_ids=torch.tensor([[0, 1, 2]])).logits, by_hand)
    usual = lm(input_ids=ids).logits
    assert torch.equal(lm(input_ids=ids, position_ids=torch.tensor([[0, 1, 2]])).logits, usual)


def test_rows_are_padded_in_the_block_alone():
    policy = Policy(new(GPT2LMHeadModel))
    assert policy.has_plain_head
    with switches.unpacked(policy):
        assert policy.lm.config._attn_implementation == "sdpa"
        assert not policy.has_plain_head
    assert policy.lm.config._attn_implementation == ATTENTION
    assert policy.has_plain_head


def test_weights_have_the_types_of_another_model_in_the_block_alone():
    lm, like = new(GPT2LMHeadModel), new(GPT2LMHeadModel).bfloat16()
    before = {name: p.data for name, p in lm.named_parameters()}
    with switches.typed_like(lm, like, torch.bfloat16):
        for name, p in lm.named_parameters():
            assert torch.equal(p, like.get_parameter(name))
    assert all(p.data is before[name] or torch.equal(p, before[name]) for name, p in lm.named_parameters())
    assert {p.dtype for p in lm.parameters()} == {torch.float32}


def test_modules_in_training_mode_are_found_by_name():
    lm = new(GPT2LMHeadModel)
    assert switches.in_training_mode(lm) == []
    lm.transformer.h[1].mlp.train()
    assert switches.in_training_mode(lm) == ["transformer.h.1.mlp.dropout"]


def test_draws_are_refused():
    with switches.no_draws("it draws"):
        torch.ones(3)
    with pytest.raises(RunStopped, match=r"^it draws$"), switches.no_draws("it draws"):
        torch.rand(3)


def test_merged_adapters_are_put_back_bit_for_bit():
    trainer = lora_trainer()
    lm = trainer.models.policy.lm
    for layer in lora_layers(lm):
        torch.nn.init.normal_(layer.lora_B["policy"].weight, std=0.1)
        layer.merge()
    before = parameters(lm)
    with switches.with_adapter(None, lm):
        assert not any(layer.merged_adapters for layer in lora_layers(lm))
        assert not all(torch.equal(p, before[name]) for name, p in lm.named_parameters())
    assert all(layer.merged_adapters == ["policy"] for layer in lora_layers(lm))
    assert all(torch.equal(p, before[name]) for name, p in lm.named_parameters())
