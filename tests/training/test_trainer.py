"""The training loop: it learns, its checks stop a broken run, and it counts as the configuration says."""

import copy
import json
import math
import time

import pytest
import torch
from tiny import byte_tokenizer, gpt2

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptEncoder
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.metrics import NLPVecInfo, VecInfo
from rlhf_dialog.models.decoding import position_ids_of
from rlhf_dialog.models.generation import Responses, StopRule, respond, teacher_forced
from rlhf_dialog.models.loading import Models
from rlhf_dialog.models.policy import Critic, Policy
from rlhf_dialog.rewards.base import BaseReward
from rlhf_dialog.training import ppo
from rlhf_dialog.training import update as update_module
from rlhf_dialog.training.trainer import PPOTrainer

PROMPTS = [Dialogue([f"{letter} ?"], meta={"index": i}) for i, letter in enumerate("abcdefghijklmnop")]


class Share(BaseReward):
    """The share of one letter in the response."""

    name = "share"

    def __call__(self, dialogues):
        return [d.response.count("e") / max(len(d.response), 1) for d in dialogues]


class Places(BaseReward):
    """Something that differs from response to response."""

    name = "places"

    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, dialogues):
        return [self.scale * ((i * 7) % 5 - 1.5) for i in range(len(dialogues))]


def settings(**keys):
    small = {"rollout_batch_size": 6, "max_new_tokens": 5, "num_mini_batch": 2, "ppo_epoch": 2, "lr": 1e-3}
    base = {"model_path": "tiny", "env": {"args": {"data_path": "unused"}}, "reward_class": {"id": "Meteor"}}
    return Config(**{**base, **small, "critic_lr": 1e-3, "use_share_model": True, **keys})


def make_trainer(reward=None, ref_seed=0, vec_info=None, use_amp=False, world=None, double=False, **keys):
    """A trainer on the tiny GPT-2, built as `load_models` would; a third of the tokens end a response."""
    config = settings(**keys, use_amp=use_amp)
    gae = config.advantage_estimator == "gae"
    lm = gpt2()
    lm.generation_config.eos_token_id = list(range(160, 240))
    policy = Policy(lm, gae and config.use_share_model, use_amp).eval()
    critic = Critic(gpt2(), use_amp).eval() if gae and not config.use_share_model else None
    ref_policy = Policy(gpt2(ref_seed), use_amp=use_amp).eval().requires_grad_(False)
    for model in (policy, critic, ref_policy) if double else ():
        model = model and model.double()
    torch.manual_seed(config.seed)
    models = Models(policy, critic, ref_policy, byte_tokenizer())
    return PPOTrainer(config, models, PROMPTS, reward or Places(), vec_info or VecInfo(), world)


def numbers_of(metrics):
    """What is no time, and is a number."""
    return {
        name: x for name, x in metrics.items() if name != "FPS" and not name.startswith("time/") and math.isfinite(x)
    }


