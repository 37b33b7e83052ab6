import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.users.parameters import FIXED, FRIENDLY, UNFRIENDLY, read_ranges

TABLE = {  # the definition's table: default, range, unfriendly
    "combines_informs": (0.6, (0.2, 0.7), (0.0, 0.4)),
    "greets": (0.5, (0.3, 0.7), (0.1, 0.4)),
    "relaxes_constraint": (0.667, (0.5, 0.8), (0.2, 0.5)),
    "says_what_changed": (0.5, (0.4, 0.6), (0.2, 0.4)),
    "adds_to_affirmation": (1.0, (0.2, 0.7), (0.0, 0.4)),
    "wants_alternative": (0.143, (0.01, 0.3), (0.01, 0.3)),
}
DEFAULTS = {
    "confirms_at_random": 0.1,
    "corrects_by_negating": 0.45,
    "thanks": 0.1,
    "dontcare_without_slot": 0.8,
    "gives_up": 0.333,
}


def test_the_table():
    for name, (default, friendly, unfriendly) in TABLE.items():
        assert (FIXED[name], FRIENDLY[name], UNFRIENDLY[name]) == ((default, default), friendly, unfriendly)
    assert {name: FIXED[name][0] for name in DEFAULTS} == DEFAULTS
    assert set(FIXED) == set(FRIENDLY) == set(UNFRIENDLY)


def test_changes():
    ranges = read_ranges({"greets": 1, "thanks": [0.0, 0.5]})
    assert (ranges["greets"], ranges["thanks"], ranges["acknowledges"]) == ((1, 1), (0.0, 0.5), (0.01, 0.2))
    assert FRIENDLY["greets"] == (0.3, 0.7)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("freindly", "user 'freindly' is unknown; did you mean 'friendly'"),
        ({"greet": 1}, "user parameter 'greet' is unknown; did you mean 'greets'"),
        ({"greets": 1.5}, "user parameter 'greets' is 1.5; give a probability"),
        ({"greets": (0.7, 0.2)}, "give a probability, or a range of them"),
    ],
)
def test_what_is_not_a_parameter(parameters, message):
    with pytest.raises(UserError, match=message):
        read_ranges(parameters)
