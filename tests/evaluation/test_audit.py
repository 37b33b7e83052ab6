"""Each hole that was planted in a reward is found and named; a sound reward passes."""

import math
import re
from collections import Counter

import numpy as np
import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation import audit
from rlhf_dialog.evaluation.audit import NEIGHBOURS, PAID, AuditScorer, summary_row
from rlhf_dialog.evaluation.probes import CLIMBED, GROWN, RETRIEVED
from rlhf_dialog.rewards import BaseReward, Meteor
from rlhf_dialog.rewards.scoring import Scorer
from tests.parts.audits import SMALL, Rule, Summed, audited, holes, overlap, talks

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


class Moody(BaseReward):
    """Another score each time."""

    name = "moody"

    def __init__(self):
        self.calls = 0

    def __call__(self, dialogues):
        self.calls += 1
        return [overlap(dialogue) + self.calls % 3 for dialogue in dialogues]


def test_a_sound_reward_passes_and_the_replies_are_counted():
    asked = []
    judge = Rule(lambda d: asked.append(d.response) or overlap(d))
    result = audited(Rule(lambda d: asked.append(d.response) or overlap(d)), {"judge": judge})
    assert result["findings"] == []
    assert result["asked"] == len(asked)
    assert result["probes"]["true reply"]["paid"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert all(row["difference"]["high"] < 0 for name, row in result["probes"].items() if name != "true reply")


def test_a_reward_that_is_always_the_same_has_no_defect():
    assert audited(Rule(lambda d: 1.0))["findings"] == []  # though the scores have no deviation


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (lambda d: "<EOU>" in d.response, ["<EOU> appended"]),
        (lambda d: 3 * (d.response == d.prompt_turns[-2]), ["copy of turn -2"]),
        (lambda d: 3 * d.response.startswith("I don't know"), ["'I don't know .'"]),
    ],
    ids=["separator", "copy of the turn before the last", "template"],
)
def test_a_planted_bonus_is_found_and_nothing_else(rule, names):
    assert holes(audited(with_bonus(rule))) == names


@pytest.mark.slow
def test_a_score_that_depends_on_its_batch_or_changes_is_found():
    assert "other dialogues in the batch" in holes(audited(Leaky()))
    found = holes(audited(Moody()))
    assert "the same reply again" in found
    assert "other dialogues in the batch" not in found


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
    return [finding["probe"] for finding in result["findings"] if audit.finding_kind(finding) == kind]


def test_the_replies_of_the_search_are_shown_with_what_they_are_paid():
    result = audited(Rule(lambda d: -abs(len(d.response.split()) - 20)))
    assert result["search"][CLIMBED]["num_prompts"] == result["search"][RETRIEVED]["num_prompts"] == SMALL.prompts
    for one in result["found"]:
        for kind in ("true reply", RETRIEVED, CLIMBED, GROWN):
            assert one[kind]["paid"] == -abs(len(one[kind]["text"].split()) - 20)
    assert len(result["found"]) == 5
    gains = [one[CLIMBED]["paid"] - one["true reply"]["paid"] for one in result["found"]]
    assert gains == sorted(gains, reverse=True)


def test_the_same_seed_gives_the_same_audit():
    first, second = (audited(with_bonus(paid_for_a_word)) for _ in range(2))
    assert first == second


def test_a_row_by_hand():
    true = {PAID: np.asarray([1.0, 2, 3, 4]), "judge": np.asarray([1.0, 1, 1, 1])}
    here = {PAID: np.asarray([2.0, 2, np.nan, 7]), "judge": np.asarray([0.0, np.nan, np.nan, 0.5])}
    row = summary_row(here, true, np.arange(4), seed=0)
    assert row["num_prompts"] == 3
    assert row["paid"]["mean"] == pytest.approx(11 / 3)
    assert row["difference"]["mean"] == pytest.approx((1 + 0 + 3) / 3)  # on the prompts that have both
    assert row["difference"]["low"] < row["difference"]["mean"] < row["difference"]["high"]
    assert row["more"]["mean"] == pytest.approx(2 / 3)  # an equal score is not more
    assert row["judges"]["judge"]["difference"]["mean"] == pytest.approx(-0.75)
    assert row["judges"]["judge"]["mean"]["mean"] == 0.25


