"""A resumed training gives the numbers of one that nobody disturbed; weights alone are taken by a new run."""

import pytest
import torch

from rlhf_dialog.errors import UserError
from rlhf_dialog.models.loading import Policy
from rlhf_dialog.runs.training_state import load_optimizer, load_weights, save_optimizer
from tests.parts.saving import CPU, KINDS, build, modules, resume, save, steps
from tests.parts.tiny import gpt2, llama
from tests.parts.trainers import parameters


@pytest.mark.parametrize(
    "kind",
    ["separate critic", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "separate critic")],
)
def test_resume_gives_the_same_numbers_bit_for_bit(tmp_path, kind):
    whole = build(kind)
    expected = steps(whole, 4)
    first = build(kind)
    assert steps(first, 2) == expected[:2]
    save(first, tmp_path)
    second = resume(kind, tmp_path)
    assert second.state_dict() == first.state_dict()
    assert steps(second, 2) == expected[2:]
    for name, module in modules(whole).items():
        ours = parameters(modules(second)[name])
        assert all(torch.equal(value, ours[key]) for key, value in parameters(module).items())
    assert len({metrics["objective/score"] for metrics in expected}) == 4


@pytest.mark.slow
def test_resume_with_the_other_value_normalisation():
    trainer = build("shared trunk")
    state = trainer.state_dict()
    state["value_normalizer"] = (
        None if state["value_normalizer"] else {"mean_sum": 0.0, "square_sum": 0.0, "weight": 0.0}
    )
    with pytest.raises(UserError, match="use_valuenorm"):
        trainer.load_state_dict(state)


def stepped(steps, **keys):
    """An optimizer after so many steps on the gradients 1, 2 ..."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW([{"params": [linear.weight]}, {"params": [linear.bias], "lr": 0.5}], **keys)
    for step in range(steps):
        for p in linear.parameters():
            p.grad = torch.full_like(p, step + 1.0)
        optimizer.step()
    return optimizer


def test_the_moments_of_an_optimizer_are_restored_beside_its_own_epsilon_and_decay(tmp_path):
    path, first, other = tmp_path / "o.safetensors", stepped(3), stepped(1, lr=9.0, eps=0.1, weight_decay=0.2)
    groups = save_optimizer(first, path)
    load_optimizer(other, path, groups)
    for wanted, found in zip(first.param_groups, other.param_groups, strict=True):
        assert (found["lr"], found["eps"], found["weight_decay"]) == (wanted["lr"], 0.1, 0.2)
        slots, restored = first.state[wanted["params"][0]], other.state[found["params"][0]]
        assert {*slots} == {*restored} == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(slots[name], restored[name]) for name in slots)
    assert float(restored["step"]) == 3
    assert torch.allclose(restored["exp_avg"], torch.tensor((1 * 0.81 + 2 * 0.9 + 3) * 0.1))  # beta 0.9


@pytest.mark.slow
def test_weights_alone(tmp_path):
    first = build("separate critic")
    steps(first, 1)
    source = save(first, tmp_path)
    same, shared, bare = build("separate critic"), build("shared trunk"), build("without critic")
    assert load_weights(source, modules(same), CPU) == []
    for name, module in modules(same).items():
        ours = parameters(modules(first)[name])
        assert all(torch.equal(value, ours[key]) for key, value in parameters(module).items())
    moments = same.optimizers["policy"].state_dict()["state"].values()
    assert not any(tensor.any() for one in moments for tensor in one.values())  # of a run that has not begun
    assert load_weights(source, modules(shared), CPU) == ["policy's value head"]
    assert load_weights(source, modules(bare), CPU) == []
    for trainer in (shared, bare):
        ours = parameters(first.models.policy.lm)
        assert all(torch.equal(value, ours[key]) for key, value in parameters(trainer.models.policy.lm).items())
    assert load_weights(save(shared, tmp_path / "shared"), modules(build("separate critic")), CPU) == ["critic"]


@pytest.mark.slow
def test_weights_of_another_model_are_refused(tmp_path):
    source = save(build("shared trunk"), tmp_path)
    for other in (llama(), gpt2(n_embd=64), gpt2(n_layer=3)):
        with pytest.raises(UserError, match="iter_000000: is damaged or does not fit this run"):
            load_weights(source, {"policy": Policy(other)}, CPU)
