"""`python -m experiments.dailydialog` at its smallest size: every stage to the table, and the same table after kills."""

import json
import re
import shutil
import signal
import subprocess
import time

import pytest

from experiments.dailydialog.stages import NAMES
from experiments.everyday_dialogues.dialogues import write_dialogues
from tests.parts.processes import start_python

pytestmark = pytest.mark.slow
LONGEST = 1800  # seconds
PUBLISHED = "## Beside what was published"  # what follows has speeds


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "data"
    write_dialogues(folder, 300, seed=0)
    return folder


def start(data, work):
    words = ["--data_path", data, "--work", work, "--size", "tiny", "--fetched", work / "none"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return start_python("-m", "experiments.dailydialog", *map(str, words), **pipes)


def ended(process):
    text = process.communicate(timeout=LONGEST)[0]
    assert process.returncode == 0, text
    return text


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run that was left alone, and what it has said."""
    work = tmp_path_factory.mktemp("whole") / "work"
    return work, ended(start(data, work))


def table_of(work):
    """The tables of results.md without what a clock has measured."""
    text = (work / "results.md").read_text(encoding="utf-8").split(PUBLISHED)[0]
    return re.sub(r"\| \d+ \|$", "|", text, flags=re.MULTILINE)


def test_every_stage_ends_and_the_table_has_every_row(whole):
    work, said = whole
    assert all((work / name / "done.json").is_file() for name in NAMES)
    assert f"python -m experiments.blind --replies {work}/table/replies.jsonl" in said
    table = (work / "results.md").read_text(encoding="utf-8")
    assert table.splitlines()[2].startswith("**At temperature 1 ")
    rows = (
        "SFT",
        "PPO, rloo",
        "PPO, gae",
        "SFT, best of 2",
        "SFT, best of 8",
        "SFT on best of 4",
        "DPO",
        "SFT, mean logit shift",
        "SFT, learned bias",
        "PPO, rloo, best of 2",
    )
    for row in (*rows, "true replies", "nearest train reply"):
        found = re.findall(rf"^\| {re.escape(row)} \|", table.split(PUBLISHED)[0], re.MULTILINE)
        assert len(found) == 4, row  # two temperatures, legacy
    for column in (
        "R@1 convolution",
        "R@10 bag",
        "act F1",
        "METEOR margin",
        "KL a reply",
        "copied, two turns",
        "seconds",
    ):
        assert f"| {column} |" in table
    assert "nats a word" in table
    assert re.search(r"^\| OpenRL, PPO \| 13\.2 \|", table, re.MULTILINE)
    curve = table.split("## R@10 on validation against tokens")[1].split("## ")[0]
    assert len(re.findall(r"^\| [\d,]+ \|", curve, re.MULTILINE)) >= 3
    assert all((work / f"frontier_{t}.png").is_file() for t in ("1", "0.7"))
    chosen = json.loads((work / "chosen.json").read_text())
    assert chosen["validation"]["1"]["SFT"]["relevance_r10"] is not None
    assert (work / "chosen.json").stat().st_mtime <= min(p.stat().st_mtime for p in (work / "test").rglob("*.npz"))


def test_the_table_holds_no_text_of_the_data(whole, data):
    table = (whole[0] / "results.md").read_text(encoding="utf-8")
    turns = {turn.strip() for path in data.rglob("dialogues_t*.txt") for turn in path.read_text().split("__eou__")}
    assert len(turns) > 100
    assert [turn for turn in turns if len(turn.split()) > 2 and turn in table] == []


def test_a_second_call_does_nothing(whole, data):
    said = ended(start(data, whole[0]))
    assert said.count("done before, skipped") == len(NAMES)


def test_a_run_that_is_killed_has_the_same_table(whole, data, tmp_path):
    work = tmp_path / "work"
    shutil.copytree(whole[0] / "estimate", work / "estimate")
    moments = {
        "inside of a supervised stage": lambda: "step" in (work / "sft/log.txt").read_text(),
        "between two stages": lambda: (work / "relevance/done.json").exists(),
        "inside of PPO": lambda: any((work / "ppo").glob("*/checkpoints/iter_*")),
        "among the draws": lambda: any((work / "best_of_4").glob("chunks/*.jsonl")),
        "among the rows": lambda: any((work / "test").glob("at_*/*.npz")),
    }
    for name, has_come in moments.items():
        process, since = start(data, work), time.monotonic()
        while not reached(has_come):
            assert process.poll() is None, (name, process.communicate()[0])
            assert time.monotonic() - since < LONGEST, name
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    ended(start(data, work))
    assert table_of(work) == table_of(whole[0])


def reached(has_come):
    try:
        return has_come()
    except OSError:
        return False
