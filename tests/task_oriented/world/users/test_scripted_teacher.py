"""A person as a table."""

from random import Random

import pytest

from tests.parts.scripted_teacher import ScriptedTeacher

ANSWERS = {"when ?": "At nine .", "how much ?": "Ten ."}


def test_right_answers_are_worth_1_and_others_minus_1():
    teacher = ScriptedTeacher(ANSWERS, Random(0), turns=3)
    said = [teacher.begin("", "").text]
    assert teacher.answer(ANSWERS[said[0]]).reward == 1.0
    said.append(teacher.said)
    assert teacher.answer("Pardon ?").reward == -1.0
    last = teacher.answer("Pardon ?")
    assert (last.text, last.ends) == ("", True)
    assert set(said) <= set(ANSWERS)
    assert teacher.answer(ANSWERS[teacher.said], last=True).ends


def test_a_share_of_the_rewards_is_wrong():
    teacher = ScriptedTeacher(ANSWERS, Random(1), wrong=0.2, turns=10**6)
    teacher.begin("", "")
    rewards = [teacher.answer(ANSWERS[teacher.said]).reward for _ in range(2000)]
    assert rewards.count(-1.0) / 2000 == pytest.approx(0.2, abs=0.03)  # more than 3 deviations of 2,000 draws