def test_prompts_of_one_dialogue_are_one_unit():
    """With two dialogues, of which each has ten prompts, the interval is wider than with twenty."""
    table, zero = {PAID: np.asarray([1.0] * 10 + [2.0] * 10)}, {PAID: np.zeros(20)}
    together, apart = (
        summary_row(table, zero, units, 0)["difference"] for units in (np.repeat([0, 1], 10), np.arange(20))
    )
    assert together["high"] - together["low"] > 5 * (apart["high"] - apart["low"])


def row(low, mean=None, judges=None):
    found = {"mean": low + 0.1 if mean is None else mean, "low": low, "high": 9.0}
    return {"difference": found, "more": {"mean": 0.5}, "judges": judges or {}}


def judged(high):
    return {"difference": {"mean": -1.0, "low": -2.0, "high": high}}


def of(probes=None, search=None, defects=(), telling=()):
    result = {"probes": probes or {}, "search": search or {}, "telling": telling}
    return audit.list_findings(result, defects)


def test_a_fixed_probe_is_a_hole_where_its_interval_lies_above_zero_and_the_largest_comes_first():
    lows = {"small": 0.001, "zero": 0.0, "below": -0.1, "unknown": math.nan}
    probes = {name: row(low) for name, low in lows.items()} | {"large": row(0.1, 0.8)}
    found = of(probes, defects=[{"probe": NEIGHBOURS, "largest": 1.5}])
    assert [(one["probe"], one["hole"]) for one in found] == [(NEIGHBOURS, True), ("large", True), ("small", True)]


@pytest.mark.parametrize(
    ("low", "judges", "telling", "kinds"),
    [
        (0.1, {}, [], ["not judged"]),
        (0.1, {"first": judged(0.1)}, [], ["not judged"]),
        (0.1, {"first": judged(0.1)}, ["first"], ["note"]),
        (0.1, {"first": judged(0.1), "second": judged(0.2)}, ["first"], ["note"]),
        (0.1, {"first": judged(0.1), "second": judged(-0.1)}, ["first"], ["hole"]),
        (-0.1, {"first": judged(-0.1)}, ["first"], []),
        (-0.1, {}, [], []),
    ],
)
def test_the_search_needs_a_judge_and_one_that_tells_true_from_random(low, judges, telling, kinds):
    found = of(search={"words": row(low, judges=judges)}, telling=telling)
    assert [audit.finding_kind(one) for one in found] == kinds
    said = {
        "hole": "but second says -1.000 [-2.000, -0.100]",
        "note": "no judge puts it below them: first says -1.000 [-2.000, +0.100]",
        "not judged": "none can say whether they are worse",
    }
    for kind, one in zip(kinds, found, strict=True):
        assert one["text"].startswith("words: paid +0.200 [+0.100, +9.000] more than true replies, and more at 50% of")
        assert one["text"].endswith(said[kind])


def plain_cosine(words, text, texts):
    """Of two lists of words, weighted by count and log(N / number of the N texts with the word, at least 1)."""
    rare = {word: math.log(len(texts) / max(1, sum(word in other for other in texts))) for word in [*words, *text]}
    ours, theirs = ({w: n * rare[w] for w, n in Counter(some).items()} for some in (words, text))
    lengths = [math.sqrt(sum(x * x for x in some.values())) for some in (ours, theirs)]
    return sum(ours[w] * theirs.get(w, 0) for w in ours) / (math.prod(lengths) or 1)


def single(text):
    return re.findall(r"[a-z']+|[0-9]+", text.lower())


def with_pairs(text):
    words = single(text)
    return words + [f"{a} {b}" for a, b in zip(["", *words], [*words, ""], strict=True)]


def plain_judge(prompts, dialogue, nearest):
    last_turns = [single(prompt.prompt_turns[-1]) for prompt in prompts]
    replies = [with_pairs(prompt.reference) for prompt in prompts]
    near = [
        (plain_cosine(single(dialogue.prompt_turns[-1]), turn, last_turns), -i)
        for i, turn in enumerate(last_turns)
        if prompts[i].meta["dialogue"] != dialogue.meta["dialogue"]
    ]
    near = sorted(near, reverse=True)[:nearest]
    values = [plain_cosine(with_pairs(dialogue.response), replies[-i], replies) for _, i in near]
    return sum(w * x for (w, _), x in zip(near, values, strict=True)) / (sum(w for w, _ in near) or 1)


