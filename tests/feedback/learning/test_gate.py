"""The gate: concordance against a double loop, the bootstrap by dialogue, the rule of promotion, and what it can see."""

import math
import random
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_dialog.feedback.learning import gate
from rlhf_dialog.feedback.learning.gate import GateComparison, compare, describe_people, describe_power, expected_error
from rlhf_dialog.feedback.store.examples import AnswerPair, HeldOut, RatedAnswer
from rlhf_dialog.feedback.store.settings import BotSettings


def held_out(rows, pairs=(), per_dialogue=1, people=1):
    """`rows` are (kind, liked, weight), `pairs` weights; the events are numbered, and dealt out to the people."""
    answers = [
        RatedAnswer((), "", liked, kind, f"p{i % people}", f"d{i // per_dialogue}", i)
        for i, (kind, liked, _) in enumerate(rows)
    ]
    start = len(rows)
    some = [
        AnswerPair((), "", "", "edit", "p", f"d{(start + i) // per_dialogue}", start + i) for i in range(len(pairs))
    ]
    weights = {i: weight for i, (_, _, weight) in enumerate(rows)} | {start + i: w for i, w in enumerate(pairs)}
    return HeldOut(answers, some, {}, weights)


def scores_of(answers, margins=()):
    scores = {str(i): score for i, score in enumerate(answers)}
    for i, margin in enumerate(margins):
        scores |= {f"{len(answers) + i}+": margin, f"{len(answers) + i}-": 0.0}
    return scores


def slow_concordance(rows, scores, pairs=(), margins=()):
    """The definition, as a loop over every liked and every disliked answer of a kind."""
    top = bottom = 0.0
    for kind in {kind for kind, _, _ in rows}:
        own = [(liked, weight, score) for (k, liked, weight), score in zip(rows, scores, strict=True) if k == kind]
        liked, disliked = ([one for one in own if one[0] is label] for label in (True, False))
        hits = whole = 0.0
        for _, w, s in liked:
            for _, v, t in disliked:
                hits += w * v * ((s > t) + 0.5 * (s == t))
                whole += w * v
        if whole:
            worth = 4 * whole / sum(weight for _, weight, _ in own)
            top, bottom = top + worth * hits / whole, bottom + worth
    for weight, margin in zip(pairs, margins, strict=True):
        top, bottom = top + weight * ((margin > 0) + 0.5 * (margin == 0)), bottom + weight
    return top / bottom if bottom else math.nan


ROW = st.tuples(st.sampled_from(["thumb", "score"]), st.booleans(), st.sampled_from([0.25, 0.5, 1.0]))


@given(st.lists(ROW, max_size=25), st.lists(st.sampled_from([0.5, 1.0]), max_size=5), st.integers(0, 10**6))
def test_concordance_is_that_of_the_double_loop(rows, pairs, seed):
    """Few different scores, so that many are equal."""
    draw = random.Random(seed)
    drawn = [([draw.randrange(5) for _ in rows], [draw.randrange(-1, 2) for _ in pairs]) for _ in range(2)]
    found = compare(held_out(rows, pairs), *(scores_of(*one) for one in drawn))
    wanted = [slow_concordance(rows, scores, pairs, margins) for scores, margins in drawn]
    assert [found.champion, found.candidate] == pytest.approx(wanted, nan_ok=True)
    assert found.num_events == len(rows) + len(pairs)
    assert gate.is_comparable(held_out(rows, pairs)) == math.isfinite(wanted[0])


def test_answers_of_one_dialogue_are_drawn_together():
    """Each answer ten times: alone they look ten times as many, in one dialogue they are what they were."""
    rng = np.random.default_rng(1)
    rows = [("thumb", bool(one), 1.0) for one in rng.random(60) < 0.5]
    scores = [rng.standard_normal(60).tolist() for _ in range(2)]
    many = [[one for one in some for _ in range(10)] for some in (rows, *scores)]
    alone = compare(held_out(rows), *map(scores_of, scores)).standard_error
    apart = compare(held_out(many[0]), *map(scores_of, many[1:])).standard_error
    together = compare(held_out(many[0], per_dialogue=10), *map(scores_of, many[1:])).standard_error
    assert together == pytest.approx(alone, rel=1e-6)
    assert apart == pytest.approx(alone / math.sqrt(10), rel=0.25)


