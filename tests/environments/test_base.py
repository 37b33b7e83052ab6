"""Dialogue environments: what one is, and what is said of one that is wrong."""

import doctest
import threading
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.environments import SingleTurn, base
from rlhf_dialog.environments.base import (
    EpisodeLimits,
    answer,
    build_environment,
    check_turns,
    is_reward,
    is_text,
    is_truth,
    open_episode,
    says_success,
)
from rlhf_dialog.errors import UserError


class Answering:
    def __init__(self, opening=("Hi .", {}), step=("", 0.0, True, False, {})):
        self.opening, self.returned = opening, step

    def reset(self, seed=None):
        self.seed = seed
        return self.opening

    def step(self, reply):
        return self.returned


def test_a_users_own_environment_needs_no_base_class():
    environment = Answering(("Which day ?", {}), ("Which hour ?", 1, 0, False, {}))
    assert open_episode(environment, 3) == Dialogue(["Which day ?"])
    assert environment.seed == 3
    assert answer(environment, "Friday .") == ("Which hour ?", 1.0, False, False, {})


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (Answering(opening="Hi ."), r"environment Answering: reset returned 'Hi \.'; return a pair \(text, info\)"),
        (Answering(opening=("Hi .", {"prompt": ["Hi ."]})), r"info\['prompt'\] is \['Hi \.'\]; give a Dialogue"),
        (Answering(opening=("Hi .", {"prompt": Dialogue([])})), "with one turn or more"),
        (Answering(step=("Bye .", 1.0, True, {})), r"step returned \('Bye \.', 1\.0, True, \{\}\); return \(text,"),
        (Answering(step=("", float("nan"), True, False, {})), "the reward nan; return a finite number"),
        (Answering(step=("", 2e6, True, False, {})), "the reward 2000000.0; return a finite number from -1e6 to 1e6"),
        (Answering(step=("", True, True, False, {"success": "no"})), "the success 'no'; return success in"),
        (Answering(step=("", 1.0, False, True, {"success": 1})), "the success 1; return success in"),
        (Answering(step=("cut \ud83d", 1.0, True, False, {})), r"returned 'cut \\ud83d'; return texts without half"),
        (Answering(opening=("cut \ud83d", {})), r"reset returned 'cut \\ud83d'; return texts"),
        (Answering(opening=("Hi .", {"prompt": Dialogue(["cut \ud83d"])})), r"reset returned 'cut \\ud83d'; return"),
        (Answering(step=("", 1.0, 0.5, False, {})), "returned 0.5 as terminated; return True or False"),
        (Answering(step=("", 1.0, False, np.array([True]), {})), "as truncated; return True or False"),
        (object(), r"environment object: reset raised AttributeError: .*'reset'"),
        (type("Old", (), {"reset": lambda self: ("Hi .", {})})(), "environment Old: reset raised TypeError: .*'seed'"),
    ],
)
def test_what_is_no_episode_names_the_environment(environment, words):
    def episode():
        open_episode(environment)
        answer(environment, "Yes .")

    with pytest.raises(UserError, match=words):
        episode()


def test_numpys_truth_is_welcome():
    for info in ({}, {"success": np.False_}, {"success": True}):
        found = answer(Answering(step=("", np.float32(1), np.bool_(True), np.int64(0), info)), "")
        assert found == ("", 1.0, True, False, info)
    assert answer(Answering(step=("", -1e6, False, False, {"success": None})), "")[1] == -1e6  # read at the end


class Failing(Answering):
    def __init__(self, method, work):
        super().__init__()
        setattr(self, method, lambda *args, **kwargs: work())


def raise_here(error=None):
    raise error or ValueError("no table")  # the line of the user


def wait_here(never=threading.Event()):  # noqa: B008
    never.wait(60)  # where it hangs


def line_with(words: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(words))


@pytest.mark.parametrize("limits", [EpisodeLimits(), EpisodeLimits(step_timeout_s=60)])
@pytest.mark.parametrize(("method", "call"), [("reset", open_episode), ("step", answer)])
def test_an_exception_names_method_and_line(method, call, limits):
    arguments = (3,) if method == "reset" else ("Yes .",)
    with pytest.raises(UserError) as caught:
        call(Failing(method, raise_here), *arguments, limits)
    line = line_with("# the line of the user")
    assert str(caught.value).startswith(f"environment Failing: {method} raised ValueError: no table at ")
    assert str(caught.value).endswith(f"test_base.py:{line}")
    assert (caught.value.exit_code, str(caught.value.__cause__)) == (2, "no table")


def test_an_environment_does_not_end_the_program_but_ctrl_c_does():
    with pytest.raises(UserError, match="step raised SystemExit"):
        answer(Failing("step", lambda: raise_here(SystemExit(0))), "")
    with pytest.raises(KeyboardInterrupt):
        answer(Failing("step", lambda: raise_here(KeyboardInterrupt())), "")


@pytest.mark.parametrize(("method", "call"), [("reset", open_episode), ("step", answer)])
def test_a_method_that_hangs_is_left_behind(method, call):
    arguments = (3,) if method == "reset" else ("Yes .",)
    words = rf"environment Failing: {method} did not return within 0\.05 seconds \(step_timeout_s\); it was at "
    with pytest.raises(UserError, match=rf"{words}.*test_base\.py:{line_with('# where it hangs')}"):
        call(Failing(method, wait_here), *arguments, EpisodeLimits(step_timeout_s=0.05))


def test_a_dialogue_without_an_end():
    environment = Answering()
    check_turns(environment, 6, EpisodeLimits(max_turns=7))
    check_turns(environment, 10**9, EpisodeLimits(max_turns=None))
    with pytest.raises(UserError, match=r"Answering: step has not ended the dialogue after 7 replies \(max_turns\)"):
        check_turns(environment, 7, EpisodeLimits(max_turns=7))


def test_the_examples_are_true():
    found = doctest.testmod(base)
    assert found.failed == 0 < found.attempted
    prompt = Dialogue(["Hi .", "Who is there ?"], reference="Ada .", act=1, meta={"index": 7})
    assert open_episode(SingleTurn(prompt)) is prompt


def test_what_cannot_be_built_is_named(monkeypatch):
    monkeypatch.setitem(EnvironmentFactory.classes, "Mute", type("Mute", (), {"reset": Answering.reset}))
    with pytest.raises(UserError, match=r"environment Mute: it has no method step; define reset and step"):
        build_environment("Mute", {})
    with pytest.raises(UserError, match="environment: unknown environment 'nobody'"):
        build_environment("nobody", {})
    with pytest.raises(UserError, match="max_turns is 0"):
        build_environment("restaurant", {"max_turns": 0})


def test_truths_rewards_and_texts():
    assert all(map(is_truth, [True, False, 0, 1, np.bool_(True), np.int8(0)]))
    assert not any(map(is_truth, [0.0, 1.0, 2, -1, "yes", None, np.array([True]), float("nan")]))
    assert all(map(is_reward, [0, -1e6, 1e6, 10**6, Fraction(1, 3), np.float32(2.5), np.int64(-3)]))
    assert not any(map(is_reward, [1e6 + 1, float("nan"), float("-inf"), "1", None, 1j, np.zeros(1)]))
    assert all(map(says_success, [{}, {"success": True}, {"success": np.False_}, {"reason": "no"}]))
    odd = ["no", "", float("nan"), 1, 0, 1.0, None, [], np.array(True), np.int64(1)]
    assert not any(says_success({"success": value}) for value in odd)
    assert is_text("")
    assert not any(map(is_text, ["\ud800", "a\udfffb", "\ude00\ud83d", None, b"a", 7]))