def parameters(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


# -- prompts


@pytest.mark.parametrize(("rank", "groups"), [(0, [0, 0, 1, 1]), (1, [2, 2, 3, 3])])
def test_responses_to_one_prompt_have_a_group_that_is_counted_over_all_ranks(monkeypatch, rank, groups):
    trainer = make_trainer(advantage_estimator="rloo", num_responses_per_prompt=2, rollout_batch_size=8)
    taken = make_trainer().sampler.take(4)
    monkeypatch.setattr(type(trainer.world), "share", lambda _, items: items[2 * rank : 2 * rank + 2])
    rollout = trainer._collect(trainer._next_prompts())
    assert [d.meta["group"] for d in rollout.dialogues] == groups
    assert [d.meta["index"] for d in rollout.dialogues] == [taken[group] for group in groups]
    assert all("group" not in prompt.meta for prompt in trainer.prompts)


# -- learning


@pytest.mark.parametrize(
    ("estimator", "share"), [("gae", True), ("gae", False), ("grpo", True), ("rloo", True), ("reinforce_pp", True)]
)
def test_learns_to_write_one_letter(estimator, share):
    """From one in 259 to six of ten within 20 iterations (measured with three seeds: 5 to 15)."""
    trainer = make_trainer(
        Share(),
        advantage_estimator=estimator,
        use_share_model=share,
        rollout_batch_size=96,
        per_device_microbatch_size=96,
        max_new_tokens=6,
        num_mini_batch=4,
        lr=1e-2,
        critic_lr=1e-2,
        gamma=1.0,
        kl_coef=0.0,
        entropy_coef=0.0,
        max_iterations=20,
    )
    trainer.models.policy.lm.generation_config.eos_token_id = None
    trainer.speaker.stop = StopRule(trainer.models.policy, trainer.models.tokenizer, "<EOU>")
    scores = []
    for metrics in trainer.train():
        scores.append(metrics["objective/score"])
        if scores[-1] > 0.6:
            break
    assert scores[0] < 0.05
    assert scores[-1] > 0.6, scores


# -- the checks that every run makes


def noisy(size):
    def evaluate_with_noise(*args):
        result = teacher_forced(*args)
        result.logprobs = result.logprobs + size * torch.sin(torch.arange(result.logprobs.numel())).view_as(
            result.logprobs
        )
        return result

    return evaluate_with_noise


def test_ratio_check_stops_in_every_iteration(monkeypatch):
    trainer = make_trainer()
    trainer.step()
    before = parameters(trainer.models.policy)
    monkeypatch.setattr(update_module, "teacher_forced", noisy(1e-3))
    with pytest.raises(RunStopped, match=r"iteration 2: the ratio .* is not 1 on the first minibatch"):
        trainer.step()
    assert all(torch.equal(p, before[name]) for name, p in trainer.models.policy.named_parameters())
    assert RunStopped.exit_code == 3


def test_ratio_check_allows_rounding(monkeypatch):
    monkeypatch.setattr(update_module, "teacher_forced", noisy(1e-5))
    make_trainer().step()


def test_ratio_check_sees_every_microbatch_of_the_first_minibatch(monkeypatch):
    calls = []

    def last_is_wrong(*args):
        calls.append(1)
        return noisy(1e-2 if len(calls) == 6 else 0)(*args)

    monkeypatch.setattr(update_module, "teacher_forced", last_is_wrong)
    with pytest.raises(RunStopped, match="ratio"):
        make_trainer(num_mini_batch=1, per_device_microbatch_size=1).step()
    assert len(calls) == 6


def test_ratio_check_ignores_padding(monkeypatch):
    trainer = make_trainer()
    seen = []

    def wrong_on_padding(policy, prompt_ids, prompt_mask, response_ids, *rest):
        result = teacher_forced(policy, prompt_ids, prompt_mask, response_ids, *rest)
        padding = response_ids == 256
        seen.append(padding.sum().item())
        result.logprobs = torch.where(padding, math.nan, result.logprobs)
        result.entropy = torch.where(padding, math.inf, result.entropy)
        return result

    monkeypatch.setattr(update_module, "teacher_forced", wrong_on_padding)
    metrics = trainer.step()
    assert sum(seen) > 0
    assert math.isfinite(metrics["ppo/policy_loss"])
    assert all(p.isfinite().all() for p in trainer.models.policy.parameters())


def test_kl_check_stops_a_run_that_does_not_start_at_its_reference():
    with pytest.raises(RunStopped, match=r"starts as its own reference, yet their KL is"):
        make_trainer(ref_seed=1).step()
    with pytest.raises(RunStopped, match=r"starts as its own reference"):
        make_trainer(ref_seed=1, ref_model="tiny").step()  # named, and the same as model_path
    metrics = make_trainer(ref_seed=1, ref_model="another").step()
    assert abs(metrics["objective/kl"]) > 1e-3
    assert metrics["objective/kl_initial"] == metrics["objective/kl"]


@pytest.mark.parametrize(("shift", "fine"), [(1e-6, True), (-1e-6, True), (1e-4, False), (-1e-4, False)])
def test_kl_check_has_a_tolerance(monkeypatch, shift, fine):
    trainer = make_trainer()

    reference = trainer.models.ref_policy
    predict = reference.predict

    def shifted(*args):
        logprobs, entropy = predict(*args)
        return logprobs - shift, entropy

    monkeypatch.setattr(reference, "predict", shifted)
    if fine:
        assert trainer.step()["objective/kl"] == pytest.approx(shift, abs=5e-7)
    else:
        with pytest.raises(RunStopped, match="starts as its own reference"):
            trainer.step()


def test_kl_check_is_of_the_first_iteration_only():
    trainer = make_trainer(lr=1e-2)
    first, second = trainer.step(), trainer.step()
    assert abs(first["objective/kl"]) < 1e-5
    assert abs(second["objective/kl"]) > 1e-5
    assert "objective/kl_initial" not in second


def test_dropout_left_on_is_noticed():
    trainer = make_trainer()
    trainer.models.policy.train()
    with pytest.raises(RunStopped, match="reference"):
        trainer.step()
    trainer = make_trainer(ref_model="another")
    trainer.models.policy.train()
    with pytest.raises(RunStopped, match="ratio"):
        trainer.step()


def test_weights_that_are_no_numbers_stop_the_run():
    trainer = make_trainer()
    torch.nn.init.constant_(trainer.models.ref_policy.lm.transformer.ln_f.weight, math.nan)
    with pytest.raises(RunStopped, match=r"iteration 1: the reference gives NaN or inf for 6 of 6 responses"):
        trainer.step()


def test_a_loss_that_is_not_finite_stops_before_the_optimizer():
    trainer = make_trainer(Places(1e30), use_huber_loss=False, use_valuenorm=False)
    before = parameters(trainer.models.policy)
    with pytest.raises(RunStopped, match=r"iteration 1: a number of the update is not finite \(.*ppo/value_loss inf"):
        trainer.step()
    assert all(torch.equal(p, before[name]) for name, p in trainer.models.policy.named_parameters())


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weights_of_the_policy_that_are_no_numbers_stop_before_a_token_is_drawn(number):
    trainer = make_trainer()
    trainer.step()
    torch.nn.init.constant_(trainer.models.policy.lm.transformer.ln_f.bias, number)
    with pytest.raises(RunStopped, match=r"predictions are not finite \(NaN or inf\)"):
        trainer.step()


def test_weights_of_the_critic_that_are_no_numbers_stop_before_the_update():
    trainer = make_trainer(use_share_model=False)
    torch.nn.init.constant_(trainer.models.critic.value_head.weight, math.nan)
    before = parameters(trainer.models.policy)
    with pytest.raises(
        RunStopped, match=r"iteration 1: the critic gives NaN or inf for 6 of 6 responses .*prompt \d+,"
    ):
        trainer.step()
    assert all(torch.equal(p, before[name]) for name, p in trainer.models.policy.named_parameters())


# -- numbers of the update that are not finite


def spoil(monkeypatch, trainer, is_bad, number=math.nan):
    """Log-probs become `number` in the update where `is_bad(number of the minibatch, index of the prompt)`, both from 0."""
    minibatches, original = [], trainer.update.optimizer_step

    def recording(rollout, rows, is_first):
        minibatches.append(None)
        minibatches[-1] = original(rollout, rows, is_first)
        return minibatches[-1]

    def spoilt(policy, prompt_ids, prompt_mask, *rest):
        result = teacher_forced(policy, prompt_ids, prompt_mask, *rest)
        for row in range(len(prompt_ids)):
            if is_bad(len(minibatches) - 1, index_of(trainer, prompt_ids[row], prompt_mask[row])):
                result.logprobs[row] = number
        return result

    monkeypatch.setattr(trainer.update, "optimizer_step", recording)
    monkeypatch.setattr(update_module, "teacher_forced", spoilt)
    return minibatches


def index_of(trainer, ids, mask):
    """The index of the prompt with these tokens, by its letter."""
    text = trainer.models.tokenizer.decode(ids[mask].tolist())
    return "abcdefghijklmnop".index(text.strip()[0])


def frozen_state(trainer):
    """Weights and moments of every optimizer, as numbers that can be compared."""
    modules = [m for m in (trainer.models.policy, trainer.models.critic) if m is not None]
    weights = [p.detach().clone() for m in modules for p in m.parameters()]
    moments = [
        torch.as_tensor(x).clone() for o in trainer.optimizers.values() for s in o.state.values() for x in s.values()
    ]
    return weights + moments


def same(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


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


def test_a_skipped_step_applies_nothing(monkeypatch):
    trainer = make_trainer(num_mini_batch=2, ppo_epoch=1, use_share_model=False)
    trainer.step()
    spoil(monkeypatch, trainer, lambda minibatch, _: minibatch in (0, 1))
    before = frozen_state(trainer)
    metrics = trainer.step()
    assert same(frozen_state(trainer), before)
    assert metrics["ppo/skipped_steps"] == 2
    names = ["loss", "policy_loss", "value_loss", "clip_fraction", "approx_kl", "grad_norm", "critic_grad_norm"]
    assert all(math.isnan(metrics[f"ppo/{name}"]) for name in names)
    assert math.isfinite(metrics["objective/kl"])


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
    with pytest.raises(
        RunStopped, match=r"iteration 3: .*policy_loss nan.*prompt \d+.* 3 in a row.*last checkpoint stands"
    ):
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
    minibatches = spoil(monkeypatch, trainer, lambda minibatch, _: minibatch % 3 < 2)
    for _ in range(2):
        assert trainer.step()["ppo/skipped_steps"] == 4
    assert len(minibatches) == 12
    assert trainer.update.skipped_in_a_row == 0


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_max_skipped_steps(monkeypatch, limit):
    trainer = make_trainer(num_mini_batch=6, ppo_epoch=2, max_skipped_steps=limit)
    minibatches = spoil(monkeypatch, trainer, lambda *_: True)
    with pytest.raises(RunStopped, match=f"{limit} in a row"):
        trainer.step()
    assert len(minibatches) == limit


def test_the_ratio_is_checked_on_the_first_minibatch_that_counts(monkeypatch):
    trainer = make_trainer(num_mini_batch=3, ppo_epoch=1)
    calls = []

    def bad_then_wrong(*args):
        calls.append(1)
        return noisy(math.nan if len(calls) == 1 else 1e-2)(*args)

    monkeypatch.setattr(update_module, "teacher_forced", bad_then_wrong)
    with pytest.raises(RunStopped, match="ratio"):
        trainer.step()
    assert len(calls) == 2


# -- dialogues that go on


class Asks:
    """A user who has one more question after the first reply, and pays 0.5 for it."""

    def __init__(self, prompt):
        self.prompt, self.replies = prompt, 0

    def reset(self, seed=None):
        return self.prompt.prompt_turns[-1], {"prompt": self.prompt}

    def step(self, reply):
        self.replies += 1
        return ("", 0.0, True, False, {}) if self.replies == 2 else ("Why ?", 0.5, False, False, {})


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"use_share_model": False, "top_k": 50},
        {"advantage_estimator": "rloo", "num_responses_per_prompt": 2, "per_device_microbatch_size": 1},
    ],
)
def test_a_dialogue_of_two_replies_trains_and_passes_the_checks(monkeypatch, keys):
    """The KL of the start is 0, so the token rewards are what the steps and the reward pay; the ratio of the next ones is 1."""
    monkeypatch.setattr("rlhf_dialog.training.trainer.SingleTurn", Asks)
    trainer = make_trainer(gamma=1.0, **keys)
    before = parameters(trainer.models.policy)
    metrics = trainer.step()
    rollout = trainer.rollout
    for row, mask in enumerate(rollout.response_mask.tolist()):
        last = max(t for t, counts in enumerate(mask) if counts)
        first = mask.index(False) - 1
        assert mask == [first >= t or last >= t > first + len(heard(rollout, row)) for t in range(len(mask))]
        expected = [0.0] * len(mask)
        expected[first], expected[last] = 0.5, (row * 7) % 5 - 1.5
        assert rollout.rewards[row].tolist() == pytest.approx(expected, abs=1e-5)
    assert [len(d.turns) for d in rollout.dialogues] == [3] * 6
    assert metrics["time_steps"] == rollout.response_mask.sum().item()
    assert any(not torch.equal(p, before[name]) for name, p in parameters(trainer.models.policy).items())
    trainer.step()


