"""Several domains that fit on a page, in MultiWOZ's layout: all names, streets and numbers are made up."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlhf_dialog.task_oriented.domains import MultiDomain, open_domain
from rlhf_dialog.task_oriented.world.multi_domain.goals import MultiGoal, parse_goal

TOWNS = ("cambridge", "oakhaven", "milbury")


def tables() -> dict[str, Any]:
    """db/*_db.json by domain."""
    foods = ("thai", "thai", "greek", "greek", "nordic", "nordic")
    restaurants = [
        {
            **{"id": str(n), "name": f"The {name} Table", "food": food, "area": ("north", "south")[n % 2]},
            **{"pricerange": ("cheap", "expensive")[n // 3], "address": f"{n} Fern Lane", "phone": f"0555{n}"},
            **{"postcode": f"zz{n}", "location": [0.0, n], "introduction": "?"},
        }
        for n, (name, food) in enumerate(
            zip(("Amber", "Birch", "Clover", "Dune", "Ember", "Fjord"), foods, strict=True)
        )
    ]
    del restaurants[5]["phone"]
    hotels = [
        {
            **{"id": str(n), "name": f"{name} House", "area": ("north", "south")[n % 2], "stars": str(2 + n % 3)},
            **{"parking": ("yes", "no")[n // 3], "phone": f"0666{n}", "address": f"{n} Moss Row", "postcode": f"yy{n}"},
        }
        for n, name in enumerate(("Granite", "Heather", "Ivory", "Juniper", "Kestrel"))
    ]
    attractions = [
        {"name": "Lantern Museum", "area": "north", "type": "museum", "phone": "07770", "entrance fee": "?"},
        {"name": "Marsh Park", "area": "south", "type": "park", "phone": "07771", "entrance fee": "free"},
        {"name": "Nettle Park", "area": "north", "type": "park", "phone": "07772", "entrance fee": "2 pounds"},
    ]
    journeys = [(a, b) for a in TOWNS for b in TOWNS if a != b]
    trains = [
        {
            **{"trainID": f"TR{n % 7}", "departure": a, "destination": b, "day": day, "price": f"{n}.10 pounds"},
            **{"leaveAt": f"{hour:02d}:15", "arriveBy": f"{hour + 1:02d}:05", "duration": "50 minutes"},
        }
        for n, (a, b, day, hour) in enumerate(
            (a, b, day, hour) for a, b in journeys for day in ("monday", "friday") for hour in (8, 13, 18)
        )
    ]
    departments = enumerate(("eyes", "bones", "bones"))
    return {
        **{"restaurant": restaurants, "hotel": hotels, "attraction": attractions, "train": trains},
        "hospital": [{"department": name, "id": n, "phone": f"0888{n}"} for n, name in departments],
        "police": [{"name": "Old Guard House", "phone": "0999", "address": "1 Quay", "id": 0}],
        "taxi": {"taxi_colors": ["teal", "grey"], "taxi_types": ["rover", "comet"], "taxi_phone": ["^[0-9]{10}$"]},
    }


def _even(*values: str) -> dict[str, float]:
    return {value: 1 / len(values) for value in values}


def goal_model() -> dict[str, Any]:
    """new_goal_model.json."""
    rows = tables()

    def of(domain: str, *slots: str) -> dict[str, Any]:
        return {slot: _even(*dict.fromkeys(row[slot] for row in rows[domain])) for slot in slots}

    days, people, towns = _even("monday", "friday"), _even("1", "2", "5"), _even(*TOWNS)
    times, places = _even("07:15", "9:00", "14:30"), _even("oak hall", "pine hall", "elm hall")
    journey = {"destination": towns, "day": days, "departure": towns, "arriveBy": times, "leaveAt": times}
    values = {
        "restaurant": {
            "info": of("restaurant", "food", "area", "pricerange", "name"),
            "book": {"time": _even("12:00", "19:30"), "day": days, "people": people},
        },
        "hotel": {
            "info": of("hotel", "area", "stars", "parking", "name"),
            "book": {"stay": _even("1", "3"), "day": days, "people": people},
        },
        "attraction": {"info": of("attraction", "area", "type", "name")},
        "train": {"info": journey, "book": {"people": people}},
        "taxi": {"info": {"leaveAt": times, "arriveBy": times, "departure": places, "destination": places}},
        "hospital": {"info": {"department": _even("eyes", "bones")}},
        "police": {},
    }
    requests = {
        "restaurant": {"phone": 0.5, "postcode": 0.3, "address": 0.4, "food": 0.2},
        "hotel": {"phone": 0.4, "parking": 0.3, "stars": 0.3},
        "attraction": {"entrance fee": 0.6, "phone": 0.4},
        "train": {"trainID": 0.3, "price": 0.5, "duration": 0.3, "arriveBy": 0.2},
        "taxi": {"car type": 1.0, "phone": 1.0},
        "hospital": {"phone": 0.7},
        "police": {"phone": 0.6, "address": 0.5},
    }
    shares = {"name": 0.15, "arriveBy": 0.5, "leaveAt": 0.5, "departure": 1.0, "destination": 1.0, "day": 1.0}
    slots = {
        domain: {kind: {slot: shares.get(slot, 0.6) for slot in own} for kind, own in kinds.items()}
        | {"reqt": requests[domain]}
        for domain, kinds in values.items()
    }
    slots["taxi"]["info"] |= {"departure": 0.2, "destination": 0.2}
    return {
        "ind_slot_dist": slots,
        "ind_slot_value_dist": {domain: own | {"reqt": requests[domain]} for domain, own in values.items()},
        "domain_ordering_dist": {
            **{"restaurant": 0.2, "hotel+train": 0.2, "restaurant+hotel+taxi": 0.2, "attraction+restaurant": 0.1},
            **{"train": 0.05, "taxi": 0.05, "hospital": 0.05, "police": 0.05, "attraction+hotel+taxi": 0.1, "": 0.01},
        },
        "book_dist": {"restaurant": 0.5, "hotel": 0.5, "train": 0.4, "attraction": 0.0},
        "slots_combination_dist": {
            "restaurant": {"info": {"area+food+pricerange": 3, "food+pricerange": 1, "name": 1}},
            "hotel": {"info": {"area+stars": 2, "parking+stars": 2, "name": 1}},
            "attraction": {"info": {"area+type": 2, "name": 1}},
            "train": {"info": {"arriveBy+day+departure+destination": 1, "day+departure+destination+leaveAt": 1}},
            "taxi": {"info": {"leaveAt": 2, "arriveBy": 1, "departure+destination+leaveAt": 1}},
            **{"hospital": {"info": {"": 2, "department": 1}}, "police": {"info": {"": 1}}},
        },
    }


def ontology() -> dict[str, list[str]]:
    """ontology.json, with MultiWOZ's way to write slots."""
    written = {"pricerange": "price range", "arriveBy": "arrive by", "leaveAt": "leave at"}
    found = {}
    for domain, kinds in goal_model()["ind_slot_value_dist"].items():
        for kind, prefix in (("info", ""), ("book", "book ")):
            for slot, values in kinds.get(kind, {}).items():
                found[f"{domain}-{prefix}{written.get(slot, slot)}"] = list(values)
    return found


def write_world(folder: Path, **files: Any) -> Path:
    """The folder; `files` replaces the content of `ontology`, `goals` or a table by its name (None: no such file)."""
    content = {f"db/{name}_db.json": files.get(name, table) for name, table in tables().items()}
    content["ontology.json"] = files.get("ontology", ontology())
    content["new_goal_model.json"] = files.get("goals", goal_model())
    (folder / "db").mkdir(exist_ok=True)
    for name, data in content.items():
        if data is not None:
            (folder / name).write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return folder


@cache
def small_world() -> MultiDomain:
    """The domains of `write_world`."""
    with TemporaryDirectory() as folder:
        domain = open_domain("multiwoz", write_world(Path(folder)))
    assert isinstance(domain, MultiDomain)
    return domain


def multi_goal(domains: dict[str, Any]) -> MultiGoal:
    """The goal of a dict: domain -> its `info`, `requests` (slots), `book`, `fail_info`, `fail_book`."""
    return parse_goal(small_world(), domains)
