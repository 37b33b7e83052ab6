"""A domain: what users may ask for, what they may want to know, and the entities that there are."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate, combinations, product
from math import prod
from typing import Any

from pydantic import BaseModel

from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.json_files import check_shape, damage_as_user_error

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
        return {entity[slot] for entity in self.entities}

    def entity(self, name: str) -> Entity | None:
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


def check_usable(domain: Domain, where: str) -> Domain:
    """The domain. Raises UserError, with the file and the slot, where no goal can be fulfilled, or a word means something else
    in an act."""
    if not domain.constraints or not domain.entities:
        raise UserError(f"{where}: there is no {'entity' if domain.constraints else 'constraint slot'}; add one")
    for slot in (*domain.constraints, *domain.requestable):
        if not slot.strip() or (slot == NAME and slot in domain.constraints):
            raise UserError(f"{where}: the slot '{slot}' means something else in an act; rename it, or remove it")
    counts = Counter(entity[NAME] for entity in domain.entities)
    for name, count in counts.items():
        if count > 1 or name in (NOTHING, DONTCARE):
            what = "several entities have" if count > 1 else "an entity has, with another meaning in an act,"
            raise UserError(f"{where}: {what} the name '{name}'; give each one a name of its own")
    for slot, values in domain.constraints.items():
        if not domain.used_values(slot) & {*values}:
            raise UserError(
                f"{where}: no entity has any of the values of the constraint slot '{slot}' "
                f"({', '.join(values[:5]) or 'it has none'}); correct the values, or remove the slot"
            )
    return domain


def check_known(what: str, name: Any, known: Iterable[str]) -> None:
    """Raises UserError, with the nearest name, for one that is not known; `what` says of what it is the name."""
    names = list(known)
    if name not in names:
        raise UserError(f"{what} '{name}' is unknown{nearest(str(name), names) or '.'} Known: {', '.join(names)}")


def check_slots(slots: Iterable[str], ontology_slots: Iterable[str], where: str) -> None:
    """Raises UserError for a slot that the ontology lacks; `where` is the file and the entity or the rule."""
    ontology_slots = list(ontology_slots)
    for slot in slots:
        if slot not in ontology_slots:
            raise UserError(
                f"{where}: the ontology lacks the slot '{slot}'{nearest(slot, ontology_slots) or ';'} add it to the ontology, "
                f"or remove it here. Known: {', '.join(ontology_slots)}"
            )


class DomainFile(BaseModel):
    """A domain in our own JSON format; names: those of no entity."""

    name: str
    type: str
    constraints: dict[str, list[str]]
    requestable: list[str]
    entities: list[dict[str, str]]
    names: list[str] = []


def parse_domain(data: Any, where: str) -> Domain:
    """The domain of a parsed `DomainFile`. Raises UserError, with the file, for anything else."""
    with damage_as_user_error(f"{where}: is not a domain ({', '.join(DomainFile.model_fields)}): "):
        check_shape(data, DomainFile)
    slots = dict.fromkeys([NAME, *data["constraints"], *data["requestable"]])
    for number, entity in enumerate(data["entities"], 1):
        if not entity.get(NAME):
            raise UserError(f"{where}, entity {number}: has no name; give it one")
        check_slots(entity, slots, f"{where}, entity {number} ({entity[NAME]})")
    names = data.get("names", [])
    return Domain(data["name"], data["type"], data["constraints"], data["requestable"], data["entities"], names)


def _lower(values: Iterable[str], without: str = "") -> list[str]:
    return list(dict.fromkeys(value.lower() for value in values if value.lower() != without))
