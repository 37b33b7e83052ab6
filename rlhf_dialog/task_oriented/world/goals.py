"""What a simulated user wants: constraints that the entity must fulfil, and requests, slots that the user wants to know."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.json_files import damage_as_user_error
from rlhf_dialog.task_oriented.domains import DONTCARE, NAME, UNKNOWN, Domain
from rlhf_dialog.task_oriented.domains.domain import Entity

MAX_REQUESTS = 3  # with the name, which every user wants to know


@dataclass
class Goal:
    """`constraints`: slot -> value or `dontcare`. `requests`: slot -> what the user has heard, None at first.

    `wanted_name`: the only venue that will do, or empty; `name`: the one that the user settled on; `other_than`: the venues
    that the user refused.
    """

    constraints: dict[str, str]
    requests: dict[str, str | None] = field(default_factory=lambda: {NAME: None})
    wanted_name: str = ""
    name: str = ""
    other_than: list[str] = field(default_factory=list)

    def copy(self) -> "Goal":
        return Goal(dict(self.constraints), dict(self.requests), self.wanted_name, self.name, list(self.other_than))

    def since(self, first: "Goal", domain: Domain) -> "Goal":
        """The goal at the end, with what a user cannot take back of its first one: slots of constraints, requests, the name.

        Raises UserError for slots that the domain lacks.
        """
        kept = self.copy()
        kept.constraints, kept.requests = first.constraints | self.constraints, first.requests | self.requests
        kept.wanted_name = first.wanted_name
        for slots, domain_slots in ((kept.constraints, domain.constraints), (kept.requests, domain.entities[0])):
            if unknown := sorted(map(str, set(slots) - set(domain_slots))):
                raise UserError(
                    f"user: its goal has the slot '{unknown[0]}' at the end; keep to {', '.join(domain_slots)}"
                )
        return kept

    def reconsider(self) -> None:
        """Forget which venues were settled on or refused."""
        self.name, self.other_than = self.wanted_name, []

    def fits(self, entity: Entity) -> bool:
        """Whether the entity fulfils every constraint. The name that the user settled on is not a constraint."""
        fits_constraints = all(value in (entity[slot], DONTCARE) for slot, value in self.constraints.items())
        return fits_constraints and entity[NAME] not in self.other_than and self.wanted_name in ("", entity[NAME])

    def requested_slots(self) -> list[str]:
        return [slot for slot in self.requests if slot != NAME]

    def as_dict(self) -> dict[str, Any]:
        """For transcripts: constraints, requests (their slots), other_than."""
        return {
            "constraints": self.constraints | ({NAME: self.wanted_name} if self.wanted_name else {}),
            "requests": list(self.requests),
            "other_than": list(self.other_than),
        }


def draw_goal(domain: Domain, rng: Random) -> Goal:
    """A goal that two or three entities fulfil (`Domain.goals`), with the name and up to two more requests."""
    goals, weights = domain.goals()
    constraints = rng.choices(goals, cum_weights=weights)[0]
    slots = [slot for slot in domain.requestable if slot not in domain.constraints]
    requests = rng.sample(slots, min(rng.randrange(MAX_REQUESTS), len(slots)))
    return Goal(dict(constraints), dict.fromkeys([NAME, *requests]))


def parse_goal(domain: Domain, data: Mapping[str, Any]) -> Goal:
    """The user's own goal: `{"constraints": {slot: value}, "requests": [slot, ...]}`; the name is always requested.

    Raises UserError, with the slot, for one that the domain lacks, and for a goal that no entity fulfils even when every
    constraint that the user may relax is `dontcare`.
    """
    where = f"goal {data} of the domain {domain.name}"
    with damage_as_user_error(f"{where}: is not {{'constraints': {{slot: value}}, 'requests': [slot, ...]}}: "):
        constraints = {slot: str(value).lower() for slot, value in data.get("constraints", {}).items()}
        requests = list(data.get("requests", []))
    for kind, slots, known in (
        ("a constraint slot", constraints, [*domain.constraints, NAME]),
        ("requestable", requests, domain.requestable),
    ):
        for slot in slots:
            if slot not in known:
                raise UserError(
                    f"{where}: '{slot}' is not {kind}{nearest(str(slot), known) or '.'} Use {', '.join(known)}"
                )
    for slot, value in constraints.items():
        if value not in (*domain.values(slot), DONTCARE):
            hint = nearest(value, domain.values(slot)) or f"; or give {DONTCARE}"
            raise UserError(f"{where}: the slot '{slot}' has no value '{value}'{hint}")
    name = constraints.pop(NAME, DONTCARE)
    name = "" if name == DONTCARE else name
    relaxed = [entity for entity in domain.entities if name in ("", entity[NAME])]
    if not relaxed or any(all(entity[slot] == UNKNOWN for entity in relaxed) for slot in requests):
        raise UserError(
            f"{where}: no entity of this name has what is requested, also when every other constraint is relaxed; change it"
        )
    return Goal(constraints, dict.fromkeys([NAME, *requests]), name, name)
