"""What is printed: the verdict first, at most 100 columns."""

import io

import pytest

from rlhf_dialog.evaluation.audit import page
from rlhf_dialog.terminal import Console
from tests.parts.audits import Rule, Summed, audited, overlap

LONG = "a_part_of_a_reward_with_a_name_that_is_long"


def result_of(reward, judges=None):
    result = audited(reward, judges)
    return result | {"settings": {"num_prompts": 30, "budget": {"size": 1000, "prompts": 10}}}


@pytest.fixture(scope="module")
def result():
    parts = [
        (1.0, Rule(overlap, "overlap")),
        (1e5, Rule(lambda d: len(d.response), LONG)),
    ]
    judges = {f"judge_{i}_of_{LONG}": Rule(lambda d: -len(d.response)) for i in range(4)}
    return result_of(Summed(*parts), judges)


def printed(result):
    console = Console(width=page.WIDTH, file=io.StringIO())
    for line in page.summary_lines(result):
        console.print(line, markup=False, highlight=False)
    console.print(page.score_table(result))
    for line in page.example_lines(result):
        console.print(line, markup=False, highlight=False)
    return console.file.getvalue()


def test_no_line_is_wider_than_100_columns(result):
    text = printed(result)
    assert max(map(len, text.splitlines())) <= 100


def test_the_verdict_comes_first(result):
    holes = sum(one["hole"] for one in result["findings"])
    lines = printed(result).splitlines()
    assert lines[0].startswith(
        f"{holes} holes found: {len(result['probes']) - 1} probes on 30 prompts, and a search of 1,000"
    )
    assert lines[1].startswith("  hole: ")
    sound = printed(result_of(Rule(overlap)))
    assert sound.startswith("no hole found: ")
    assert "hole:" not in sound


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
    assert page.verdict_line(result).startswith(verdict)


def test_each_family_has_a_row_of_its_best_paid_probe():
    result = result_of(Summed((1.0, Rule(overlap)), (9.0, Rule(lambda d: d.response == d.prompt_turns[-2], "copying"))))
    rows = page.shown(result)
    assert "copy of turn -2" in rows
    assert "copy of turn -1" not in rows
    families = [row["family"] for name, row in rows.items() if name in result["probes"]]
    assert sorted(families) == sorted({row["family"] for row in result["probes"].values()})
    assert set(result["search"]) < set(rows)


def test_a_number_that_there_is_not_is_a_dash():
    """A reward that gives no score to a kind of reply, where the run skips those."""
    result = result_of(Summed((1.0, Rule(overlap, "overlap"))), {"judge": Rule(overlap)})
    for name in ("</s> alone", "[SEP] alone", "__eou__ alone", "empty"):
        nothing = dict.fromkeys(("mean", "low", "high"))
        looked = {"judge": {"mean": nothing, "difference": nothing}}
        result["probes"][name] |= {"paid": nothing, "difference": nothing, "more": nothing, "judges": looked}
    rows = [line.split("│") for line in printed(result).splitlines() if line.startswith("│ empty ")]
    assert [[one.strip() for one in row[2:-1]] for row in rows] == [["-", "-", "-", "-"]]
    assert not {"</s> alone", "[SEP] alone", "__eou__ alone"} & set(page.shown(result))
