"""The guards of a night, the step back within their limits, and the report."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_dialog.feedback.learning import guards as guards_module
from rlhf_dialog.feedback.learning.gate import GateComparison
from rlhf_dialog.feedback.learning.guards import GuardLimit, GuardMeasurement, is_unfinished, worsening
from rlhf_dialog.feedback.learning.learner import Learner
from rlhf_dialog.feedback.learning.report import AnswerChange, ChangedAnswers, NightReport
from rlhf_dialog.feedback.learning.step_back import step_back, without_room
from rlhf_dialog.feedback.store.examples import Examples, RatedAnswer, heldout_set, read_examples
from rlhf_dialog.feedback.store.settings import read_settings
from rlhf_dialog.models.generation import Reply
from tests.parts.taught_bots import new_bot, set_keys, talk_to
from tests.parts.tiny import write_data


@pytest.fixture(scope="module")
def bot(tmp_path_factory):
    bot = new_bot(tmp_path_factory.mktemp("guards"))
    talk_to(bot, 40)
    return bot


def measured_by(bot, change=0.0, replies=None, monkeypatch=None, **keys):
    set_keys(bot, **keys)
    learner = Learner(bot, read_settings(bot.settings_path))
    with torch.no_grad():
        for seed, parameter in enumerate(learner.parameters):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            parameter.add_(change * noise)
    if replies is not None:
        turns = iter(replies)
        monkeypatch.setattr(guards_module, "sample_replies", lambda *_: next(turns))
    store = bot.store()
    heldout = heldout_set(read_examples(store), learner.settings)
    store.close()
    guards = GuardMeasurement(learner, heldout)
    return guards, guards.measure()


def test_the_first_version_has_lost_nothing(bot, tmp_path):
    guards, found = measured_by(bot, guard_prompts=10)
    more, again = measured_by(bot, guard_prompts=10, sft_data_path=str(write_data(tmp_path / "data", 12)))
    assert [round(guard.value, 5) for guard in found[:2]] == [0, 1]
    assert all(guard.value <= 0 for guard in (*found[2:], *again[2:]))
    assert (len(guards.prompts), len({tuple(one.prompt_turns) for one in guards.prompts})) == (10, 8)  # some twice
    assert len(more.prompts) > 10  # with lines of the validation split


def test_the_divergence_and_likelihood_of_given_replies(bot, monkeypatch):
    """The same replies of both: log-ratio and entropy per token, with a plain loop; two bigrams of three are distinct in both."""
    given = [
        Reply("a b a b", [40, 41, 257], False),
        Reply("c", [50], True),
        Reply("", [], False),
        Reply("d.", [60, 257], False),
    ]
    guards, found = measured_by(bot, 0.05, [given, given], monkeypatch, guard_prompts=4)
    learner = guards.learner
    ours, theirs, counts = 0.0, [], []
    with torch.no_grad():
        for prompt, reply in zip(guards.prompts, given, strict=True):
            ids = learner.encoder.encoder.encode_prompt(prompt.prompt_turns)
            whole = torch.tensor([ids + reply.ids])
            own, first = (
                policy.lm(whole).logits[0].log_softmax(-1) for policy in (learner.policy, learner.reference_policy)
            )
            ours += sum(own[len(ids) - 1 + i, token].item() for i, token in enumerate(reply.ids))
            theirs.append(sum(first[len(ids) - 1 + i, token].item() for i, token in enumerate(reply.ids)))
            counts.append(len(reply.ids))
    assert found[0].value == pytest.approx((ours - sum(theirs)) / -sum(theirs), abs=1e-5)
    assert abs(found[0].value) > 1e-3
    assert found[1].value == 1
    measures = guards._measures(given)
    assert measures.likelihood == pytest.approx([x / max(n, 1) for x, n in zip(theirs, counts, strict=True)], abs=1e-5)
    assert measures.length.tolist() == counts
    assert measures.is_unfinished.tolist() == [1, 1, 1, 0]


def test_a_first_version_that_is_sure_counts_as_one_with_a_little_entropy(bot, monkeypatch):
    """Half of the divergence where the entropy is half of what it counts as."""
    guards, found = measured_by(bot, 0.05, guard_prompts=4)
    monkeypatch.setattr(guards_module, "LEAST_ENTROPY", 2 * guards._entropy)
    assert guards.measure()[0].value == pytest.approx(found[0].value / 2)


def test_fewer_distinct_bigrams(bot, monkeypatch):
    ours, theirs = ([Reply(text, [40], False)] * 4 for text in ("a a a a a", "a b c d"))
    found = measured_by(bot, 0, [ours, theirs], monkeypatch, min_distinct_2=0.5, guard_prompts=4)[1][1]
    assert found.value == pytest.approx((1 / 16) / (3 / 12))
    assert not found.passed


@pytest.mark.parametrize("better", [False, True])
def test_unlikely_replies_unfinished_ones_and_longer_ones_fail(bot, monkeypatch, better):
    """The likeliest first token of each prompt as a whole sentence, against the unlikeliest one, twice and without an end."""
    guards, _ = measured_by(bot, max_worsening=2.0, guard_prompts=8)
    good, bad = [], []
    for prompt in guards.prompts:
        ids = torch.tensor([guards.learner.encoder.encoder.encode_prompt(prompt.prompt_turns)])
        with torch.no_grad():
            logits = guards.learner.reference_policy.lm(ids).logits[0, -1]
        good.append(Reply("Yes.", [int(logits.argmax())], False))
        bad.append(Reply("Yes", [int(logits.argmin())] * (2 + len(bad) % 2), False))
    replies = iter([good, bad] if better else [bad, good])
    monkeypatch.setattr(guards_module, "sample_replies", lambda *_: next(replies))
    fresh = GuardMeasurement(guards.learner, Examples([], []))  # nobody has liked anything
    fresh.prompts = guards.prompts
    assert [guard.passed for guard in fresh.measure()[2:]] == ([True, True, False] if better else [False] * 3)


LOWER, HIGHER = np.array([1.0, 2.0, 2.0, 4.0, 3.0]), np.array([1.5, 3.0, 2.5, 6.0, 3.0])
NONE = np.empty(0)


def test_a_worsening_is_measured_in_standard_errors():
    """Differences .5, 1, .5, 2, 0: mean .8, standard deviation sqrt(2.3 / 4). A fall of that size is none, but of a length."""
    error = 0.8 / math.sqrt(2.3 / 4 / 5)
    assert worsening("x", 2.0, HIGHER, LOWER, NONE).value == pytest.approx(error)
    assert worsening("x", 2.0, LOWER, HIGHER, NONE).value == pytest.approx(-error)
    assert worsening("x", 2.0, LOWER, HIGHER, NONE, both_ways=True).value == pytest.approx(error)
    assert worsening("x", 2.0, LOWER, LOWER, NONE).value == 0
    assert worsening("x", 2.0, LOWER + 1, LOWER, NONE).value > 1e3  # all lines alike: no noise
    assert worsening("x", 2.0, HIGHER[:1], LOWER[:1], NONE).value == 0  # of one line the noise is not known


def test_what_the_liked_replies_have_too_is_no_worsening():
    """The mean rises by 0.8; those that people like are 0.5 higher than the first version's 2.4, or lower."""
    error = math.sqrt(2.3 / 4 / 5)
    assert worsening("x", 2.0, HIGHER, LOWER, np.array([2.9])).value == pytest.approx(0.3 / error)
    assert worsening("x", 2.0, HIGHER, LOWER, np.array([1.9])).value == pytest.approx(0.8 / error)
    assert worsening("x", 2.0, HIGHER, LOWER, np.array([2.9]), both_ways=True).value == pytest.approx(0.3 / error)
    assert worsening("x", 2.0, LOWER, HIGHER, np.array([2.7]), both_ways=True).value == pytest.approx(0.3 / error)


