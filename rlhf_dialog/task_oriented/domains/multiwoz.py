"""MultiWOZ as ConvLab ships it, in JSON: `db/*_db.json`, `ontology.json` and the goal model."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.task_oriented.domains.domain import NAME, UNKNOWN
from rlhf_dialog.task_oriented.domains.services import TIMES, Chances, DomainService, MultiDomain

ONTOLOGY, GOALS = "ontology.json", ("new_goal_model.json", "goal_model.json")
KEYS = (NAME, "trainID", "department")
TAXI_PARTS, TAXI_SLOTS = ("taxi_colors", "taxi_types"), ("car type", "phone")
UNSAID = ("?", "none", "")
ODD = (KeyError, TypeError, AttributeError, ValueError, IndexError)


def read_multiwoz(folder: Path, read: Callable[[Path], Any]) -> MultiDomain:
    """The domains of the goal model in the folder; `read` parses a JSON file.

    Raises UserError, with the file and the slot, for a file that is missing or something else, for a slot that the ontology
    lacks, and for a constraint slot none of whose values has an entity.
    """
    if not folder.is_dir():
        raise UserError(
            f"data_path '{folder}': there is no such folder; give the one that holds MultiWOZ's db/ and {ONTOLOGY}"
        )
    goals = next((folder / name for name in GOALS if (folder / name).is_file()), None)
    if goals is None or not (folder / ONTOLOGY).is_file():
        missing = ONTOLOGY if goals else " or ".join(GOALS)
        raise UserError(f"{folder}: has no {missing}; name the folder of MultiWOZ's db/, {ONTOLOGY} and {GOALS[0]}")
    model, slots = read(goals), _ontology(read(folder / ONTOLOGY), folder / ONTOLOGY)
    try:
        domains = {name: _shares(model, name) for name in model["ind_slot_dist"]}
        orders = {tuple(key.split("+")): float(share) for key, share in model["domain_ordering_dist"].items() if key}
    except ODD:
        raise UserError(
            f"{goals}: is not MultiWOZ's goal model (ind_slot_dist, ind_slot_value_dist, domain_ordering_dist, book_dist)"
        ) from None
    unknown = next((name for order in orders for name in order if name not in domains), "")
    if unknown or not orders:
        what = f"domain_ordering_dist names the domain '{unknown}'" if unknown else "domain_ordering_dist is empty"
        raise UserError(f"{goals}: {what}; its domains are {', '.join(domains)}")
    services = {}
    for name, shares in sorted(domains.items()):
        _check_slots(name, shares, slots, goals, folder / ONTOLOGY)
        services[name] = _service(name, shares, folder / "db" / f"{name}_db.json", goals, read)
    return MultiDomain("multiwoz", services, Chances(orders))


def _ontology(data: Any, path: Path) -> dict[str, set[str]]:
    """Domain -> its slots, written as in the goal model but without blanks and in lower case."""
    if not isinstance(data, dict) or not all(isinstance(key, str) and "-" in key for key in data):
        raise UserError(f"{path}: is not MultiWOZ's ontology, an object with keys such as 'hotel-area'")
    slots: dict[str, set[str]] = {}
    for key in data:
        domain, _, slot = key.partition("-")
        slots.setdefault(domain, set()).add(_plain(slot))
    return slots


def _plain(slot: str) -> str:
    return re.sub(r"^semi-|[ -]", "", slot).lower()


def _shares(model: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the goal model has of one domain; slots and values as they are in dialogues."""
    slot_shares, values = model["ind_slot_dist"][name], model["ind_slot_value_dist"][name]
    sets = model.get("slots_combination_dist", {}).get(name, {}).get("info", {})
    combinations = {tuple(key.split("+")): float(share) for key, share in sets.items() if key}
    return {
        "constraints": {slot: _chances(slot, shares) for slot, shares in values.get("info", {}).items()},
        "booking": {slot: _chances(slot, shares) for slot, shares in values.get("book", {}).items()},
        "requests": {slot: float(share) for slot, share in slot_shares.get("reqt", {}).items()},
        "constrained": {slot: float(share) for slot, share in slot_shares.get("info", {}).items()},
        "combinations": Chances(combinations) if combinations else None,
        "booked": float(model["book_dist"].get(name, 0.0)),
    }


