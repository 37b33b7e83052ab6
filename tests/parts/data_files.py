"""The dialogues of tiny.py as the bytes of files. `from data_files import csv_bytes`."""

import csv
import io
import json
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
from tiny import SPLITS, dialogues, write_data


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
