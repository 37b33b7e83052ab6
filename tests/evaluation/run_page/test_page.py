"""The page of a run and its curves: text of others is data, and what is not finite breaks nothing."""

import json
import math
import random
import re
import shutil
import subprocess
from dataclasses import asdict

import pytest

from rlhf_dialog.evaluation.run_page import page as run_page
from rlhf_dialog.evaluation.run_page.page import (
    TEMPLATE,
    Live,
    PageSample,
    RunRecord,
    build_curves,
    build_page,
    differences,
    groups,
    merge,
    number,
    reward_parts,
    thin_out,
)

HOSTILE = '</script><img src="http://example.invalid/a.png" onerror="alert(1)"><!--'


def data_of(page: str) -> dict:
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    return json.loads(text, parse_constant=lambda name: pytest.fail(name))


def record(name: str = "runs/a", num_rows: int = 3, **more) -> RunRecord:
    return RunRecord(name, [{"iteration": i + 1, "objective/score": float(i)} for i in range(num_rows)], **more)


def test_all_text_of_a_run_is_data_and_no_html():
    run = record(
        HOSTILE,
        config={HOSTILE: HOSTILE},
        samples=[PageSample(HOSTILE, HOSTILE, {HOSTILE: HOSTILE})],
        facts=[(HOSTILE, HOSTILE)],
    )
    run.rows[0][HOSTILE] = 1.0
    page = build_page([run, record("__DATA__")])
    shell = TEMPLATE.read_text(encoding="utf-8")
    for tag in ("</script>", "<img", "<!--"):
        assert page.count(tag) == shell.count(tag)
    data = data_of(page)
    assert data["runs"][0]["name"] == HOSTILE
    assert data["samples"] == [{"prompt": HOSTILE, "reference": HOSTILE, "replies": {f"{HOSTILE}: {HOSTILE}": HOSTILE}}]
    assert data["runs"][1]["name"] == "__DATA__"


def test_the_template_makes_no_html_of_text_and_asks_for_nothing():
    shell = TEMPLATE.read_text(encoding="utf-8")
    forbidden = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?://(?!www\.w3\.org/2000/svg)"
    assert re.findall(forbidden, shell) == []
    assert "default-src 'none'" in shell


def test_numbers_that_are_not_finite_and_half_characters_do_not_break_the_page():
    rows = [{"iteration": 1, "objective/score": math.nan}, {"iteration": 2, "objective/score": -math.inf}]
    rows.append({"iteration": 3, "objective/score": 0.5})
    page = build_page([RunRecord("a", rows, {"kl_target": math.inf}, [PageSample("\ud800", "", {})])])
    assert page.encode()
    (run,) = data_of(page)["runs"]
    assert (run["curves"]["objective/score"], run["target"]) == ([None, None, 0.5], None)


def test_a_usual_page_has_400_points_and_60_samples():
    samples = [PageSample(f"prompt {i}", "", {"after": "Hello ."}) for i in range(100)]
    data = data_of(build_page([record(num_rows=800, samples=samples), record("b", num_rows=900)]))
    assert [len(run["iterations"]) for run in data["runs"]] == [400, 300]
    assert [len(run["curves"]["objective/score"]) for run in data["runs"]] == [400, 300]
    chosen = [one["prompt"] for one in data["samples"]]
    assert (len(chosen), chosen[0], chosen[-1]) == (60, "prompt 0", "prompt 98")


def test_samples_of_several_runs_are_side_by_side():
    first = record("a", samples=[PageSample("Hi .", "Hello .", {"before": "Hm .", "after": "Hello !"})])
    second = record(
        "b", samples=[PageSample("Hi .", "Hello .", {"after": "Hey ."}), PageSample("Why ?", "", {"after": "So ."})]
    )
    assert merge([first, second]) == [
        PageSample("Hi .", "Hello .", {"a: before": "Hm .", "a: after": "Hello !", "b: after": "Hey ."}),
        PageSample("Why ?", "", {"b: after": "So ."}),
    ]
    assert merge([first]) == first.samples


