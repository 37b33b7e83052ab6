"""The line of an iteration: its numbers by hand, its keys, and a vec-info that raises."""

import itertools
import math
import statistics
from dataclasses import replace

import pytest
import torch

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.distributed.world import World
from rlhf_dialog.errors import SignalExit, UserError
from rlhf_dialog.metrics import NLPVecInfo, VecInfo
from rlhf_dialog.rewards.base import BaseReward, Part
from rlhf_dialog.rewards.composite import CompositeReward
from rlhf_dialog.training import rollout as clock
from rlhf_dialog.training.iteration_metrics import (
    dialogue_metrics,
    gain_metrics,
    prompt_sums,
    vec_info_metrics,
)
from tests.parts.pretended_gpu import pretended_gpu
from tests.parts.ranks import in_ranks
from tests.parts.trainers import Places, collect_next, make_trainer


def test_statistics_of_a_single_step_by_hand():
    keys = {"num_mini_batch": 1, "ppo_epoch": 1, "use_adv_normalize": False, "use_valuenorm": False}
    trainer = make_trainer(**keys, use_huber_loss=True, huber_delta=0.5)
    metrics, rollout = trainer.step(), trainer.rollout
    mask = rollout.response_mask
    assert 0 < mask.sum() < mask.numel()
    sizes = rollout.returns[mask].abs()  # the values are 0
    clipped = torch.where(sizes <= 0.5, sizes**2 / 2, 0.5 * (sizes - 0.25))
    assert metrics["ppo/value_loss"] == pytest.approx(clipped.mean().item(), abs=1e-5)
    assert metrics["ppo/explained_variance"] == pytest.approx(0, abs=1e-6)
    assert metrics["objective/score"] == pytest.approx(sum(Places()(rollout.dialogues)) / 6)
    assert metrics["objective/entropy"] == pytest.approx(rollout.entropy[mask].mean().item(), abs=1e-6)
    assert metrics["response/length"] == mask.sum().item() / 6
    assert metrics["response/truncated"] == pytest.approx(rollout.truncated.float().mean().item())
    assert metrics["reward/places"] == metrics["reward/places_weighted"] == pytest.approx(metrics["objective/score"])


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


def test_a_vec_info_reads_the_rollout_with_its_credit():
    """One value an episode, one a token, and the rest; without a KL penalty the rewards are the scores."""
    seen = []

    class CustomVecInfo(VecInfo):
        def __call__(self, rollout):
            seen.append(rollout)
            per_token = """logprobs ref_logprobs entropy values engine_weights rewards advantages returns targets
                loss_weights response_mask"""
            assert {getattr(rollout, name).shape for name in per_token.split()} == {rollout.tokens.response_ids.shape}
            lengths = {name: len(getattr(rollout, name)) for name in ("dialogues", "truncated", "scores", "paid")}
            assert set(lengths.values()) == {len(rollout)} == {6}
            absent = "turn_rewards kl_full ref_support_mass ref_features whole sampled_logprobs drawn segments"
            assert {getattr(rollout, name) for name in absent.split()} == {None}
            assert rollout.clock.seconds["rollout"] > 0
            counts = (rollout.num_dropped, rollout.num_resampled, rollout.num_flat_left, rollout.is_sampled)
            assert counts == (0, 0, 0, True)
            assert rollout.num_generated == rollout.num_tokens
            return {"mine/scores": sum(rollout.reward_scores.total)}

    trainer = make_trainer(vec_info=CustomVecInfo(), use_valuenorm=False, use_adv_normalize=False, kl_coef=0.0)
    scores = Places()(range(6))
    assert [trainer.step()["mine/scores"] for _ in range(2)] == [sum(scores)] * 2
    rollout = seen[1]
    assert trainer.rollout is rollout
    assert rollout.values.abs().max() > 0  # the critic has learned
    mask = rollout.response_mask
    torch.testing.assert_close(rollout.rewards.sum(dim=1), torch.tensor(scores), atol=1e-6, rtol=0)
    torch.testing.assert_close(rollout.advantages, (rollout.returns - rollout.values) * mask)
    assert torch.equal(rollout.targets, rollout.returns)
    assert (rollout.loss_weights[mask] == 1).all()
    assert (rollout.engine_weights == 1).all()
    assert rollout.advantages[mask].abs().min() > 0


