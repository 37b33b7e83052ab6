"""The command line of the page about a run: where it writes, and what it says of folders that hold no run."""

import json
import re

import pytest

from rlhf_dialog.commands import report

HOSTILE = '</script><img src="http://example.invalid/a.png" onerror="alert(1)">'


def make_run(folder, num_rows=12, **more):
    folder.mkdir()
    rows = [{"iteration": i + 1, "objective/score": i / 10} for i in range(num_rows)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row | more) + "\n" for row in rows))
    return folder


def test_the_page_lies_in_the_run_folder_or_where_it_is_asked_for(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    assert report.main([str(run)]) == 0
    assert report.main([str(run), "--output", str(tmp_path / "new" / "page.html")]) == 0
    head = f"{run}: The curve is right: the reward rises, and all other signs are healthy; nothing to do."
    places = (run / "report.html", tmp_path / "new" / "page.html")
    assert capsys.readouterr().out.splitlines() == [line for path in places for line in (head, f"report: {path}")]
    assert places[0].read_bytes() == places[1].read_bytes()
    assert places[0].read_text().startswith("<!doctype html>")


def test_several_runs_are_on_one_page(tmp_path, capsys):
    runs = [str(make_run(tmp_path / name, num_rows)) for name, num_rows in (("a", 12), ("b", 3))]
    assert report.main(runs) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"{tmp_path}/b: It is too early to say whether the curve is right.",
        f"report: {tmp_path}/a/report.html",
    ]
    assert not (tmp_path / "b" / "report.html").exists()


@pytest.mark.parametrize("line", [b"\xff\xfe", b"{", b'{"iteration": 7, "objective/score": "x"}', b'{"iteration": 9}'])
def test_damaged_metrics_are_exit_code_2_and_the_old_page_stays(tmp_path, capsys, line):
    run = make_run(tmp_path / "run")
    (run / "report.html").write_text("old")
    lines = (run / "metrics.jsonl").read_bytes().splitlines()
    lines[6] = line
    (run / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert report.main([str(run)]) == 2
    said = capsys.readouterr().err
    assert f"error: {run}/metrics.jsonl: line 7 is " in said
    assert "correct or remove that line" in said
    assert "Traceback" not in said
    assert (run / "report.html").read_text() == "old"


def test_a_strangers_run_is_read_as_text(tmp_path):
    """Tags in metrics, settings and samples stay text, and the settings build nothing."""
    run = make_run(tmp_path / "run", **{HOSTILE: 1.0})
    reward = {"id": "RemoteReward", "args": {"url": "http://example.invalid", "token_env": "HF_TOKEN"}}
    (run / "config.yaml").write_text(json.dumps({"model_path": HOSTILE, "reward_class": reward}))
    (run / "samples.json").write_text(json.dumps([{"last_turn": HOSTILE, "reference": "", "after": HOSTILE}]))
    assert report.main([str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "<img" not in page
    assert (
        re.findall(
            r"https?://(?!www\.w3\.org/2000/svg)\S*",
            page.replace("\\u003c", "<").replace(HOSTILE.replace('"', '\\"'), ""),
        )
        == []
    )
