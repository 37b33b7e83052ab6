"""KTO and DPO: against TRL's trainers on the same log-probabilities, by hand, and where the gradient points."""

import math
from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import tensor

from rlhf_dialog.feedback.learning.losses import (
    balance_weights,
    dpo_losses,
    kl_baseline,
    kto_losses,
    pair_with_previous,
)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


class Given(torch.nn.Module):
    """A model whose log-probabilities of each token are given, one tensor for each call, in turn."""

    is_gradient_checkpointing = False

    def __init__(self, *logprobs):
        super().__init__()
        self.turns = list(logprobs)

    def forward(self, **_):
        logprobs = self.turns.pop(0)
        zeros = torch.zeros_like(logprobs)
        unused = dict.fromkeys(("entropy", "mean_logits", "log_sum_sq_probs"), zeros) | {"is_top1": zeros == 0}
        return SimpleNamespace(log_probs=logprobs, **unused)


class Trainer(SimpleNamespace):
    """What TRL's loss methods ask of their trainer: one process, no adapters."""

    def __init__(self, model, ref_model, **options):
        alone = dict.fromkeys(("gather", "gather_for_metrics"), lambda x: x)
        accelerator = SimpleNamespace(device=torch.device("cpu"), autocast=nullcontext, **alone)
        super().__init__(
            **{"model": model, "ref_model": ref_model, "accelerator": accelerator, "aux_loss_enabled": False},
            **{
                "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
                "_total_train_tokens": 0,
                "_tp_size": 1,
            },
            **{"args": SimpleNamespace(gradient_checkpointing_kwargs=None), **options},
        )


def batch_of(rows, width=5):
    ones = torch.ones(rows, width, dtype=torch.long)
    return {"input_ids": ones, "attention_mask": ones, "completion_mask": ones}


def trl_module(name):
    pytest.importorskip("trl")
    from importlib import import_module

    return import_module(f"trl.trainer.{name}")


@pytest.mark.parametrize("liked", [[True, False, True, False, True, False], [True] * 6, [False] * 6])
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_kto_is_that_of_trl(liked, shift):
    """`shift`: with a KL divergence from the reference, and without one, where the baseline is 0."""
    trainer_class = trl_module("kto_trainer").KTOTrainer
    own, mixed, ref, ref_mixed = (drawn(6, 4, seed=i) for i in range(4))
    mixed = mixed + shift / 4
    labels = tensor(liked)
    model, ref_model = Given(mixed, own), Given(ref_mixed, ref)
    trainer = Trainer(
        *(model, ref_model),
        **{"calculate_KL": True, "precompute_ref_logps": False, "loss_type": "kto", "beta": 0.2},
        **{"desirable_weight": 1.3, "undesirable_weight": 0.7},
    )
    trainer._compute_kl_logps = lambda model, batch: trainer_class._compute_kl_logps(trainer, model, batch)
    batch = batch_of(6)
    batch |= {f"KL_{name}": value for name, value in batch.items()} | {"label": labels}
    wanted = trainer_class._compute_loss(trainer, model, batch, False)
    baseline = kl_baseline(mixed.sum(1) - ref_mixed.sum(1))
    assert (baseline > 0) == (shift > 0)
    found = kto_losses(own.sum(1) - ref.sum(1), labels, baseline, 0.2, 1.3, 0.7)
    assert found.shape == (6,)
    torch.testing.assert_close(found.mean(), wanted)


def test_dpo_is_that_of_trl():
    trainer_class = trl_module("dpo_trainer").DPOTrainer
    own, ref = drawn(6, 4), drawn(6, 4, seed=1)
    trainer = Trainer(
        *(Given(own), Given(ref)),
        **{"precompute_ref_logps": False, "ld_alpha": None, "beta": 0.3},
        **{"f_divergence_type": "reverse_kl", "loss_types": ["sigmoid"], "loss_weights": [1.0], "use_weighting": False},
    )
    wanted = trainer_class._compute_loss(trainer, trainer.model, batch_of(6), False)
    chosen, rejected = (own.sum(1) - ref.sum(1)).chunk(2)
    torch.testing.assert_close(dpo_losses(chosen, rejected, 0.3).mean(), wanted)


def test_by_hand():
    """A log-ratio of 2 above a baseline of 1, beta 0.5: 1 - sigmoid(0.5), and 1 - sigmoid(-0.5)."""
    ratios, baseline = tensor([3.0, 3.0]), kl_baseline(tensor([1.0, 3.0]))
    found = kto_losses(ratios, tensor([True, False]), baseline, 0.5, 1.0, 2.0)
    assert found.tolist() == pytest.approx([1 / (1 + math.exp(0.5)), 2 / (1 + math.exp(-0.5))])
    assert dpo_losses(tensor([1.0]), tensor([-1.0]), 0.5).tolist() == pytest.approx([math.log(1 + math.exp(-1))])


def test_the_baseline_is_at_least_zero_and_takes_no_gradient():
    ratios = tensor([-3.0, 1.0], requires_grad=True)
    assert kl_baseline(ratios).item() == 0
    above = kl_baseline(ratios + 5)
    assert above.item() == 4
    assert not above.requires_grad
    assert kl_baseline(tensor([])).item() == 0


def test_every_prompt_gets_the_answer_of_another_one():
    for count in range(2, 9):
        found = pair_with_previous(count)
        assert sorted(found) == list(range(count))
        assert all(i != other for i, other in enumerate(found))
    assert pair_with_previous(1) == pair_with_previous(0) == []


@pytest.mark.parametrize(
    ("counts", "given", "weights"),
    [
        ((30, 10), (None, None), (40 / 60, 40 / 20)),
        ((10, 0), (None, None), (1.0, 1.0)),
        ((1, 99), (None, None), (4.0, 100 / 198)),
        ((30, 10), (1.0, None), (1.0, 3.0)),
        ((30, 10), (None, 1.0), (10 / 30, 1.0)),
        ((30, 10), (2.0, 3.0), (2.0, 3.0)),
    ],
)
def test_weights_that_balance(counts, given, weights):
    assert balance_weights(*counts, *given) == pytest.approx(weights)