@pytest.mark.parametrize(
    ("infos", "expected"),
    [
        ([{"success": True}, {"success": False}, {}, {"success": True}], {"success": 2 / 3, "success_of": 3}),
        ([{"success": True}, {"success": False}], {"success": 0.5}),
        ([{}, {}], {}),
    ],
)
def test_success_while_training_is_that_of_the_dialogues_that_say_it(infos, expected):
    class Played(list):
        dialogues = [Dialogue(["Hi ."], "Ho .", meta={"info": info}) for info in infos]  # noqa: RUF012
        num_replies, turn_rewards = len(infos), None

    found = dialogue_metrics(Played(Played.dialogues), World())
    assert {name: found[f"environment/{name}"] for name in expected} == pytest.approx(expected)
    assert len(found) == 2 + len(expected)


@pytest.mark.parametrize(
    ("error", "seen", "words"),
    [
        (ZeroDivisionError("no"), UserError, r"Stops raised ZeroDivisionError: no at .*test_iteration_metrics\.py:\d+"),
        (SystemExit(0), UserError, "Stops raised SystemExit: 0 at"),
        (SignalExit(143), SignalExit, None),
    ],
)
def test_a_vec_info_that_raises_is_the_users_error_and_signals_pass(error, seen, words):
    class Stops(VecInfo):
        def __call__(self, rollout):
            raise error

    with pytest.raises(seen, match=words):
        make_trainer(vec_info=Stops()).step()


class Words(VecInfo):
    """A mean, and what is none: the number of different responses. It also offers a number that nobody asked for."""

    def __call__(self, rollout):
        responses = [dialogue.response for dialogue in rollout.dialogues]
        return {"mine/words": float(len(responses)), "mine/different": len(set(responses))}

    def pool(self, responses):
        return {"mine/different": len(set(responses)), "mine/unknown": 1.0}


class Said:
    def __init__(self, dialogues):
        self.dialogues, self.rewards = dialogues, torch.zeros(len(dialogues), 1)

    def __len__(self):
        return len(self.dialogues)


def of_ranks(world, made):
    """Rank 0 has the first of four responses, rank 1 two more, rank 2 the last."""
    texts = ["a b c", "a b", "d e f", "a b c"]
    texts = [texts[:1], texts[1:3], texts[3:]][world.rank] if world.size > 1 else texts
    return vec_info_metrics(made, Said([Dialogue([], text) for text in texts]), world)


@pytest.mark.multiprocess
def test_distinct_n_of_several_ranks_is_that_of_all_replies():
    """ab bc | ab, de ef | ab bc: 4 pairs of 7. The mean of the ranks' own would be 1."""
    alone = of_ranks(World(), NLPVecInfo())
    assert alone["response/distinct_2"] == 4 / 7
    assert in_ranks(3, of_ranks, NLPVecInfo()) == [pytest.approx(alone)] * 3
    found = in_ranks(3, of_ranks, Words())
    assert found == [{"mine/words": (1 + 2 * 2 + 1) / 4, "mine/different": 3}] * 3
    assert of_ranks(World(), Words()) == {"mine/words": 4.0, "mine/different": 3}


def test_seconds_of_one_name_add_up(monkeypatch):
    ticks = iter([5.0, 10.0, 12.0, 20.0, 20.5, 30.0, 34.0, 36.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(ticks))
    watch = clock.Clock(torch.device("cpu"))
    for name in ("rollout", "reward", "rollout"):
        with watch.measure(name):
            pass
    assert watch.seconds == {"rollout": pytest.approx(2.0 + 4.0), "reward": pytest.approx(0.5)}
    assert watch.elapsed == 31.0


def test_a_gpu_is_waited_for_once_when_the_seconds_are_read(monkeypatch):
    ticks = iter([10.0, 12.0, 20.0, 20.5])
    with pretended_gpu() as gpu:
        monkeypatch.setattr(torch.cuda.Event, "record", lambda self: setattr(self, "seconds", next(ticks)))
        watch = clock.Clock(torch.device("cuda", 0))
        for _ in range(2):
            with watch.measure("update"):
                pass
        assert gpu.num_waits == 0
        assert watch.seconds == {"update": pytest.approx(2.0 + 0.5)}
        assert watch.seconds == {"update": pytest.approx(2.0 + 0.5)}  # nothing counts twice
        assert gpu.num_waits == 1


# -- what the policy has gained over its reference, against what enumeration and plain loops say


POLICY, REFERENCE = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])  # of three tokens, replies have two
REWARD = {
    reply: sum((token + 1) * 0.3 for token in reply) - reply[0] * reply[1]
    for reply in itertools.product(range(3), repeat=2)
}
RLOO = {"advantage_estimator": "rloo", "num_responses_per_prompt": 3, "rollout_batch_size": 12}


