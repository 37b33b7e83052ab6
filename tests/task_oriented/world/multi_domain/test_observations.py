import numpy as np
from small_world import small_world

from rlhf_dialog.task_oriented.world.acts import parse_acts
from rlhf_dialog.task_oriented.world.multi_domain.observations import MultiLayout
from rlhf_dialog.task_oriented.world.multi_domain.state import DialogueState

WORLD = small_world()
LAYOUT = MultiLayout(WORLD)


def seen(user, last_action=None, turn=0.0):
    """The features that are 1, and the vector."""
    state = DialogueState(WORLD)
    state.update([], parse_acts(user))
    vector = LAYOUT.encode(state, last_action, turn)
    names = {f"{name}: {feature}" for name, own in LAYOUT.places.items() for feature, n in own.items() if vector[n]}
    return names, vector


def test_every_place_has_one_meaning():
    places = [number for own in LAYOUT.places.values() for number in own.values()]
    assert sorted(places) == list(range(LAYOUT.last_action.start))
    assert LAYOUT.last_action.stop - LAYOUT.last_action.start == len(LAYOUT.names)
    assert LAYOUT.size == LAYOUT.turn + 1


def test_what_is_known_is_one():
    names, vector = seen("inform(hotel-area=north) inform(hotel-stars=dontcare) inform(hotel-book day=friday)")
    assert names == {
        *("hotel: current", "hotel: spoken_of", "hotel: ready", "hotel: few"),
        *("hotel: known area", "hotel: known stars", "hotel: dontcare stars", "hotel: booking day"),
    }
    assert vector.dtype == np.float32


def test_requests_counts_and_the_last_domain():
    names, _ = seen("inform(hotel-stars=9) inform(restaurant) request(restaurant-phone)")
    assert {"hotel: none", "restaurant: current", "restaurant: asked phone", "restaurant: many"} <= names
    assert "hotel: current" not in names
    assert seen("inform(hotel-name=ivory house)")[0] >= {"hotel: one"}
    assert "train: few" not in seen("inform(train-day=friday)")[0]


def test_the_last_action_and_the_turn():
    _, vector = seen("hello()", last_action=3, turn=0.25)
    assert vector[LAYOUT.last_action].tolist() == [float(n == 3) for n in range(len(LAYOUT.names))]
    assert vector[LAYOUT.turn] == 0.25
    assert not seen("hello()")[1].any()
