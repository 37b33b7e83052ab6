"""The guards of a night, the answers that have changed, and the report."""

import json
import math
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_dialog.feedback.learning import guards as guards_module
from rlhf_dialog.feedback.learning.gate import GateComparison
from rlhf_dialog.feedback.learning.guards import (
    GuardLimit,
    GuardMeasurement,
    ReplyMeasures,
    is_unfinished,
    worsening,
)
from rlhf_dialog.feedback.learning.learner import Learner
from rlhf_dialog.feedback.learning.report import (
    AnswerChange,
    ChangedAnswers,
    NightReport,
    compare_answers,
)
from rlhf_dialog.feedback.store.examples import DialoguePrompt, Examples, heldout_set, read_examples
from rlhf_dialog.feedback.store.settings import read_settings
from rlhf_dialog.models.chat_agent import ChatAgent
from rlhf_dialog.models.generation import Reply
from tests.parts.taught_bots import new_bot, set_keys, talk_to
from tests.parts.tiny import write_data


@pytest.fixture(scope="module")
def bot(tmp_path_factory):
    bot = new_bot(tmp_path_factory.mktemp("guards"))
    talk_to(bot, 40)
    return bot


def learner_with_noise(bot, size, **keys):
    set_keys(bot, **keys)
    learner = Learner(bot, read_settings(bot.settings_path))
    with torch.no_grad():
        for seed, parameter in enumerate(learner.parameters):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            parameter.add_(size * noise)
    return learner


def measured_by(bot, change=0.0, replies=None, monkeypatch=None, **keys):
    learner = learner_with_noise(bot, change, **keys)
    if replies is not None:
        turns = iter(replies)
        monkeypatch.setattr(guards_module, "sample_replies", lambda *_: next(turns))
    store = bot.store()
    heldout = heldout_set(read_examples(store), learner.settings)
    store.close()
    guards = GuardMeasurement(learner, heldout, learner.settings.guard_prompts)
    return guards, guards.measure()


@pytest.mark.slow
def test_the_first_version_has_lost_nothing(bot, tmp_path):
    guards, found = measured_by(bot, guard_prompts=10)
    more, again = measured_by(bot, guard_prompts=10, sft_data_path=str(write_data(tmp_path / "data", 12)))
    assert [round(guard.value, 5) for guard in found[:2]] == [0, 1]
    assert all(guard.value <= 0 for guard in (*found[2:], *again[2:]))
    assert (len(guards.prompts), len({tuple(one.prompt_turns) for one in guards.prompts})) == (10, 8)  # some twice
    assert len(more.prompts) > 10  # with lines of the validation split


def logprob(policy, learner, turns, response):
    """Of the response after these turns, with a plain loop."""
    ids = learner.encoder.encoder.encode_prompt(turns)
    with torch.no_grad():
        logprobs = policy.lm(torch.tensor([ids + response])).logits[0].log_softmax(-1)
    return sum(logprobs[len(ids) - 1 + i, token].item() for i, token in enumerate(response))


def test_the_divergence_and_likelihood_of_given_replies(bot, monkeypatch):
    """The same replies of both: log-ratio and entropy per token, with a plain loop; two bigrams of three are distinct in both."""
    given = [Reply("a b a b", [40, 41, 257], False), Reply("c", [50], True)]
    given += [Reply("", [], False), Reply("d.", [60, 257], False)]
    monkeypatch.setattr(GuardMeasurement, "_liked_divergence", 0.0)
    guards, found = measured_by(bot, 0.05, [given, given], monkeypatch, guard_prompts=4, max_relative_kl=1e4)
    learner = guards.learner
    turns, counts = [prompt.prompt_turns for prompt in guards.prompts], [len(reply.ids) for reply in given]
    own, theirs = (
        [logprob(policy, learner, *row) for row in zip(turns, [reply.ids for reply in given], strict=True)]
        for policy in (learner.policy, learner.reference_policy)
    )
    ours = sum(own)
    assert found[0].value == pytest.approx((ours - sum(theirs)) / -sum(theirs), abs=1e-5)
    assert abs(found[0].value) > 1e-3
    assert found[1].value == 1
    measures = guards._measures(given)
    assert measures.likelihood == pytest.approx([x / max(n, 1) for x, n in zip(theirs, counts, strict=True)], abs=1e-5)
    assert measures.length.tolist() == counts
    assert measures.is_unfinished.tolist() == [1, 1, 1, 0]
    assert guards._measures([*given[:3], Reply("d d d.", [60, 60, 9, 60], False)]).repetition.tolist() == [0, 0, 0, 0.5]
    # a first version that is surer counts as one with 0.05 nats per token
    monkeypatch.setattr(ReplyMeasures, "surprise", 0.01)
    monkeypatch.setattr(guards_module, "sample_replies", lambda *_: given)
    again = GuardMeasurement(learner, guards.heldout, 4)
    again.prompts = guards.prompts
    assert again.measure()[0].value == pytest.approx((ours - sum(theirs)) / sum(counts) / 0.05, abs=1e-4)