def pay(response):
    return sum(map(ord, response)) % 7 / 7


class Letters(BaseReward):
    name = "letters"

    def __call__(self, dialogues):
        return [pay(dialogue.response) for dialogue in dialogues]


class Long(BaseReward):
    name = "long"

    def __call__(self, dialogues):
        return [len(dialogue.response) / 3 for dialogue in dialogues]


def probability(tokens, reply):
    return math.prod(tokens[token].item() for token in reply)


def expected(tokens):
    return sum(probability(tokens, reply) * reward for reply, reward in REWARD.items())


@pytest.mark.parametrize("group_size", [1, 2])
def test_over_all_pairs_of_replies_the_sums_give_the_difference_of_the_means(group_size):
    """Two replies, to one prompt or to two: each pair with its probability under the policy. E[D - A] is the gain of two."""
    found = weights = 0.0
    for pair in itertools.product(REWARD, repeat=2):
        rewards = torch.tensor([[REWARD[reply] for reply in pair]], dtype=torch.float64)
        ratios = torch.tensor([probability(REFERENCE, reply) / probability(POLICY, reply) for reply in pair]).double()
        _, _, w, _, _, d, a, *_ = prompt_sums(rewards, ratios.log(), group_size, rewards.sum(dim=1), 2)
        of_pair = math.prod(probability(POLICY, reply) for reply in pair)
        found += of_pair * (d - a) / 2
        weights += of_pair * w / 2
    assert found == pytest.approx(expected(POLICY) - expected(REFERENCE), abs=1e-6)
    assert weights == pytest.approx(1.0)


def plain_gain(rollout, group_size, scores):
    """By loops over replies and tokens: the sums of a line, the gain and its standard error."""
    columns = [x.tolist() for x in (rollout.ref_logprobs, rollout.logprobs, rollout.response_mask)]
    count, per_prompt, kl = len(scores), [], 0.0
    for first in range(0, count, group_size):
        d = a = w = 0.0
        for i in range(first, first + group_size):
            neighbours = range(first, first + group_size) if group_size > 1 else range(count)
            others = [scores[j] for j in neighbours if j != i]
            tokens = zip(*(x[i] for x in columns), strict=True)
            log_weight = sum(reference - policy for reference, policy, is_response in tokens if is_response)
            excess = scores[i] - sum(others) / len(others)
            d, a, w, kl = d + excess, a + math.exp(log_weight) * excess, w + math.exp(log_weight), kl - log_weight
        per_prompt.append((d, a, w))
    num_prompts = len(per_prompt)
    sums = {"N": count, "P": num_prompts, "kl": kl, "W": sum(w for *_, w in per_prompt)}
    pairs = {"WW": "ww", "DD": "dd", "AA": "aa", "DA": "da", "DW": "dw", "AW": "aw"}
    sums |= {
        k: sum(math.prod({"d": d, "a": a, "w": w}[x] for x in v) for d, a, w in per_prompt) for k, v in pairs.items()
    }
    sums |= {"D": sum(d for d, *_ in per_prompt), "A": sum(a for _, a, _ in per_prompt)}
    of_reference = sums["A"] / sums["W"]
    residuals = [d / count - (a - of_reference * w) / sums["W"] for d, a, w in per_prompt]
    error = math.sqrt(sum(u * u for u in residuals) * num_prompts / (num_prompts - 1))
    return sums, sums["D"] / count - of_reference, error


def seen_by(world, rollout, group_size):
    """What a rank finds that has a share of the prompts: the first has one, the last none."""
    ends = {1: [0, len(rollout)], 3: [0, group_size, len(rollout), len(rollout)]}[world.size]
    rows = list(range(*ends[world.rank : world.rank + 2]))
    share = rollout if world.size == 1 else replace(rollout.select(rows), num_dropped=0)
    return gain_metrics(share, group_size, world)


