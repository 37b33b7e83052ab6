"""What is read of a run folder for its page: replies, versions and hashes, and sentences for what is damaged."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.run_page.page import PageSample, build_page
from rlhf_dialog.runs.run_reader import facts_of, read_run, read_samples

ROW = {"iteration": 1, "objective/score": 0.5}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(ROW) + "\n")
    return tmp_path


def test_a_run_with_nothing_but_metrics(folder):
    run = read_run(folder)
    assert (run.name, run.rows, run.config, run.samples) == (str(folder), [ROW], {}, [])
    assert run.facts == [("iterations", "1")]


def test_samples_of_evaluate(folder):
    rows = [{"last_turn": "Hi .", "reference": "Hello .", "after": "Hey .", "before": "Hm ."}]
    (folder / "samples.json").write_text(json.dumps(rows))
    (sample,) = read_samples(folder)
    assert sample == PageSample("Hi .", "Hello .", {"before": "Hm .", "after": "Hey ."})
    assert list(sample.replies) == ["before", "after"]


def test_all_replies_come_before_the_few_samples(folder):
    (folder / "samples.json").write_text("[]")
    replies = {"after": {"response": "Hey .", "truncated": False}}
    row = {"index": 0, "prompt": ["0", "1", "2", "3"], "references": ["Hello ."], "act": None, "replies": replies}
    (folder / "replies.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"references": None}) + "\n")
    assert read_samples(folder) == [
        PageSample("1\n2\n3", reference, {"after": "Hey ."}) for reference in ("Hello .", "")
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.jsonl", "", r"metrics\.jsonl: has no metrics yet; train first"),
        (
            "metrics.jsonl",
            '{"iteration": 1}\n{"iter\n{"iteration": 3}\n',
            r"metrics\.jsonl: line 2 is not a line of metrics",
        ),
        ("metrics.jsonl", '{"iteration": 2}\n', r"metrics\.jsonl: line 1 is of iteration 2, not 1"),
        ("samples.json", "[1]", r"samples\.json: is damaged: .*; remove it, or write it with `evaluate --samples`"),
        ("samples.json", '[{"after": 1}]', r"samples\.json: is damaged"),
        ("replies.jsonl", "{}", r"replies\.jsonl is not a file that `evaluate --replies` wrote"),
        ("config.yaml", "a: [", r"config\.yaml: is not valid YAML"),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read_run(folder)


def test_metrics_that_cannot_be_read(folder):
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be read: Is a directory; name the folder of a run"):
        read_run(folder)


def test_versions_and_hashes_come_from_checkpoint_and_evaluation(folder):
    (folder / "config.yaml").write_text("seed: 1\n")
    checkpoint = folder / "checkpoints" / "iter_000001"
    checkpoint.mkdir(parents=True)
    (folder / "checkpoints" / "latest").write_text("iter_000001")
    state = {
        "versions": {"torch": "2.6"},
        "identity": {"data": "9 prompts, 12ab", "reward_class": {}},
        "sha256": "34cd",
    }
    (checkpoint / "trainer.json").write_text(json.dumps(state | {"identity_sha256": "56ef"}))
    numbers = {"score": {"mean": 0.5, "low": 0.4, "high": 0.6}}
    evaluation = {name: numbers for name in ("before", "after", "difference")} | {"baselines": {}}
    (folder / "evaluation.json").write_text(json.dumps(evaluation | {"settings": {"agent_hash": "78ab"}}))
    assert facts_of(folder, 1) == [
        ("iterations", "1"),
        ("the same run again", f"rlhf-dialog train --config {folder}/config.yaml --experiment_name again"),
        ("torch", "2.6"),
        ("data", "9 prompts, 12ab"),
        ("settings of the run, SHA-256", "56ef"),
        ("newest checkpoint, SHA-256", "34cd"),
        ("evaluation", "better: +0.500 [+0.400, +0.600] of score, to 0.500; nearest baseline: before (0.500)"),
        ("agent, SHA-256", "78ab"),
    ]


def test_the_newest_rows_of_a_ledger_without_those_that_are_damaged(folder):
    lines = [b'{"iteration": 1}', b'{"iteration": 2, "kl": 1e999}', b"\xff\x00", b"[2]", b'{"iter']
    (folder / "ledger.jsonl").write_bytes(b"\n".join(lines))
    run = read_run(folder)
    assert [row["iteration"] for row in run.newest] == [2]
    assert '"columns":["iteration","kl"],"rows":[[2.0,null]]' in build_page([run])


@pytest.mark.parametrize("text", ["{", "[]", '{"versions": 1, "identity": [], "settings": 1, "after": 1}'])
def test_damaged_facts_are_left_out(folder, text):
    checkpoint = folder / "checkpoints" / "iter_000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer.json").write_text(text)
    (folder / "evaluation.json").write_text(text)
    assert facts_of(folder, 1) == [("iterations", "1")]
    (folder / "checkpoints" / "latest").write_text("iter_000009")
    assert facts_of(folder, 1) == [("iterations", "1")]
