"""Responses from elsewhere: those of `PPOTrainer.step_on`, next to `step` on the same ones, and those of an engine."""

import inspect
import itertools
import math
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog.distributed.world import World
from rlhf_dialog.environments.base import EpisodeLimits
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.evaluation.replies import generate_replies
from rlhf_dialog.models.generation import Responder, Responses
from rlhf_dialog.rewards.scoring import Scores
from rlhf_dialog.training import checks, ppo
from rlhf_dialog.training.iteration_metrics import engine_metrics, gain_metrics
from rlhf_dialog.training.simulated import Simulated
from rlhf_dialog.training.trainer import RolloutEngine
from rlhf_dialog.training.update import Microbatch
from tests.parts.ranks import in_ranks
from tests.parts.rollouts import with_credit
from tests.parts.steps import distance, one_step, sgd_learner
from tests.parts.text_environments import Letters
from tests.parts.tiny import byte_tokenizer
from tests.parts.trainers import PROMPTS, Holes, Places, collect_next, make_trainer, numbers_of, parameters

IDS = byte_tokenizer()(" a b <EOU>", add_special_tokens=False)["input_ids"]


def given_of(rollout):
    tokens = rollout.tokens
    pairs = ((tokens.prompt_ids, tokens.prompt_mask), (tokens.response_ids, tokens.response_mask))
    prompts, responses = ([row[kept].tolist() for row, kept in zip(*pair, strict=True)] for pair in pairs)
    return prompts, responses, rollout.scores.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"use_share_model": False},
        {"advantage_estimator": "rloo", "num_responses_per_prompt": 2},
        {"kl_in": "loss", "ref_seed": 3, "ref_model": "another"},
    ],
)
def test_a_step_on_the_episodes_of_a_step_makes_the_same_step(keys):
    usual, own = make_trainer(Places(), **keys), make_trainer(Places(0.0), **keys)
    for _ in range(2):
        torch.manual_seed(5)
        expected = usual.step()
        torch.manual_seed(5)
        torch.rand(6, 5, dtype=torch.float64)  # what the sampling drew before the update
        found = own.step_on(*given_of(usual.rollout))
        for name, value in numbers_of(found).items():
            assert value == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name
    parts = {f"reward/places{end}" for end in ("", "_weighted", "_gain")}
    unknown = parts | {"objective/gain", "objective/gain_se"}
    missing = set(numbers_of(expected)) - set(numbers_of(found))
    assert all(name in unknown or name.startswith("gain_sums/") for name in missing)
    assert not any("gain" in name for name in numbers_of(found))
    theirs = parameters(usual.models.policy)
    for name, value in parameters(own.models.policy).items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=1e-5)
    assert (own.iteration, own.episodes, own.time_steps) == (2, 12, usual.time_steps)


def test_texts_turns_and_ids_are_the_same_episode():
    ended, cut = [*IDS], IDS[:2]
    trainer = make_trainer()
    encode = trainer.responder.encoder.encode_prompt
    prompts = ["Hi .", ["Hi ."], encode(["Hi ."]), torch.tensor(encode(["Hi ."]))]
    trainer.step_on(prompts, ["a b", ended, torch.tensor(ended), cut], [1.0, 2.0, 3.0, 4.0])
    r = trainer.rollout
    assert [d.response for d in r.dialogues] == ["a b"] * 3 + ["a"]
    assert [d.prompt_turns for d in r.dialogues] == [["Hi ."]] * 4
    assert r.truncated.tolist() == [False, False, False, True]
    assert (r.scores.tolist(), r.num_tokens) == ([1.0, 2.0, 3.0, 4.0], 3 * len(IDS) + 2)
    assert torch.equal(r.tokens.response_ids[0], r.tokens.response_ids[2])
    torch.testing.assert_close(r.logprobs[0], r.logprobs[1])


def test_the_scores_of_a_model_in_float64_are_what_was_given():
    trainer = make_trainer(double=True)
    trainer.step_on(["a", "b"], ["x", "y"], [0.1, 1 / 3])
    assert trainer.rollout.scores.tolist() == [0.1, 1 / 3]


def test_prompt_and_response_may_fill_all_positions_of_the_model():
    trainer = make_trainer()
    trainer.step_on(["a"], [[3] * 254], [1.0])
    assert (trainer.rollout.num_tokens, trainer.rollout.tokens.prompt_ids.shape) == (254, (1, 2))


