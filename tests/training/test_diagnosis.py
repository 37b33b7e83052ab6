"""Each cause of a failed identity check, put into a model as a user would, is named, and no other."""

import copy
import re
from dataclasses import replace

import pytest
import torch
from faulty import (
    Biased,
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
    new,
    stopped,
    trainer_on,
)
from ranks import in_ranks
from tiny import byte_tokenizer
from trainers import PROMPTS, Places, parameters, settings
from transformers import GPT2LMHeadModel
from transformers.generation import LogitsProcessorList, TopKLogitsWarper

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.random_states import random_states
from rlhf_dialog.metrics.base import VecInfo
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.models.loading import Models, build_trained
from rlhf_dialog.models.lora import lora_layers
from rlhf_dialog.models.policy import DisabledAdapter
from rlhf_dialog.models.switches import with_adapter
from rlhf_dialog.training import causes, diagnosis
from rlhf_dialog.training.diagnosis import Diagnosis, Findings
from rlhf_dialog.training.trainer import PPOTrainer

TWO_TURNS = [Dialogue([f"{x} ?", "no ."], meta={"index": i}) for i, x in enumerate("abcdefgh")]


def cause_in(message):
    """The name of the cause, and its sentence."""
    (found,) = re.findall(r"Cause \(([a-z ]+)\): (.+?)\. [A-Z]", message) or [("none", message)]
    return found


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("of", ["start", "ratio"])
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


def lora_trainer(**keys):
    """A trainer whose policy has an adapter, built as `load_models` does."""
    config, lm = settings(use_lora=True, lr=1e-2, **keys), new(GPT2LMHeadModel)
    policy, critic = build_trained(config, lm, {"use_amp": False})
    models = Models(policy.eval(), critic, DisabledAdapter(lm).eval(), byte_tokenizer())
    torch.manual_seed(0)
    return PPOTrainer(config, models, PROMPTS, Places(), VecInfo())


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


@pytest.mark.parametrize("kind", [Drops, DrawsItself])
def test_dropout_in_the_reference_does_not_pass_for_noise(kind):
    message = stopped(trainer_on(kind, packing=False))
    assert "the reference draws random numbers in eval mode" in message
    assert "act only where self.training is true" in message


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


@pytest.mark.parametrize("keys", [{}, {"ref_model": "another"}])
def test_a_reference_in_16_bits_does_not_pass_for_noise(keys):
    trainer = trainer_on(GPT2LMHeadModel, **keys)
    trainer.models.ref_policy.lm.bfloat16()
    message = stopped(trainer)
    assert message.startswith("the reference computes in 16 bits, but the run in 32 (weights in bfloat16)")
    trainer = trainer_on(GPT2LMHeadModel, **keys)
    trainer.models.ref_policy.use_amp = True
    assert stopped(trainer).startswith("the reference computes in 16 bits, but the run in 32 (autocast)")


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


def test_merged_adapters_are_put_back_bit_for_bit():
    trainer = lora_trainer()
    lm = trainer.models.policy.lm
    for layer in lora_layers(lm):
        torch.nn.init.normal_(layer.lora_B["policy"].weight, std=0.1)
        layer.merge()
    before = parameters(lm)
    with with_adapter(None, lm):
        assert not any(layer.merged_adapters for layer in lora_layers(lm))
        assert not all(torch.equal(p, before[name]) for name, p in lm.named_parameters())
    assert all(layer.merged_adapters == ["policy"] for layer in lora_layers(lm))
    assert all(torch.equal(p, before[name]) for name, p in lm.named_parameters())


@pytest.mark.parametrize("keys", [{}, {"ref_model": "another"}])
def test_a_fault_that_is_none_of_these_is_said_to_be_none(keys):
    message = stopped(trainer_on(Biased, packing=False, **keys))
    names = "dropout, adapters, filters, dtype, positions, attention mask, packing"
    assert f"None of the known causes explains it alone (excluded: {names})" in message
    assert "there again when the same tokens are computed once more" in message
    assert "Cause (" not in message


