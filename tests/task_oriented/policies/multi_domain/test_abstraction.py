import json
from math import log

import numpy as np
import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import MultiDomain
from rlhf_dialog.task_oriented.domains.services import Chances, DomainService
from rlhf_dialog.task_oriented.policies.multi_domain.abstraction import (
    SlotMapping,
    make_abstraction,
    normalised_entropy,
    read_abstraction,
    write_abstraction,
)
from rlhf_dialog.task_oriented.policies.multi_domain.views import Views
from rlhf_dialog.task_oriented.world.multi_domain.actions import MultiLayout
from tests.parts.several_policies import TWO, seen, setting_of

EVEN = Chances({"a": 1, "b": 1})


def tea_and_rooms():
    """Entities whose entropies are in the test below."""
    tea = [{"name": f"tea {n}", "kind": "xxyy"[n], "size": "xyzz"[n], "phone": str(n), "late": "no"} for n in range(4)]
    rooms = [
        {"name": f"room {n}", "view": "xxxy"[n], "floor": "xxyy"[n], "bath": "no", "fee": "xy"[n % 2]} for n in range(4)
    ]
    shares = {"name": 1.0, "phone": 0.5, "late": 0.5, "kind": 0.1}
    services = {
        "tea": DomainService("tea", "name", {"kind": EVEN, "name": EVEN, "size": EVEN}, shares, entities=tuple(tea)),
        "rooms": DomainService(
            *("rooms", "name", {"view": EVEN, "floor": EVEN, "bath": EVEN, "name": EVEN}, {"fee": 0.5}),
            booking={"nights": Chances({"1": 3, "2": 1}), "day": Chances({"x": 1, "y": 1})},
            entities=tuple(rooms),
        ),
    }
    return MultiDomain("two", services, Chances({("tea",): 1, ("rooms",): 1}))


def test_the_entropy_by_hand():
    assert normalised_entropy([2, 2]) == pytest.approx(log(2) / 2)
    assert normalised_entropy([1, 3]) == pytest.approx((0.25 * log(4) + 0.75 * log(4 / 3)) / 2)
    assert normalised_entropy([5]) == 0
    assert normalised_entropy([]) == 0
    assert normalised_entropy([1, 1, 0]) == normalised_entropy([1, 1])


def test_slots_are_ranked_by_hand():
    found = make_abstraction(tea_and_rooms())
    # tea: kind log 2 / 2 = .3466; size (2 / 4 log 4 + 1 / 2 log 2) / 3 = .3466: a tie, in the order of the file
    # phone log 4 / 4 = .3466, late 0; rooms: floor .3466, view .2812, bath 0; nights .2812, day .3466
    assert found["tea"] == {"name": "name", "kind": "slot0", "size": "slot1", "phone": "info0", "late": "info1"}
    slots = {"name": "name", "floor": "slot0", "view": "slot1", "bath": "slot2"}
    assert found["rooms"] == {**slots, "fee": "info0", "book day": "book0", "book nights": "book1"}


def test_what_was_written_is_read_and_may_be_changed_by_hand(tmp_path):
    domain, path = tea_and_rooms(), tmp_path / "slots.json"
    write_abstraction(path, make_abstraction(domain))
    assert read_abstraction(path, domain) == make_abstraction(domain)
    mine = {"tea": {"kind": "style"}, "rooms": {"view": "style"}}
    path.write_text(json.dumps(mine), encoding="utf-8")
    assert read_abstraction(path, domain) == mine


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1]", "is not an abstraction"),
        ('{"tee": {}}', "'tee'; did you mean 'tea'"),
        ('{"tea": {"kinds": "slot0"}}', "'kinds'; did you mean 'kind'"),
        ('{"tea": {"kind": "x", "size": "x"}}', "tea has 'x' twice"),
        ('{"tea": {"kind": 1}}', "tea has 1"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, content, said):
    path = tmp_path / "slots.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        read_abstraction(path, tea_and_rooms())


def bridged(abstraction, member, other, *turns, action=None):
    """The member's features that are not 0 when it looks at the other domain."""
    views = Views(setting_of(TWO), "x").by_name
    bridge = SlotMapping(abstraction, views[member], views[other])
    row = bridge.observations(seen(TWO, *turns, action=action, turn=0.5)[0][None])[0]
    layout = MultiLayout(TWO.only([member]))
    names = {**{n: f for f, n in layout.places[member].items()}, layout.turn: "turn"}
    names |= {layout.last_action.start + n: name for n, name in enumerate(layout.names)}
    return {names[int(n)] for n in np.flatnonzero(row)}, bridge


def test_a_member_sees_another_domain_as_its_own():
    mine = {"restaurant": {"food": "a", "area": "b", "book day": "day"}, "hotel": {"stars": "a", "book day": "day"}}
    turns = [("", "inform(hotel-stars=2) inform(hotel-area=dontcare) inform(hotel-book day=friday)")]
    number = MultiLayout(TWO).names.index("hotel_recommend")
    found, bridge = bridged(mine, "restaurant", "hotel", *turns, action=number)
    flags = {"current", "spoken_of", "ready", "few"}
    assert found == {*flags, "known food", "booking day", "restaurant_recommend", "turn"}
    names, own = MultiLayout(TWO).names, MultiLayout(TWO.only(["restaurant"])).names
    pairs = {names[whole]: own[number] for whole, number in bridge.actions.tolist()}
    assert pairs["hotel_book"] == "restaurant_book"
    assert pairs["reqmore"] == "reqmore"
    assert len(pairs) == len(own)


def test_a_member_sees_its_own_domain_as_it_is():
    observation = seen(TWO, ("", "inform(hotel-stars=2) request(hotel-phone)"), turn=0.25)[0]
    view = Views(setting_of(TWO), "x").by_name["hotel"]
    bridge = SlotMapping({}, view, view)
    np.testing.assert_array_equal(bridge.observations(observation[None])[0], observation[view.columns])
    assert bridge.actions[:, 0].tolist() == view.actions.tolist()
