"""Seeded damage to the files of a model folder. `from damage import damage`."""

import copy
import json
import random
from pathlib import Path
from typing import Any

JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "rlhf_dialog.json")
FILES = (*JSON_FILES, "model.safetensors")
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


def damage(folder: Path, seed: int) -> str:
    """Damage one file of the folder in one to three places; returns what was done."""
    draw = random.Random(seed)
    path = folder / draw.choice([name for name in FILES if (folder / name).is_file()])
    ways = [flip, cut] if path.suffix != ".json" else [flip, cut, forget, mistype, mistype, mistype]
    way = draw.choice(ways)
    if way is flip or way is cut:
        path.write_bytes(way(path.read_bytes(), draw))
        return f"{way.__name__} {path.name}"
    data = json.loads(path.read_text(encoding="utf-8"))
    done = [way(data, draw) for _ in range(draw.randint(1, 3))]
    path.write_text(json.dumps(data), encoding="utf-8")
    return f"{way.__name__} {path.name}: {', '.join(done)}"


def flip(data: bytes, draw: random.Random) -> bytes:
    """Other bytes in up to 8 places; half of the time near the beginning, where headers are."""
    changed, end = bytearray(data), draw.choice([len(data), min(len(data), 200)])
    for _ in range(draw.randint(1, 8)):
        changed[draw.randrange(end)] = draw.randrange(256)
    return bytes(changed)


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def forget(data: Any, draw: random.Random) -> str:
    """Remove a key or an item."""
    if not (found := places(data)):
        return "nothing"
    node, key = draw.choice(found)
    del node[key]
    return f"without {key}"


def mistype(data: Any, draw: random.Random) -> str:
    """Another value in the place of a key's, half of the time of a key at the top."""
    found = places(data)
    if draw.random() < 0.5:
        found = [(data, key) for key in data]
    if not found:
        return "nothing"
    node, key = draw.choice(found)
    node[key] = value = copy.deepcopy(draw.choice(WRONG))
    return f"{key} = {value!r}"