@pytest.mark.parametrize(
    ("text", "unfinished"),
    [
        ("It is from seven to", True),
        ("It is from seven to ten .", False),
        ('She said "yes!"', False),
        ("(It is free.) ", False),
        ("是的。", False),
        ("Well,", True),
        ("", True),
    ],
)
def test_a_sentence_ends_with_a_mark(text, unfinished):
    assert is_unfinished(text) is unfinished


@pytest.mark.parametrize(
    ("value", "at_most", "passed", "has_room"),
    [
        *((1.01, True, False, False), (1.0, True, True, False), (0.96, True, True, False), (0.94, True, True, True)),
        *(
            (0.99, False, False, False),
            (1.0, False, True, False),
            (1.04, False, True, False),
            (1.06, False, True, True),
        ),
        (math.nan, True, False, True),
    ],
)
def test_a_limit_and_the_room_before_it(value, at_most, passed, has_room):
    guard = GuardLimit("x", value, 1.0, at_most)
    assert guard.passed is passed
    assert guard.as_json()["value"] == (None if math.isnan(value) else value)
    assert without_room([guard]) == ([] if has_room else [guard])


def test_the_largest_share_of_a_thirty_second_that_has_room_is_kept():
    """A weight goes from 0 to 4, and may be 0.95: 7 of 32 are 0.875, 8 would be 1."""
    learner = SimpleNamespace(parameters=[torch.tensor([4.0])])
    guards = SimpleNamespace(measure=lambda: [GuardLimit("x", learner.parameters[0].item(), 1.0, True)])
    assert step_back(learner, lambda: SimpleNamespace(parameters=[torch.tensor([0.0])]), guards) == 7 / 32
    assert learner.parameters[0].item() == 0.875
    assert step_back(learner, pytest.fail, guards) == 1  # all has room: no checkpoint is read
    assert learner.parameters[0].item() == 0.875