def test_a_policy_may_move_as_far_as_what_people_like_is_away(bot):
    """What the liked replies are less likely per token than the first version's own does not count."""
    guards, (found, *_) = measured_by(bot, 0.3, guard_prompts=8)
    learner, rows = guards.learner, []
    for example in guards.heldout.all:
        if example.liked:
            rows.append((example.prompt_turns, learner.encoder.encode_example(example)[0].response))
    surprise = -sum(logprob(learner.reference_policy, learner, *row) for row in rows) / sum(len(row[1]) for row in rows)

    def mean_logprob(speaker, policy):
        drawn = guards_module.sample_replies(learner, speaker, guards.prompts)
        spoken = [(prompt.prompt_turns, reply.ids) for prompt, reply in zip(guards.prompts, drawn, strict=True)]
        return sum(logprob(policy, learner, *row) for row in spoken if row[1]) / sum(len(ids) for _, ids in spoken)

    entropy = -mean_logprob(learner.reference_policy, learner.reference_policy)
    divergence = mean_logprob(learner.policy, learner.policy) - mean_logprob(learner.policy, learner.reference_policy)
    assert 0 < surprise - entropy < divergence
    assert found.value == pytest.approx((divergence - (surprise - entropy)) / entropy, rel=1e-3)


@pytest.mark.parametrize(
    ("max_new_tokens", "failed"), [(99, ["rise of unfinished sentences, standard errors"]), (4, [])]
)
def test_the_replies_that_are_looked_at_are_those_of_a_chat(bot, monkeypatch, max_new_tokens, failed):
    """Of both versions; the KL divergence, which needs the policy's own distribution, has others.

    Replies that are cut off are what people like where the liked replies have more tokens than the agent says.
    """
    guards, _ = measured_by(bot, guard_prompts=4, max_worsening=2.0)
    learner, asked = guards.learner, []
    learner.agent.settings = learner.agent.settings.model_copy(
        update={"chat_temperature": 0.5, "max_new_tokens": max_new_tokens}
    )
    ends = Reply("Yes.", [40, 41], False), Reply("Yes", [40, 41], True)

    def given(_, policy, prompts, sampling=learner.agent.sampling):
        asked.append((policy is learner.policy, sampling.temperature))
        return [ends[asked[-1] == (True, 0.5)]] * 4

    monkeypatch.setattr(guards_module, "sample_replies", given)
    found = {guard.name: guard.passed for guard in GuardMeasurement(learner, guards.heldout, 4).measure()}
    assert sorted(asked) == [(False, 0.5), (False, 1.0), (True, 0.5), (True, 1.0)]
    assert [name for name, passed in found.items() if not passed] == failed


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
    fresh = GuardMeasurement(guards.learner, Examples([], []), 8)  # nobody has liked anything
    fresh.prompts = guards.prompts
    assert [guard.passed for guard in fresh.measure()[2:]] == ([True, True, False, True] if better else [False] * 4)


LOWER, HIGHER = np.array([1.0, 2.0, 2.0, 4.0, 3.0]), np.array([1.5, 3.0, 2.5, 6.0, 3.0])