def heard(rollout, row):
    """The ids between the two replies: a separator where the first has none, then the user's turn."""
    encoder = PromptEncoder(byte_tokenizer(), "<EOU>", 64)
    mask = rollout.response_mask[row].tolist()
    return encoder.encode_heard(rollout.response_ids[row, : mask.index(False)].tolist(), "Why ?")


# -- episodes without a score


class Holes(BaseReward):
    """None, NaN or inf at some places, else something that differs from response to response."""

    name = "holes"

    def __init__(self, places, value=None):
        self.places, self.value = places, value

    def __call__(self, dialogues):
        return [self.value if i in self.places else (i * 7) % 5 - 1.5 for i in range(len(dialogues))]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_an_episode_without_a_score_stops_or_is_skipped(value, caplog):
    with pytest.raises(
        UserError, match=r"reward 'holes' gave (None|nan|inf), which is not .* for dialogue 1 with the resp"
    ):
        make_trainer(Holes([1, 4], value)).step()
    trainer = make_trainer(Holes([1, 4], value), on_reward_error="skip")
    wanted = make_trainer().sampler.take(6)
    metrics, rollout = trainer.step(), trainer.rollout
    assert [d.meta["index"] for d in rollout.dialogues] == [wanted[i] for i in (0, 2, 3, 5)]
    assert rollout.scores.tolist() == [-1.5, 2.5, -0.5, -1.5]
    assert metrics["objective/score"] == metrics["reward/holes"] == pytest.approx(-0.25)
    assert metrics["response/unscored"] == 2
    assert rollout.reward_scores.total == rollout.reward_scores.parts["holes"].raw == [-1.5, 2.5, -0.5, -1.5]
    assert "reward 'holes' gave no score to 2 of 6 dialogues" in caplog.text
    lengths = {name: len(x) for name, x in vars(rollout).items() if isinstance(x, (list, torch.Tensor))}
    assert set(lengths.values()) == {4}, lengths
    assert make_trainer().step()["response/unscored"] == 0