def test_the_judge_equals_plain_loops(monkeypatch):
    monkeypatch.setattr(audit, "NEAREST", 4)
    prompts = talks(40)
    judge = audit.RetrievalJudge(prompts)
    said = ["The honey is near the mill .", "mill the near is honey The", "zebra", "", "The zebra !"]
    pairs = [(prompt, text) for prompt in prompts[:5] for text in (prompts[0].reference, *said)]
    dialogues = [Dialogue(prompt.prompt_turns, response=text, meta=prompt.meta) for prompt, text in pairs]
    expected = [plain_judge(prompts, dialogue, 4) for dialogue in dialogues]
    assert judge(dialogues) == pytest.approx(expected, abs=1e-12)
    assert max(expected) > 0.1


def test_without_another_dialogue_everything_is_worth_nothing():
    prompts = [Dialogue(["Hi ."], reference="Hello .", meta={"dialogue": 0})] * 2
    judge = audit.RetrievalJudge(prompts)
    assert judge([Dialogue(["Hi ."], response="Hello .", meta={"dialogue": 0})]) == [0.0]


LETTERS = Rule(lambda d: len(d.response), "letters")


def payer(reward, judges=None, skip=False):
    return AuditScorer(Scorer(reward, skip), judges or {})


def test_a_prompt_without_a_text_or_score_has_no_number():
    reward = Summed((2.0, LETTERS), (1.0, Rule(lambda d: 1.0, "one")))
    paid = payer(reward, {"judge": LETTERS}).score_texts(talks(3), ["ab", None, ""])
    assert paid[PAID][[0, 2]].tolist() == [5.0, 1.0]
    assert paid["judge"][[0, 2]].tolist() == [2.0, 0.0]
    assert all(math.isnan(values[1]) for values in paid.values())
    picky = Rule(lambda d: math.inf if d.response == "x" else 1.0)  # where the run skips it
    assert str(payer(picky, skip=True).score_texts(talks(2), ["x", "y"])[PAID].tolist()) == "[nan, 1.0]"


def test_calls_are_of_a_bounded_size_and_keep_the_order(monkeypatch):
    monkeypatch.setattr(audit, "CALL", 4)
    sizes = []

    class Counting(Rule):
        def __call__(self, dialogues):
            sizes.append(len(dialogues))
            return super().__call__(dialogues)

    asking = payer(Counting(lambda d: int(d.response)))
    assert asking.score_texts(talks(10), [str(i) for i in range(10)])[PAID].tolist() == list(range(10))
    assert (sizes, asking.asked) == ([4, 4, 2], 10)


def test_no_line_of_the_page_is_wider_than_100_columns_and_the_verdict_comes_first():
    rule = Rule(lambda d: 1e5 * len(d.response), "a_part_of_a_reward_with_a_name_that_is_long")
    result = audited(Summed((1.0, SOUND), (1.0, rule)), {"judge": Rule(lambda d: -len(d.response))})
    settings = {"num_prompts": 30, "budget": {"size": 1000, "prompts": 10}}
    first, second, *rest = audit.page_lines(result | {"settings": settings})
    kinds = [audit.finding_kind(one) for one in result["findings"]]
    looked = f"{len(result['probes']) - 1} probes on 30 prompts, and a search of 1,000 replies on 10"
    assert first == f"{kinds.count('hole')} holes found: {looked}"
    assert second.startswith("  hole: ")
    assert f"  and {len(kinds) - 12} more, which --output lists" in rest
    texts = rest[rest.index(f"said last: {result['found'][0]['last_turn']}") :]
    assert len(texts) == 2 * 5
    assert max(map(len, texts)) <= 100


@pytest.mark.parametrize(
    ("kinds", "verdict"),
    [
        ([], "no hole found: "),
        (["note"], "no hole found: "),
        (["unjudged", "note"], "found, not judged: "),
        (["hole", "unjudged"], "1 hole found, and found, not judged: "),
        (["hole", "hole"], "2 holes found: "),
    ],
)
def test_a_search_that_no_judge_looked_at_is_not_called_sound(kinds, verdict):
    findings = [{"hole": kind == "hole", "unjudged": kind == "unjudged"} for kind in kinds]
    settings = {"num_prompts": 30, "budget": {"size": 1000, "prompts": 10}}
    result = {"findings": findings, "settings": settings, "probes": {}}
    assert audit.verdict_line(result).startswith(verdict)
