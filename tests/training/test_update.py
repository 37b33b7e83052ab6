"""The optimizer steps of an iteration: their minibatches, their settings, and numbers that are not finite."""

import json
import math
from itertools import pairwise, permutations
from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog.config.registry import LossFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.models.masks import last_token
from rlhf_dialog.training import ppo
from rlhf_dialog.training.update import blank_microbatch, minibatch_sizes, shuffle_groups
from tests.parts import plain
from tests.parts.trainers import Holes, change_predictions, make_trainer, parameters, settings


def spoil(monkeypatch, trainer, is_bad, number=math.nan):
    """Log-probs become `number` in the update where `is_bad(number of the minibatch, index of the prompt)`, both from 0."""
    minibatches, original = [], trainer.update.optimizer_step

    def recording(*args, **options):
        minibatches.append(None)
        minibatches[-1] = original(*args, **options)
        return minibatches[-1]

    def spoilt(predictions, microbatch):
        tokens = microbatch.tokens
        for row in range(len(tokens)):
            if is_bad(len(minibatches) - 1, index_of(trainer, tokens.prompt_ids[row], tokens.prompt_mask[row])):
                predictions.logprobs[row] = number
        return predictions

    monkeypatch.setattr(trainer.update, "optimizer_step", recording)
    change_predictions(monkeypatch, spoilt)
    return minibatches


def index_of(trainer, ids, mask):
    text = trainer.models.tokenizer.decode(ids[mask].tolist())
    return "abcdefghijklmnop".index(text.strip()[0])


def frozen_state(trainer):
    modules = [m for m in (trainer.models.policy, trainer.models.critic) if m is not None]
    weights = [p.detach().clone() for m in modules for p in m.parameters()]
    moments = [
        torch.as_tensor(x).clone() for o in trainer.optimizers.values() for s in o.state.values() for x in s.values()
    ]
    return weights + moments


