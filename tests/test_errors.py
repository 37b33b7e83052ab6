"""The errors that end a run, and the nearest name in their messages."""

import pytest

from rlhf_dialog.errors import MissingSplit, RunStopped, UserError, nearest


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("lrr", ["gamma", "lr", "seed"], "; did you mean 'lr'?"),
        ("Politenes", iter(["Meteor", "Politeness"]), "; did you mean 'Politeness'?"),
        ("xyz", ["Politeness"], ""),
        ("4", [3, 40], "; did you mean '40'?"),
        ("a", [], ""),
    ],
)
def test_the_nearest_name(name, known, said):
    assert nearest(name, known) == said


def test_each_error_has_its_exit_code():
    assert (UserError.exit_code, MissingSplit("x").exit_code, RunStopped.exit_code) == (2, 2, 3)
    assert issubclass(MissingSplit, UserError)
    assert not issubclass(RunStopped, UserError)
