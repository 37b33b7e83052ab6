"""A run folder is read: metrics, versions and hashes, whatever is damaged."""

import json

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.run_page.page import PageSample, build_page
from rlhf_dialog.runs.metrics_file import cut_metrics, read_metrics, scan_metrics
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


def test_the_replies_of_an_evaluation(folder):
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
        ("replies.jsonl", "{}", r"replies\.jsonl is not a file that `evaluate --replies` wrote"),
        ("config.yaml", "a: [", r"config\.yaml: cannot be read as YAML"),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(UserError, match=message):
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


# -- metrics.jsonl


def lines_of(*iterations):
    return [f'{{"iteration": {i}}}\n'.encode() for i in iterations]


@pytest.mark.parametrize("tail", ["", '{"iteration": 4, "objec', "\n", '{"iteration": 2}\n'])
def test_a_resumed_run_keeps_the_whole_lines_up_to_its_checkpoint(tmp_path, tail):
    path = tmp_path / "m.jsonl"
    cut_metrics(path, 2)
    assert list(tmp_path.iterdir()) == []
    path.write_text("".join(f'{{"iteration": {i}, "x": null, "y": 0.1}}\n' for i in (1, 2, 3)) + tail, encoding="utf-8")
    cut_metrics(path, 2)
    assert path.read_text(encoding="utf-8") == (
        '{"iteration": 1, "x": null, "y": 0.1}\n{"iteration": 2, "x": null, "y": 0.1}\n'
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.jsonl"]
    with pytest.raises(UserError, match=r"m\.jsonl: line 3 is missing"):
        cut_metrics(path, 3)


@pytest.mark.parametrize(
    ("lines", "tail", "last"),
    [
        *(([1, 2, 3], "", 3), ([1, 2, 4, 5], "7\n", 2), ([1, 2, 2, 3], "{}\n", 2), ([2, 3], "", 0), ([], "", 0)),
        ([1, 2], '{"iteration": 3, "x', 2),  # what a kill leaves
        ([1, 2], '{"iteration": 3}', 3),  # whole, but without its end
        ([1, 2], "\n \n", 2),
    ],
)
def test_how_far_the_metrics_reach(tmp_path, lines, tail, last):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f'{{"iteration": {i}}}\n' for i in lines) + tail, encoding="utf-8")
    assert len(scan_metrics(path)[0]) == last


DAMAGES = [
    (b'{"iteration": 4, "x": "\xff"}\n', "line 4 is not"),
    (b'{"iter\n', "line 4 is not"),
    (b'{"iteration": true}\n', "line 4 is not"),
    (b'{"iteration": 4, "x": [1]}\n', "line 4 is not"),
    (b'{"iteration": 4, "x": 1' + b"0" * 400 + b"}\n", "line 4 is not"),  # no number of 64 bits
    (b"\n", "line 4 is not"),
    (b"", "line 4 is of iteration 5"),
    (b'{"iteration": 3}\n', "line 4 is of iteration 3"),
]


@pytest.mark.parametrize(("line", "said"), DAMAGES)
def test_a_damaged_line_is_the_users_error_with_its_number(tmp_path, line, said):
    path = tmp_path / "metrics.jsonl"
    before = b"".join([*lines_of(1, 2, 3), line, *lines_of(5, 6)])
    path.write_bytes(before)
    for read in (read_metrics, lambda one: cut_metrics(one, 5)):
        with pytest.raises(UserError, match=rf"metrics\.jsonl: {said}"):
            read(path)
    assert path.read_bytes() == before
    assert len(scan_metrics(path)[0]) == 3
    cut_metrics(path, 3)
    assert [row["iteration"] for row in read_metrics(path)] == [1, 2, 3]


def test_numbers_null_and_truth_values_are_metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1, "a": null, "b": true, "c": 1e-30, "d": 7, "e": NaN}\n')
    assert list(read_metrics(path)[0].values())[:5] == [1, None, True, 1e-30, 7]