def same(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_the_divisor_is_of_the_minibatches_there_are(monkeypatch):
    """Six minibatches asked, three responses: three of one, and each loss is divided by the mean length of a response."""
    trainer = make_trainer(num_mini_batch=6, ppo_epoch=1)
    divisors, original = [], trainer.update.optimizer_step

    def recording(rollout, rows, num_tokens, is_first):
        divisors.append(float(num_tokens))
        return original(rollout, rows, num_tokens, is_first)

    monkeypatch.setattr(trainer.update, "optimizer_step", recording)
    trainer.step_on([[5], [6], [7]], [[1, 2], [3], [4, 5, 6]], [1.0, 0.0, 2.0])
    assert divisors == [(2 + 1 + 3) / 3] * 3


@pytest.mark.slow
def test_a_bad_microbatch_skips_its_step_and_is_named(monkeypatch, caplog):
    """Of three minibatches of two, the one with a certain prompt is left out, whatever its position."""
    for share, number in ((True, math.nan), (False, math.inf)):
        trainer = make_trainer(num_mini_batch=3, ppo_epoch=2, per_device_microbatch_size=1, use_share_model=share)
        trainer.prompts = [Dialogue(d.prompt_turns, meta=d.meta | {"split": "train"}) for d in trainer.prompts]
        target = make_trainer(num_mini_batch=3).sampler.take(6)[4]
        minibatches = spoil(monkeypatch, trainer, lambda _, index, target=target: index == target, number)
        caplog.clear()
        metrics = trainer.step()
        good = [m for m in minibatches if all(math.isfinite(value) for value in m.values())]
        assert (len(minibatches), len(good)) == (6, 4)
        assert metrics["ppo/skipped_steps"] == 2
        for name in ("ppo/policy_loss", "ppo/value_loss", "ppo/grad_norm", "ppo/approx_kl"):
            assert metrics[name] == pytest.approx(sum(m[name] for m in good) / 4)
        warnings = [record.getMessage() for record in caplog.records]
        assert len(warnings) == 2
        for text in warnings:
            assert text.startswith("iteration 1: a number of the update is not finite (ppo/")
            assert f"prompts of the microbatch with it: train {target};" in text
        for optimizer in trainer.optimizers.values():
            assert {int(state["step"]) for state in optimizer.state.values()} == {4}
        assert all(p.grad is None for p in trainer.models.policy.parameters())
        assert all(p.isfinite().all() for p in trainer.models.policy.parameters())
        monkeypatch.undo()
        assert make_trainer().step()["ppo/skipped_steps"] == 0


@pytest.mark.parametrize("module", ["policy", "critic"])
def test_a_gradient_that_is_not_finite_skips_both_optimizers(monkeypatch, caplog, module):
    trainer = make_trainer(num_mini_batch=1, ppo_epoch=1, use_share_model=False, per_device_microbatch_size=2)
    trainer.step()
    before = frozen_state(trainer)
    weight = next(getattr(trainer.models, module).parameters())
    hook = weight.register_hook(lambda grad: grad * math.inf)
    metrics = trainer.step()
    hook.remove()
    assert same(frozen_state(trainer), before)
    assert metrics["ppo/skipped_steps"] == 1
    names = ["loss", "policy_loss", "value_loss", "clip_fraction", "approx_kl", "grad_norm", "critic_grad_norm"]
    assert all(math.isnan(metrics[f"ppo/{name}"]) for name in names)
    assert math.isfinite(metrics["objective/kl"])
    indices = {dialogue.meta["index"] for dialogue in trainer.rollout.dialogues}
    (text,) = [record.getMessage() for record in caplog.records]
    name = "ppo/grad_norm" if module == "policy" else "ppo/critic_grad_norm"
    assert f"({name} nan)" in text
    listed = text.split("prompts of the minibatch: ")[1].split(";")[0]
    assert {int(word) for word in listed.replace("prompt ", "").split(", ")} == indices
    trainer.step()
    assert not same(frozen_state(trainer), before)


def test_skipped_steps_in_a_row_stop_the_run_across_iterations(monkeypatch):
    trainer = make_trainer(num_mini_batch=2, ppo_epoch=1)
    spoil(monkeypatch, trainer, lambda minibatch, _: minibatch >= 2)
    trainer.step()
    before = frozen_state(trainer)
    assert trainer.step()["ppo/skipped_steps"] == 2
    state = json.loads(json.dumps(trainer.state_dict()))
    assert state["skipped_in_a_row"] == 2
    with pytest.raises(RunStopped, match=r"iteration 3: .*policy_loss nan.*prompt \d+.* 3 in a row"):
        trainer.step()
    assert same(frozen_state(trainer), before)
    assert trainer.iteration == 2
    resumed = make_trainer(num_mini_batch=2, ppo_epoch=1)
    resumed.load_state_dict(state)
    spoil(monkeypatch, resumed, lambda *_: True)
    with pytest.raises(RunStopped, match="3 in a row"):
        resumed.step()


def test_a_good_step_begins_the_count_anew(monkeypatch):
    trainer = make_trainer(num_mini_batch=3, ppo_epoch=2)
    spoil(monkeypatch, trainer, lambda minibatch, _: minibatch % 3 < 2)
    for _ in range(2):
        assert trainer.step()["ppo/skipped_steps"] == 4
    assert trainer.update.skipped_in_a_row == 0


@pytest.mark.parametrize("limit", [1, 5])
def test_max_skipped_steps(monkeypatch, limit):
    trainer = make_trainer(num_mini_batch=6, ppo_epoch=2, max_skipped_steps=limit)
    minibatches = spoil(monkeypatch, trainer, lambda *_: True)
    with pytest.raises(RunStopped, match=f"{limit} in a row"):
        trainer.step()
    assert len(minibatches) == limit


def test_switches_of_the_losses_arrive(monkeypatch):
    """Clip range and bound of the policy, clip range and delta of the values reach the formulas."""
    given = []
    value_loss, clip_loss = ppo.value_loss, ppo.clip_loss
    monkeypatch.setattr(ppo, "value_loss", lambda *args: given.extend(args[4:6]) or value_loss(*args))

    def loss(x):
        given.extend([x.clip.low, x.clip.dual])
        return clip_loss(x)

    monkeypatch.setitem(LossFactory.classes, "clip", loss)
    options = {"clip_param": 0.3, "huber_delta": 4.0, "dual_clip_coeff": 2.0, "num_mini_batch": 1, "ppo_epoch": 1}
    for keys, expected in (
        ({"dual_clip_ppo": True}, [0.3, 2.0, 0.3, 4.0]),
        ({"use_huber_loss": False}, [0.3, None, 0.3, None]),
        ({"use_clipped_value_loss": False}, [0.3, None, None, 4.0]),
        ({"value_clip_param": 0.05}, [0.3, None, 0.05, 4.0]),
        ({"value_clip_param": 0.05, "use_clipped_value_loss": False}, [0.3, None, None, 4.0]),
    ):
        given.clear()
        make_trainer(**options, **keys).step()
        assert given == expected


@pytest.mark.parametrize(("decay", "share"), [(True, True), (True, False), (False, True)])
def test_linear_learning_rate_decay(decay, share):
    """Of a shared model, the value head is a group of its own."""
    keys = {"lr": 4e-3, "critic_lr": 8e-3, "max_iterations": 4, "num_mini_batch": 1, "ppo_epoch": 1}
    trainer = make_trainer(use_share_model=share, use_linear_lr_decay=decay, **keys)
    used = []
    while not trainer.done:
        trainer.step()
        groups = [group for optimizer in trainer.optimizers.values() for group in optimizer.param_groups]
        used.append([group["lr"] for group in groups if group["params"]])
    shares = [1, 0.75, 0.5, 0.25] if decay else [1] * 4
    assert used == [pytest.approx([4e-3 * share, 8e-3 * share]) for share in shares]


@pytest.mark.parametrize("precision", [{}, {"use_amp": True, "amp_dtype": "fp16"}], ids=["fp32", "fp16"])
def test_in_the_warmup_the_critic_learns_alone(precision):
    keys = {"use_share_model": False, "critic_warmup": 2, "max_iterations": 3, "weight_decay": 0.1, "ppo_epoch": 1}
    trainer = make_trainer(**keys, **precision)
    modules = (trainer.models.policy, trainer.models.critic)
    seen = [[parameters(module) for module in modules]]
    while not trainer.done:
        trainer.step()
        seen.append([parameters(module) for module in modules])
    moved = [
        [any(not torch.equal(x[name], y[name]) for name in x) for x, y in zip(a, b, strict=True)]
        for a, b in pairwise(seen)
    ]
    assert moved == [[False, True], [False, True], [True, True]]
    made = [{int(state["step"]) for state in trainer.optimizers[name].state.values()} for name in ("policy", "critic")]
    per_iteration = trainer.config.ppo_epoch * trainer.config.num_mini_batch
    assert made == [{per_iteration}, {3 * per_iteration}]  # the policy's moments begin after the warmup


@pytest.mark.parametrize("precision", [{}, {"use_amp": True, "amp_dtype": "fp16"}], ids=["fp32", "fp16"])
def test_in_the_warmup_the_head_of_a_shared_model_learns_alone(precision):
    keys = {"critic_warmup": 2, "max_iterations": 3, "weight_decay": 0.1, "max_grad_norm": 1e-3, "ppo_epoch": 1}
    trainer = make_trainer(**keys, **precision)
    policy, optimizer = trainer.models.policy, trainer.optimizers["policy"]
    (trunk, head), seen = [group["params"] for group in optimizer.param_groups], [parameters(policy)]
    per_iteration = trainer.config.ppo_epoch * trainer.config.num_mini_batch
    while not trainer.done:
        metrics = trainer.step()
        number = trainer.iteration
        seen.append(parameters(policy))
        moved = {name for name in seen[0] if not torch.equal(seen[-1][name], seen[-2][name])}
        assert {"value_head.weight", "value_head.bias"} <= moved
        assert (len(moved) == 2) == (number <= 2)
        assert {int(optimizer.state[p]["step"]) for p in head} == {number * per_iteration}
        assert {int(optimizer.state[p]["step"]) for p in trunk} == {0 if number <= 2 else per_iteration}
        if number <= 2:
            assert not any(moment.any() for p in trunk for moment in optimizer.state[p].values())
            assert metrics["ppo/approx_kl"] == pytest.approx(0, abs=1e-3 if precision else 1e-6)


def test_in_the_warmup_the_norm_is_that_of_the_head_and_the_clipping_too():
    """With epsilon 1 a step is lr * g / (|g| + 1), and |g| is the limit."""
    keys = {"critic_warmup": 1, "opti_eps": 1.0, "critic_lr": 1.0, "num_mini_batch": 1, "ppo_epoch": 1}
    trainer = make_trainer(**keys, max_grad_norm=1e-3)
    head = trainer.models.policy.value_head
    found, keep = [], trainer.engines["policy"].keep_head_gradient
    trainer.engines["policy"].keep_head_gradient = lambda: (
        keep(),
        found.append(math.sqrt(sum((p.grad**2).sum().item() for p in head.parameters()))),
    )
    metrics = trainer.step()
    assert metrics["ppo/grad_norm"] == pytest.approx(found[0], rel=1e-5)
    moved = math.sqrt(sum((p**2).sum().item() for p in head.parameters()))  # from 0
    assert moved == pytest.approx(1e-3, rel=1e-2)


def test_gradients_are_not_clipped_where_it_is_switched_off():
    """With epsilon 1 a step is lr * g / (|g| + 1): tiny where the norm is held at 1e-3."""
    keys = {"opti_eps": 1.0, "lr": 1.0, "num_mini_batch": 1, "ppo_epoch": 1, "max_grad_norm": 1e-3}
    trainer = make_trainer(use_max_grad_norm=False, **keys)
    before = parameters(trainer.models.policy)
    assert trainer.step()["ppo/grad_norm"] > 1e-2
    changes = [p - before[name] for name, p in trainer.models.policy.named_parameters()]
    assert math.sqrt(sum((change**2).sum().item() for change in changes)) > 1e-2


# -- KL in the loss


def test_kl_in_the_loss_is_not_in_the_rewards():
    """The statistic is the mean KL divergence of the whole distributions; at first the policy is the one of the rollout."""
    keys = {"kl_in": "loss", "kl_coef": 0.3, "ref_seed": 3, "ref_model": "another", "lr": 1e-12, "num_mini_batch": 1}
    trainer = make_trainer(**keys, ppo_epoch=1, temperature=0.9)
    metrics, r = trainer.step(), trainer.rollout
    is_last = torch.zeros_like(r.rewards).scatter(1, last_token(r.response_mask).unsqueeze(1), 1.0)
    torch.testing.assert_close(r.rewards, is_last * r.scores.unsqueeze(1))
    tokens = r.tokens
    case = plain.Case(tokens.prompt_ids, tokens.prompt_mask, tokens.response_ids, tokens.response_mask)
    models = plain.as_made(trainer.models.policy), plain.as_made(trainer.models.ref_policy)
    expected = plain.divergence(*(plain.evaluated(m, case, 0.9) for m in models))[r.response_mask].mean().item()
    assert metrics["ppo/kl_loss"] == pytest.approx(expected, rel=1e-3)
    assert expected > 0.01
    in_reward = make_trainer(**{**keys, "kl_in": "reward"})
    assert "ppo/kl_loss" not in in_reward.step()
    assert in_reward.rollout.ref_features is None


def test_kl_in_the_loss_pulls_the_policy_to_its_reference():
    """Without a score, nothing but the KL teaches."""
    keys = {"kl_in": "loss", "kl_coef": 1.0, "kl_rate": 0.0, "entropy_coef": 0.0, "ref_seed": 3, "ref_model": "another"}
    trainer = make_trainer(
        Holes(range(64), 0.0), **keys, value_loss_coef=0.0, use_adv_normalize=False, gamma=0.0, lr=1e-3
    )
    found = [trainer.step()["ppo/kl_loss"] for _ in range(6)]
    assert found[-1] < 0.5 * found[0]


def test_kl_in_the_loss_has_the_coefficient_of_the_controller():
    """It moves away from the one of the configuration. The loss is that of the policy plus coefficient times KL."""
    keys = {"kl_in": "loss", "kl_coef": 0.3, "ref_seed": 3, "ref_model": "another", "entropy_coef": 0.0}
    keys |= {"advantage_estimator": "rloo", "num_responses_per_prompt": 2, "num_mini_batch": 1, "ppo_epoch": 1}
    trainer = make_trainer(**keys)
    for coefficient in (0.3, 2.0):
        trainer.kl.kl_coef = coefficient
        metrics = trainer.step()
        assert metrics["ppo/kl_loss"] > 0.01
        loss = metrics["ppo/policy_loss"] + coefficient * metrics["ppo/kl_loss"]
        assert metrics["ppo/loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("key", [{"use_deepspeed": True}, {"ref_ds_config": "eval_ds_config.json"}])
def test_kl_in_the_loss_needs_the_whole_reference(key):
    with pytest.raises(UserError, match=f"kl_in: loss needs the whole reference .* {next(iter(key))}"):
        settings(kl_in="loss", **key)


# -- which responses each step sees on each rank


def shuffled(groups):
    return shuffle_groups(SimpleNamespace(prompt_groups=groups))


class Beside(World):
    """The other rank has this many microbatches."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def gather(self, x):
        return [x, self.count]


def test_the_responses_to_a_prompt_stay_together():
    """Groups of 3, 3, 1 and 3 responses, one of which a rank has dropped; without groups, a plain permutation."""
    numbers = torch.tensor([5, 5, 5, 9, 9, 9, 0, 2, 2, 2])
    torch.manual_seed(2)
    orders = {tuple(shuffled(numbers).tolist()) for _ in range(200)}
    groups = [(0, 1, 2), (3, 4, 5), (6,), (7, 8, 9)]
    assert orders == {sum(some, ()) for some in permutations(groups)}
    assert shuffled(numbers[:0]).tolist() == []
    torch.manual_seed(4)
    expected = torch.randperm(9)
    torch.manual_seed(4)
    assert torch.equal(shuffled(torch.arange(9)), expected)


@pytest.mark.parametrize(
    ("counts", "minibatches"), [([16, 16], 20), ([3, 2], 4), ([7], 3), ([0, 5], 2), ([1, 0, 9], 10)]
)
def test_minibatch_sizes(counts, minibatches):
    sizes = minibatch_sizes(counts, minibatches)
    assert [sum(own) for own in sizes] == counts
    together = [sum(own[i] for own in sizes) for i in range(minibatches)]
    for some in (*sizes, together):
        assert max(some) - min(some) <= 1
    if len(counts) == 1:
        assert sizes[0] == [len(part) for part in torch.arange(counts[0]).tensor_split(minibatches)]


def test_a_blank_microbatch_fills_up_to_the_rank_with_the_most_rows():
    trainer = make_trainer(top_k=5)
    trainer.step()
    rollout = trainer.rollout
    rows, nothing = torch.tensor([0, 3, 4]), torch.tensor([], dtype=torch.long)
    parts = split(trainer, rollout, rows, Beside(4))
    assert [len(part.tokens) for part in parts] == [2, 1, 1, 1]
    assert [part.rollout is rollout for part in parts] == [True, True, False, False]
    assert len(split(trainer, rollout, rows, Beside(2))) == len(split(trainer, rollout, rows, World())) == 2
    assert [len(part.tokens) for part in split(trainer, rollout, nothing, Beside(1))] == [1]
    losses, statistics = trainer.update.losses(parts[-1], num_tokens=torch.tensor(9), is_first=True)
    losses["policy"].backward()
    gradients = [p.grad for p in trainer.models.policy.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)
    assert {value.item() for value in statistics.values()} == {0.0}
    assert blank_microbatch(rollout).tokens.support.shape == (1, 1, 1)


def split(trainer, rollout, rows, world):
    """The microbatches of two rows at most beside the other rank."""
    trainer.update.world = world
    return trainer.update.microbatches(rollout, rows, size=2)


def test_a_rank_without_any_episode_has_blank_microbatches_under_kl_in_loss():
    """All of its episodes were dropped, so there is no reference's feature to take the shape from."""
    trainer = make_trainer(kl_in="loss")
    trainer.step()
    (part,) = split(trainer, trainer.rollout.select([]), torch.tensor([], dtype=torch.long), Beside(1))
    losses, statistics = trainer.update.losses(part, num_tokens=torch.tensor(9), is_first=True)
    assert losses["policy"].item() == statistics["ppo/kl_loss"].item() == 0.0
