import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world.users.parameters import FRIENDLY, read_ranges


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
