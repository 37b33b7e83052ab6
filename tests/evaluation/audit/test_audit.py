"""Each hole that was planted in a reward is found and named; a sound reward passes."""

import numpy as np
import pytest

from rlhf_dialog.evaluation.audit import page
from rlhf_dialog.evaluation.audit.audit import (
    CLIMBED,
    GROWN,
    RETRIEVED,
    RetrievalJudge,
    ScoreTable,
    flat_parts,
    summary_row,
)
from rlhf_dialog.rewards import BaseReward, Meteor
from tests.parts.audits import INFORMS, SMALL, Rule, Summed, audited, holes, overlap, talks

SOUND = Rule(overlap, "overlap")


def with_bonus(rule, weight=0.5):
    """The sound reward with a planted hole."""
    return Summed((1.0, SOUND), (weight, Rule(rule, "planted")))


class Leaky(BaseReward):
    """METEOR of the neighbour's reply, as where rows of a batch are mixed up."""

    name = "leaky"

    def __init__(self):
        self.meteor = Meteor("off")

    def __call__(self, dialogues):
        scores = self.meteor(dialogues)
        return [*scores[1:], scores[0]]


class Centred(BaseReward):
    """The distance from the mean of the call, which is the same in any order."""

    name = "centred"

    def __call__(self, dialogues):
        values = [overlap(dialogue) for dialogue in dialogues]
        return [value - sum(values) / len(values) for value in values]


class Moody(BaseReward):
    """Another score each time."""

    name = "moody"

    def __init__(self):
        self.calls = 0

    def __call__(self, dialogues):
        self.calls += 1
        return [overlap(dialogue) + self.calls % 3 for dialogue in dialogues]


def test_a_sound_reward_passes():
    result = audited(SOUND, {"judge": SOUND})
    assert result["findings"] == []
    assert result["probes"]["true reply"]["paid"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert all(row["difference"]["high"] < 0 for name, row in result["probes"].items() if name != "true reply")


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (lambda d: "<EOU>" in d.response, ["<EOU> appended"]),
        (lambda d: 4 * d.response.endswith("</s>"), ["</s> appended", "</s> alone"]),
        (lambda d: 3 * (d.response == d.prompt_turns[-2]), ["copy of turn -2"]),
        (lambda d: 3 * (d.response == ""), ["empty"]),
        (lambda d: 3 * d.response.startswith("I don't know"), ["'I don't know .'"]),
    ],
    ids=["separator", "end of turn", "copy of the turn before the last", "empty", "template"],
)
def test_a_planted_bonus_is_found_and_nothing_else(rule, names):
    assert holes(audited(with_bonus(rule))) == names


def test_a_bonus_for_length_is_found_and_the_longest_comes_first():
    found = holes(audited(with_bonus(lambda d: len(d.response.split()))))
    assert set(found[:2]) == {"typical words, 16", "repeated word, 16"}
    assert {"</s> appended", "[SEP] appended"} < set(found)  # one word more than the true reply
    assert not {"empty", "typical words, 1", "random reply", "shuffled true reply"} & set(found)


def test_an_act_that_is_always_paid_is_found():
    """A classifier's word for `inform`, no matter which act is wanted."""
    result = audited(Rule(lambda d: d.response == INFORMS or d.response.startswith("The "), "intent"))
    assert {"act inform", "most common reply"} <= set(holes(result))
    assert result["probes"]["act inform"]["example"] == INFORMS
    informs = sum(prompt.act == 1 for prompt in talks())
    assert result["probes"]["act inform"]["more"]["mean"] == pytest.approx(1 - informs / 30)


@pytest.mark.parametrize("reward", [Leaky(), Centred()], ids=["neighbour", "mean of the batch"])
def test_a_score_that_depends_on_its_batch_is_found(reward):
    assert "other dialogues in the batch" in holes(audited(reward))


def test_a_score_that_is_another_one_each_time_is_found():
    found = holes(audited(Moody()))
    assert "the same reply again" in found
    assert "other dialogues in the batch" not in found


def test_a_part_that_does_not_vary_is_named_and_is_no_hole():
    result = audited(Summed((1.0, SOUND), (5.0, Rule(lambda d: 0.99, "sure"))))
    assert holes(result) == []
    (note,) = result["findings"]
    assert note["probe"] == "part sure"
    assert result["probes"]["true reply"]["parts"] == {"overlap": 1.0, "sure": pytest.approx(4.95)}


def paid_for_a_word(dialogue):
    """Most for a word that no list has; true replies hold it at times."""
    return dialogue.response.split().count("friend") + dialogue.response.split().count("honey")


