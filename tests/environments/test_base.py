"""Dialogue environments: what one is, and what is said of one that is wrong."""

import doctest

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.environments import Environment, SingleTurn, base, single_turn
from rlhf_dialog.environments.base import answer, opened
from rlhf_dialog.errors import UserError

PROMPT = Dialogue(["Hi .", "Who is there ?"], reference="Ada .", act=1, meta={"index": 7})


class Answering:
    """Returns what it is given."""

    def __init__(self, opening=("Hi .", {}), step=("", 0.0, True, False, {})):
        self.opening, self.returned = opening, step

    def reset(self, seed=None):
        self.seed = seed
        return self.opening

    def step(self, reply):
        return self.returned


def test_a_prompt_is_an_episode_of_one_step():
    environment: Environment = SingleTurn(PROMPT)
    text, info = environment.reset(seed=7)
    assert (text, info) == ("Who is there ?", {"prompt": PROMPT})
    assert environment.step("Ben .") == ("", 0.0, True, False, {})
    assert opened(environment) is PROMPT


def test_a_users_own_environment_needs_no_base_class():
    environment = Answering(("Which day ?", {}), ("Which hour ?", 1, 0, False, {}))
    assert opened(environment, 3) == Dialogue(["Which day ?"])
    assert environment.seed == 3
    assert answer(environment, "Friday .") == ("Which hour ?", 1.0, False, False, {})


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (Answering(opening="Hi ."), r"environment Answering: reset returned 'Hi \.'; return a pair \(text, info\)"),
        (Answering(opening=("Hi .", None)), "reset returned"),
        (Answering(opening=(["Hi ."], {})), "reset returned"),
        (Answering(opening=("Hi .", {"prompt": ["Hi ."]})), r"info\['prompt'\] is \['Hi \.'\]; give a Dialogue"),
        (Answering(opening=("Hi .", {"prompt": Dialogue([])})), "with one turn or more"),
        (
            Answering(step=("Bye .", 1.0, True, {})),
            r"step returned \('Bye \.', 1\.0, True, \{\}\); return \(text, reward,",
        ),
        (Answering(step=(None, 1.0, True, False, {})), "step returned"),
        (Answering(step=("", float("nan"), True, False, {})), "the reward nan; return a finite number"),
        (Answering(step=("", "1", True, False, {})), "the reward '1'; return a finite number"),
    ],
)
def test_what_is_no_episode_names_the_environment(environment, words):
    def episode():
        opened(environment)
        answer(environment, "Yes .")

    with pytest.raises(UserError, match=words):
        episode()


@pytest.mark.parametrize("module", [base, single_turn])
def test_the_examples_are_true(module):
    names = vars(module) | {"Dialogue": Dialogue}
    assert doctest.testmod(module, extraglobs=names).failed == 0
    assert doctest.testmod(module, extraglobs=names).attempted > 0
