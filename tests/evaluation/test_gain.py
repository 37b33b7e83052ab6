"""The gain of the newest iterations: by hand, and by loops over prompts."""

import math
import random

import pytest

from rlhf_dialog.evaluation.gain import OLDER, TOO_FAR, estimate_gain, recent_gain

T_18, T_27 = 2.1009, 2.0518  # Student's t, 97.5 %, with 18 and 27 degrees of freedom; from a table


def rows_of(gains, errors=None, replies=10, scores=None):
    """Lines of metrics with as many replies each, the first of them before the first step."""
    errors, scores = errors or [0.1] * len(gains), scores or [0.5] * len(gains)
    return [
        {
            "iteration": i + 1,
            "episodes": replies * (i + 1),
            "objective/gain": gain,
            "objective/gain_se": None if gain is None else error,
            "objective/score": score,
            "objective/score_se": 0.2,
        }
        for i, (gain, error, score) in enumerate(zip(gains, errors, scores, strict=True))
    ]


# -- lines with sums


def prompts_of(seed, count, far=0.4):
    """(D, A, W) of prompts with two replies each, as if their weights were log-normal."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        excess, weights = rng.gauss(0, 1), [math.exp(rng.gauss(-(far**2) / 2, far)) for _ in range(2)]
        found.append((0.3 * rng.gauss(0, 1) + 0.2 * excess, (weights[0] - weights[1]) * excess - 0.1, sum(weights)))
    return found


def line_of(prompts, iteration, kl=0.1, **changes):
    """A line of metrics with the sums of prompts of two replies each, which are also those of a part."""
    d, a, w = zip(*prompts, strict=True)
    sums = {
        "N": 2 * len(prompts),
        "P": len(prompts),
        "kl": 2 * len(prompts) * kl,
        "W": sum(w),
        "WW": sum(x * x for x in w),
    }
    of_reward = {"D": sum(d), "A": sum(a), "DD": sum(x * x for x in d), "AA": sum(x * x for x in a)}
    for name, others in (("DA", (d, a)), ("DW", (d, w)), ("AW", (a, w))):
        of_reward[name] = sum(x * y for x, y in zip(*others, strict=True))
    sums |= of_reward | {f"part/{name}": 3 * value for name, value in of_reward.items()} | changes
    score = {"objective/score": 0.5 + 0.1 * (iteration > 1), "objective/score_se": 0.2}
    gain = {"objective/gain": 9.0, "objective/gain_se": 9.0}  # which nothing reads
    counts = {"iteration": iteration, "episodes": 2 * len(prompts) * iteration}
    return counts | score | gain | {f"gain_sums/{name}": value for name, value in sums.items()}


def plain_gain(prompts):
    """The estimate and its standard error, by loops."""
    count, num_prompts = 2 * len(prompts), len(prompts)
    total, weights = sum(a for _, a, _ in prompts), sum(w for *_, w in prompts)
    squares = 0.0
    for d, a, w in prompts:
        squares += (d / count - (a - total / weights * w) / weights) ** 2
    return sum(d for d, *_ in prompts) / count - total / weights, math.sqrt(squares * num_prompts / (num_prompts - 1))


def test_the_gain_of_ten_iterations_is_that_of_all_their_prompts():
    """The first two lines are not among the ten; 15 prompts in one of the ten, 7 in the others."""
    lines = [prompts_of(seed, 15 if seed == 5 else 7) for seed in range(12)]
    rows = [line_of(prompts, i) for i, prompts in enumerate(lines, 1)]
    found = recent_gain(rows, 2)
    mean, error = plain_gain([prompt for prompts in lines[2:] for prompt in prompts])
    assert (found.mean, found.num_replies) == (pytest.approx(mean, rel=1e-12), 2 * (9 * 7 + 15))
    assert found.half == pytest.approx(1.9913 * error, rel=1e-4)  # Student's t with 77 degrees of freedom
    assert (found.over, found.note) == ("the reference", "")
    assert recent_gain(rows[:1] + rows[1:]) == recent_gain(rows)  # the number of replies to a prompt is in the lines
    means = [estimate_gain([row])[0] for row in rows[2:]]
    assert found.mean != pytest.approx(sum(means) / 10, rel=1e-3)


def test_a_part_has_sums_of_its_own_and_shares_the_weights():
    rows = [line_of(prompts_of(seed, 9), seed) for seed in (1, 2)]
    whole, part = estimate_gain(rows), estimate_gain(rows, "part/")
    d, a, w = (sum(row[f"gain_sums/{name}"] for row in rows) for name in ("D", "A", "W"))
    assert whole == pytest.approx(plain_gain([*prompts_of(1, 9), *prompts_of(2, 9)]))
    assert part[0] == pytest.approx(3 * (d / 36 - a / w))


@pytest.mark.parametrize(("kl", "over"), [(0.999, "the reference"), (1.001, "iteration 1")])
def test_one_gate_on_the_mean_of_the_ten(kl, over):
    """One iteration is three nats away, the others as near as makes the mean."""
    kls = [9.0, *[(10 * kl - 3) / 9] * 4, 3.0, *[(10 * kl - 3) / 9] * 5]  # the first line does not count
    rows = [line_of(prompts_of(i, 7), i, kl=one) for i, one in enumerate(kls, 1)]
    found = recent_gain(rows, 2)
    assert (found.over, found.note) == (over, "" if over == "the reference" else TOO_FAR)
    if found.note:
        assert (found.mean, found.num_replies) == (pytest.approx(0.1), 140)


def test_iterations_in_which_it_is_unknown_are_left_out():
    """With dropped episodes, say: their sums are null, in all of them or in some."""
    rows = [line_of(prompts_of(i, 7), i) for i in range(1, 6)]
    null = {name: None for name in rows[0] if "gain" in name}
    assert recent_gain([rows[0], rows[1], rows[2] | null, rows[3]]).mean == pytest.approx(
        plain_gain(prompts_of(2, 7) + prompts_of(4, 7))[0]
    )
    found = recent_gain([row | null for row in rows], 2)
    assert (found.over, found.note, found.mean) == ("iteration 1", "", pytest.approx(0.1))


def test_weights_that_overflow_are_too_far():
    rows = [line_of(prompts_of(i, 7), i) for i in range(1, 6)]
    rows[3]["gain_sums/WW"] = None  # inf in the file
    found = recent_gain(rows, 2)
    assert (found.over, found.note) == ("iteration 1", TOO_FAR)


def test_a_line_without_sums_makes_all_ten_the_mean_of_iterations():
    rows = [line_of(prompts_of(i, 5), i) | {"objective/gain": i / 10, "objective/gain_se": 0.1} for i in range(1, 5)]
    older = {name: value for name, value in rows[2].items() if not name.startswith("gain_sums/")}
    mixed = [rows[0], rows[1], older, rows[3]]
    found = recent_gain(mixed, 2)
    assert (found.mean, found.over, found.note) == (pytest.approx(0.3), "the reference", OLDER)
    far = [rows[0], rows[1], older, rows[3] | {"gain_sums/kl": 90.0}]
    assert recent_gain(far, 2).note == TOO_FAR
    assert recent_gain([older | {"iteration": 1}, *rows[1:]], 2).note == ""  # the first line is none of the ten


def test_a_policy_that_has_not_moved_has_gained_nothing():
    rows = [line_of([(0.3, 0.3, 2.0), (-0.1, -0.1, 2.0), (-0.2, -0.2, 2.0)], i) for i in (1, 2, 3)]
    found = recent_gain(rows, 2)
    assert (found.mean, found.half) == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-7))


BROKEN = (None, 0, -1, math.nan, math.inf, 1e308, -1e308, 10**300, True, 5e-324, 0.3)


@pytest.mark.parametrize(
    "name", ["episodes", "gain_sums/N", "gain_sums/P", "gain_sums/W", "gain_sums/AA", "objective/"]
)
@pytest.mark.parametrize("has_sums", [True, False])
def test_found_lines_are_read_whatever_they_say(name, has_sums):
    """A metric that is missing or has a strange value in one line or in all."""
    rows = [line_of(prompts_of(i, 7), i) for i in range(1, 5)]
    if not has_sums:
        rows = [{key: x for key, x in row.items() if not key.startswith("gain_sums/")} for row in rows]
    for some in ({0}, {1}, {3}, {0, 1, 2, 3}):
        for value in ("missing", *BROKEN):
            lines = [
                {key: value if i in some and key.startswith(name) else x for key, x in row.items()}
                for i, row in enumerate(rows)
            ]
            found = recent_gain([{key: x for key, x in row.items() if x != "missing"} for row in lines])
            assert found is None or (found.num_replies > 0 and str(found) and (found.missing_replies or 0) >= 0)


# -- lines of before


def test_two_iterations_without_the_first():
    gain = recent_gain(rows_of([9.0, 0.1, 0.3], errors=[9.0, 0.3, 0.4]))
    assert (gain.mean, gain.num_replies, gain.over) == (pytest.approx(0.2), 20, "the reference")
    assert gain.note == OLDER
    assert gain.half == pytest.approx(T_18 * 0.25, rel=1e-4)  # sqrt(.3^2 + .4^2) / 2
    assert (gain.low, gain.high) == (pytest.approx(0.2 - gain.half), pytest.approx(0.2 + gain.half))


def test_every_reply_of_the_last_ten_iterations_counts_alike():
    rows = rows_of([0.0, 0.1, 0.4])
    rows[2]["episodes"] = 50  # 10 replies, then 30
    assert recent_gain(rows).mean == pytest.approx((0.1 + 3 * 0.4) / 4)
    gain = recent_gain(rows_of([0.0, *[5.0] * 3, *[0.2] * 10]))
    assert (gain.mean, gain.num_replies) == (pytest.approx(0.2), 100)


def test_prompts_with_several_replies_count_once():
    one, two = (recent_gain(rows_of([0.0] * 11, replies=size * 10), size) for size in (1, 2))
    assert one.half == pytest.approx(two.half)


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_iterations_without_a_known_gain_are_left_out(unknown):
    gain = recent_gain(rows_of([0.0, 0.1, unknown, 0.3, unknown]))
    assert (gain.mean, gain.num_replies, gain.over) == (pytest.approx(0.2), 20, "the reference")
    assert gain.half == pytest.approx(T_18 * math.sqrt(2) * 0.1 / 2, rel=1e-4)


@pytest.mark.parametrize("unknown", [None, math.nan])
def test_where_no_gain_is_known_the_score_is_compared_with_the_first_iteration(unknown):
    gain = recent_gain(rows_of([0.0, unknown, unknown], scores=[0.5, 0.7, 0.8]))
    assert (gain.mean, gain.over, gain.num_replies) == (pytest.approx(0.25), "iteration 1", 20)
    error = math.hypot(0.2, 0.2 / math.sqrt(2))
    assert gain.half == pytest.approx(T_27 * error, rel=1e-4)


@pytest.mark.parametrize(
    "rows", [[], rows_of([0.0]), [row | {"objective/score_se": None} for row in rows_of([None] * 3)]]
)
def test_too_little_is_no_gain(rows):
    assert recent_gain(rows) is None


def test_how_many_more_replies_would_show_it():
    gain = recent_gain(rows_of([0.0] + [0.02] * 10, errors=[0.1] * 11, replies=100))
    needed = 1000 * (gain.half / 0.02) ** 2
    assert gain.missing_replies == pytest.approx(needed - 1000, abs=1)
    assert recent_gain(rows_of([0.0, -0.1])).missing_replies is None
    assert recent_gain(rows_of([0.0, 0.9], errors=[0.1, 0.01])).missing_replies == 0