RATED = Examples([RatedAnswer((f"Hello {n} .",), "Why ?", True, "thumb", "p", "d", n) for n in range(1, 9)], [])


@pytest.fixture(scope="module")
def step_back_bot(tmp_path_factory):
    return new_bot(tmp_path_factory.mktemp("limit"))


def moved_learner(step_back_bot, max_relative_kl, size=0.5, **keys):
    set_keys(step_back_bot, max_relative_kl=max_relative_kl, guard_prompts=8, **keys)
    learner = Learner(step_back_bot, read_settings(step_back_bot.settings_path))
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in learner.parameters:
            parameter.add_(size * torch.randn(parameter.shape, generator=noise))
    return learner, [parameter.detach().clone() for parameter in learner.parameters]


def kl_of(learner):
    return GuardMeasurement(learner, RATED).measure()[0].value


@pytest.mark.slow
def test_what_is_beyond_it_keeps_the_largest_share_that_fits(step_back_bot):
    """95 % of max_relative_kl; a thirty-second more would be too much. Against weights that are mixed here."""
    learner, moved = moved_learner(step_back_bot, max_relative_kl=100)
    assert step_back(learner, pytest.fail, GuardMeasurement(learner, RATED)) == 1
    assert all(torch.equal(*pair) for pair in zip(learner.parameters, moved, strict=True))  # within the limit
    limit = kl_of(learner) / 3
    learner, moved = moved_learner(step_back_bot, max_relative_kl=limit / 0.95)
    first = [parameter.detach().clone() for parameter in Learner(step_back_bot, learner.settings).parameters]
    share = step_back(learner, lambda: Learner(step_back_bot, learner.settings), GuardMeasurement(learner, RATED))
    assert 0 < share < 1
    assert (share * 32).is_integer()
    mixed = [(1 - share) * old + share * new for old, new in zip(first, moved, strict=True)]
    for found, wanted in zip(learner.parameters, mixed, strict=True):
        torch.testing.assert_close(found, wanted)
    assert kl_of(learner) <= limit
    with torch.no_grad():
        for parameter, old, new in zip(learner.parameters, first, moved, strict=True):
            parameter.copy_(old + (share + 1 / 32) * (new - old))
    assert kl_of(learner) > limit


