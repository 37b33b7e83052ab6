"""Where bookings are made: what was booked under which reference, and what is refused."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rlhf_dialog.task_oriented.world.multi_domain.state import Booked

NUM_CHARACTERS, NUM_DIGITS = 8, 10
CHARACTERS = string.ascii_lowercase + string.digits


@dataclass(frozen=True)
class Booking:
    """One booking. entity: its number in the table, None for what was made to order; slots: what it was booked with;
    made: the slots of what was made (a taxi)."""

    domain: str
    reference: str
    entity: int | None
    slots: Mapping[str, str]
    made: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """For transcripts."""
        return {**vars(self), "slots": dict(self.slots), "made": dict(self.made)}


class BookingDesk:
    """The bookings of one dialogue. All chance comes from `rng`; `refused` has for each domain slots that are refused."""

    def __init__(self, rng: Random, refused: Mapping[str, Mapping[str, str]]):
        self.rng, self.refused = rng, refused
        self.bookings: list[Booking] = []

    def book(self, domain: str, order: Booked, made_from: Mapping[str, Sequence[str]]) -> Booking | None:
        """Book, or None where it is refused."""
        number, slots = order[0], dict(order[1])
        if self.refused.get(domain) == slots:
            return None
        made = {}
        if made_from:
            car = " ".join(self.rng.choice(values) for values in made_from.values())
            made = {"car type": car, "phone": "".join(self.rng.choices(string.digits, k=NUM_DIGITS))}
        reference = "".join(self.rng.choices(CHARACTERS, k=NUM_CHARACTERS))
        self.bookings.append(Booking(domain, reference, number, slots, made))
        return self.bookings[-1]
