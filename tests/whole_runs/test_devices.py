"""The equalities that hold on the CPU hold on a GPU: every test runs on both, on `cuda` under the mark `gpu`.

What is expected comes from the CPU: the plain path of tests/parts in float64, or the same step.
"""

from dataclasses import replace

import pytest
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.models.generation import Sampling
from rlhf_dialog.models.policy import Policy, packs, teacher_forced
from rlhf_dialog.runs.training_state import load_training, save_training
from tests.parts import plain
from tests.parts.plain import new_case
from tests.parts.policies import answered, as_case, new_policy
from tests.parts.saved_models import save
from tests.parts.steps import LR, distance, lora_trainer, one_step
from tests.parts.tiny import gpt2
from tests.parts.trainers import collect_next, collect_stored, make_trainer, numbers_of
from tests.parts.zoo import new_lm

pytestmark = pytest.mark.slow

CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
    ],
)


@pytest.fixture(params=["cpu", CUDA])
def device(request):
    return torch.device(request.param)


@pytest.fixture
def deterministic(monkeypatch):
    """Kernels that add in one order, as bit for bit on a GPU needs; the CPU has no others."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


TEMPERATURE = 0.8


def drawn(policy, device, **filters):
    """Responses that the policy draws on the device, and the case that they make there."""
    case = new_case(3, holes=False).to(device)
    found = answered(policy.to(device), case, Sampling(6, TEMPERATURE, **filters))
    assert found.tokens.response_ids.device.type == device.type
    return found, as_case(case, found)


def largest(x, y, mask):
    return (x.cpu() - y.cpu())[mask.cpu()].abs().max().item()


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "filters"),
    [
        ("gpt2", {}),
        ("gpt2", {"top_p": 0.8}),
        ("llama_grouped", {"top_k": 7}),
        ("llama_grouped", {"top_k": 20, "top_p": 0.6}),
        ("bloom", {}),  # padded, the others are packed
        ("bloom", {"top_k": 7}),
    ],
)
def test_what_is_drawn_has_the_numbers_of_teacher_forcing_and_of_the_plain_path(device, kind, filters):
    """And the kept tokens of a filter are those of sorting and adding up."""
    policy = new_policy(kind)
    oracle = plain.as_made(policy)
    found, case = drawn(policy, device, **filters)
    forced = teacher_forced(policy, case.tokens, TEMPERATURE)
    expected = plain.evaluated(oracle, case.to("cpu"), TEMPERATURE)
    for name in ("logprobs", "entropy", "values"):
        bound = 2e-4 if kind == "bloom" else 1e-9  # float32, see policies.py
        assert largest(getattr(forced, name), getattr(expected, name), found.tokens.response_mask) < bound, name
        assert largest(getattr(found, name), getattr(expected, name), found.tokens.response_mask) < bound, name
    if not filters or kind == "bloom":
        return
    logits, _ = plain.all_logits(oracle, replace(case, support=None).to("cpu"))
    for row, t in found.tokens.response_mask.cpu().nonzero().tolist():
        kept = sorted(i for i in found.tokens.support[row, t].tolist() if i >= 0)
        assert kept == nucleus(logits[row, t] / TEMPERATURE, **filters)


def nucleus(logits, top_k=0, top_p=1.0):
    """The `top_k` likeliest ids, and of these as few of the likeliest as have `top_p` of their probability together."""
    order = logits.argsort(descending=True).tolist()[: top_k or None]
    chances, reached, kept = logits[order].softmax(-1).tolist(), 0.0, []
    for i, chance in zip(order, chances, strict=True):
        if reached < top_p:
            kept.append(i)
        reached += chance
    return sorted(kept)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["gpt2", "llama_grouped"])
def test_packed_equals_padded_in_float32_and_no_rougher_in_bfloat16(device, kind):
    """In bfloat16 both are as far from float64 as each other: at most twice, over some 100 tokens."""
    errors = {"packed": [], "padded": []}
    for seed in range(6):
        exact = plain.as_made(Policy(new_lm(kind)).eval())
        models = {name: new_lm(kind, 0, name == "packed", torch.float32).to(device) for name in errors}
        assert [packs(lm) for lm in models.values()] == [True, False]
        case = new_case(seed, holes=False)
        expected = plain.evaluated(exact, case, 1.0).logprobs
        for name, lm in models.items():
            precise = teacher_forced(Policy(lm).eval(), case.to(device).tokens, 1.0).logprobs
            assert largest(precise, expected, case.response_mask) < 1e-4
            rough = teacher_forced(Policy(lm, use_amp=True).eval(), case.to(device).tokens, 1.0).logprobs
            assert rough.dtype == torch.float32
            errors[name].append((rough.cpu() - expected)[case.response_mask].abs())
    packed, padded = (torch.cat(parts).mean().item() for parts in errors.values())
    assert 0 < packed < 2 * padded < 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("models") / "gpt2", gpt2(initializer_range=0.3))


ONE_STEP = {"num_mini_batch": 1, "ppo_epoch": 1, "lr": LR, "critic_lr": LR, "per_device_microbatch_size": 4}
UPDATES = {
    "separate critic, filtered": {"use_share_model": False, "top_k": 20},
    "grpo, KL in the loss": {"advantage_estimator": "grpo", "num_responses_per_prompt": 3, "kl_in": "loss"},
    "lora, separate critic": {"lora_r": 4, "use_share_model": False},
}


def new_trainer(folder, device, double=False, **keys):
    """A trainer on the device; with LoRA on a saved model, since adapters are added while it is loaded."""
    if keys.get("lora_r"):
        return lora_trainer(folder, World(device=device), double, **keys)
    return make_trainer(ref_seed=3, ref_model="another", world=World(device=device), double=double, **keys)


def learner(folder, device, rollout, **keys):
    """A trainer with opinions that descends with plain SGD, and whose next rollout is given."""
    trainer = new_trainer(folder, device, double=True, **keys)
    for engine in trainer.engines.values():
        for name, p in engine.module.named_parameters():
            if "value_head" in name:  # at zero nothing below it has a gradient
                p.data += (torch.arange(p.numel()).sin() / 10).view(p.shape).to(p)
        found = [p for p in engine.module.parameters() if p.requires_grad]
        engine.optimizer = torch.optim.SGD(found, lr=LR)
    if rollout is not None:
        collect_stored(trainer, rollout_on(rollout, device), list(range(len(rollout))))
    return trainer


def rollout_on(rollout, device):
    tokens, columns = rollout.tokens, {name: x.to(device) for name, x in rollout.columns.items()}
    support = None if tokens.support is None else tokens.support.to(device)
    ids = {"prompt_ids": tokens.prompt_ids.to(device), "response_ids": tokens.response_ids.to(device)}
    return replace(rollout, tokens=replace(tokens, **ids, support=support), **columns)


@pytest.mark.parametrize("keys", UPDATES.values(), ids=list(UPDATES))
def test_an_update_in_float64_is_that_of_the_plain_order_on_the_cpu(device, folder, monkeypatch, keys):
    """On the CPU other microbatches, on a GPU the same and other ones: gradients, weights and metrics are equal."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    keys, cpu = ONE_STEP | keys, torch.device("cpu")
    first = learner(folder, cpu, None, **keys)
    rollout = collect_next(first)
    expected = one_step(learner(folder, cpu, rollout, **keys))
    for size in (1, 4) if device.type == "cuda" else (1,):
        found = one_step(learner(folder, device, rollout, **keys | {"per_device_microbatch_size": size}))
        assert {x.device.type for x in found["gradients"].values()} == {device.type}
        for name in ("gradients", "moved"):
            there, here = ({key: x.cpu() for key, x in side[name].items()} for side in (found, expected))
            moved = {key for key, x in here.items() if x.norm() > 0}  # the base of an adapter does not move
            assert all(not there[key].any() for key in here.keys() - moved)
            assert distance({key: there[key] for key in moved}, {key: here[key] for key in moved}) < 1e-9
        assert numbers_of(found["metrics"]) == pytest.approx(numbers_of(expected["metrics"]), rel=1e-9, abs=1e-9)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("keys", [{"use_share_model": False, "top_k": 30}, {"lora_r": 4}])
def test_a_resumed_trainer_is_bit_for_bit_the_undisturbed_one(device, folder, tmp_path, keys):
    whole = new_trainer(folder, device, **keys)
    expected = [numbers_of(whole.step()) for _ in range(3)]
    first = new_trainer(folder, device, **keys)
    assert numbers_of(first.step()) == expected[0]
    modules = {name: engine.module for name, engine in first.engines.items()}
    save_training(tmp_path, first.config, first.state_dict(), modules, first.optimizers)
    again = new_trainer(folder, device, **keys)
    torch.manual_seed(999)
    modules = {name: engine.module for name, engine in again.engines.items()}
    again.load_state_dict(load_training(tmp_path, modules, again.optimizers, World(device=device)))
    assert [numbers_of(again.step()) for _ in range(2)] == expected[1:]
    for name, engine in whole.engines.items():
        ends = zip(engine.module.parameters(), again.engines[name].module.parameters(), strict=True)
        assert all(torch.equal(x, y) for x, y in ends)