def test_weights_that_change_between_sampling_and_check_are_none_of_these():
    trainer = trainer_on(GPT2LMHeadModel, ref_model="another")

    class Changes(Places):
        def __call__(self, dialogues):
            with torch.no_grad():
                trainer.models.policy.lm.transformer.wpe.weight.mul_(1.1)
            return super().__call__(dialogues)

    trainer.scorer.reward = Changes()
    message = stopped(trainer)
    assert "None of the known causes explains it alone" in message
    assert "gone when the same tokens are computed once more" in message


def test_a_cause_that_cannot_be_tested_is_said(monkeypatch):
    def broken(*_):
        raise MemoryError("out of memory")

    monkeypatch.setattr(causes, "unpacked", broken)
    message = stopped(trainer_on(Leaks, healthy_reference=True))
    assert "not tested: packing (MemoryError: out of memory)" in message
    assert "attention mask; not tested" in message


@pytest.mark.parametrize(("kind", "packing"), [(Biased, False), (Leaks, True)])
def test_models_and_random_states_are_afterwards_as_they_were(kind, packing, monkeypatch):
    """Seen around the diagnosis itself."""
    explain, seen = Diagnosis._cause, []

    def state(trainer):
        lms = [model.lm for model in (trainer.models.policy, trainer.models.ref_policy)]
        return (
            [lm.config._attn_implementation for lm in lms],
            [[module.training for module in lm.modules()] for lm in lms],
            [sum(len(module._forward_pre_hooks) for module in lm.modules()) for lm in lms],
            [model.has_plain_head for model in (trainer.models.policy, trainer.models.ref_policy)],
            random_states()[1],
        )

    def tensors(trainer):
        lms = [model.lm for model in (trainer.models.policy, trainer.models.ref_policy)]
        return {**lms[0].state_dict(), "ref": list(lms[1].parameters()), "random": random_states()[0]}

    def watched(self, *args):
        before, tensors_before = state(trainer), copy.deepcopy(tensors(trainer))
        text = explain(self, *args)
        assert state(trainer) == before
        torch.testing.assert_close(tensors(trainer), tensors_before, rtol=0, atol=0)
        seen.append(text)
        return text

    monkeypatch.setattr(Diagnosis, "_cause", watched)
    trainer = trainer_on(kind, packing, healthy_reference=True)
    assert stopped(trainer).endswith(seen[0])


def test_a_healthy_run_does_not_come_here(monkeypatch):
    monkeypatch.setattr(diagnosis, "Comparison", None)
    monkeypatch.setattr(diagnosis, "far_from_reference", None)
    trainer_on(GPT2LMHeadModel).step()


def in_a_rank(world, kind, ref_model):
    """The message that a rank ends with."""
    trainer = trainer_on(kind, packing=False, world=world, ref_model=ref_model)
    message = stopped(trainer)
    world.sum_of([0.0])  # waits for all ranks
    return message


@pytest.mark.multiprocess
@pytest.mark.parametrize("ref_model", [None, "another"])
def test_all_ranks_name_the_same_cause(ref_model):
    first, second = in_ranks(2, in_a_rank, CountsFromOne, ref_model)
    for message in (first, second):
        assert cause_in(message)[0] == "positions", message


def only_on_rank_1(world):
    trainer = trainer_on(GPT2LMHeadModel, world=world, ref_model="another")
    if world.rank == 1:
        trainer.speaker.sampling = replace(trainer.speaker.sampling, temperature=0.5)
    return stopped(trainer)


@pytest.mark.multiprocess
def test_a_fault_of_one_rank_is_named_on_all():
    for message in in_ranks(2, only_on_rank_1):
        assert message.startswith("rank 1: iteration 1: the ratio")
        assert "Cause (filters): Sampling applies temperature 0.5 in place of 1" in message


def test_a_cause_must_explain_the_difference_of_every_rank():
    one, two = Findings(True, True, {"packing": "P", "dtype": "D"}), Findings(True, True, {"packing": "Q"})
    assert diagnosis.verdict([Findings(), one, two]) == "Cause (packing): P. Set packing: false"
    assert diagnosis.verdict([one, Findings()]).startswith("Cause (dtype): D. ")
    assert "None of the known causes" in diagnosis.verdict([one, Findings(True)])