def test_the_checks_of_a_run_hold():
    trainer = make_trainer(ref_seed=3)
    with pytest.raises(RunStopped, match="the policy starts as its own reference"):
        trainer.step_on(["Hi ."], ["yes"], [1.0])
    trainer = make_trainer()
    torch.nn.init.constant_(trainer.models.policy.lm.transformer.ln_f.weight, float("nan"))
    with pytest.raises(RunStopped, match=r"the policy gives NaN or inf for 1 of 1 responses .*prompts: given 0"):
        trainer.step_on(["Hi ."], ["yes"], [1.0])


GROUPS = {"advantage_estimator": "rloo", "num_responses_per_prompt": 2}


@pytest.mark.parametrize(
    ("keys", "given", "message"),
    [
        ({}, ([], [], []), "found 0 prompts, 0 responses and 0 scores; give one of each"),
        ({}, (["a"], ["b", "c"], [1.0]), "found 1 prompts, 2 responses and 1 scores"),
        ({}, (["a", "b"], ["b", []], [1.0, 1.0]), r"responses\[1\] is '\[\]'; give a text, or at least one token id"),
        ({}, (["a"], [[3, 259]], [1.0]), r"responses\[0\] is '\[3, 259\]'.* each from 0 to 258"),
        ({}, ([[1.5]], ["b"], [1.0]), r"prompts\[0\] is '\[1.5\]'"),
        ({}, ([None], ["b"], [1.0]), r"prompts\[0\] is 'None'"),
        ({}, (["a"], [[[3]]], [1.0]), r"responses\[0\] is '\[\[3\]\]'"),
        ({}, (["a"], ["b"], [float("nan")]), r"scores\[0\] is nan, not a finite 32-bit number"),
        ({}, (["a"], ["b"], [1e40]), r"scores\[0\] is 1e\+40, not a finite 32-bit number"),
        ({}, (["a"], [[3] * 300], [1.0]), r"2 \+ 300 tokens, but the model has 256 positions"),
        ({"top_k": 3}, (["a"], ["b"], [1.0]), "top_k and top_p leave some tokens out"),
        (GROUPS, (["a"] * 3, ["b"] * 3, [1.0] * 3), "3 responses cannot be divided into 2 per prompt"),
        (GROUPS, (["a", "b"], ["b"] * 2, [1.0] * 2), r"prompts\[1\] is not the prompt before it"),
    ],
)
def test_what_cannot_be_learned_from(keys, given, message):
    trainer = make_trainer(**keys)
    before = parameters(trainer.models.policy)
    with pytest.raises(UserError, match=f"step_on: .*{message}"):
        trainer.step_on(*given)
    assert all(torch.equal(x, before[name]) for name, x in parameters(trainer.models.policy).items())
    assert trainer.iteration == 0


# -- an engine: it says of its responses how likely they were to itself, and nothing of the policy


class Engine(Responder):
    """Samples as the policy does, from logits that a bias of its sampling may disturb."""

    def generate(self, prompts, uniform=None):
        with self.limits.measure("engine"):
            found = super().generate(prompts, uniform)
        return Responses(found.tokens, found.truncated, sampled_logprobs=found.logprobs)


def with_engine(trainer, size=0.0, cap=2.0):
    """The trainer with an engine whose logits are up to `size` away, and the iterations for which it got the weights."""
    responder, pushed = trainer.responder, []
    bias = size * torch.arange(259.0).sin()
    parts = {name: getattr(responder, name) for name in ("policy", "encoder", "stop", "limits", "context_size")}
    engine = Engine(sampling=replace(responder.sampling, bias=(bias, bias)), **parts)
    trainer.rollout_engine = RolloutEngine(engine, pushed.append, cap)
    return trainer, pushed


def dialogues(**keys):
    """Of 1 to 3 turns."""
    return make_trainer(prompts=Simulated(lambda: Letters("so ?"), 3, EpisodeLimits()), double=True, **keys)


