"""The dialogues of tiny.py in files, archives and folders of every kind."""

import csv
import io
import json
import zipfile
from itertools import islice

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_dialog.data.sources import load_records
from rlhf_dialog.errors import UserError
from tests.parts.tiny import SPLITS, dialogues, write_data

HTML = b"\n<!DOCTYPE html><html><head><title>This domain is for sale</title></head></html>"
TWO = ["Hi", "Hey"]
TALK = '{"dialog": ["a", "b"]}\n'


def rows_of(split, count=5):
    start = count * SPLITS.index(split)
    return [{"dialog": turns, "act": acts} for turns, acts in dialogues(count, start=start)]


def zipped(files):
    """The bytes of a zip archive of {name: bytes}."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def original_files(folder, split):
    """The files of one split as {"train/dialogues_train.txt": bytes}."""
    write_data(folder, count=5)
    return {f"{split}/{path.name}": path.read_bytes() for path in (folder / split).iterdir()}


def csv_bytes(rows, write=json.dumps, delimiter=","):
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(rows[0])
    writer.writerows([write(v) if isinstance(v, list) else v for v in row.values()] for row in rows)
    return text.getvalue().encode()


def jsonl_bytes(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet_bytes(rows):
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def published(folder):
    """The archive as DailyDialog was published: zips of the splits within a zip."""
    inner = {f"ijcnlp_dailydialog/{split}.zip": zipped(original_files(folder / "x", split)) for split in SPLITS}
    path = folder / "ijcnlp_dailydialog.zip"
    beside = {"ijcnlp_dailydialog/dialogues_text.txt": b"a __eou__\n", "ijcnlp_dailydialog/readme.txt": b"hello"}
    path.write_bytes(zipped({**beside, **inner, "__MACOSX/ijcnlp_dailydialog/._train.zip": b"?"}))
    return path


def zip_with_a_folder(folder):
    files = {f"dailydialog/{name}": x for split in SPLITS for name, x in original_files(folder / "x", split).items()}
    (folder / "data.zip").write_bytes(zipped(files))
    return folder / "data.zip"


def folder_of_zips(folder):
    (folder / "zips").mkdir()
    for split in SPLITS:
        (folder / "zips" / f"{split}.zip").write_bytes(zipped(original_files(folder / "x", split)))
    return folder / "zips"


def saved(folder):
    sets = {split: datasets.Dataset.from_list(rows_of(split)) for split in SPLITS}
    datasets.DatasetDict(sets).save_to_disk(folder / "saved", num_shards={"train": 2, "validation": 1, "test": 1})
    return folder / "saved"


def one_file_each(suffix, encode, names=SPLITS):
    def write(folder):
        for split, name in zip(SPLITS, names, strict=True):
            path = folder / "files" / f"{name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(rows_of(split)))
        return folder / "files"

    return write


def shards(folder):
    (folder / "hub/data").mkdir(parents=True)
    for split, sizes in (("train", (2, 3)), ("validation", (5,)), ("test", (5,))):
        rows = iter(rows_of(split))
        for i, size in enumerate(sizes):
            part = parquet_bytes(list(islice(rows, size)))
            (folder / f"hub/data/{split}-{i:05}-of-{len(sizes):05}.parquet").write_bytes(part)
    return folder / "hub"


def numbered(folder):
    """Their order as text is not their order as numbers."""
    for split in SPLITS:
        (folder / "converted" / split).mkdir(parents=True)
        for i, row in enumerate(rows_of(split)):
            (folder / f"converted/{split}/{8 + i}.parquet").write_bytes(parquet_bytes([row]))
    return folder / "converted"


def zip_of_jsonl(folder):
    (folder / "j.zip").write_bytes(zipped({f"talk/{split}.jsonl": jsonl_bytes(rows_of(split)) for split in SPLITS}))
    return folder / "j.zip"


WRITERS = {
    "published zip": published,
    "zip with a top folder": zip_with_a_folder,
    "folder of zips": folder_of_zips,
    "save_to_disk": saved,
    "jsonl": one_file_each(".jsonl", jsonl_bytes),
    "csv as pandas writes": one_file_each(".csv", lambda rows: csv_bytes(rows, str)),
    "tsv": one_file_each(".tsv", lambda rows: csv_bytes(rows, delimiter="\t")),
    "val": one_file_each(".csv", csv_bytes, ("train", "val", "test")),
    "dev in data/": one_file_each(".jsonl", jsonl_bytes, ("data/train", "data/dev", "data/test")),
    "valid": one_file_each(".json", lambda rows: json.dumps(rows).encode(), ("train", "valid", "test")),
    "BOM and CRLF": one_file_each(".csv", lambda rows: b"\xef\xbb\xbf" + csv_bytes(rows)),
    "shards": shards,
    "numbered shards": numbered,
    "zip of jsonl": zip_of_jsonl,
}


def load(folder, name, content, split="train"):
    return load_records(str(_write(folder / name, content)), split)


def load_folder(folder, files):
    """The train split of a folder with these files, {name: bytes or text}."""
    for name, content in files.items():
        _write(folder / name, content)
    return load_records(str(folder), "train")


def _write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_split(folder, text, acts=None):
    _write(folder / "train/dialogues_train.txt", text)
    if acts is not None:
        _write(folder / "train/dialogues_act_train.txt", acts)
    return str(folder)


def error_of(data_path, split="train"):
    with pytest.raises(UserError) as caught:
        load_records(str(data_path), split)
    return str(caught.value)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}
