"""MultiWOZ as ConvLab ships it, in JSON: `db/*_db.json`, `ontology.json` and the goal model."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import damage_as_user_error
from rlhf_dialog.task_oriented.domains.domain import NAME, UNKNOWN
from rlhf_dialog.task_oriented.domains.services import TIMES, Chances, DomainService, MultiDomain

ONTOLOGY, GOALS = "ontology.json", ("new_goal_model.json", "goal_model.json")
KEYS = (NAME, "trainID", "department")
TAXI_PARTS, TAXI_SLOTS = ("taxi_colors", "taxi_types"), ("car type", "phone")
UNSAID = ("?", "none", "")


def read_multiwoz(folder: Path, read: Callable[[Path], Any]) -> MultiDomain:
    """The domains of the goal model in the folder; `read` parses a JSON file.

    Raises UserError, with the file, for a file that is missing or something else, for a slot that the ontology lacks, and for a
    constraint slot none of whose values has an entity.
    """
    goals = next((folder / name for name in GOALS if (folder / name).is_file()), folder / GOALS[0])
    model, keys = read(goals), read(folder / ONTOLOGY)
    ontology: dict[str, set[str]] = {}  # domain -> its slots
    with damage_as_user_error(f"{folder / ONTOLOGY}: is not MultiWOZ's ontology: "):
        for key in keys:
            name, _, slot = key.partition("-")
            ontology.setdefault(name, set()).add(_plain(slot))
    with damage_as_user_error(f"{goals}: is not MultiWOZ's goal model: "):
        domains = {name: _shares(model, name) for name in model["ind_slot_dist"]}
        orders = {tuple(key.split("+")): float(share) for key, share in model["domain_ordering_dist"].items() if key}
        if not orders or not {name for order in orders for name in order} <= set(domains):
            raise ValueError(f"domain_ordering_dist is empty or names others than the domains {', '.join(domains)}")
    services = {}
    for name, shares in sorted(domains.items()):
        for slot in (*shares["constraints"], *(f"book {slot}" for slot in shares["booking"])):
            if _plain(slot) not in ontology.get(name, ()):
                raise UserError(
                    f"{goals}: the domain {name} has the slot '{slot}', which {ONTOLOGY} lacks; add '{name}-{slot}' there, "
                    "or remove it here"
                )
        path = folder / "db" / f"{name}_db.json"
        table = read(path)
        with damage_as_user_error(f"{path}: does not fit the domain {name} of {goals.name}: "):
            services[name] = _service(name, shares, table)
    return MultiDomain("multiwoz", services, Chances(orders))


def _plain(slot: str) -> str:
    return re.sub(r"^semi-|[ -]", "", slot).lower()


def _shares(model: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the goal model has of one domain; slots and values as they are in dialogues."""
    slot_shares, values = model["ind_slot_dist"][name], model["ind_slot_value_dist"][name]
    sets = model.get("slots_combination_dist", {}).get(name, {}).get("info", {})
    combinations = {tuple(key.split("+")): float(share) for key, share in sets.items() if key}
    constraints = {slot: _chances(slot, shares) for slot, shares in values.get("info", {}).items()}
    if valueless := {slot for names in combinations for slot in names} - set(constraints):
        raise ValueError(f"the domain {name} combines slots without values: {', '.join(sorted(valueless))}")
    return {
        "constraints": constraints,
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
        raise ValueError(f"{slot}: no value has a share")
    return Chances(weights)


def _value(slot: str, value: Any) -> str:
    text = str(value).strip().lower()
    return text.zfill(5) if slot in TIMES or slot == "time" else text


def _service(name: str, shares: dict[str, Any], table: Any) -> DomainService:
    """The domain of its parsed table. Raises what a table of another kind raises, and ValueError for a slot without values."""
    if isinstance(table, dict):  # a taxi: made of a colour and a type, with a number of its own
        if other := set(shares["requests"]) - set(TAXI_SLOTS):
            raise ValueError(f"users ask for {sorted(other)[0]}, and it has {' and '.join(TAXI_SLOTS)}")
        return DomainService(name, TAXI_SLOTS[0], made_from={part: tuple(table[part]) for part in TAXI_PARTS}, **shares)
    rows = [{slot: _value(slot, v) for slot, v in row.items() if isinstance(v, str | int | float)} for row in table]
    entities = [{slot: value for slot, value in row.items() if value not in UNSAID} for row in rows]
    slots = set().union(*entities)
    key = next((slot for slot in KEYS if slot in slots), next(iter(shares["constraints"]), ""))
    if missing := {*shares["constraints"], *shares["requests"], key} - slots:
        raise ValueError(f"no entity has the slot '{sorted(missing)[0]}'")
    filled = tuple({slot: entity.get(slot, UNKNOWN) for slot in sorted(slots)} for entity in entities)
    service = DomainService(name, key, entities=filled, **shares)
    for slot, chances in service.constraints.items():
        if not any(service.matching({slot: value}) for value in chances.shares):
            examples = ", ".join(list(chances.shares)[:5])
            raise ValueError(f"no entity has any of the values of the constraint slot '{slot}' ({examples})")
    return service