@pytest.mark.parametrize(
    ("ours", "first", "liked", "both_ways", "excess"),
    [
        (HIGHER, LOWER, [], False, 0.8),
        (LOWER, HIGHER, [], False, -0.8),
        (LOWER, HIGHER, [], True, 0.8),
        (LOWER, LOWER, [], False, 0),
        (
            HIGHER,
            LOWER,
            [2.9],
            False,
            0.3,
        ),  # what people like is 0.5 higher than the first version's mean, which is 2.4
        (HIGHER, LOWER, [1.9], False, 0.8),
        (HIGHER, LOWER, [2.9], True, 0.3),
        (LOWER, HIGHER, [2.7], True, 0.3),
    ],
)
def test_a_worsening_is_what_the_liked_replies_do_not_have_in_standard_errors(ours, first, liked, both_ways, excess):
    """Differences .5, 1, .5, 2, 0: mean .8, standard deviation sqrt(2.3 / 4)."""
    found = worsening(ours, first, np.array(liked), both_ways=both_ways)
    assert found == pytest.approx(excess / math.sqrt(2.3 / 4 / 5))


def test_what_people_like_is_known_as_well_as_there_are_liked_replies():
    """Where it allows something, the error of its mean counts as well: of 2.4 and 3.4, a deviation of sqrt(1 / 2)."""
    liked = np.array([2.4, 3.4])
    found = [worsening(*pair, liked) for pair in ((HIGHER, LOWER), (LOWER, HIGHER))]
    assert found[0] == pytest.approx(0.3 / math.sqrt(2.3 / 4 / 5 + 1 / 2 / 2))
    assert found[1] == pytest.approx(
        -0.8 / math.sqrt(2.3 / 4 / 5)
    )  # higher is liked, but less than what was said first


def test_without_noise_a_worsening_counts_in_full_and_of_one_line_the_noise_is_not_known():
    assert worsening(LOWER + 1, LOWER, np.empty(0)) > 1e3
    assert worsening(HIGHER[:1], LOWER[:1], np.empty(0)) == 0


def test_stored_lines_come_after_those_held_out_and_fewer_than_fifty_are_repeated(bot):
    guards, _ = measured_by(bot, guard_prompts=10)
    heldout = list(dict.fromkeys(tuple(one.prompt_turns) for one in guards.prompts))
    own = [*heldout[:2], *((f"Stored {number} .",) for number in range(100))]
    stored = [DialoguePrompt(turns, None) for turns in own]
    for count, num_stored, wanted in ((1000, 100, 108), (50, 100, 50), (1000, 12, 50)):
        one = GuardMeasurement(guards.learner, guards.heldout, count, stored[: num_stored + 2])
        lines = [tuple(prompt.prompt_turns) for prompt in one.prompts]
        assert (len(lines), lines[:8]) == (wanted, heldout)
        assert len(set(lines)) == min(wanted, 8 + num_stored)


def test_a_sentence_ends_with_a_mark():
    assert all(map(is_unfinished, ["It is from seven to", "Well,", ""]))
    assert not any(map(is_unfinished, ["It is from seven to ten .", 'She said "yes!"', "(It is free.) ", "是的。"]))


AT_MOST = {1.01: (False, False), 1.0: (True, False), 0.96: (True, False), 0.94: (True, True), math.nan: (False, True)}
AT_LEAST = {0.99: (False, False), 1.0: (True, False), 1.04: (True, False), 1.06: (True, True)}


def test_a_limit_and_the_room_before_it():
    for at_most, table in ((True, AT_MOST), (False, AT_LEAST)):
        for value, (passed, has_room) in table.items():
            guard = GuardLimit("x", value, 1.0, at_most)
            assert (guard.passed, guard.has_room) == (passed, has_room)
            assert guard.as_json()["value"] == (None if math.isnan(value) else value)


# --- answers that have changed ---


PROMPTS = [DialoguePrompt((f"Hello {number} .",), None) for number in range(12)]


def test_five_lines_have_to_change_or_all_of_fewer_and_each_is_shown_on_three_lines():
    change = AnswerChange("two\nlines", "", "a  b")
    for num_lines, count, is_enough in [(50, 5, True), (50, 4, False), (20, 4, False), (3, 3, True), (3, 2, False)]:
        assert ChangedAnswers(num_lines, [change] * count).is_enough is is_enough
    shown = ChangedAnswers(50, [change]).shown_lines()
    assert "49 answers" in shown[0]
    assert "0.0 before, 2.0 after" in shown[1]
    assert "(2%)" in shown[0]
    assert shown[2:] == ["  line    two lines", "  before  (nothing)", "  after   a b"]