@pytest.mark.parametrize(
    ("new", "keys"),
    [
        (make_trainer, {"double": True}),
        (dialogues, {"context_size": 1}),
        *(
            pytest.param(*more, marks=pytest.mark.slow)
            for more in (
                (make_trainer, {"double": True, "use_share_model": False, "kl_in": "loss"}),
                (dialogues, {"advantage_estimator": "rloo", "num_responses_per_prompt": 2}),
                (dialogues, {"max_prompt_length": 12, "use_share_model": False, "credit": "turn"}),
            )
        ),
    ],
)
def test_an_engine_with_the_policy_of_the_run_makes_the_steps_of_a_run_without_one(new, keys):
    """What our own sampler knows token by token, against what is read of the finished dialogues in float64."""
    usual, (trainer, pushed) = new(**keys), with_engine(new(**keys))
    for _ in range(2):
        torch.manual_seed(5)
        expected = usual.step()
        torch.manual_seed(5)
        found = trainer.step()
        for name, value in numbers_of(expected).items():
            assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
    ours, theirs = trainer.rollout, usual.rollout
    assert ours.tokens.response_ids.tolist() == theirs.tokens.response_ids.tolist()
    assert (ours.segments is None) == (not {"context_size", "max_prompt_length"} & {*keys})
    for name in ("logprobs", "entropy", "values", "ref_logprobs", "engine_weights"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-7)
    assert found["engine/mismatch_max"] < 1e-7
    assert found["engine/weight_capped"] == 0
    assert pushed == [0, 1]
    more = {name for name in found if name.startswith(("engine/", "time/engine", "time/sync"))}
    assert set(found) - set(expected) == more
    assert len(more) == 7
    assert found["time/engine"] <= found["time/generation"]


def test_only_the_rollouts_of_training_ask_the_engine(monkeypatch):
    trainer, _ = with_engine(make_trainer())
    engine = trainer.rollout_engine.responder
    monkeypatch.setattr(Engine, "generate", None)
    assert type(engine.local()) is type(trainer.responder) is Responder
    for responder in (trainer.responder, engine):
        generate_replies(responder, PROMPTS[:2], trainer.responder.sampling)
    with pytest.raises(TypeError):
        trainer.step()


WEIGHTED = {"use_adv_normalize": False, "entropy_coef": 0.1, "dual_clip_ppo": True, "dual_clip_coeff": 1.5}


def losses_of(trainer, rollout):
    place = torch.arange(len(rollout)), slice(None)
    losses, statistics = trainer.update.losses(Microbatch(rollout, place, rollout.tokens), torch.tensor(7.0), False)
    return {name: x.item() for name, x in (losses | statistics).items()}


def test_the_weights_are_those_of_each_tokens_policy_loss_alone():
    """By loops over the tokens: the clipped loss of each, times min(p_policy / p_engine, cap)."""
    cap, (trainer, _) = 1.1, with_engine(make_trainer(double=True, **WEIGHTED), 0.5, 1.1)
    trainer.rollout_engine = replace(trainer.rollout_engine, cap=cap)
    trainer.noise = checks.Noise(mean=1.0, largest=1.0)
    collected = trainer.check(collect_next(trainer))
    new = collected.logprobs
    sizes = torch.arange(new.numel()).view_as(new).double()
    collected = replace(collected, logprobs=new + 0.9 * (3 * sizes).cos())
    rollout = with_credit(collected, advantages=(sizes * 7).sin() + 0.1, targets=sizes.cos())
    mask = rollout.response_mask
    weights = [min(math.exp(x), cap) for x in (new - rollout.sampled_logprobs)[mask].tolist()]
    torch.testing.assert_close(rollout.engine_weights[mask], torch.tensor(weights).double(), rtol=1e-6, atol=0)
    assert 0 < sum(weight == cap for weight in weights) < len(weights)
    assert (rollout.engine_weights[~mask] == 1).all()
    assert not mask.all()
    clip, expected = trainer.config.clip_param, 0.0
    tokens = zip((new - rollout.logprobs)[mask].exp().tolist(), rollout.advantages[mask].tolist(), weights, strict=True)
    for ratio, advantage, weight in tokens:
        loss = max(-advantage * ratio, -advantage * min(max(ratio, 1 - clip), 1 + clip))
        expected += weight * (min(loss, -1.5 * advantage) if advantage < 0 else loss) / 7
    found = losses_of(trainer, rollout)
    assert found["ppo/policy_loss"] == pytest.approx(expected, rel=1e-6)
    without = losses_of(trainer, replace(rollout, engine_weights=torch.ones_like(rollout.logprobs)))
    assert without["ppo/policy_loss"] != pytest.approx(expected, rel=1e-2)
    for name in ("ppo/value_loss", "ppo/clip_fraction", "ppo/approx_kl"):
        assert found[name] == pytest.approx(without[name], rel=1e-9), name
    others = [x["ppo/loss"] - x["ppo/policy_loss"] for x in (found, without)]
    assert others[0] == pytest.approx(others[1], rel=1e-9)


