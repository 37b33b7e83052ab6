"""What a policy sees of a dialogue in words."""

import zlib

import numpy as np
import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.action_list_world import StateFactory, StateFunction, last_turns

TURNS = [("", "Hello there"), ("ask", "Blue, blue and red")]


def place(name, size):
    return zlib.crc32(name.encode()) % size


def test_words_and_action_by_hand():
    size = 10007
    vector = np.zeros(size)
    for word, number in (("blue", 2), ("and", 1), ("red", 1)):
        vector[place(word, size)] += number / 6**0.5
    for word in ("before hello", "before there"):
        vector[place(word, size)] += 0.5 / 2**0.5
    vector[place("action ask", size)] += 0.25
    assert np.allclose(last_turns(TURNS, size, before=0.5, action=0.25), vector)


def test_a_dialogue_that_has_just_begun_and_older_turns():
    first = StateFunction("last_turns", {"size": 64})
    assert first.size == 64
    assert np.count_nonzero(first([])) == 1  # that there was no action yet
    assert (first([("", "a"), ("ask", "b"), *TURNS]) == first([("", "x"), ("ask", "y"), *TURNS])).all()
    assert first(TURNS).dtype == np.float32


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(StateFactory, "classes", dict(StateFactory.classes))
    StateFactory.register("length", lambda turns, unit=1.0: [len(turns) * unit, 1.0])
    StateFactory.register("ragged", lambda turns: [1.0] * (1 + len(turns)))
    StateFactory.register("endless", lambda turns: [1e400])
    StateFactory.register("raises", lambda turns: turns[0])
    StateFactory.register("newest_first", lambda turns: [float(turns.reverse() is None)])


def test_a_function_of_the_users_own(own):
    state = StateFunction("length", {"unit": 2.0})
    assert (state.size, state(TURNS).tolist()) == (2, [4.0, 1.0])


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        (
            "lenght",
            {},
            "domain.state: unknown state 'lenght'; did you mean 'length'.* class of your own in a file",
        ),
        ("length", {"units": 1}, "domain.state: wrong arguments for length"),
        ("endless", {}, r"domain.state endless: returned \[inf\] for \[\]; return a list of finite numbers"),
        ("raises", {}, "domain.state raises: raised IndexError"),
    ],
)
def test_what_cannot_be_used(own, name, args, said):
    with pytest.raises(UserError, match=said):
        StateFunction(name, args)