def test_other_weights_answer_as_each_would_by_itself(bot):
    """At temperature 0 against `chat` of each version; the temperature is that of the chat."""
    learner = learner_with_noise(bot, 0.3)
    learner.agent.settings = learner.agent.settings.model_copy(update={"chat_temperature": 0.0})
    found = compare_answers(learner, learner.reference_policy, PROMPTS)
    assert learner.agent.sampling.temperature == 1
    greedy = learner.agent.settings.model_copy(update={"chat_temperature": None, "top_k": 1})
    first = ChatAgent.load(bot.agent_folder("0001"), settings=greedy)  # the likeliest token, by another way
    before = [first.chat(line) for (line,), _ in PROMPTS]
    first.policy.lm.load_state_dict(learner.policy.lm.state_dict())
    after = [first.chat(line) for (line,), _ in PROMPTS]
    wanted = [
        AnswerChange(line, old, new)
        for ((line,), _), old, new in zip(PROMPTS, before, after, strict=True)
        if old != new
    ]
    assert wanted
    assert found == ChangedAnswers(12, wanted)


# --- the report ---


USED = {"new": 48, "replayed": 16, "people": 9, "liked": 28, "disliked": 22, "pairs": 14, "sft": 13, "steps": 5}


def report(**fields):
    given = ("bot", "0003", 412, USED, {"repetitions": 2, "scores of 3": 5}, "45 held-out events", "because")
    return NightReport(*given, **fields)


def test_the_lines_of_a_night():
    found = report(
        metrics={"steps": 30, "loss": 0.5},
        went_back="went back",
        guards=[GuardLimit("KL", 2.0, 1.0, True)],
        comparison=GateComparison(45, 0.55, 0.61, -0.021, 0.041, 7),
        changed=ChangedAnswers(50, [AnswerChange("Is it far ?", "No .", "No , madam .")] * 7),
        removed=["0001", "0002"],
    )
    assert len(report().lines()) == 5
    lines = found.lines()
    assert lines[-1] == "because"
    text = "\n".join(lines)
    numbers = ["champion 0003", "event 412", *(f"{USED[name]} {name}" for name in ("new", "people", "liked", "steps"))]
    numbers += ["16 older", "22 dis", "14 edits"]
    numbers += ["5 scores of 3, 2 repetitions", "steps 30, loss 0.500", "went back", "KL 2 (at most 1: FAILED)"]
    numbers += ["0.610", "0.550", "+6.0 points", "-2.1", "error 4.1", "7 of the newest 50", "at least 5", "0001, 0002"]
    assert [number for number in numbers if number not in text] == []
    assert text.count("  after   No , madam .") == 5


def test_the_record_of_the_gate_is_json():
    found = report(comparison=GateComparison(45, 0.5, 0.6, -0.02, 0.04), guards=[GuardLimit("KL", math.nan, 1.0, True)])
    record = found.gate_record()
    assert (record["concordance"], record["num_events"], record["promoted"]) == (0.6, 45, False)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["changed_lines"] is None
    unknown = report(comparison=GateComparison(45, 0.5, 0.6, math.nan, math.nan)).gate_record()
    assert (unknown["low"], unknown["standard_error"]) == (None, None)


def test_a_line_is_answered_after_the_system_message_of_its_dialogue(bot, monkeypatch):
    learner = learner_with_noise(bot, 0.5, guard_prompts=4)
    with closing(bot.store()) as store:
        heldout = heldout_set(read_examples(store), learner.settings)
    systems = ["Be brief .", "Be kind .", None]
    asked = replace(heldout, answers=[heldout.answers[0]._replace(system=text) for text in systems], pairs=[])
    encode, seen = learner.agent.encoder.encode_prompt, []

    def encoded(turns, system=None):
        seen.append((tuple(turns), system))
        return encode(turns, system)

    monkeypatch.setattr(learner.agent.encoder, "encode_prompt", encoded)
    guards = GuardMeasurement(learner, asked, 4)
    assert [one.system for one in guards.prompts] == [None, "Be kind .", "Be brief .", None]
    guards.measure()
    assert {system for _, system in seen} == set(systems)
    seen.clear()
    compare_answers(learner, learner.reference_policy, [DialoguePrompt(("Hi .",), text) for text in systems])
    assert set(seen) == {(("Hi .",), text) for text in systems}
