"""Each cause of a failed identity check, put into a model as a user would, is named, and no other; it leaves no trace."""

import copy
import re

import pytest
import torch
from transformers import GPT2LMHeadModel

from rlhf_dialog.distributed.random_states import random_states
from rlhf_dialog.models.load_checks import REMEDIES
from rlhf_dialog.models.lora import lora_layers
from rlhf_dialog.training import diagnosis
from rlhf_dialog.training.diagnosis import CAUSES, COLUMNS, ROWS, Diagnosis, Findings, select_rows
from tests.parts.faulty import (
    Biased,
    Casts,
    CountsFromOne,
    CountsInTrunk,
    CountsPadding,
    Leaks,
    Narrows,
    SeesPadding,
    cause_in,
    lora_trainer,
    stopped,
    trainer_on,
)
from tests.parts.processes import ROOT
from tests.parts.ranks import in_ranks
from tests.parts.trainers import Places, parameters


@pytest.mark.parametrize("share", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("check", ["start", pytest.param("ratio", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("kind", "packing", "cause"),
    [
        (Casts, False, "16 bits"),
        (Narrows, False, "16 bits"),
        (Leaks, True, "packing"),
        (CountsPadding, False, "padding"),
        (SeesPadding, False, "padding"),
        (CountsInTrunk, True, "positions"),
        (CountsFromOne, False, "positions"),
    ],
)
def test_a_fault_of_the_users_model_is_named(kind, packing, cause, check, share):
    keys = {"ref_model": "another"} if check == "ratio" else {}
    message = stopped(trainer_on(kind, packing, healthy_reference=kind is Leaks, use_share_model=share, **keys))
    assert ("the ratio of new to old" if check == "ratio" else "starts as its own reference") in message
    assert cause_in(message)[0] == cause, message


def test_a_policy_in_training_mode_is_named():
    trainer = trainer_on(GPT2LMHeadModel)
    trainer.models.policy.train()
    message = stopped(trainer)
    assert f"Cause (training mode): the difference is gone in eval mode. {REMEDIES['dropout']}" in message


@pytest.mark.parametrize("share", [True, False])
def test_an_adapter_that_does_not_start_at_zero_is_named(share):
    trainer = lora_trainer(use_share_model=share)
    for layer in lora_layers(trainer.models.policy.lm):
        torch.nn.init.normal_(layer.lora_B["policy"].weight, std=0.1)
    weights = parameters(trainer.models.policy)
    assert cause_in(stopped(trainer))[0] == "adapter"
    assert all(torch.equal(p, weights[name]) for name, p in trainer.models.policy.named_parameters())
    assert {layer.active_adapters[0] for layer in lora_layers(trainer.models.policy.lm)} == {"policy"}


@pytest.mark.parametrize("keys", [{}, {"ref_model": "another"}])
def test_a_fault_that_is_none_of_these_is_said_to_be_none(keys):
    message = stopped(trainer_on(Biased, packing=False, **keys))
    names = "training mode, 16 bits, adapter, packing, padding, positions"
    assert f"None of the known causes explains it alone (excluded: {names})" in message
    numbers = re.search(r"log-probability (\S+) when tokens come one by one, and (\S+) when all are read", message)
    assert 0.01 < abs(float(numbers[1]) - float(numbers[2])) < 2  # the bias is 1 at most
    assert "Cause (" not in message


def test_weights_that_change_between_sampling_and_check_are_none_of_these():
    trainer = trainer_on(GPT2LMHeadModel, ref_model="another")

    class Changes(Places):
        def __call__(self, dialogues):
            with torch.no_grad():
                trainer.models.policy.lm.transformer.wpe.weight.mul_(1.1)
            return super().__call__(dialogues)

    trainer.scorer.reward = Changes()
    assert "The difference is gone when the same tokens are computed once more" in stopped(trainer)


def test_a_cause_that_cannot_be_tested_is_said(monkeypatch):
    def fails(*_):
        raise MemoryError("out of memory")

    monkeypatch.setattr(diagnosis, "packs", fails)
    message = stopped(trainer_on(Leaks, healthy_reference=True))
    assert "packing, not tested: MemoryError('out of memory')" in message


@pytest.mark.parametrize(("kind", "packing"), [(Biased, False), (Leaks, True)])
def test_models_and_random_states_are_afterwards_as_they_were(kind, packing, monkeypatch):
    """Seen around the diagnosis itself."""
    examine, answers = Diagnosis._examine, []

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
        answers.append(examine(self, *args))
        assert state(trainer) == before
        torch.testing.assert_close(tensors(trainer), tensors_before, rtol=0, atol=0)
        return answers[0]

    monkeypatch.setattr(Diagnosis, "_examine", watched)
    trainer = trainer_on(kind, packing, healthy_reference=True)
    stopped(trainer)
    assert answers[0].differs


def test_a_healthy_run_does_not_come_here(monkeypatch):
    monkeypatch.setattr(diagnosis, "select_rows", None)
    monkeypatch.setattr(diagnosis, "far_from_reference", None)
    trainer_on(GPT2LMHeadModel).step()


def test_only_some_rows_and_tokens_are_computed_again():
    """As many rows as ROWS, the first of those given; and no token behind the last position."""
    trainer = trainer_on(GPT2LMHeadModel, rollout_batch_size=12, max_new_tokens=80)
    trainer.speaker.stop.end_ids = [-1]
    trainer.step()
    rollout, rows = trainer.rollout, torch.arange(11, -1, -1)
    chosen = select_rows(rollout, rows, 256)
    assert torch.equal(chosen.tokens.response_ids, rollout.tokens.response_ids[rows[:ROWS], :COLUMNS])
    longest = int(rollout.tokens.prompt_mask[rows[:ROWS]].sum(dim=1).max())
    assert select_rows(rollout, rows, longest + 7).tokens.mask.shape == (ROWS, 7)
    assert not len(select_rows(rollout, rows[:0], 256).tokens)
    assert all(row.tokens.prompt_mask.all() and row.tokens.mask[0, -1] for row in chosen.single_rows())


def in_a_rank(world, kind, ref_model):
    """The message that a rank ends with."""
    trainer = trainer_on(kind, packing=False, world=world, ref_model=ref_model)
    message = stopped(trainer)
    world.sum_numbers([0.0])  # waits for all ranks
    return message


@pytest.mark.multiprocess
@pytest.mark.parametrize("ref_model", [None, "another"])
def test_all_ranks_name_the_same_cause(ref_model):
    for message in in_ranks(2, in_a_rank, CountsFromOne, ref_model):
        assert cause_in(message)[0] == "positions", message


def test_a_cause_must_explain_the_difference_of_every_rank():
    first, second = Findings(True, (-1.0, -2.0), ["16 bits", "packing"]), Findings(True, (-1.0, -3.0), ["packing"])
    conclude = diagnosis.conclude
    assert conclude([Findings(), first, second]).startswith("Cause (packing): ")
    assert conclude([first, Findings()]).startswith("Cause (16 bits): ")
    assert "None of the known causes" in conclude([first, Findings(True, (-1.0, -2.0))])


def test_the_documented_table_has_each_cause_in_the_order_of_the_tests():
    text = (ROOT / "docs" / "RUNS.md").read_text(encoding="utf-8").split("| cause |")[1].split("\n\n")[0]
    assert re.findall(r"^\| ([a-z0-9 ]+) \|", text, re.MULTILINE) == [cause.name for cause in CAUSES]
