"""What a run's metrics say. The limits are read in docs/READING_A_RUN.md; the numbers of the intervals are computed by hand."""

import math
import re
from pathlib import Path

import pytest

from rlhf_dialog.evaluation.run_page.verdict import all_signs, finite_values, kl_target, verdict

PAGE = Path(__file__).parents[3] / "docs" / "READING_A_RUN.md"
UP = [1.0, 2.0, 3.0] + [4.0] * 6 + [5.0, 6.0, 7.0]  # of 12 iterations; the last quarter lies 4 above the first
FLAT = [1.0, 2.0, 3.0] * 4
AIMS = {"kl_target": 0.05, "kl_rate": 0.1}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def documented() -> list[list[str]]:
    """The rows of the table of signs in the document, without the backticks of the metric."""
    text = PAGE.read_text(encoding="utf-8")
    rows = [cells(line) for line in text.splitlines() if line.startswith("| ")][1:]
    return [[row[0], row[1].strip("`"), *row[2:]] for row in rows if len(row) == 5]


LIMITS = [row for row in documented() if re.fullmatch(r"(below|above) [\d.]+", row[3])]


def rows_of(**metrics: list[float | None]) -> list[dict]:
    """The rows of metrics whose names are written with `__` in place of a slash."""
    size = len(next(iter(metrics.values())))
    named = {name.replace("__", "/"): values for name, values in metrics.items()}
    return [{"iteration": i + 1} | {name: values[i] for name, values in named.items()} for i in range(size)]


def states(rows, config=None) -> dict[str, str]:
    return {one.sign: one.state for one in verdict(rows, config or {})[1]}


def values_with(healthy: str, number: float) -> list[float]:
    """12 values of which a limit measures this number."""
    if "first quarter" in healthy:
        return [2.0] * 3 + [2.0 * number] * 9
    if "third quarter" in healthy:
        return [0.9] * 6 + [0.2] * 3 + [0.2 * number] * 3
    if "kl_target" in healthy:
        return [0.0] * 9 + [AIMS["kl_target"] * number] * 3
    assert healthy.endswith("in the last quarter")
    return [0.05] * 9 + [number] * 3


def test_the_document_has_the_rules_of_the_code():
    assert documented() == [sign.row for sign in all_signs().values()]
    assert len(LIMITS) == 12


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row[0])
def test_a_sign_is_sick_beyond_the_limit_of_the_document_and_healthy_before_it(row):
    name, metric, healthy, sick, advice = row
    side, limit = sick.split()
    beyond, before = (0.99, 1.01) if side == "below" else (1.01, 0.99)
    config = AIMS if "kl_target" in healthy else {}
    for factor, is_sick in ((beyond, True), (before, False)):
        rows = rows_of(**{metric.replace("/", "__"): values_with(healthy, float(limit) * factor)})
        findings = [one for one in verdict(rows, config)[1][1:]]
        assert ([one.sign for one in findings] == [name]) is is_sick
        assert {one.state for one in findings} == {"sick" if is_sick else "healthy"}
        assert findings[0].sentence.endswith(f"; {advice}." if is_sick else ").")


def test_a_reward_that_rises_with_its_interval():
    headline, (reward,) = verdict(rows_of(objective__score=UP), {})
    # Welch: the difference is 4, its standard error sqrt(1/3 + 1/3), and t(0.975) of 4 degrees of freedom 2.776
    assert reward.sentence == "The reward rises: +4 [+1.73, +6.27], from 2 to 6."
    assert headline == "The curve is right: the reward rises, and all other signs are healthy; nothing to do."


@pytest.mark.parametrize(
    ("values", "sign", "said"),
    [
        (UP[::-1], "reward falls", "The reward falls: -4 [-6.27, -1.73], from 6 to 2; lower `lr`"),
        (FLAT, "reward does not rise", "The reward does not rise: +0 [-2.27, +2.27], from 2 to 2; run more"),
        ([0.5] * 12, "reward does not rise", "The reward does not rise: +0 [+0, +0], from 0.5 to 0.5"),
    ],
)
def test_a_reward_that_falls_or_stays(values, sign, said):
    headline, (reward,) = verdict(rows_of(objective__score=values), {})
    assert (reward.sign, reward.state) == (sign, "sick")
    assert reward.sentence.startswith(said)
    assert headline == f"The curve is not right: {sign}."


