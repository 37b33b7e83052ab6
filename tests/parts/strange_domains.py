"""Ontologies that nobody would think of first: one slot, one value, twelve slots, odd letters, odd words, gaps."""

from random import Random
from typing import Any

from rlhf_dialog.task_oriented.domains.domain import Domain, check_usable, parse_domain


def twelve_slots() -> dict[str, Any]:
    rng = Random(0)
    slots = {f"slot{n}": [f"v{n}.{value}" for value in range(rng.randint(1, 9))] for n in range(12)}
    entities = [
        {"name": f"e{n}", "code": str(n)} | {slot: rng.choice(values) for slot, values in slots.items()}
        for n in range(60)
    ]
    return {"constraints": slots, "requestable": ["code"], "entities": entities}


STRANGE: dict[str, dict[str, Any]] = {
    "one slot": {
        "constraints": {"genre": ["crime", "science fiction"]},
        "requestable": ["name"],
        "entities": [{"name": "a b c", "genre": "crime"}, {"name": "d", "genre": "science fiction"}],
    },
    "one value, one entity": {
        "constraints": {"genre": ["crime"]},
        "requestable": ["isbn"],
        "entities": [{"name": "a", "genre": "crime", "isbn": "1"}],
    },
    "twelve slots": twelve_slots(),
    "odd letters": {
        "constraints": {
            "größe": ["klein", "ÜBERGROß", "dontcare", "none"],
            "preis (€)": ["1", "10"],
            "日本": ["寿司", " mit Leer "],
        },
        "requestable": ["größe", "telefon nummer"],
        "entities": [
            {"name": "Zum Löwen", "größe": "klein", "preis (€)": "1", "日本": "寿司"},
            {"name": "İstanbul", "größe": "ÜBERGROß", "preis (€)": "10", "日本": " mit Leer "},
            {"name": "drei", "größe": "none", "preis (€)": "1", "日本": "寿司", "telefon nummer": "none"},
            {"name": "vier", "größe": "dontcare", "preis (€)": "10", "日本": "寿司"},
        ],
    },
    "names of actions": {
        "constraints": {"byname": ["a", "b"], "alternatives": ["a", "b"], "type": ["inn", "hostel"]},
        "requestable": ["type"],
        "entities": [
            {
                "name": f"e{n}",
                "byname": "ab"[n % 2],
                "alternatives": "ab"[n // 2 % 2],
                "type": ("inn", "hostel")[n // 4],
            }
            for n in range(8)
        ],
    },
    "gaps": {
        "constraints": {"a": ["1", "2"], "b": ["1", "2"]},
        "requestable": ["phone"],
        "entities": [{"name": "q"}, {"name": "r", "a": "1"}, {"name": "s", "b": "2"}],
    },
}


def strange(name: str) -> Domain:
    return check_usable(parse_domain({"name": name, "type": "hotel"} | STRANGE[name], name), name)
