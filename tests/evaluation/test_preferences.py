"""The report on held-out pairs: every number by hand, and what it says of models that measure something else."""

import numpy as np
import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.preferences import PreferencePair
from rlhf_dialog.evaluation import preferences as report


def pair(chosen, rejected, prompt="a b", where="x"):
    return PreferencePair(Dialogue([prompt], chosen), Dialogue([prompt], rejected), None, where)


def words(dialogues):
    return [float(len(dialogue.response.split())) for dialogue in dialogues]


PAIRS = [
    pair("one two three", "one"),
    pair("one two", "one two three four", "c"),
    pair("x y", "z z", "d d"),
    pair("one two three four", "b", "b e"),
]


def test_accuracy_and_baselines_by_hand():
    found = report.measure_pairs(PAIRS, words)
    assert (found["num_pairs"], found["num_prompts"]) == (4, 4)
    assert found["accuracy"]["mean"] == pytest.approx(2.5 / 4)  # a tie counts half
    assert found["baselines"]["longer_wins"]["mean"] == pytest.approx(2.5 / 4)
    assert found["baselines"]["shorter_wins"]["mean"] == pytest.approx(1.5 / 4)
    assert found["baselines"]["more_of_the_last_turn_wins"]["mean"] == pytest.approx(1.5 / 4)  # three ties, and b loses
    assert found["above_best_baseline"]["baseline"] == "longer_wins"
    assert found["above_best_baseline"]["mean"] == 0
    length = found["length"]
    assert length["prefers_longer"] == 1.0
    assert length["rank_correlation"] == pytest.approx(1.0)
    assert (length["where_the_rule_is_wrong"]["num_pairs"], length["where_the_rule_is_wrong"]["mean"]) == (1, 0.0)
    assert found["last_turn_repeated"]["preferred_to_chosen"] == pytest.approx(0.5 / 4)  # copies of 2, 1, 2, 2 words


def test_pairs_of_one_prompt_are_drawn_together():
    """20 right pairs of one prompt and 20 wrong ones of another: the interval is that of two prompts."""
    pairs = [pair("one two", "one", "p") for _ in range(20)] + [pair("one", "one two", "q") for _ in range(20)]
    found = report.measure_pairs(pairs, words)["accuracy"]
    assert (found["low"], found["mean"], found["high"]) == (0.0, 0.5, 1.0)


def test_a_share_of_all_has_wilsons_interval():
    """30 of 30: 30 / (30 + 1.96^2); 0 of 30: the rest of it."""
    pairs = [pair("one two", "one", f"p{i}") for i in range(30)]
    found = report.measure_pairs(pairs, words)
    assert found["accuracy"] == {"mean": 1.0, "low": pytest.approx(0.88649, abs=1e-5), "high": 1.0}
    assert found["baselines"]["shorter_wins"] == {"mean": 0.0, "low": 0.0, "high": pytest.approx(0.11351, abs=1e-5)}


def test_rank_correlation_by_hand():
    """Ranks 1, 2.5, 2.5, 4 and 4, 1, 3, 2: covariance and deviations with paper and pencil."""
    first, second = np.asarray([1.0, 5.0, 5.0, 9.0]), np.asarray([8.0, 1.0, 4.0, 2.0])
    ranks = np.asarray([1, 2.5, 2.5, 4]) - 2.5, np.asarray([4, 1, 3, 2]) - 2.5
    expected = (ranks[0] @ ranks[1]) / np.sqrt((ranks[0] @ ranks[0]) * (ranks[1] @ ranks[1]))
    assert report.rank_correlation(first, second) == pytest.approx(expected)
    assert report.rank_correlation(first, np.ones(4)) is None


def test_calibration_by_hand():
    """Margins of log(3) are probabilities of 3/4 or 1/4; the chosen reply wins always, so a bin is right or wrong as a whole."""
    found = report.calibration(np.full(400, np.log(3.0)))
    low, high = found["bins"]
    assert (low["predicted"], low["won"]) == (pytest.approx(0.25), 0.0)
    assert (high["predicted"], high["won"]) == (pytest.approx(0.75), 1.0)
    assert low["pairs"] + high["pairs"] == 400
    assert found["error"] == pytest.approx(0.25)
    assert found["log_loss"] == pytest.approx(np.log(4 / 3))


def test_where_neither_rule_of_length_is_better_the_longer_reply_wins_by_the_rule():
    """One pair for each: wrong is the pair in which the shorter reply was chosen."""
    found = report.measure_pairs([pair("a b", "a"), pair("a", "a b", "q")], words)
    assert found["length"]["where_the_rule_is_wrong"]["num_pairs"] == 1
    assert found["length"]["where_the_rule_is_wrong"]["mean"] == 0.0


def lengths(count, longer_share, seed=0):
    """Pairs in which the longer reply is chosen with the given share."""
    draw = np.random.default_rng(seed)
    found = []
    for i in range(count):
        short = "one " * draw.integers(1, 4)
        long = short + "two " * draw.integers(1, 4)
        sides = (long, short) if draw.random() < longer_share else (short, long)
        found.append(pair(*(side.strip() for side in sides), prompt=f"p{i}"))
    return found


@pytest.mark.parametrize(
    ("share", "score", "words_of_note"),
    [
        (1.0, words, "The longer reply wins 100% of the pairs, and this model prefers the longer one in 100%"),
        (0.8, words, "it mostly measures length"),
        (0.1, lambda some: [-x for x in words(some)], "The shorter reply wins"),
        (0.8, words, "not shown to be better than the rule 'longer wins'"),
        (0.8, lambda some: [-x for x in words(some)], "prefers the rejected reply"),
        (0.5, words, "may be that of chance"),
    ],
)
def test_it_says_plainly_what_a_model_measures(share, score, words_of_note):
    assert any(words_of_note in note for note in report.measure_pairs(lengths(300, share), score)["notes"])


def test_a_good_model_is_not_blamed_for_length():
    pairs = lengths(300, 0.6)
    right = {id(one.chosen) for one in pairs}
    found = report.measure_pairs(pairs, lambda some: [float(id(d) in right) for d in some])
    assert found["notes"] == []


def test_pairs_that_look_wrong_are_pointed_out():
    repeated = [pair(f"c{i} d", "other words", f"c{i} d e") for i in range(50)]
    bare = [PreferencePair(Dialogue([], f"Q: {i} A: yes"), Dialogue([], f"Q: {i} A: no"), None, "x") for i in range(4)]
    for pairs, told, others in (
        (repeated, ("repeats the last turn", "only 50 held-out pairs"), ("No pair has a prompt",)),
        (bare, ("No pair has a prompt",), ("repeats the last turn",)),
    ):
        notes = " ".join(report.measure_pairs(pairs, words)["notes"])
        assert all(text in notes for text in told)
        assert not any(text in notes for text in others)


def test_the_page_shows_the_numbers():
    found = report.measure_pairs(PAIRS, words)
    page = report.markdown(found | {"normalisation": {"mean": 1.5, "std": 0.25, "of": "8 held-out replies"}})
    assert "| **this model** | 62.5% |" in page
    assert "| pairs in which the rule of length is wrong (1) | 0.0% |" in page
    assert "- **There are only 4 held-out pairs, so the intervals are wide.**" in page
    assert "mean 1.5000, deviation 0.2500, of 8 held-out replies" in page
    unequal = report.measure_pairs([pair("a b", "a")], words)
    assert "| pairs in which the rule of length is wrong (0) | - | - to - |" in report.markdown(
        unequal | {"normalisation": {"mean": 1.5, "std": 0.25, "of": "x"}}
    )
