"""A domain: what users may ask for, what they may want to know, and the entities that there are."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate, combinations, product
from math import prod
from typing import Any

from rlhf_dialog.errors import UserError, nearest

DONTCARE = "dontcare"
UNKNOWN = "not available"  # the value of a slot of which an entity says nothing
NAME, TYPE = "name", "type"
NOTHING = "none"  # the name in `inform name=none`: nothing fits
MAX_CONSTRAINTS = 3
Entity = dict[str, str]


class Domain:
    """Ontology and entities. All values are text in lower case, as the acts of a dialogue hold them.

    constraints: slot -> its values, in the ontology's order: what the system may ask, and the user may constrain
    requestable: the slots that the user may ask about; `name` is one of them
    names: the values of `name`, with those of no entity
    entities: in the order of the file; each one has a value for `name`, every constraint slot and every requestable slot

    >>> domain = Domain("tea", "cafe", {"area": ["north", "south"]}, ["name", "area"], [{"name": "ada", "area": "north"}])
    >>> [entity["name"] for entity in domain.matching({"area": "north"})], domain.matching({"area": "south"})
    (['ada'], ())
    """

    def __init__(
        self,
        name: str,
        kind: str,
        constraints: Mapping[str, Iterable[str]],
        requestable: Iterable[str],
        entities: Iterable[Mapping[str, str]],
        names: Iterable[str] = (),
    ):
        self.name, self.type = name, kind.lower()
        self.constraints = {slot: tuple(_lower(values, without=DONTCARE)) for slot, values in constraints.items()}
        self.requestable = tuple(dict.fromkeys([NAME, *requestable]))
        slots = dict.fromkeys([*self.requestable, *self.constraints])
        self.entities = tuple({slot: entity.get(slot, "").lower() or UNKNOWN for slot in slots} for entity in entities)
        self.names = tuple(dict.fromkeys([*_lower(names), *(entity[NAME] for entity in self.entities)]))
        self._by_name = {entity[NAME]: entity for entity in self.entities}
        self._matching: dict[tuple[tuple[str, str], ...], tuple[Entity, ...]] = {}
        self._goals: tuple[list[dict[str, str]], list[float]] | None = None

    @property
    def hash(self) -> str:
        """sha256 over the canonical JSON of ontology and entities, in hex."""
        data = [self.type, list(self.constraints.items()), self.requestable, self.names, self.entities]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """The domain as `parse_domain` reads it."""
        constraints = {slot: list(values) for slot, values in self.constraints.items()}
        lists = {"requestable": list(self.requestable), "names": list(self.names), "entities": list(self.entities)}
        return {"name": self.name, "type": self.type, "constraints": constraints, **lists}

    def values(self, slot: str) -> tuple[str, ...]:
        """The values that the ontology has for the slot; none for a slot that can only be asked about."""
        return self.names if slot == NAME else self.constraints.get(slot, ())

    def used_values(self, slot: str) -> set[str]:
        """The values that entities have for the slot."""
        return {entity[slot] for entity in self.entities}

    def entity(self, name: str) -> Entity | None:
        """The entity of that name, if there is one."""
        return self._by_name.get(name)

    def matching(self, constraints: Mapping[str, str]) -> tuple[Entity, ...]:
        """The entities that have these values, in order; `dontcare` fits every value."""
        key = tuple(sorted(item for item in constraints.items() if item[1] != DONTCARE))
        if key not in self._matching:
            self._matching[key] = tuple(e for e in self.entities if all(e[slot] == value for slot, value in key))
        return self._matching[key]

    def goals(self) -> tuple[list[dict[str, str]], list[float]]:
        """The constraints of every goal that two or three entities fulfil, and their cumulative weights.

        The weights are those of slots and values drawn uniformly, `dontcare` being one of the values, and drawn again
        until two or three entities fit. In a domain without such a goal, one entity or more. Raises UserError when no
        entity fulfils any goal.
        """
        if self._goals is None:
            counted = [
                goal
                for slots in combinations(self.constraints, min(MAX_CONSTRAINTS, len(self.constraints)))
                for goal in self._count_entities(slots)
            ]
            few = [goal for goal in counted if 2 <= goal[2] <= 3] or counted
            self._goals = [goal for goal, _, _ in few], list(accumulate(weight for _, weight, _ in few))
        if not self._goals[0]:
            raise UserError(f"domain {self.name}: no entity has values that the ontology knows; correct the entities")
        return self._goals

    def _count_entities(self, slots: tuple[str, ...]) -> list[tuple[dict[str, str], float, int]]:
        """For every goal on these slots that an entity fulfils: the goal, its weight, and how many entities do."""
        weight = 1 / prod(len(self.constraints[slot]) + 1 for slot in slots)
        options_of_entities = [
            [(entity[slot], DONTCARE) if entity[slot] in self.constraints[slot] else (DONTCARE,) for slot in slots]
            for entity in self.entities
        ]
        counts = Counter(values for options in options_of_entities for values in product(*options))
        return [(dict(zip(slots, values, strict=True)), weight, count) for values, count in counts.items()]


def check_usable(domain: Domain, where: str) -> tuple[Domain, str]:
    """The domain, and one line about values without entities (empty when there are none).

    Raises UserError, with the file and the slot, for a domain in which no goal can be fulfilled.
    """
    if not domain.constraints:
        raise UserError(f"{where}: no slot is a constraint; give at least one with its values")
    _check_words(domain, where)
    if not domain.entities:
        raise UserError(f"{where}: there are no entities; add them")
    if len(domain._by_name) < len(domain.entities):
        twice = sorted({e[NAME] for e in domain.entities if domain.entity(e[NAME]) is not e})
        raise UserError(f"{where}: several entities have the name '{twice[0]}'; give each one a name of its own")
    unused = {}
    for slot, values in domain.constraints.items():
        used_values = domain.used_values(slot)
        unused[slot] = [value for value in values if value not in used_values]
        if len(unused[slot]) == len(values):
            raise UserError(
                f"{where}: no entity has any of the values of the constraint slot '{slot}' "
                f"({', '.join(values[:5]) or 'it has none'}); correct the values, or remove the slot"
            )
    parts = [f"{len(v)} of {len(domain.constraints[slot])} values of {slot}" for slot, v in unused.items() if v]
    return domain, f"{where}: without entities are {' and '.join(parts)}" if parts else ""


def _check_words(domain: Domain, where: str) -> None:
    """Raises UserError for slots and names that mean something else in an act."""
    for slot in (*domain.constraints, *domain.requestable):
        if not slot.strip() or (slot == NAME and slot in domain.constraints):
            what = (
                "the name of the entities, which users may always constrain" if slot else "an answer without its slot"
            )
            raise UserError(f"{where}: the slot '{slot}' means {what}; rename it, or remove it")
    for name in sorted({NOTHING, DONTCARE} & {entity[NAME] for entity in domain.entities}):
        raise UserError(f"{where}: an entity has the name '{name}', which means something else in an act; rename it")


def check_slots(slots: Iterable[str], ontology_slots: Iterable[str], where: str) -> None:
    """Raises UserError for a slot that the ontology lacks; `where` is the file and the entity or the rule."""
    ontology_slots = list(ontology_slots)
    for slot in slots:
        if slot not in ontology_slots:
            raise UserError(
                f"{where}: the ontology lacks the slot '{slot}'{nearest(slot, ontology_slots) or ';'} add it to the ontology, "
                f"or remove it here. Known: {', '.join(ontology_slots)}"
            )


def parse_domain(data: Any, where: str) -> Domain:
    """The domain of our own JSON format: an object with name, type, constraints, requestable, entities, and names of others.

    Raises UserError, with the file, for anything else.
    """
    shape = {"name": str, "type": str, "constraints": dict, "requestable": list, "entities": list}
    for key, kind in shape.items():
        if not isinstance(data, dict) or not isinstance(data.get(key), kind):
            raise UserError(f"{where}: '{key}' is missing, or is not {_KINDS[kind]}; a domain has {', '.join(shape)}")
    for slot, values in data["constraints"].items():
        check_texts(values, f"{where}: constraint slot '{slot}'")
    check_texts(data["requestable"], f"{where}: requestable")
    check_texts(names := data.get("names", []), f"{where}: names")
    slots = dict.fromkeys([NAME, *data["constraints"], *data["requestable"]])
    for number, entity in enumerate(data["entities"], 1):
        place = f"{where}, entity {number}"
        if not isinstance(entity, dict) or not entity.get(NAME):
            raise UserError(f"{place}: is not an object with a name")
        check_texts(entity.values(), place)
        check_slots(entity, slots, f"{place} ({entity[NAME]})")
    return Domain(data["name"], data["type"], data["constraints"], data["requestable"], data["entities"], names)


_KINDS = {str: "a text", dict: "an object", list: "a list"}


def check_texts(values: Any, where: str) -> None:
    """Raises UserError when these are not texts; `where` is the file and the place in it."""
    texts = None if isinstance(values, str) or not isinstance(values, Iterable) else list(values)
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: holds something that is not a text; write every value in quotation marks")


def _lower(values: Iterable[str], without: str = "") -> list[str]:
    return list(dict.fromkeys(value.lower() for value in values if value.lower() != without))
