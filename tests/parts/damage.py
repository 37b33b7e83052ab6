"""Seeded damage to files."""

import copy
import json
import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

WRONG = (
    None,
    True,
    -1,
    0,
    3,
    2.5,
    10**6,
    2**70,
    "",
    "x",
    "\x1b]0;title\x07",
    [],
    [None],
    {},
    {"type": "Newer"},
    [1, "a"],
)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON value with each of its keys."""
    keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
    return [(node, key) for key in keys] + [place for key in keys for place in places(node[key])]


def flip(data: bytes, draw: random.Random) -> bytes:
    """Other bytes in up to 8 places; half of the time near the beginning, where headers are."""
    changed, end = bytearray(data), draw.choice([len(data), min(len(data), 200)])
    for _ in range(draw.randint(1, 8)):
        changed[draw.randrange(end)] = draw.randrange(256)
    return bytes(changed)


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


STRANGE = ("NaN", "-Infinity", '"\\ud800"', "null", '"x')


def wreck(path: Path, seed: int) -> str:
    """Damage a file as a hand, a disk or a stranger would; returns what was done. In JSON (lines too) mostly its values."""
    draw, data = random.Random(seed), path.read_bytes()
    ways = {"flipped": flip, "cut": cut, "empty": _empty, "bytes": _other_bytes}
    name = draw.choice([*ways, *["values"] * 11])
    if name == "values" and path.suffix in OF_LIBRARIES:
        return f"{path.name}: {OF_LIBRARIES[path.suffix](path, draw)}"
    if name != "values":
        path.write_bytes(ways[name](data, draw))
        return f"{path.name}: {name}"
    lines = data.decode().splitlines() if path.suffix == ".jsonl" else [data.decode()]
    number = draw.randrange(len(lines))
    lines[number], done = _wrecked(lines[number], draw)
    path.write_bytes("\n".join(lines).encode())
    return f"{path.name}: {done}"


def _tensors(path: Path, draw: random.Random) -> str:
    """A tensor of other numbers, of another shape or type, one too few or too many."""
    tensors = load_file(path)
    name = draw.choice([*tensors]) if tensors else "none"
    x = tensors.pop(name, np.zeros(1))
    others = [x * np.nan, x.astype(np.int64), x[None], x.reshape(-1)[:-1]]
    others += [np.zeros((0,)), np.full(1, 2**62), np.roll(x, 1)]
    done = draw.choice(["gone", "unknown", *range(len(others))])
    if done != "gone":
        tensors |= {"a.b": x, name: x} if done == "unknown" else {name: others[int(done)]}
    save_file({key: np.ascontiguousarray(x) for key, x in tensors.items()}, path)
    return f"{name} {done}"


def _table(path: Path, draw: random.Random) -> str:
    """Another value in a column, or one column less."""
    values = (None, -1, 2.5, 2**62, 1e308, "", "x", "[null]", b"\xff\xfe", "\x1b]0;")
    with closing(sqlite3.connect(path)) as connection:
        listed = connection.execute("select name, type from sqlite_master where sql is not null").fetchall()
        for trigger in [name for name, kind in listed if kind == "trigger"]:
            connection.execute(f'drop trigger "{trigger}"')
        table = draw.choice([name for name, kind in listed if kind == "table"])
        column = draw.choice([row[1] for row in connection.execute(f'pragma table_info("{table}")')])
        with suppress(sqlite3.Error):
            if draw.random() < 0.1:
                connection.execute(f'alter table "{table}" rename column "{column}" to "other"')
            else:
                connection.execute(f'update "{table}" set "{column}" = ?', (draw.choice(values),))
        connection.commit()
    return f"{table}.{column}"


OF_LIBRARIES = {".safetensors": _tensors, ".db": _table, ".sqlite": _table}


def _wrecked(text: str, draw: random.Random) -> tuple[str, str]:
    """One or two changes of the JSON of a text: keys gone or unknown, other values, what JSON cannot hold, or hardly."""
    try:
        tree = json.loads(text)
    except ValueError:
        words = text.split(" ")
        words[draw.randrange(len(words))] = strange = draw.choice(STRANGE)
        return " ".join(words), strange
    done = []
    for _ in range(draw.randint(1, 2)):
        if not (found := places(tree)):
            break
        top = [place for place in found if place[0] is tree]
        (node, key), way = draw.choice(draw.choice([found, top])), draw.choice(["gone", "value", "strange", "unknown"])
        if way == "gone":
            del node[key]
            done.append(f"without {key}")
            continue
        if way == "unknown" and isinstance(node, dict):
            key = draw.choice(["unknown", "act", "__class__", "__dict__", "args", "\x1b]0;", ""])
        number = draw.randrange(len(STRANGE))
        node[key] = f"strange {number}" if way == "strange" else copy.deepcopy(draw.choice(WRONG))
        done.append(f"{key} = {STRANGE[number] if way == 'strange' else node[key]!r}")
    text = json.dumps(tree)
    for number, strange in enumerate(STRANGE):
        text = text.replace(f'"strange {number}"', strange)
    return draw.choice(STRANGE) if draw.random() < 0.05 else text, ", ".join(done)


def _empty(_data: bytes, draw: random.Random) -> bytes:
    return draw.choice([b"", b" ", b"null", b"[]", b"{}", b"\n\n", b"\0" * 100])


def _other_bytes(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data) + 1)
    return data[:place] + draw.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\0", b"\xef\xbb\xbf"]) + data[place:]
