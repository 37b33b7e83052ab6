"""A resumed training gives the numbers of one that nobody disturbed; weights alone are taken by a new run."""

import json

import pytest
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.loading import Policy
from rlhf_dialog.runs.training_state import load_training, load_weights
from tests.parts.processes import output_of
from tests.parts.saving import CPU, KINDS, Moody, build, modules, resume, save, steps
from tests.parts.tiny import gpt2, llama
from tests.parts.trainers import make_trainer, parameters


@pytest.mark.parametrize("kind", KINDS)
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
def test_resume_in_another_process(tmp_path):
    kind = "separate critic"
    expected = steps(build(kind), 4)
    trainer = build(kind)
    steps(trainer, 2)
    save(trainer, tmp_path)
    code = (
        "from tests.parts import offline, saving as t\nimport json, sys, pathlib\n"
        f"trainer = t.resume({kind!r}, pathlib.Path({str(tmp_path)!r}))\n"
        "json.dump(t.steps(trainer, 2), sys.stdout)"
    )
    assert json.loads(output_of("-c", code)) == expected[2:]


@pytest.mark.slow
def test_an_earlier_checkpoint_without_a_group_of_the_value_head_resumes(tmp_path):
    """Its optimizer is one group over the same parameters: torch's own, with moments that are made here."""
    trainer = build("shared trunk")
    state = trainer.optimizers["policy"].state_dict()
    for number, slots in state["state"].items():
        slots["step"] += 7
        slots["exp_avg"] += number + 1
    save(trainer, tmp_path)
    path = next(tmp_path.glob("iter_*/trainer.json"))
    saved = json.loads(path.read_text())
    groups = saved["optimizers"]["policy"]
    saved["optimizers"]["policy"] = [{**groups[0], "params": [i for group in groups for i in group["params"]]}]
    path.write_text(json.dumps(saved))
    other = make_trainer(Moody(), lr=1e-3, critic_lr=2e-3)
    load_training(tmp_path, modules(other), other.optimizers, World())
    named = list(other.models.policy.named_parameters())
    for number, (_, p) in enumerate(named):
        slots = other.optimizers["policy"].state[p]
        assert int(slots["step"]) == 7
        assert torch.equal(slots["exp_avg"], torch.full_like(p, number + 1))
    assert [len(group["params"]) for group in other.optimizers["policy"].param_groups] == [len(named) - 2, 2]


@pytest.mark.slow
def test_resume_with_the_other_value_normalisation():
    trainer = build("shared trunk")
    state = trainer.state_dict()
    state["value_normalizer"] = (
        None if state["value_normalizer"] else {"mean_sum": 0.0, "square_sum": 0.0, "weight": 0.0}
    )
    with pytest.raises(UserError, match="use_valuenorm"):
        trainer.load_state_dict(state)


@pytest.mark.slow
def test_a_resumed_optimizer_has_the_epsilon_and_the_decay_of_its_own_run(tmp_path):
    save(build("shared trunk"), tmp_path)
    other = make_trainer(Moody(), opti_eps=1e-3, weight_decay=0.5)
    load_training(tmp_path, modules(other), other.optimizers, World())
    group = other.optimizers["policy"].param_groups[0]
    assert (group["eps"], group["weight_decay"]) == (1e-3, 0.5)


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