def check_gain(found, rollout, group_size):
    sums, gain, error = plain_gain(rollout, group_size, rollout.scores.tolist())
    for name, value in sums.items():
        assert found[f"gain_sums/{name}"] == pytest.approx(value, rel=1e-9, abs=1e-9), name
    assert (found["objective/gain"], found["objective/gain_se"]) == pytest.approx((gain, error), rel=1e-7)
    for name in ("letters", "long"):
        raw = rollout.reward_scores.parts[name].raw
        sums, gain, _ = plain_gain(rollout, group_size, raw)
        for key in ("D", "A", "DD", "AA", "DA", "DW", "AW"):
            assert found[f"gain_sums/{name}/{key}"] == pytest.approx(sums[key], rel=1e-9, abs=1e-9), key
        assert found[f"reward/{name}_gain"] == pytest.approx(gain, rel=1e-7)
    scores = rollout.scores.tolist()
    means = [statistics.fmean(scores[i : i + group_size]) for i in range(0, len(scores), group_size)]
    assert found["objective/score_se"] == pytest.approx(statistics.stdev(means) / math.sqrt(len(means)), rel=1e-6)


class Both(CompositeReward):
    def __init__(self):
        self._set_parts([Part(0.5, Letters()), Part(2.0, Long())])


def two_parts(**keys):
    return make_trainer(Both(), ref_seed=1, double=True, **keys)


@pytest.mark.parametrize(("keys", "group_size"), [(RLOO, 3), ({"rollout_batch_size": 12}, 1)], ids=["rloo", "gae"])
def test_the_gain_of_a_trainer_is_that_of_plain_loops(keys, group_size):
    rollout = collect_next(two_parts(**keys))
    check_gain(gain_metrics(rollout, group_size, World()), rollout, group_size)


@pytest.mark.multiprocess
@pytest.mark.parametrize(("keys", "group_size"), [(RLOO, 3), ({"rollout_batch_size": 12}, 1)], ids=["rloo", "gae"])
def test_the_gain_of_several_ranks_is_that_of_all_replies(keys, group_size):
    rollout = collect_next(two_parts(**keys))
    for found in in_ranks(3, seen_by, rollout, group_size):
        check_gain(found, rollout, group_size)


@pytest.mark.parametrize("change", ["is_sampled", "kl_full", "num_dropped", "ref_logprobs"])
def test_where_it_is_not_known_there_is_no_number(change):
    rollout = collect_next(make_trainer(Letters(), ref_seed=1, double=True))
    no_reference = torch.full_like(rollout.logprobs, math.nan)
    values = {"is_sampled": False, "kl_full": no_reference, "num_dropped": 1, "ref_logprobs": no_reference}
    known, unknown = (gain_metrics(one, 1, World()) for one in (rollout, replace(rollout, **{change: values[change]})))
    names = {"objective/gain", "objective/gain_se", "reward/letters_gain"}
    names |= {name for name in known if name.startswith("gain_sums/")}
    assert len(names) == 3 + 5 + 2 * 7
    for name in names:
        assert math.isfinite(known[name]), name
        assert math.isnan(unknown[name]), name


def test_a_policy_that_is_far_from_its_reference_has_an_estimate_as_long_as_it_is_finite():
    """`evaluation.gain` says of ten iterations together whether they are too far."""
    rollout = collect_next(make_trainer(Letters(), ref_seed=1, double=True))
    far, farther = (
        gain_metrics(replace(rollout, ref_logprobs=rollout.logprobs + x), 1, World()) for x in (-9.0, 200.0)
    )
    assert math.isfinite(far["objective/gain"])
    assert far["gain_sums/kl"] == pytest.approx(9.0 * rollout.num_tokens)
    assert math.isnan(farther["objective/gain"])
    assert farther["gain_sums/N"] == 6


def test_episodes_of_the_caller_need_not_come_in_groups_where_the_estimator_needs_none():
    """Each counts by itself then; their standard error is that of three numbers."""
    trainer = make_trainer(num_responses_per_prompt=2)
    found = trainer.step_on(["a", "a", "b"], ["x", "y", "z"], [1.0, 2.0, 4.0])
    assert found["objective/score_se"] == pytest.approx(statistics.stdev([1.0, 2.0, 4.0]) / math.sqrt(3))
    assert math.isnan(found["objective/gain"])
    pairs = trainer.step_on(["a", "a", "b", "b"], ["x", "y", "z", "x"], [1.0, 2.0, 4.0, 0.0])
    assert pairs["objective/score_se"] == pytest.approx(statistics.stdev([1.5, 2.0]) / math.sqrt(2))