def _chances(slot: str, shares: Mapping[str, Any]) -> Chances:
    weights: dict[str, float] = {}
    for value, share in shares.items():
        text = _value(slot, value)
        weights[text] = weights.get(text, 0.0) + float(share)
    if not sum(weights.values()) > 0:
        raise ValueError(slot)
    return Chances(weights)


def _value(slot: str, value: Any) -> str:
    text = str(value).strip().lower()
    return text.zfill(5) if slot in TIMES or slot == "time" else text


def _check_slots(name: str, shares: dict[str, Any], slots: dict[str, set[str]], goals: Path, ontology: Path) -> None:
    ontology_slots = slots.get(name, set())
    sets = shares["combinations"].shares if shares["combinations"] else ()
    used = {slot: slot for slot in (*shares["constraints"], *(slot for combination in sets for slot in combination))}
    used |= {f"book {slot}": slot for slot in shares["booking"]}
    for slot in used:
        if _plain(slot) not in ontology_slots:
            hint = nearest(_plain(slot), ontology_slots) or ";"
            raise UserError(
                f"{goals}: the domain {name} has the slot '{slot}', which the ontology ({ontology}) lacks{hint} add "
                f"'{name}-{slot}' to the ontology, or remove the slot here"
            )
        if used[slot] not in shares["constraints" if used[slot] == slot else "booking"]:
            raise UserError(
                f"{goals}: the domain {name} combines the slot '{slot}', of which ind_slot_value_dist says nothing"
            )


def _service(name: str, shares: dict[str, Any], path: Path, goals: Path, read: Callable[[Path], Any]) -> DomainService:
    if not path.is_file():
        raise UserError(f"{path}: is missing, but {goals} has goals of the domain {name}; add the file")
    data = read(path)
    if isinstance(data, dict):
        return _made_to_order(name, shares, data, path)
    if not isinstance(data, list) or not data or not all(isinstance(row, dict) for row in data):
        raise UserError(f"{path}: is not a list of objects, the entities of the domain {name}")
    rows = [{slot: _value(slot, v) for slot, v in row.items() if isinstance(v, str | int | float)} for row in data]
    entities = [{slot: value for slot, value in row.items() if value not in UNSAID} for row in rows]
    slots = set.union(*map(set, entities))
    key = next((slot for slot in KEYS if slot in slots), next(iter(shares["constraints"]), ""))
    for slot in (*shares["constraints"], *shares["requests"], key):
        if slot not in slots:
            raise UserError(
                f"{path}: no entity has the slot '{slot}', which {goals} asks for; add it, or remove it there"
            )
    filled = tuple({slot: entity.get(slot, UNKNOWN) for slot in sorted(slots)} for entity in entities)
    service = DomainService(name, key, entities=filled, **shares)
    for slot, chances in service.constraints.items():
        if not any(service.matching({slot: value}) for value in chances.shares):
            examples = ", ".join(list(chances.shares)[:5])
            raise UserError(
                f"{path}: no entity has any of the values of the constraint slot '{slot}' ({examples}); correct the entities, "
                f"or remove the slot from {goals}"
            )
    return service


def _made_to_order(name: str, shares: dict[str, Any], data: Mapping[str, Any], path: Path) -> DomainService:
    """A taxi: made of a colour and a type, with a number of its own."""
    parts = {part: data.get(part) for part in TAXI_PARTS}
    for part, values in parts.items():
        if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
            raise UserError(f"{path}: '{part}' is missing, or is not a list of texts")
    for slot in shares["requests"]:
        if slot not in TAXI_SLOTS:
            raise UserError(f"{path}: a {name} has no slot '{slot}', only {' and '.join(TAXI_SLOTS)}")
    return DomainService(
        name, TAXI_SLOTS[0], made_from={part: tuple(values) for part, values in parts.items() if values}, **shares
    )
