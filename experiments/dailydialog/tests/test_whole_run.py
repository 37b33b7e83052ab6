"""`python -m experiments.dailydialog` at its smallest size: every stage to the table."""

import json
import re

import pytest

from experiments.dailydialog.tests.in_process import run_whole, texts_in
from experiments.everyday_dialogues.dialogues import write_dialogues

pytestmark = pytest.mark.slow
PUBLISHED = "## Beside what was published"  # what follows has speeds


def test_every_stage_ends_and_the_table_has_every_row_and_no_text(tmp_path):
    data, work = tmp_path / "data", tmp_path / "work"
    write_dialogues(data, 300, seed=0)
    run_whole(f"--data_path {data} --work {work} --size tiny --fetched {work}/none".split())
    table = (work / "results.md").read_text(encoding="utf-8")
    assert texts_in(table, data) == []
    assert table.splitlines()[2].startswith("**At temperature 1 ")
    rows = ("SFT", "PPO, rloo", "PPO, gae", "SFT, best of 2", "SFT, best of 8", "SFT on best of 4", "DPO")
    others = ("SFT, mean logit shift", "SFT, learned bias", "PPO, rloo, best of 2", "true replies")
    for row in (*rows, *others, "nearest train reply"):
        found = re.findall(rf"^\| {re.escape(row)} \|", table.split(PUBLISHED)[0], re.MULTILINE)
        assert len(found) == 4, row  # two temperatures, legacy
    for column in ("R@1 convolution", "R@10 bag", "act F1", "METEOR margin", "KL a reply", "copied, two turns"):
        assert f"| {column} |" in table
    assert "nats a word" in table
    assert re.search(r"^\| OpenRL, PPO \| 13\.2 \|", table, re.MULTILINE)
    curve = table.split("## R@10 on validation against tokens")[1].split("## ")[0]
    assert len(re.findall(r"^\| [\d,]+ \|", curve, re.MULTILINE)) >= 3
    assert all((work / f"frontier_{t}.png").is_file() for t in ("1", "0.7"))
    chosen = json.loads((work / "chosen.json").read_text())
    assert chosen["validation"]["1"]["SFT"]["relevance_r10"] is not None
    assert (work / "chosen.json").stat().st_mtime <= min(p.stat().st_mtime for p in (work / "test").rglob("*.npz"))