def test_settings_that_differ():
    parts = [{"id": "Intent"}, {"id": "Meteor", "weight": 2.0}]
    first = {"lr": 1e-4, "seed": 0, "reward": {"parts": parts}, "empty": {}}
    second = {"lr": 1e-5, "seed": 0, "reward": {"parts": [{"id": "Intent"}]}, "empty": {}, "own": "x"}
    assert differences([record(config=first), record(config=second)]) == [
        ["lr", "0.0001", "1e-05"],
        ["reward.parts.1.id", '"Meteor"', "-"],
        ["reward.parts.1.weight", "2.0", "-"],
        ["own", "-", '"x"'],
    ]
    assert differences([record(config=first), record(config=first)]) == []


def test_rows_of_the_ledger_are_a_table_of_numbers_and_texts():
    rows = [
        {"iteration": 3, "kl": 1 / 3, "used": k > 0, "prompt": ["Hi .", "Yes ?"], "time/x": 1.0} for k in range(200)
    ]
    rows[0] |= {"reward/x_weight": 2.0, "failure/x": HOSTILE, "kl": math.nan}
    data = data_of(build_page([record(newest=rows)]))
    assert data["newest"]["columns"] == ["prompt", "iteration", "kl", "used", "failure/x"]
    assert data["newest"]["rows"][0] == ["Hi .\nYes ?", 3, None, "no", HOSTILE]
    assert data["newest"]["rows"][1] == ["Hi .\nYes ?", 3, 0.333333, "yes", None]
    assert (len(data["newest"]["rows"]), data["num_newest"]) == (60, 200)
    said = data_of(build_page([record(newest=[*rows[1:], *[rows[2] | {"reply": "No .", "score": 1}] * 8])]))["newest"]
    assert said["columns"][:3] == ["prompt", "reply", "score"]
    assert [row[1] for row in said["rows"]] == ["No ."] * 8 + [None] * 52
    both = data_of(build_page([record(newest=rows[:1]), record("b", newest=rows[:1])]))["newest"]
    assert (both["columns"][0], [row[0] for row in both["rows"]]) == ("run", ["runs/a", "b"])


def with_texts(iteration: int, count: int) -> list[dict]:
    return [
        {"iteration": iteration, "prompt": ["Hi .", f"{i} ?"], "reply": f"{HOSTILE}{i}", "score": i / 3}
        for i in range(count)
    ]


def top(*runs) -> dict:
    return data_of(build_page(list(runs)))["replies"]


def test_a_page_begins_with_two_replies_to_one_prompt():
    pairs = list(zip(with_texts(1, 5), with_texts(9, 5), strict=True))
    shown = top(record(pairs=pairs, first=with_texts(1, 6), newest=with_texts(9, 2)))
    assert shown["columns"] == ["last turn", "before", "after", "score before", "score after", "iterations"]
    assert shown["rows"][1] == ["1 ?", f"{HOSTILE}1", f"{HOSTILE}1", 0.333333, 0.333333, "1 and 9"]
    assert [row[0] for row in shown["rows"]] == ["0 ?", "1 ?", "2 ?"]
    both = top(record(pairs=pairs[:1]), record("b", first=with_texts(1, 1)))
    assert [row[:2] for row in both["rows"]] == [["runs/a", "0 ?"]]


def test_replies_to_different_prompts_are_said_to_be_that():
    newest = [{"iteration": 9, "score": 2.0}, *with_texts(9, 2)]
    shown = top(record(first=with_texts(1, 6), newest=newest))
    assert "different prompts" in shown["title"]
    first = [[1, f"{i} ?", f"{HOSTILE}{i}", pytest.approx(i / 3, rel=1e-5)] for i in (0, 2, 4)]
    last = [[9, f"{i} ?", f"{HOSTILE}{i}", pytest.approx(i / 3, rel=1e-5)] for i in (0, 1)]
    assert shown["rows"] == first + last
    both = top(record(first=with_texts(1, 1), newest=with_texts(1, 1)), record("b"))["rows"]
    assert both == [["runs/a", 1, "0 ?", f"{HOSTILE}0", 0]]
    assert top(record(newest=newest[:1]))["rows"] == []
    (odd,) = top(record(first=[{"iteration": 1, "reply": "x" * 999, "prompt": None}]))["rows"]
    assert odd == [1, "", "x" * 299 + "…", None]
    shell = TEMPLATE.read_text(encoding="utf-8")
    assert shell.index('id="first"') < shell.index('id="verdict"') < shell.index('id="charts"')


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to run the page's script")
def test_the_moving_average_has_no_bias_at_the_start_and_leaves_gaps():
    shell = TEMPLATE.read_text(encoding="utf-8")
    (source,) = re.findall(r"function smoothed.*?\n  }", shell, re.DOTALL)
    values = [8.0, None, 2.0, *[5.0] * 97]
    script = f"{source} console.log(JSON.stringify([smoothed({json.dumps(values)}), smoothed([3, 6])]))"
    printed = subprocess.run(["node", "-e", script], capture_output=True, check=True, text=True, timeout=60).stdout
    long, short = json.loads(printed)
    # of 100 points each weighs 0.8 times the next one, of two 2/3
    assert (long[0], long[1], long[2]) == (8, None, pytest.approx((8 * 0.8 + 2) / 1.8))
    assert long[3] == pytest.approx((8 * 0.64 + 2 * 0.8 + 5) / 2.44)
    assert short == [3, pytest.approx((3 * 2 / 3 + 6) / (5 / 3))]


