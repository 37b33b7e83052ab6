"""Reading whatever comes: the outcome is a UserError or valid records, never another exception."""

import json
import shutil

import datasets
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.data.sources import load_records
from rlhf_dialog.errors import UserError
from tests.parts.data_files import csv_bytes, jsonl_bytes, original_files, parquet_bytes, rows_of, zipped

pytestmark = pytest.mark.slow
QUICK = {"suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}
ARROW = "saved/train/data-00000-of-00001.arrow"
TARGETS = {  # the file that is changed -> what is read
    "a.jsonl": "a.jsonl",
    "a.json": "a.json",
    "a.csv": "a.csv",
    "a.tsv": "a.tsv",
    "a.parquet": "a.parquet",
    "published.zip": "published.zip",
    "plain.zip": "plain.zip",
    "original/train/dialogues_train.txt": "original",
    "original/train/dialogues_act_train.txt": "original",
    "saved/train/state.json": "saved",
    ARROW: "saved",
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """A folder with a valid file of each kind."""
    folder, rows = tmp_path_factory.mktemp("fuzz"), rows_of("train")
    original = original_files(folder / "original", "train")
    contents = {
        "a.jsonl": jsonl_bytes(rows),
        "a.json": json.dumps(rows).encode(),
        "a.csv": csv_bytes(rows, str),
        "a.tsv": csv_bytes(rows, delimiter="\t"),
        "a.parquet": parquet_bytes(rows),
        "published.zip": zipped({"top/train.zip": zipped(original)}),
        "plain.zip": zipped(original),
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    datasets.DatasetDict(train=datasets.Dataset.from_list(rows)).save_to_disk(folder / "saved")
    for name in TARGETS.values():
        assert len(load_records(str(folder / name), "train")) == 5
    return folder


def is_text(value):
    return isinstance(value, str) and value != "" and value == value.strip() and bool(value.encode())


def check(path):
    """Read as training does, and check each record against what the fields promise."""
    try:
        records = load_records(str(path), "train")
    except UserError:
        return
    assert records
    for record in records:
        num_slots = 1 if record.is_prompt else len(record.turns)
        assert record.turns
        assert all(map(is_text, record.turns))
        assert record.acts is None or len(record.acts) == num_slots
        assert all(type(act) is int and 1 <= act <= 4 for act in record.acts or ())
        assert record.references is None or len(record.references) == num_slots
        assert all(is_text(text) for texts in record.references or () for text in texts)
    try:
        prompts = load_prompts(str(path), "train")
    except UserError:
        return
    assert all(p.references[:1] == ([p.reference] if p.reference else []) for p in prompts)


def with_content(folder, tmp_path, target, data):
    """A copy of the valid data with other bytes in one file; returns what is to be read."""
    root = tmp_path / "copy"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    place = TARGETS[target]
    (shutil.copytree if (folder / place).is_dir() else shutil.copy)(folder / place, root / place)
    (root / target).write_bytes(data)
    return root / place


CHANGES = st.lists(
    st.tuples(st.sampled_from(["cut", "flip", "insert", "drop", "start"]), st.floats(0, 1), st.binary(max_size=4)),
    min_size=1,
    max_size=4,
)


def changed(data, changes):
    for change, place, new in changes:
        i = int(place * len(data))
        if change == "cut":
            data = data[:i]
        elif change == "start":
            data = data[i:]
        elif change == "flip":
            data = data[:i] + new + data[i + len(new) :]
        elif change == "insert":
            data = data[:i] + new + data[i:]
        else:
            data = data[:i] + data[i + 1 + len(new) :]
    return data


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=60, **QUICK)
@given(changes=CHANGES)
def test_damaged_files(valid, tmp_path, target, changes):
    check(with_content(valid, tmp_path, target, changed((valid / target).read_bytes(), changes)))


TURN_NAMES = st.sampled_from(["dialog", "turns", "messages", "conversations", "prompt", "reference", "references"])
OTHER_NAMES = st.sampled_from(
    ["act", "act_label", "id", "text", "utterance", "role", "from", "content", "value", "type", "x"]
)
KEYS = TURN_NAMES | OTHER_NAMES
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-1, 6)
    | st.floats()
    | st.sampled_from(["text", "user", "system", "2", "inform"])
)
JSON = st.recursive(
    SCALARS | st.text(st.characters(exclude_categories=()), max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
TURNS = st.lists(
    st.sampled_from(["a", "b"]) | st.fixed_dictionaries({"role": st.just("user"), "content": JSON}), max_size=3
)
ROWS = st.lists(
    st.fixed_dictionaries({"dialog": TURNS | JSON}, optional={"act": JSON, "references": JSON, "id": SCALARS})
    | st.fixed_dictionaries({"prompt": TURNS | JSON}, optional={"act": SCALARS, "reference": JSON, "references": JSON})
    | st.fixed_dictionaries({"id": SCALARS, "text": JSON}, optional={"act": JSON, "role": SCALARS})
    | JSON,
    min_size=1,
    max_size=3,
)


@settings(max_examples=250, **QUICK)
@given(rows=ROWS)
def test_random_rows(tmp_path, rows):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    check(tmp_path / "a.jsonl")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    check(tmp_path / "a.json")