@pytest.mark.slow
@pytest.mark.parametrize("use_lora", [False, True])
def test_a_champion_beyond_the_limit_goes_back_towards_the_first_version(step_back_bot, use_lora):
    learner, moved = moved_learner(step_back_bot, max_relative_kl=100, use_lora=use_lora, lora_r=2)
    limit = kl_of(learner) / 3
    learner, moved = moved_learner(step_back_bot, max_relative_kl=limit / 0.95, use_lora=use_lora, lora_r=2)
    champion, _ = moved_learner(step_back_bot, max_relative_kl=limit / 0.95, use_lora=use_lora, lora_r=2)
    assert step_back(learner, lambda: champion, GuardMeasurement(learner, RATED)) == 0
    assert kl_of(learner) <= limit
    first = (
        [torch.zeros_like(one) for one in moved] if use_lora else Learner(step_back_bot, learner.settings).parameters
    )
    shares = {
        round(((now - old) / (new - old)).median().item(), 4)
        for now, old, new in zip(learner.parameters, first, moved, strict=True)
    }
    assert len(shares) == 1
    assert 0 < min(shares) < 1


USED = {"new": 48, "replayed": 16, "people": 9, "liked": 28, "disliked": 22, "pairs": 14, "sft": 13, "steps": 5}


def report(**fields):
    given = ("bot", "0003", 412, USED, {"repetitions": 2, "scores of 3": 5}, 45, "45 held-out events", "because")
    return NightReport(*given, **fields)


def test_the_lines_of_a_night():
    found = report(
        metrics={"steps": 30, "loss": 0.5},
        ended_by="ended by KL",
        seconds=12.4,
        guards=[GuardLimit("KL", 2.0, 1.0, True)],
        comparison=GateComparison(45, 0.55, 0.61, -0.021, 0.041, 7),
        changed=ChangedAnswers(50, [AnswerChange("Is it far ?", "No .", "No , madam .")] * 7),
        removed=["0001", "0002"],
    )
    before = [
        "bot: champion 0003, feedback up to event 412",
        "to learn from: 48 new and 16 older examples of 9 people: 28 liked and 22 disliked answers, 14 edits and choices; "
        "13 replies of the SFT data in 5 steps",
        "left out: 5 scores of 3, 2 repetitions",
        "held out: 45 held-out events",
    ]
    assert report().lines() == [*before, "because"]
    assert found.lines() == [
        *before,
        "trained in 12 s: steps 30, loss 0.500",
        "ended by KL",
        "guards: KL 2 (at most 1: FAILED)",
        "gate: concordance 0.610, champion 0.550: +6.0 points, 95 % interval from -2.1, standard error 4.1, 45 held-out events",
        "answered differently: 7 of the newest 50 lines, with the same random numbers (at least 5 are needed)",
        *("  line    Is it far ?", "  before  No .", "  after   No , madam .") * 5,
        "removed (keep_last): 0001, 0002",
        "because",
    ]


def test_the_record_of_the_gate_is_json():
    found = report(comparison=GateComparison(45, 0.5, 0.6, -0.02, 0.04), guards=[GuardLimit("KL", math.nan, 1.0, True)])
    record = found.gate_record()
    assert (record["concordance"], record["num_events"], record["promoted"]) == (0.6, 45, False)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["changed_lines"] is None
    unknown = report(comparison=GateComparison(45, 0.5, 0.6, math.nan, math.nan)).gate_record()
    assert (unknown["low"], unknown["standard_error"]) == (None, None)