def test_a_reward_that_rises_beside_a_sick_sign():
    headline, findings = verdict(rows_of(objective__score=UP, response__truncated=[0.5] * 12), {})
    assert headline == "The reward rises, but look at this: replies are cut off."
    assert [one.state for one in findings] == ["healthy", "sick"]


@pytest.mark.parametrize("rows", [[{"iteration": 1}], rows_of(objective__score=UP[:11])])
def test_few_iterations_are_too_early(rows):
    headline, (reward,) = verdict(rows, {})
    assert headline == reward.sentence
    assert f"Iterations with a reward: {len(finite_values(rows, 'objective/score'))} of the 12" in reward.sentence


@pytest.mark.parametrize(
    ("values", "state", "said"),
    [
        (
            [0.1, 0.2, 0.3, 0.9, 1.0, 1.1],
            "healthy",
            "eval/score rises with the reward: +0.8 [+0.573, +1.03], best 1.1 after",
        ),
        (
            [1.1, 1.0, 0.9, 0.3, 0.2, 0.1],
            "sick",
            "eval/score falls while the reward rises: -0.8 [-1.03, -0.573], best 1.1",
        ),
        ([0.1, 0.9, 0.3, 0.2, 0.8, 0.4], "sick", "eval/score does not rise: +0.0333"),
        ([0.1, 0.2, 0.3], "open", "Validations: 3 of the 4 that it takes"),
    ],
)
def test_validation_goes_with_the_reward_or_against_it(values, state, said):
    spread = [None] * 12
    spread[: 2 * len(values) : 2] = values
    _, (_, validation) = verdict(rows_of(objective__score=UP, eval__score=spread), {})
    assert (validation.state, validation.sentence[: len(said)]) == (state, said)


def test_the_best_validation_is_named_by_its_iteration_and_metric():
    rows = rows_of(objective__score=UP, eval__meteor=[0.1, 0.2, 0.1, 0.2] * 3, eval__score=[0.0] * 12)
    _, (_, validation) = verdict(rows, {"eval_metric": "meteor"})
    assert validation.sentence.startswith("eval/meteor does not rise")
    assert "best 0.2 after iteration 2;" in validation.sentence


def test_a_low_kl_may_grow_without_a_target_and_a_high_one_up_to_its_target():
    growing = [0.005 * i for i in range(1, 13)]
    assert states(rows_of(objective__kl=growing))["objective/kl"] == "healthy"
    high = [10 * value for value in growing]
    assert states(rows_of(objective__kl=high))["KL of 0.1 or more still grows"] == "sick"
    assert states(rows_of(objective__kl=high), {"kl_target": 0.6, "kl_rate": 0.1})["objective/kl"] == "healthy"
    assert states(rows_of(objective__kl=high), {"kl_target": 0.1, "kl_rate": 0.1})["KL above its target"] == "sick"


@pytest.mark.parametrize(
    ("config", "target"), [(AIMS, 0.05), (AIMS | {"kl_rate": 0}, None), ({}, None), ({"kl_target": math.inf}, None)]
)
def test_what_is_a_target_in_a_configuration(config, target):
    assert kl_target(config) == target


def test_a_run_is_judged_by_the_metrics_and_the_finite_numbers_that_it_has():
    assert list(states(rows_of(objective__score=UP, ppo__explained_variance=[None] * 12))) == ["reward"]
    assert states(rows_of(reward=UP, eval__reward=UP)) == {"reward": "healthy", "validation": "healthy"}
    holes = [math.nan, *UP, math.inf, 1e308, None]
    assert verdict(rows_of(objective__score=holes), {})[1][0].sentence.startswith("The reward rises: +4 [+1.73, +6.27]")
    assert states(rows_of(objective__score=UP, objective__entropy=[0.0] * 12)) == {"reward": "healthy"}  # no ratio to 0


@pytest.mark.parametrize(
    ("values", "sign", "said"),
    [
        (UP[::-1], "held-out judge falls", "falls while the reward rises: -4 [-6.27, -1.73]"),
        (UP, "held-out judge", "rises with the reward: +4 [+1.73, +6.27]"),
        (FLAT, "held-out judge", "does not fall: +0 [-2.27, +2.27]"),
    ],
)
def test_a_held_out_judge_that_goes_with_the_reward_or_against_it(values, sign, said):
    _, (_, judge) = verdict(rows_of(objective__score=UP, eval__judge_x=values), {})
    assert (judge.sign, judge.state) == (sign, "sick" if sign.endswith("falls") else "healthy")
    assert judge.sentence.startswith(f"The held-out judge x {said}")


