"""Each cause of a failed identity check, put into a model as a user would, is named, and no other."""

import re
from dataclasses import replace

import pytest
import torch
from faulty import (
    Casts,
    Cools,
    CountsFromOne,
    CountsInTrunk,
    CountsPadding,
    DrawsItself,
    Drops,
    Filters,
    HidesEnds,
    Leaks,
    Narrows,
    ReadsLate,
    SeesPadding,
    cause_in,
    lora_trainer,
    stopped,
    trainer_on,
)
from processes import ROOT
from trainers import PROMPTS, Places, parameters
from transformers import GPT2LMHeadModel
from transformers.generation import LogitsProcessorList, TopKLogitsWarper

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.models.lora import lora_layers
from rlhf_dialog.training import causes

TWO_TURNS = [Dialogue([f"{x} ?", "no ."], meta={"index": i}) for i, x in enumerate("abcdefgh")]


@pytest.mark.parametrize("share", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("of", ["start", pytest.param("ratio", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("kind", "packing", "cause", "words"),
    [
        (Filters, False, "filters", "tokens out of its logits on one side only"),
        (Cools, False, "filters", "divided by 0.5 on one side only"),
        (Casts, False, "dtype", "in 32 bits the difference is gone"),
        (Narrows, False, "dtype", "in 32 bits the difference is gone"),
        (CountsInTrunk, True, "positions", "one too large where tokens come one by one"),
        (CountsFromOne, False, "positions", "one too large where tokens come one by one"),
        (ReadsLate, True, "positions", "of the response are one too large where all tokens are read"),
        (CountsPadding, False, "positions", "depend on the padding on the left"),
        (SeesPadding, False, "attention mask", "sees the padding of the prompts"),
        (HidesEnds, False, "attention mask", "hides a pad or end token (id 257)"),
        (Leaks, True, "packing", "packed into one sequence change each other"),
    ],
)
def test_a_fault_of_the_users_model_is_named(kind, packing, cause, words, of, share):
    keys = {"ref_model": "another"} if of == "ratio" else {}
    keys |= {"prompts": PROMPTS} if kind is ReadsLate else {}
    keys |= {"prompts": TWO_TURNS, "turn_separator": "<eos>"} if kind is HidesEnds else {}
    message = stopped(trainer_on(kind, packing, healthy_reference=kind is Leaks, use_share_model=share, **keys))
    assert ("the ratio of new to old" if of == "ratio" else "starts as its own reference") in message
    assert cause_in(message)[0] == cause, message
    assert words in message


def sampled_otherwise(**changes):
    def change(trainer):
        trainer.speaker.sampling = replace(trainer.speaker.sampling, **changes)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (sampled_otherwise(temperature=0.7), "Sampling applies temperature 0.7 in place of 1, which"),
        (sampled_otherwise(min_new_tokens=4), "Sampling applies min_new_tokens 4, which"),
        (sampled_otherwise(bias=(torch.arange(259) / 50, torch.arange(259) / 99)), "Sampling applies a bias, which"),
    ],
)
def test_a_filter_in_sampling_alone_is_named(change, words):
    for keys in ({}, {"ref_model": "another"}):
        trainer = trainer_on(GPT2LMHeadModel, **keys)
        change(trainer)
        message = stopped(trainer)
        assert cause_in(message)[0] == "filters", message
        assert words in message


def test_a_logits_processor_that_sampling_does_not_record_is_named(monkeypatch):
    """A class of the user's in place of ours."""
    usual = Sampling.filters
    monkeypatch.setattr(Sampling, "filters", lambda self: LogitsProcessorList([*usual(self), TopKLogitsWarper(9)]))
    message = stopped(trainer_on(GPT2LMHeadModel))
    assert "Cause (filters): Sampling applies a filter of its own" in message


def test_dropout_in_the_policy_alone_is_named():
    trainer = trainer_on(GPT2LMHeadModel)
    trainer.models.policy.train()
    message = stopped(trainer)
    assert "Cause (dropout): Dropout is on: lm.transformer.drop and 6 more in training mode" in message
    for kind, words in ((Drops, "Dropout is on although"), (DrawsItself, "A model draws random numbers")):
        message = stopped(trainer_on(kind, packing=False, healthy_reference=True))
        assert cause_in(message)[0] == "dropout", message
        assert words in message


def test_a_reference_that_was_rounded_is_named():
    """It comes from a checkpoint in bfloat16, the policy does not."""
    trainer = trainer_on(GPT2LMHeadModel)
    trainer.models.ref_policy.lm.bfloat16().float()
    weights = parameters(trainer.models.policy)
    message = stopped(trainer)
    assert "Cause (dtype): The weights of the reference are rounded to bfloat16" in message
    assert all(torch.equal(p, weights[name]) for name, p in trainer.models.policy.named_parameters())


def test_weights_of_the_policy_that_were_rounded_are_named():
    trainer = trainer_on(GPT2LMHeadModel)
    trainer.models.policy.lm.half().float()
    assert "Cause (dtype): The weights of the policy are rounded to float16" in stopped(trainer)


@pytest.mark.parametrize("share", [True, False])
def test_an_adapter_that_does_not_start_at_zero_is_named(share):
    trainer = lora_trainer(use_share_model=share)
    for layer in lora_layers(trainer.models.policy.lm):
        torch.nn.init.normal_(layer.lora_B["policy"].weight, std=0.1)
    weights = parameters(trainer.models.policy)
    message = stopped(trainer)
    assert "Cause (adapters): An adapter acts on one side only" in message
    assert all(torch.equal(p, weights[name]) for name, p in trainer.models.policy.named_parameters())
    assert {layer.active_adapters[0] for layer in lora_layers(trainer.models.policy.lm)} == {"policy"}


def test_an_adapter_that_a_reward_leaves_disabled_is_named():
    trainer = lora_trainer(num_mini_batch=1, ppo_epoch=1)
    trainer.step()

    class Disables(Places):
        def __call__(self, dialogues):
            for layer in lora_layers(trainer.models.policy.lm):
                layer.enable_adapters(False)
            return super().__call__(dialogues)

    trainer.scorer.reward = Disables()
    message = stopped(trainer)
    assert "Cause (adapters): The responses were sampled with the adapter 'policy'" in message
    assert "select the same adapter again" in message


def test_the_documented_table_has_each_cause_in_the_order_of_the_tests():
    text = (ROOT / "docs" / "RUNS.md").read_text(encoding="utf-8").split("| cause |")[1].split("\n\n")[0]
    assert re.findall(r"^\| ([a-z ]+) \|", text, re.MULTILINE) == [cause.name for cause in causes.CAUSES]