def test_dropped_tokens_and_episodes_were_generated_all_the_same():
    expected = make_trainer().step()
    skipping = make_trainer(Holes([0, 1, 2]), on_reward_error="skip")
    found = skipping.step()
    assert found["time_steps"] == expected["time_steps"] > skipping.rollout.num_tokens
    assert found["episodes"] == expected["episodes"] == 6
    assert found["response/length"] == skipping.rollout.num_tokens / 3


@pytest.mark.parametrize(
    ("estimator", "places", "kept"),
    [
        ("grpo", [0, 7], [1]),  # one of three groups of three is whole
        ("rloo", [4], [0, 2]),
        ("reinforce_pp", [0, 7], None),
        ("gae", [0, 7], None),
    ],
)
def test_baselines_need_whole_groups(estimator, places, kept):
    keys = {"num_responses_per_prompt": 3, "rollout_batch_size": 9, "on_reward_error": "skip"}
    trainer = make_trainer(Holes(places), advantage_estimator=estimator, **keys, use_adv_normalize=False)
    wanted = make_trainer().sampler.take(3)
    metrics = trainer.step()
    found = [d.meta["index"] for d in trainer.rollout.dialogues]
    if kept is None:
        assert found == [wanted[i // 3] for i in range(9) if i not in places]
    else:
        assert found == [wanted[group] for group in kept for _ in range(3)]
        totals = trainer.rollout.rewards.sum(dim=1).view(-1, 3)
        sums = (trainer.rollout.advantages * trainer.rollout.response_mask).sum(dim=1)
        assert totals.shape[0] == len(kept)
        assert sums.isfinite().all()
    assert metrics["response/unscored"] == 9 - len(found)


@pytest.mark.parametrize(("estimator", "places"), [("gae", range(6)), ("grpo", [0, 3])])
def test_an_iteration_without_any_score_stops_the_run(estimator, places):
    keys = {"advantage_estimator": estimator, "num_responses_per_prompt": 3, "on_reward_error": "skip"}
    trainer = make_trainer(Holes(places), **keys)
    before = parameters(trainer.models.policy)
    with pytest.raises(
        RunStopped, match=r"iteration 1: all 6 episodes are dropped, since the reward 'holes' gave .* no score"
    ):
        trainer.step()
    assert all(torch.equal(p, before[name]) for name, p in trainer.models.policy.named_parameters())


def test_minibatches_follow_the_number_of_episodes():
    trainer = make_trainer(Holes([0, 1, 2, 3]), on_reward_error="skip", num_mini_batch=20, ppo_epoch=3)
    metrics = trainer.step()
    steps = {int(state["step"]) for state in trainer.optimizers["policy"].state.values()}
    assert (steps, metrics["ppo/skipped_steps"]) == ({6}, 0)


@pytest.mark.parametrize("places", [[0], [5], [1, 2, 4]])
@pytest.mark.parametrize("filters", [{}, {"top_k": 30}])
def test_skipped_episodes_leave_the_gradient_as_if_they_had_never_been(monkeypatch, places, filters):
    """The other trainer is given the responses of the episodes that stay, and computes everything from these alone."""
    keys = {"opti_eps": 1.0, "lr": 0.1, "num_mini_batch": 2, "ppo_epoch": 2, **filters}
    written = []

    def recording(*args):
        written.append(respond(*args))
        torch.manual_seed(5)
        return written[-1]

    monkeypatch.setattr("rlhf_dialog.models.chat_agent.respond", recording)
    skipping = make_trainer(Holes(places, math.nan), on_reward_error="skip", **keys)
    found = skipping.step()
    stay = [i for i in range(6) if i not in places]
    responses = written[0]

    def again(*args):
        torch.manual_seed(5)
        return Responses(**{name: x if x is None else x[torch.tensor(stay)] for name, x in vars(responses).items()})

    class Rest(BaseReward):
        name = "holes"

        def __call__(self, dialogues):
            return [(i * 7) % 5 - 1.5 for i in stay]

    monkeypatch.setattr("rlhf_dialog.models.chat_agent.respond", again)
    smaller = make_trainer(Rest(), **keys)
    monkeypatch.setattr(
        smaller, "_next_prompts", lambda: [PROMPTS[i] for i in [make_trainer().sampler.take(6)[j] for j in stay]]
    )
    start = parameters(smaller.models.policy)
    expected = smaller.step()
    moved = 0
    for (name, p), q in zip(smaller.models.policy.named_parameters(), skipping.models.policy.parameters(), strict=True):
        moved = max(moved, (p - start[name]).abs().max().item())
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    assert moved > 1e-3
    same_keys = [
        name
        for name in expected
        if not name.startswith("time") and name not in ("FPS", "episodes", "response/unscored")
    ]
    for name in same_keys:
        assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name


def test_a_reward_without_an_end_stops_the_run(monkeypatch, capsys):
    class Stuck(Places):
        name = "stuck"

        def __call__(self, dialogues):
            time.sleep(600)

    trainer = make_trainer(Stuck(), reward_timeout_s=0.2)
    with pytest.raises(RunStopped, match=r"reward 'stuck' was not done within 0\.2 seconds"):
        trainer.step()
    assert "time.sleep(600)" in capsys.readouterr().err


def test_autocast_has_its_own_tolerances():
    metrics = make_trainer(use_amp=True).step()
    assert 0 <= abs(metrics["objective/kl"]) < 1e-3
    with pytest.raises(RunStopped, match="reference"):
        make_trainer(use_amp=True, ref_seed=1).step()


# -- the update


@pytest.mark.parametrize("share", [True, False])
def test_one_step_follows_the_gradient_of_the_written_loss(share):
    """-mean(A ratio) - c_e entropy + c_v (v - R)^2 / 2 over the response tokens; epsilon 1 makes Adam g / (|g| + 1)."""
    keys = {"entropy_coef": 0.3, "value_loss_coef": 0.7, "lr": 0.1, "critic_lr": 0.05}
    trainer = make_trainer(
        use_share_model=share,
        use_valuenorm=False,
        use_max_grad_norm=False,
        num_mini_batch=1,
        ppo_epoch=1,
        opti_eps=1.0,
        **keys,
    )
    models = copy.deepcopy(trainer.models)
    trainer.step()
    rollout = trainer.rollout
    mask = rollout.response_mask
    sequence = torch.cat([rollout.prompt_ids, rollout.response_ids], dim=1)
    attended = torch.cat([rollout.prompt_mask, torch.ones_like(mask)], dim=1)
    before = slice(-mask.shape[1] - 1, -1)
    inputs = {"input_ids": sequence, "attention_mask": attended.long(), "position_ids": position_ids_of(attended)}
    output = models.policy.lm(**inputs, output_hidden_states=True)
    hidden, head = output.hidden_states[-1], models.policy.value_head
    if models.critic is not None:
        hidden, head = models.critic.trunk(**inputs)[0], models.critic.value_head
    values = head(hidden[:, before]).squeeze(-1)
    logprobs = output.logits[:, before].log_softmax(-1)
    chosen = logprobs.gather(2, rollout.response_ids.unsqueeze(2)).squeeze(2)[mask]
    entropy = -(logprobs.exp() * logprobs).sum(-1)[mask]
    error = values[mask] - rollout.returns[mask]
    policy_loss = -(rollout.advantages[mask] * (chosen - chosen.detach()).exp()).mean()
    (policy_loss - 0.3 * entropy.mean() + 0.7 * (error**2 / 2).mean()).backward()
    pairs = [(models.policy, trainer.models.policy, 0.1)]
    pairs += [(models.critic, trainer.models.critic, 0.05)] if models.critic else []
    for old, new, lr in pairs:
        for (name, start), end in zip(old.named_parameters(), new.parameters(), strict=True):
            expected = start - lr * start.grad / (start.grad.abs() + 1)
            torch.testing.assert_close(end, expected, rtol=0, atol=3e-6, msg=lambda text, name=name: f"{name}: {text}")
            assert start.grad.any() or name.endswith("value_head.weight") is False


@pytest.mark.parametrize("estimator", ["gae", "rloo"])
def test_microbatch_size_does_not_change_the_step(estimator):
    ends = []
    for size in (1, 4, 16):
        keys = {"opti_eps": 1.0, "lr": 0.1, "ppo_epoch": 1, "rollout_batch_size": 12}
        trainer = make_trainer(advantage_estimator=estimator, per_device_microbatch_size=size, **keys)
        start = parameters(trainer.models.policy)
        metrics = trainer.step()
        moved = {name: p.detach() - start[name] for name, p in trainer.models.policy.named_parameters()}
        ends.append((moved, metrics))
    for moved, metrics in ends[1:]:
        for name, difference in moved.items():
            assert (difference - ends[0][0][name]).norm() <= 1e-4 * difference.norm() + 1e-7, name
        for name in ("ppo/policy_loss", "ppo/approx_kl", "ppo/clip_fraction", "ppo/grad_norm"):
            assert metrics[name] == pytest.approx(ends[0][1][name], rel=1e-3, abs=1e-6)


def test_statistics_of_a_single_step_by_hand():
    keys = {"num_mini_batch": 1, "ppo_epoch": 1, "use_adv_normalize": False, "use_valuenorm": False}
    trainer = make_trainer(**keys, use_huber_loss=True, huber_delta=0.5)
    metrics, rollout = trainer.step(), trainer.rollout
    mask = rollout.response_mask
    assert 0 < mask.sum() < mask.numel()
    assert metrics["ppo/policy_loss"] == pytest.approx(-rollout.advantages[mask].mean().item(), abs=1e-5)
    sizes = rollout.returns[mask].abs()  # the values are 0
    clipped = torch.where(sizes <= 0.5, sizes**2 / 2, 0.5 * (sizes - 0.25))
    assert metrics["ppo/value_loss"] == pytest.approx(clipped.mean().item(), abs=1e-5)
    assert metrics["ppo/clip_fraction"] == 0
    assert metrics["ppo/approx_kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["ppo/explained_variance"] == pytest.approx(0, abs=1e-6)
    assert metrics["objective/score"] == pytest.approx(sum(Places()(rollout.dialogues)) / 6)
    assert metrics["objective/entropy"] == pytest.approx(rollout.entropy[mask].mean().item(), abs=1e-6)
    assert metrics["response/length"] == mask.sum().item() / 6
    assert metrics["response/truncated"] == pytest.approx(rollout.truncated.float().mean().item())
    assert metrics["reward/places"] == metrics["reward/places_weighted"] == pytest.approx(metrics["objective/score"])


@pytest.mark.parametrize(("keys", "largest"), [({}, 3.0), ({"use_clipped_value_loss": False}, 1.0)])
def test_switches_of_the_losses_arrive(monkeypatch, keys, largest):
    """What the configuration says reaches the formulas."""
    given = []
    value_loss, policy_loss = ppo.value_loss, ppo.policy_loss
    monkeypatch.setattr(ppo, "value_loss", lambda *args: given.append(args[4:6]) or value_loss(*args))
    monkeypatch.setattr(ppo, "policy_loss", lambda *args: given.append(args[4:6]) or policy_loss(*args))
    options = {"clip_param": 0.3, "huber_delta": 4.0, "dual_clip_coeff": largest + 1}
    make_trainer(**options, **keys, dual_clip_ppo=True, num_mini_batch=1, ppo_epoch=1).step()
    assert given == [(0.3, largest + 1), (0.3 if not keys else None, 4.0)]
    given.clear()
    make_trainer(**options, **keys, use_huber_loss=False, num_mini_batch=1, ppo_epoch=1).step()
    assert given == [(0.3, None), (0.3 if not keys else None, None)]


def test_each_minibatch_is_the_mean_over_its_own_tokens(monkeypatch):
    seen = []
    policy_loss, value_loss = ppo.policy_loss, ppo.value_loss

    def recording_policy_loss(*args):
        seen.append({"new": args[0].detach(), "old": args[1], "mask": args[3], "tokens": int(args[6])})
        return policy_loss(*args)

    def recording_value_loss(*args):
        seen[-1] |= {"values": args[0].detach(), "old_values": args[1]}
        assert int(args[6]) == int(args[3].sum())
        return value_loss(*args)

    monkeypatch.setattr(ppo, "policy_loss", recording_policy_loss)
    monkeypatch.setattr(ppo, "value_loss", recording_value_loss)
    metrics = make_trainer(lr=1e-2).step()
    assert len(seen) == 4
    assert [call["tokens"] for call in seen] == [int(call["mask"].sum()) for call in seen]
    log_ratios = [(call["new"] - call["old"])[call["mask"]] for call in seen]
    assert log_ratios[3].abs().max() > 1e-3
    k3 = [(r.exp() - 1 - r).mean().item() for r in log_ratios]
    assert metrics["ppo/approx_kl"] == pytest.approx(sum(k3) / 4, rel=1e-3)
    clipped = [call["values"][call["mask"]].abs().max().item() for call in seen]
    assert clipped[0] == 0 < clipped[3]
    assert not any(call["old_values"][call["mask"]].any() for call in seen)  # those of the rollout, all along


@pytest.mark.parametrize("use_gae", [True, False])
def test_advantages_and_returns_of_gae(use_gae):
    trainer = make_trainer(use_gae=use_gae, gamma=0.9, gae_lambda=0.5, lr=1e-2, use_valuenorm=False)
    trainer.step()
    coefficient = trainer.kl.kl_coef
    metrics, r = trainer.step(), trainer.rollout
    mask = r.response_mask
    assert r.values[mask].std() > 0
    rewards = ppo.token_rewards(r.scores, r.logprobs, r.ref_logprobs, mask, coefficient)
    advantages, returns = ppo.gae(rewards, r.values, mask, 0.9, 0.5 if use_gae else 1.0)
    torch.testing.assert_close(r.rewards, rewards)
    torch.testing.assert_close(r.returns, returns)
    expected = (advantages[mask] - advantages[mask].mean()) / advantages[mask].std(correction=0)
    torch.testing.assert_close(r.advantages[mask], expected, rtol=1e-4, atol=1e-4)
    explained = 1 - (returns - r.values)[mask].var() / returns[mask].var()
    assert metrics["ppo/explained_variance"] == pytest.approx(explained.item(), rel=1e-3)


def test_normalised_values_are_undone_before_gae():
    trainer = make_trainer(Places(20.0), lr=1e-2, use_adv_normalize=False)
    trainer.step()
    mean, deviation = trainer.value_norm.mean, trainer.value_norm.deviation
    first = trainer.rollout
    assert mean == pytest.approx(first.returns[first.response_mask].mean().item(), rel=1e-3)
    metrics, r = trainer.step(), trainer.rollout
    values = r.values * deviation + mean
    advantages, returns = ppo.gae(r.rewards, values, r.response_mask, 0.99, 0.95)
    torch.testing.assert_close(r.advantages, advantages, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(r.returns, returns, rtol=1e-4, atol=1e-4)
    assert metrics["ppo/value_loss"] < 10  # of normalised targets; the scores reach 50


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_pp"])
def test_advantages_without_a_critic(estimator):
    keys = {"num_responses_per_prompt": 3, "gamma": 0.9, "use_adv_normalize": False, "kl_coef": 0.1}
    trainer = make_trainer(advantage_estimator=estimator, **keys, lr=1e-2)
    trainer.step()
    metrics, r = trainer.step(), trainer.rollout
    totals = ppo.masked(r.rewards, r.response_mask).sum(dim=1).view(-1, 3)
    distance = totals - totals.mean(dim=1, keepdim=True)
    of_episodes = {"grpo": distance / (totals.std(dim=1, keepdim=True) + 1e-4), "rloo": distance * 1.5}
    expected = ppo.discounted_returns(r.rewards, r.response_mask, 0.9)
    if estimator in of_episodes:
        expected = of_episodes[estimator].view(-1, 1) * r.response_mask
    torch.testing.assert_close(r.advantages, expected)
    assert r.rewards[r.response_mask].abs().min() > 0  # each token pays its KL
    assert math.isnan(metrics["ppo/value_loss"])
    assert math.isnan(metrics["ppo/explained_variance"])


# -- counting


@pytest.mark.parametrize(
    ("responses", "asked", "sizes"), [(13, 20, [1] * 13), (13, 4, [4, 3, 3, 3]), (6, 1, [6]), (8, 4, [2] * 4)]
)
def test_minibatches_count_responses(monkeypatch, responses, asked, sizes):
    minibatches = []

    def recording(policy, prompt_ids, prompt_mask, *rest):
        minibatches.append([tuple(ids[mask].tolist()) for ids, mask in zip(prompt_ids, prompt_mask, strict=True)])
        return teacher_forced(policy, prompt_ids, prompt_mask, *rest)

    monkeypatch.setattr(update_module, "teacher_forced", recording)
    trainer = make_trainer(rollout_batch_size=responses, num_mini_batch=asked, ppo_epoch=3)
    assert trainer.plan.num_minibatches == len(sizes)
    trainer.step()
    rollout = trainer.rollout
    prompts = [tuple(ids[mask].tolist()) for ids, mask in zip(rollout.prompt_ids, rollout.prompt_mask, strict=True)]
    assert len(set(prompts)) == responses  # each names its response
    assert len(minibatches) == 3 * len(sizes)
    epochs = [minibatches[i : i + len(sizes)] for i in range(0, len(minibatches), len(sizes))]
    for epoch in epochs:
        assert [len(minibatch) for minibatch in epoch] == sizes
        assert sorted(row for minibatch in epoch for row in minibatch) == sorted(prompts)  # each once, none dropped
    shares = [[set(minibatch) for minibatch in epoch] for epoch in epochs]
    if asked > 1:
        assert shares[0] != shares[1] != shares[2] != shares[0]  # a fresh permutation each epoch


def test_every_minibatch_is_one_optimizer_step():
    trainer = make_trainer(use_share_model=False, num_mini_batch=3, ppo_epoch=4)
    trainer.step()
    for name, module in (("policy", trainer.models.policy), ("critic", trainer.models.critic)):
        steps = {int(trainer.optimizers[name].state[p]["step"]) for p in module.parameters()}
        assert steps == {12}
    assert all(p.grad is None for p in trainer.models.policy.parameters())


def test_responses_of_one_prompt_stand_side_by_side():
    trainer = make_trainer(num_responses_per_prompt=3)
    trainer.step()
    indices = [dialogue.meta["index"] for dialogue in trainer.rollout.dialogues]
    assert len(indices) == 6
    assert indices[0] == indices[1] == indices[2] != indices[3] == indices[4] == indices[5]
    grouped = make_trainer(advantage_estimator="grpo", rollout_batch_size=8)
    grouped.step()
    assert len({dialogue.meta["index"] for dialogue in grouped.rollout.dialogues}) == 2  # 4 by default


def test_prompts_are_used_up_before_they_come_again():
    trainer = make_trainer(rollout_batch_size=8, ppo_epoch=1, num_mini_batch=1)
    seen = []
    for _ in range(2):
        trainer.step()
        seen += [dialogue.meta["index"] for dialogue in trainer.rollout.dialogues]
    assert sorted(seen) == list(range(16))


def test_max_iterations_and_progress():
    trainer = make_trainer(max_iterations=3, total_time_steps=1)
    progress = []
    metrics = []
    for line in trainer.train():
        metrics.append(line)
        progress.append(trainer.progress)
    assert [line["iteration"] for line in metrics] == [1, 2, 3]
    assert [line["episodes"] for line in metrics] == [6, 12, 18]
    assert progress == pytest.approx([1 / 3, 2 / 3, 1])
    assert list(trainer.train()) == []


def test_total_time_steps_counts_response_tokens():
    trainer = make_trainer(total_time_steps=45)
    tokens = 0
    for metrics in trainer.train():
        assert tokens < 45
        tokens += int(trainer.rollout.response_mask.sum())
        assert metrics["time_steps"] == tokens
        assert trainer.progress == min(tokens / 45, 1)
    assert tokens >= 45


def test_training_ends_with_the_iteration_that_reaches_the_tokens_exactly():
    trainer = make_trainer()
    trainer.step()
    assert len(list(make_trainer(total_time_steps=trainer.time_steps).train())) == 1
    assert len(list(make_trainer(total_time_steps=trainer.time_steps + 1).train())) == 2


def test_the_seed_orders_the_prompts():
    assert make_trainer(seed=1).sampler.take(16) != make_trainer(seed=2).sampler.take(16)


@pytest.mark.parametrize("decay", [True, False])
def test_linear_learning_rate_decay(decay):
    keys = {"lr": 4e-3, "critic_lr": 8e-3, "max_iterations": 4}
    trainer = make_trainer(use_share_model=False, use_linear_lr_decay=decay, **keys)
    used = []
    for _ in trainer.train():
        used.append([trainer.optimizers[name].param_groups[0]["lr"] for name in ("policy", "critic")])
    shares = [1, 0.75, 0.5, 0.25] if decay else [1] * 4
    assert used == [pytest.approx([4e-3 * share, 8e-3 * share]) for share in shares]


def test_optimizer_settings():
    trainer = make_trainer(weight_decay=0.1)
    group = trainer.optimizers["policy"].param_groups[0]
    assert (group["eps"], group["weight_decay"], group["lr"]) == (1e-5, 0.1, 1e-3)
    assert set(trainer.optimizers) == {"policy"}
    assert len(group["params"]) == len(list(trainer.models.policy.parameters()))


def test_gradients_are_clipped():
    """With epsilon 1 a step is lr * g / (|g| + 1): tiny where the norm is held at 1e-3."""
    keys = {"opti_eps": 1.0, "lr": 1.0, "num_mini_batch": 1, "ppo_epoch": 1, "max_grad_norm": 1e-3}
    moved = []
    for use in (True, False):
        trainer = make_trainer(
            use_max_grad_norm=use, use_share_model=False, critic_lr=1.0, **{k: v for k, v in keys.items()}
        )
        modules = (trainer.models.policy, trainer.models.critic)
        before = [parameters(module) for module in modules]
        metrics = trainer.step()
        assert min(metrics["ppo/grad_norm"], metrics["ppo/critic_grad_norm"]) > 1e-2  # before clipping
        for module, start in zip(modules, before, strict=True):
            moved.append(math.sqrt(sum(((p - start[name]) ** 2).sum().item() for name, p in module.named_parameters())))
    assert moved[:2] == pytest.approx([1e-3, 1e-3], rel=1e-2)
    assert min(moved[2:]) > 1e-2


def test_kl_coefficient_moves_once_an_iteration():
    trainer = make_trainer(kl_coef=0.5)
    first, second = trainer.step(), trainer.step()
    assert first["objective/kl_coef"] == 0.5
    assert second["objective/kl_coef"] == pytest.approx(0.5 * 0.98)  # KL 0 lies below the target
    fixed = make_trainer(kl_coef=0.5, kl_rate=0.0)
    fixed.step()
    assert fixed.kl.kl_coef == 0.5
    settings_of = make_trainer(kl_coef=0.4, kl_target=0.1, kl_rate=0.2, kl_clip=0.3).kl
    assert vars(settings_of) == {"kl_coef": 0.4, "kl_target": 0.1, "kl_rate": 0.2, "kl_clip": 0.3}


def test_kl_is_the_mean_over_response_tokens():
    trainer = make_trainer(ref_seed=3, ref_model="another")
    metrics, r = trainer.step(), trainer.rollout
    expected = (r.logprobs - r.ref_logprobs)[r.response_mask].mean().item()
    assert metrics["objective/kl"] == pytest.approx(expected, rel=1e-4)


def test_truncation_penalty_reaches_the_scores():
    plain = make_trainer(max_new_tokens=3)
    plain.step()
    charged = make_trainer(max_new_tokens=3, truncation_penalty=2.0)
    charged.step()
    assert 0 < plain.rollout.truncated.sum() < 6
    expected = plain.rollout.scores - 2 * plain.rollout.truncated
    torch.testing.assert_close(charged.rollout.scores, expected)


# -- metrics and state


def test_keys_of_a_metrics_line():
    class Mine(VecInfo):
        def __call__(self, rollout):
            return {"mine/size": float(len(rollout)), "mine/paid": rollout.rewards.sum().item()}

    metrics = make_trainer(vec_info=Mine()).step()
    wanted = """iteration time_steps episodes FPS objective/score objective/kl objective/kl_coef objective/entropy
        reward/places reward/places_weighted ppo/policy_loss ppo/value_loss ppo/clip_fraction ppo/approx_kl
        ppo/explained_variance ppo/grad_norm response/length response/truncated time/rollout time/reward time/update"""
    assert set(wanted.split()) <= set(metrics)
    assert metrics["mine/size"] == 6
    assert metrics["mine/paid"] != 0
    assert all(isinstance(value, (int, float)) for value in metrics.values())
    seconds = metrics["time/rollout"] + metrics["time/reward"] + metrics["time/update"]
    assert metrics["FPS"] == pytest.approx(metrics["time_steps"] / seconds, rel=0.2)
    assert "response/distinct_2" in make_trainer(vec_info=NLPVecInfo()).step()


def test_a_vec_info_that_raises_is_the_users_error():
    class Broken(VecInfo):
        def __call__(self, rollout):
            return {"x": 1 / 0}

    with pytest.raises(
        UserError, match=r"vec_info_class: Broken raised ZeroDivisionError: .* at .*test_trainer\.py:\d+"
    ):
        make_trainer(vec_info=Broken()).step()


def test_what_a_filter_hides_is_logged(caplog):
    trainer = make_trainer(top_k=20, temperature=0.7)
    metrics, r = trainer.step(), trainer.rollout
    mask = r.response_mask
    assert metrics["objective/kl_full"] == pytest.approx(r.kl_full[mask].mean().item(), abs=1e-7)
    assert metrics["objective/ref_support_mass"] == pytest.approx(r.ref_support_mass[mask].mean().item(), rel=1e-5)
    assert trainer.first_support_mass == metrics["objective/ref_support_mass"]
    trainer.step()
    assert not caplog.records
    trainer.first_support_mass = 1.0  # as if the reference had agreed with the filter at the start
    trainer.step()
    assert "the reference gives only" in caplog.text
    assert "objective/kl_full" not in make_trainer().step()


def test_state_is_json_and_goes_back():
    trainer = make_trainer(top_p=0.9)
    trainer.step()
    state = json.loads(json.dumps(trainer.state_dict()))
    other = make_trainer(top_p=0.9)
    other.load_state_dict(state)
    assert other.state_dict() == trainer.state_dict()
    assert (other.iteration, other.episodes, other.time_steps) == (1, 6, trainer.rollout.num_tokens)
    assert other.kl.kl_coef == trainer.kl.kl_coef
    assert other.value_norm.mean == trainer.value_norm.mean != 0
    assert other.sampler.take(3) == trainer.sampler.take(3)
    assert make_trainer(use_valuenorm=False).state_dict()["value_normalizer"] is None