def test_large_held_out_sets_are_resampled_in_parts(monkeypatch):
    rng = np.random.default_rng(2)
    rows = [("thumb", bool(one), 1.0) for one in rng.random(40) < 0.5]
    inputs = (held_out(rows), *(scores_of(rng.standard_normal(40).tolist()) for _ in range(2)))
    whole = compare(*inputs)
    monkeypatch.setattr(gate, "AT_ONCE", 1000)
    assert compare(*inputs) == whole


def test_the_rule_of_promotion():
    """A third of a standard error below 0 is enough."""
    enough = [(0.04, 0.001, 0.02), (0.04, -0.006, 0.02), (0.1, -0.03, 0.1)]
    too_little = [(0.04, -0.007, 0.02), (0.04, -(1 / 3) * 0.02, 0.02), (0.0, 0.0, 0.0), (0.0, 0.001, 0.02)]
    too_little += [(-0.001, 0.0, 0.02), (math.nan, math.nan, math.nan)]
    found = [GateComparison(30, 0.5, 0.5 + gain, low, error).is_enough for gain, low, error in [*enough, *too_little]]
    assert found == [True] * 3 + [False] * 6


def test_the_expected_error():
    assert expected_error(30) == pytest.approx(1 / math.sqrt(90))
    assert expected_error(120, {"standard_error": 0.08, "num_events": 30}) == pytest.approx(0.04)
    assert expected_error(100, {"standard_error": 0.0, "num_events": 30}) == 0.005
    assert expected_error(30, {"standard_error": None, "num_events": 30}) == pytest.approx(1 / math.sqrt(90))


def test_the_line_of_power():
    settings = BotSettings(min_heldout=30)
    some, many, of_six = (
        describe_power(held_out([("thumb", True, 1.0)] * count, people=people), 700, settings)
        for count, people in ((29, 1), (150, 1), (150, 6))
    )
    assert [word for word in ("700 ratings", "29 are held out", "about 150 ratings") if word not in some] == []
    assert "150 held-out events of this one person: the gate can see +12 points" in many
    assert "150 held-out events: the gate can see +15 points" in of_six


def of_people(rng, gain, spread, people=6, events=10):
    """A comparison on thumbs of people who differ: what each sees of the gain varies by `spread`, in deviations of a score. The
    scores of one liked and one disliked answer that are d deviations apart have the concordance Phi(d / sqrt(2))."""
    person = np.repeat(np.arange(people), events)
    liked = rng.random(len(person)) < 0.5
    scores = rng.standard_normal((2, len(person)))
    scores[1] = 0.5 * scores[0] + math.sqrt(0.75) * scores[1]
    apart = [math.sqrt(2) * NormalDist().inv_cdf(one) for one in (0.6, 0.6 + gain)]
    scores[0] += apart[0] * liked
    scores[1] += (apart[1] + rng.normal(0, spread, people)[person]) * liked
    rows = [RatedAnswer((), "", bool(liked[i]), "thumb", f"p{person[i]}", f"d{i}", i) for i in range(len(person))]
    heldout = HeldOut(rows, [], {}, dict.fromkeys(range(len(rows)), 1.0))
    return compare(heldout, *({str(i): x for i, x in enumerate(row)} for row in scores.tolist()))


def test_where_people_differ_a_worse_version_is_promoted_in_six_nights_of_a_hundred_at_most():
    """By dialogues it were 13 of a hundred (measured); three binomial errors of 400 nights are 3.6."""
    rng = np.random.default_rng(1)
    nights = [of_people(rng, -0.05, spread=1.0) for _ in range(400)]
    assert np.mean([one.is_enough for one in nights]) <= 0.06 + 3 * math.sqrt(0.06 * 0.94 / 400)
    errors, differences = ([getattr(one, name) for one in nights] for name in ("standard_error", "difference"))
    assert np.mean(errors) == pytest.approx(np.std(differences), rel=0.15)


def test_fewer_than_five_people_speak_for_themselves():
    rows = [("thumb", i % 3 > 0, 1.0) for i in range(40)]
    scores = [scores_of(np.random.default_rng(i).standard_normal(40).tolist()) for i in range(2)]
    of = {count: compare(held_out(rows, people=count), *scores) for count in (1, 4, 5)}
    assert [describe_people(one.num_people) for one in of.values()] == [" of this one person", " of these 4 people", ""]
    assert of[1].low == of[4].low != of[5].low
