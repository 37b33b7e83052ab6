"""What a failed identity check adds to its error, on one rank and on several; and that it leaves no trace."""

import copy
from dataclasses import replace

import pytest
import torch
from faulty import (
    Biased,
    CountsFromOne,
    Drops,
    Leaks,
    cause_in,
    stopped,
    trainer_on,
)
from ranks import in_ranks
from trainers import Places
from transformers import GPT2LMHeadModel

from rlhf_dialog.distributed.random_states import random_states
from rlhf_dialog.models.try_faults import REMEDIES
from rlhf_dialog.training import causes, diagnosis
from rlhf_dialog.training.diagnosis import Diagnosis, Findings


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


@pytest.mark.parametrize(("kind", "packing"), [(Biased, False), (Leaks, True), (Drops, False)])
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
    assert diagnosis.verdict([Findings(), one, two]) == f"Cause (packing): P. {REMEDIES['packing']}"
    assert diagnosis.verdict([one, Findings()]).startswith("Cause (dtype): D. ")
    assert "None of the known causes" in diagnosis.verdict([one, Findings(True)])