def test_advantages_and_returns_know_nothing_of_the_weights():
    found = []
    for cap in (1.01, 50.0):
        trainer, _ = with_engine(make_trainer(use_valuenorm=False), 0.5, cap)
        trainer.noise = checks.Noise(mean=1.0, largest=1.0, is_measured=True)
        trainer.step()
        found.append(trainer.rollout)
    assert not torch.equal(found[0].engine_weights, found[1].engine_weights)
    for name in ("rewards", "advantages", "returns", "targets"):
        assert torch.equal(getattr(found[0], name), getattr(found[1], name)), name


@pytest.mark.slow  # TRL takes seconds to import
@pytest.mark.parametrize("cap", [1.05, 2.0, 3.0])
def test_the_weights_are_those_of_trl(cap):
    """Its own lines for `vllm_importance_sampling_mode: token_truncate`, which are part of a long method."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    start = source.index("per_token_logps_diff = (old_per_token_logps")
    lines = " " * 16 + source[start : source.index("# Compute the per-token log probabilities for the reference model")]
    torch.manual_seed(0)
    ours, theirs, mask = torch.randn(5, 9) - 3, torch.randn(5, 9) - 3, torch.rand(5, 9) < 0.7
    known = {
        "self": SimpleNamespace(
            vllm_importance_sampling_mode="token_truncate",
            vllm_importance_sampling_clip_min=None,
            vllm_importance_sampling_clip_max=cap,
        ),
        "torch": torch, "math": math, "mask": mask.long(),
        "old_per_token_logps": ours, "sampling_per_token_logps": theirs,
    }  # fmt: skip
    exec(textwrap.dedent(lines), known)
    expected = known["vllm_importance_sampling_ratio"]
    assert 0 < (expected == cap).sum() < mask.sum()
    torch.testing.assert_close(ppo.engine_weights(ours, theirs, mask, cap), expected, rtol=0, atol=0)


POLICY, REFERENCE = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])  # of three tokens, replies have two
ENGINE = (POLICY.log() + torch.tensor([0.4, -0.3, 0.1])).softmax(dim=0)
REPLIES = list(itertools.product(range(3), repeat=2))


def pay(reply):
    return sum((token + 1) * 0.3 for token in reply) - reply[0] * reply[1]


class Written:
    """A rollout of these replies."""

    num_dropped, is_sampled, kl_full = 0, True, None

    def __init__(self, replies):
        ids = torch.tensor(replies)
        self.logprobs, self.ref_logprobs, self.sampled_logprobs = (
            x.double().log()[ids] for x in (POLICY, REFERENCE, ENGINE)
        )
        self.response_mask, self.count = torch.ones_like(ids).bool(), len(replies)
        self.paid, self.reward_scores = torch.tensor([pay(reply) for reply in replies]).double(), Scores([], {})

    def __len__(self):
        return self.count


@pytest.mark.parametrize("group_size", [1, 2])
def test_the_gain_is_that_of_the_engine_which_answered(group_size):
    """Each pair of replies with its probability under the engine: E[D - A] is the gain of two, and E[W] is two."""
    gain = weights = 0.0
    for pair in itertools.product(REPLIES, repeat=2):
        sums = gain_metrics(Written(pair), group_size, World())
        of_pair = math.prod(ENGINE[token].item() for reply in pair for token in reply)
        gain += of_pair * (sums["gain_sums/D"] - sums["gain_sums/A"]) / 2
        weights += of_pair * sums["gain_sums/W"] / 2
    means = [sum(p[a].item() * p[b].item() * pay((a, b)) for a, b in REPLIES) for p in (ENGINE, REFERENCE)]
    assert gain == pytest.approx(means[0] - means[1], abs=1e-6)
    assert weights == pytest.approx(1.0, abs=1e-6)


def test_the_mismatch_by_loops():
    trainer, _ = with_engine(make_trainer(), 0.3)
    rollout = trainer.check(collect_next(trainer))
    columns = (rollout.logprobs, rollout.sampled_logprobs, rollout.entropy)
    tokens = list(zip(*(x[rollout.response_mask].tolist() for x in columns), strict=True))
    gaps = [abs(ours - theirs) for ours, theirs, _ in tokens]
    weights = [min(math.exp(ours - theirs), 1.05) for ours, theirs, _ in tokens]
    rollout.engine_weights[rollout.response_mask] = torch.tensor(weights)
    expected = {
        "mismatch": sum(gaps) / len(gaps),
        "mismatch_max": max(gaps),
        "surprise": sum(-ours - entropy for ours, _, entropy in tokens) / len(tokens),
        "weight_mean": sum(weights) / len(weights),
        "weight_capped": sum(weight == 1.05 for weight in weights) / len(weights),
    }
    assert 0 < expected["weight_capped"] < 1
    found = engine_metrics(rollout, rollout.sampled_logprobs, 1.05, World())
    assert found == pytest.approx({f"engine/{name}": value for name, value in expected.items()}, rel=1e-5)


@pytest.mark.parametrize(
    ("num_bits", "times", "ends"),
    [
        *((16, 1.9, "quiet"), (16, 2.1, "warns"), (16, 3.1, "stops")),
        *((32, 4.9, "quiet"), (32, 5.1, "warns"), (32, 20.1, "stops"), (32, math.nan, "stops")),
    ],
)
def test_how_much_an_engine_may_differ(caplog, num_bits, times, ends):
    noise = checks.Noise(mean=0.01, largest=0.4, num_bits=num_bits)
    metrics = {"engine/mismatch": 0.01 * times, "engine/mismatch_max": 0.7}
    if ends == "stops":
        with pytest.raises(RunStopped, match=r"iteration 3.*other weights, or an older adapter"):
            checks.check_engine(metrics, 3, noise)
        return
    for _ in range(2):
        checks.check_engine(metrics, 3, noise)
    assert len(caplog.messages) == (ends == "warns")


def test_an_engine_with_other_weights_stops_the_run_before_an_update():
    trainer, _ = with_engine(make_trainer(), 0.05)
    before = parameters(trainer.models.policy)
    with pytest.raises(RunStopped, match="older adapter") as stopped:
        trainer.step()
    assert stopped.value.exit_code == 3
    assert all(torch.equal(p, before[name]) for name, p in parameters(trainer.models.policy).items())
    assert with_engine(make_trainer())[0].step()["engine/mismatch"] < 1e-5


def test_a_number_of_the_engine_that_is_none_stops_the_run():
    trainer, _ = with_engine(make_trainer())
    rollout = collect_next(trainer)
    rollout.sampled_logprobs[2, 0] = -math.inf
    with pytest.raises(RunStopped, match="the engine gives NaN or inf for 1 of 6"):
        trainer.check(rollout)


def engine_step(world, rollout, rows, keys):
    """One step on stored responses of an engine that is far away."""
    trainer = sgd_learner(rollout, rows, world, **keys)
    with_engine(trainer, 0.0, 1.2)
    trainer.noise = checks.Noise(mean=1.0, largest=1.0, is_measured=True)
    return one_step(trainer)


def check_same_step(found, expected):
    assert distance(found["gradients"], expected["gradients"]) < 1e-5
    for name, value in numbers_of(expected["metrics"]).items():
        assert found["metrics"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert 0 < found["metrics"]["engine/weight_capped"] < 1


def far_rollout(reward=None, **keys):
    return collect_next(with_engine(make_trainer(reward, rollout_batch_size=7, **keys), 0.5)[0])


def test_microbatches_do_not_change_a_weighted_step():
    rollout, rows = far_rollout(), [list(range(7))]
    found = [engine_step(World(), rollout, rows, {"per_device_microbatch_size": size}) for size in (7, 2)]
    check_same_step(found[1], found[0])


@pytest.mark.multiprocess
@pytest.mark.parametrize("rows", [[[0, 1, 2], [3, 4, 5, 6]], [[0, 1, 2, 3, 4, 5, 6], []]])
def test_two_ranks_make_the_weighted_step_of_one(rows):
    rollout, keys = far_rollout(), {"per_device_microbatch_size": 2, "rollout_batch_size": 7}
    expected = engine_step(World(), rollout, [list(range(7))], keys)
    for found in in_ranks(2, engine_step, rollout, rows, keys):
        check_same_step(found, expected)


def test_weights_go_with_the_episodes_that_have_a_score():
    trainer, _ = with_engine(make_trainer(Holes({1}, math.nan), on_reward_error="skip"), 0.3)
    rollout = collect_next(trainer)
    kept = trainer.check(rollout)
    rows = [0, 2, 3, 4, 5]
    assert torch.equal(kept.sampled_logprobs, rollout.sampled_logprobs[rows])
    expected = (rollout.logprobs - rollout.sampled_logprobs)[rows].exp().clamp(max=2.0)
    torch.testing.assert_close(kept.engine_weights, expected.masked_fill(~kept.response_mask, 1.0))