def test_what_the_search_finds_is_a_hole_where_a_judge_puts_it_below():
    reward = with_bonus(paid_for_a_word, weight=2.0)
    alone = audited(reward)
    assert alone["search"][CLIMBED]["difference"]["low"] > 0
    assert CLIMBED not in holes(alone)
    assert CLIMBED in of_kind(alone, "not judged")
    against = audited(reward, {"judge_overlap": SOUND})
    assert CLIMBED in holes(against)
    (finding,) = (one for one in against["findings"] if one["probe"] == CLIMBED)
    assert finding["judges"]["judge_overlap"]["high"] < 0
    same = audited(reward, {"judge_same": Rule(paid_for_a_word)})  # random replies hold the words as often as true ones
    assert CLIMBED in of_kind(same, "not judged")
    for_it = audited(reward, {"judge": Rule(lambda d: overlap(d) + paid_for_a_word(d))})
    assert for_it["telling"] == ["judge"]
    assert CLIMBED in of_kind(for_it, "note")


def of_kind(result, kind):
    return [finding["probe"] for finding in result["findings"] if page.finding_kind(finding) == kind]


def test_retrieval_finds_words_that_nobody_says_after_such_a_line():
    """A reward that pays for a word in any reply; of 300 other talks, none answers with a heap of it."""
    judge = {"judge_retrieval": RetrievalJudge([*talks(), *talks(300, seed=2)])}
    result = audited(with_bonus(paid_for_a_word, weight=2.0), judge)
    assert result["telling"] == ["judge_retrieval"]
    assert {CLIMBED, GROWN} <= set(holes(result))


def test_the_replies_of_the_search_are_shown_with_what_they_are_paid():
    result = audited(Rule(lambda d: -abs(len(d.response.split()) - 20)))
    assert result["search"][CLIMBED]["num_prompts"] == result["search"][RETRIEVED]["num_prompts"] == SMALL.prompts
    for one in result["found"]:
        for kind in ("true", "training reply", "changed words", "words from nothing"):
            assert one[kind]["paid"] == -abs(len(one[kind]["text"].split()) - 20)
    gains = [one["changed words"]["paid"] - one["true"]["paid"] for one in result["found"]]
    assert gains == sorted(gains, reverse=True)


def test_the_count_of_replies_is_what_the_reward_and_the_judges_were_asked():
    asked = []
    reward = Rule(lambda d: asked.append(d.response) or overlap(d))
    result = audited(reward, {"judge": Rule(lambda d: asked.append(d.response) or 0.0)})
    assert result["asked"] == len(asked)


def test_the_same_seed_gives_the_same_audit():
    first, second = (audited(with_bonus(paid_for_a_word)) for _ in range(2))
    assert first == second


NAN = np.nan


def test_a_row_by_hand():
    true = ScoreTable(np.asarray([1.0, 2, 3, 4]), {}, {"judge": np.asarray([1.0, 1, 1, 1])})
    here = ScoreTable(
        np.asarray([2.0, 2, NAN, 7]), {"a": np.asarray([1.0, 2, NAN, 3])}, {"judge": np.asarray([0.0, NAN, NAN, 0.5])}
    )
    row = summary_row(here, true, np.arange(4), seed=0)
    assert row["num_prompts"] == 3
    assert row["paid"]["mean"] == pytest.approx(11 / 3)
    assert row["difference"]["mean"] == pytest.approx((1 + 0 + 3) / 3)  # on the prompts that have both
    assert row["difference"]["low"] < row["difference"]["mean"] < row["difference"]["high"]
    assert row["more"]["mean"] == pytest.approx(2 / 3)  # an equal score is not more
    assert row["parts"] == {"a": 2.0}
    assert row["judges"]["judge"]["difference"]["mean"] == pytest.approx(-0.75)
    assert row["judges"]["judge"]["mean"]["mean"] == 0.25


def test_prompts_of_one_dialogue_are_one_unit():
    """With two dialogues, of which each has ten prompts, the interval is wider than with twenty."""
    values = np.asarray([1.0] * 10 + [2.0] * 10)
    zero = ScoreTable(np.zeros(20), {})
    together, apart = (
        summary_row(ScoreTable(values, {}), zero, units, 0)["difference"]
        for units in (np.repeat([0, 1], 10), np.arange(20))
    )
    assert together["high"] - together["low"] > 5 * (apart["high"] - apart["low"])


def test_a_part_is_flat_below_a_hundredth_of_the_scores_deviation():
    score = np.asarray([-1.0, 1, -1, 1])
    parts = {"all": score, "little": 0.011 * score, "nothing": 0.009 * score}
    halves = [ScoreTable(score[:2], {name: values[:2] for name, values in parts.items()}) for _ in range(2)]
    assert flat_parts(halves) == ["nothing"]
