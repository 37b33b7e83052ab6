"""Typed arguments of learners: ranges, what is said about a wrong value, and the signature that a registry sees."""

from dataclasses import dataclass
from inspect import signature

import pytest

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.arguments import Arguments, constant, layers, real, takes, whole


@dataclass(frozen=True)
class Parent(Arguments):
    share: float = real(0.5, 0.0, 1.0)
    rows: int = whole(8, 1, 100)
    hidden_sizes: tuple = layers(4, 2)
    name: str = "a"


@dataclass(frozen=True)
class Child(Parent):
    rows: int = constant(3)
    share: float = real(0.1, 0.1, 2.0)
    more: int = whole(1, 0, 2)


class Learner:
    @takes(Child)
    def __init__(self, setting, **args):
        self.args = Child(**args)


def test_defaults_and_what_is_given():
    assert Parent() == Parent(0.5, 8, (4, 2), "a")
    assert Parent(share=1, rows=100, hidden_sizes=[7], name=3).rows == 100
    assert (Child().share, Child().rows, Child(share=2).share) == (0.1, 3, 2)


@pytest.mark.parametrize(
    ("cls", "args", "said"),
    [
        (Parent, {"share": 1.5}, "policy.args.share: found 1.5, wanted a number from 0 to 1"),
        (Parent, {"share": -1}, "policy.args.share: found -1, wanted a number from 0 to 1"),
        (Parent, {"share": float("nan")}, "policy.args.share: found nan, wanted a number from 0 to 1"),
        (Parent, {"share": True}, "policy.args.share: found True, wanted a number from 0 to 1"),
        (Parent, {"share": "1"}, "policy.args.share: found '1', wanted a number from 0 to 1"),
        (Parent, {"rows": 2.0}, "policy.args.rows: found 2.0, wanted a whole number from 1 to 100"),
        (Parent, {"rows": 101}, "policy.args.rows: found 101, wanted a whole number from 1 to 100"),
        (Child, {"share": 0}, "policy.args.share: found 0, wanted a number from 0.1 to 2"),
        *(
            (
                Parent,
                {"hidden_sizes": sizes},
                f"policy.args.hidden_sizes: found {sizes!r}, wanted a list of numbers such as [128, 64]",
            )
            for sizes in ("64", 64, [0], [10**5 + 1], [True], [1.0], None)
        ),
    ],
)
def test_a_wrong_value_is_named(cls, args, said):
    with pytest.raises(UserError) as error:
        cls(**args)
    assert str(error.value) == said


def test_the_signature_lists_the_arguments_that_can_be_given():
    expected = "(setting, share: float = 0.1, hidden_sizes: tuple = (4, 2), name: str = 'a', more: int = 1)"
    assert str(signature(Learner)) == expected
    assert Learner(None, more=2).args.more == 2