def gain_rows(gains, error, **keys):
    first = {"iteration": 1, "episodes": 100, "objective/gain": 0.0, "objective/gain_se": 0.0, "objective/score": 0.5}
    return [
        first
        | {"iteration": i + 1, "episodes": 100 * (i + 1), "objective/gain": gain, "objective/gain_se": error, **keys}
        for i, gain in enumerate([0.0, *gains])
    ]


@pytest.mark.parametrize(
    ("gain", "iterations", "sign", "state", "words"),
    [
        (0.05, 12, "reward", "healthy", "+0.05 ["),
        (-0.05, 12, "the policy loses", "sick", "-0.05 ["),
        (0.01, 12, "no gain yet", "sick", "more replies"),
        (0.01, 10, "reward", "open", "more replies"),
        (0.05, 10, "reward", "healthy", "1,000 replies"),
    ],
)
def test_the_gain_over_the_reference_decides_where_it_is_known(gain, iterations, sign, state, words):
    _, (finding, *_) = verdict(gain_rows([gain] * iterations, 0.03), {"num_responses_per_prompt": 4})
    assert (finding.sign, finding.state) == (sign, state)
    assert words in finding.sentence
    assert "over the reference" in finding.sentence
    assert "older version" in finding.sentence  # the lines have no sums


def test_too_far_from_the_reference_the_sentence_says_so_and_compares_scores():
    sums = {"N": 100, "P": 25, "W": 100.0, "WW": 420.0, "kl": 101.0}
    sums |= {"D": 0.0, "A": -5.0, "DD": 9.0, "AA": 9.0, "DA": 8.0, "DW": 0.0, "AW": -20.0}
    rows = gain_rows([0.05] * 12, 0.03, **{f"gain_sums/{name}": value for name, value in sums.items()})
    rows = [row | {"objective/score": 0.5 + 0.1 * (row["iteration"] > 1), "objective/score_se": 0.01} for row in rows]
    (far, *_), (near, *_) = (verdict([row | change for row in rows], {})[1] for change in ({}, {"gain_sums/kl": 99.0}))
    assert far.sentence.startswith("The reward is higher: +0.0333 [")  # .6 - (.5 + .6 + .6) / 3
    assert "first quarter" in far.sentence
    assert "unknown, too far from the reference" in far.sentence
    assert near.sentence.startswith("The reward is higher: +0.05 [")
    assert "far from" not in near.sentence


def test_without_the_gain_the_first_quarter_is_what_the_score_is_compared_with():
    rows = gain_rows([None] * 12, None, **{"objective/score_se": 0.01})
    rows = [row | {"objective/score": 0.5 + 0.1 * (row["iteration"] > 1)} for row in rows]
    finding = verdict(rows, {"num_responses_per_prompt": "many"})[1][0]
    assert finding.state == "healthy"
    assert "first quarter" in finding.sentence


@pytest.mark.parametrize(
    ("scores", "state", "words"),
    [
        ([0.5, 0.9, 0.9], "open", "300 replies so far"),  # of three iterations nothing is said
        (
            [0.5, 0.9, 0.9, 0.9],
            "healthy",
            "+0.4 [+0.3",
        ),  # .4 -+ t * .03 * sqrt 2, with t of 198 degrees of freedom 1.97
        (
            [0.5, 0.3, 0.3, 0.4, 0.4, 0.5, 0.42, 0.42],
            "open",
            "+0.02 [-0.039, +0.079]",
        ),  # .42 - .4, of 2 iterations each
        ([0.9, 0.9, 0.9, 0.9, 0.5], "sick", "lower: -0.4 ["),
    ],
)
def test_a_short_run_is_judged_by_its_score_alone_and_not_at_all_below_four_iterations(scores, state, words):
    rows = gain_rows([0.2] * (len(scores) - 1), 0.01, **{"objective/score_se": 0.03})
    rows = [row | {"objective/score": score} for row, score in zip(rows, scores, strict=True)]
    headline, (finding, *_) = verdict(rows, {})
    assert finding.state == state
    assert words in finding.sentence
    assert "over the reference" not in finding.sentence
    if state == "open":
        assert headline == finding.sentence