def test_only_the_page_of_one_run_is_live():
    live = Live("running", 3, 0.25, 1e9, 30.0, 45.0)
    pages = ([record()], [record(live=live)], [record(live=live), record("b")])
    assert [data_of(build_page(runs))["live"] for runs in pages] == [None, asdict(live), None]


@pytest.mark.parametrize(("num_rows", "points"), [(5, 5), (400, 400), (401, 201), (1001, 334)])
def test_thinning_has_at_most_400_points_and_keeps_the_mean(num_rows, points):
    values = [random.Random(i).random() for i in range(num_rows)]
    means, sizes = thin_out(values), [group.stop - group.start for group in groups(num_rows)]
    assert (len(means), sum(sizes)) == (points, num_rows)
    total = sum(mean * size for mean, size in zip(means, sizes, strict=True))
    assert total / num_rows == pytest.approx(sum(values) / num_rows, rel=1e-5)


def test_a_point_is_the_mean_of_the_known_numbers_of_its_neighbours(monkeypatch):
    monkeypatch.setattr(run_page, "MAX_POINTS", 4)
    assert thin_out([1.0, 3.0, None, 5.0, math.nan, math.inf, 7.0]) == [2.0, 5.0, None, 7.0]
    (run,) = data_of(build_page([RunRecord("a", [{"iteration": i} for i in range(1, 8)])]))["runs"]
    assert run["iterations"] == [[1, 2], [3, 4], [5, 6], [7, 7]]
    assert [number(value) for value in (math.nan, math.inf, -math.inf, None, True, "1")] == [None] * 6
    row = {
        "iteration": 1,
        "time_steps": 9,
        "episodes": 3,
        "time/update": 0.1,
        "ppo/value_loss": None,
        "gain_sums/N": 3.0,
    }
    assert build_curves([row | {"own/metric": 1 / 3}]) == {"own/metric": [0.333333]}  # no seconds, no counters, no sums


REST = "the rest (truncation penalty, environment)"


def row_with(score, intent, length):
    weighted = {"reward/intent_weighted": intent, "reward/length_weighted": length}
    raw = {"reward/intent": 0.9, "reward/length/own_weighted": 9.0}
    return {"iteration": 1, "objective/score": score} | weighted | raw


def test_the_weighted_parts_add_up_to_the_score_with_what_no_part_explains():
    parts = reward_parts([row_with(0.45, 0.5, 0.2), row_with(-0.3, 0.5, 0.2)])
    assert list(parts) == ["intent", "length", REST]
    assert parts[REST] == pytest.approx([-0.25, -1.0])
    assert [sum(values[i] for values in parts.values()) for i in range(2)] == pytest.approx([0.45, -0.3])
    assert list(reward_parts([row_with(0.7 + 1e-7, 0.5, 0.2)])) == ["intent", "length"]
    parts = reward_parts([row_with(1.0, 0.5, 0.2), row_with(1.0, None, 0.2)])  # unknown ones have no sum
    assert parts[REST] == [pytest.approx(0.3), None]
    assert reward_parts([{"iteration": 1, "objective/score": 1.0}]) == {}
