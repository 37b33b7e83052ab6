"""Weighted sums, their parts, and what a reward that misbehaves is told."""

import logging
import math
import socket
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
from processes import output_of, run_python

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import RunStopped, UserError
from rlhf_dialog.rewards import BaseReward, CompositeReward, NLPReward, RewardError, build_reward, scored
from rlhf_dialog.rewards.base import Part
from rlhf_dialog.rewards.scoring import STOPPING, Scorer, ScoringRules, scored_beside
from rlhf_dialog.rewards.timeout import RewardTimeout, Stacks

DIALOGUES = [
    Dialogue(["Hi ."], "one two", "a b c d", act=1),
    Dialogue(["Hi ."], "", "a b", act=2),
    Dialogue(["Hi ."], "the cat sat", "the dog sat", act=3),
]


class Given(BaseReward):
    """Returns what it was given; raises it when it is an exception."""

    needs = ("act",)

    def __init__(self, value=0.0, per_dialogue=True):
        self.value = value
        self.per_dialogue = per_dialogue
        self.device = None

    def __call__(self, dialogues):
        if isinstance(self.value, Exception):
            raise_deep(self.value)
        return [self.value] * len(dialogues) if self.per_dialogue else self.value

    def to(self, device):
        self.device = device
        return self


def raise_deep(error):
    raise error  # the deepest line in this file


class Broken(BaseReward):
    def __init__(self, number="x"):
        self.number = int(number)


@pytest.fixture(autouse=True)
def own_rewards(monkeypatch):
    monkeypatch.setattr(RewardFactory, "classes", {**RewardFactory.classes, "Given": Given, "Broken": Broken})


def test_weighted_sum_and_parts_by_hand():
    reward = CompositeReward(
        [
            {"id": "Meteor", "args": {"meteor_wordnet": "off"}},
            {"id": "LengthMatch", "weight": 0.5},
            {"id": "Given", "weight": "-1e-1", "args": {"value": 3}},  # PyYAML reads -1e-1 as text
        ]
    )
    scores = scored(reward, DIALOGUES)
    assert list(scores.parts) == ["meteor_exact_stem", "length_match", "given"]
    assert scores.parts["meteor_exact_stem"].raw == pytest.approx([0, 0, 1 / 3])
    assert scores.parts["meteor_exact_stem"].weighted == pytest.approx([0, 0, 1 / 3])
    assert scores.parts["length_match"].raw == [-0.5, -1.0, 0.0]
    assert scores.parts["length_match"].weighted == [-0.25, -0.5, 0.0]
    assert scores.parts["given"].raw == [3.0] * 3
    assert scores.parts["given"].weighted == pytest.approx([-0.3] * 3)
    assert scores.total == pytest.approx([-0.55, -0.8, 1 / 3 - 0.3])
    assert reward(DIALOGUES) == scores.total
    assert reward.needs == ("reference", "act")


def test_a_single_reward_is_one_part_of_weight_one():
    class Slow(Given):
        def __call__(self, dialogues):
            time.sleep(0.05)
            return super().__call__(dialogues)

    scores = scored(Slow(0.25), DIALOGUES)
    assert scores.total == [0.25] * 3
    assert list(scores.parts) == ["slow"]
    assert scores.parts["slow"].raw == scores.parts["slow"].weighted == [0.25] * 3
    assert 0.05 <= scores.parts["slow"].seconds < 60


def test_equal_names_get_a_number():
    parts = [{"id": "Given", "args": {"value": value}} for value in (1, 2, 3)]
    scores = CompositeReward(parts).score(DIALOGUES[:1])
    assert {name: part.raw for name, part in scores.parts.items()} == {"given": [1], "given_2": [2], "given_3": [3]}


def test_device_reaches_every_part():
    nested = {"id": "CompositeReward", "args": {"parts": [{"id": "Given"}]}}
    reward = CompositeReward([{"id": "Given"}, nested])
    assert reward.to("meta") is reward
    assert reward.parts["given"].reward.device == "meta"
    assert reward.parts["composite"].reward.parts["given"].reward.device == "meta"


def test_no_dialogues():
    scores = scored(CompositeReward([{"id": "Given"}]), [])
    assert scores.total == []
    assert scores.parts["given"].raw == []


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_lists_and_arrays_are_welcome(kind):
    scores = scored(Given(kind([1, True, 0.5]), per_dialogue=False), DIALOGUES)
    assert scores.total == [1.0, 1.0, 0.5]
    assert all(type(value) is float for value in scores.total)


@pytest.mark.parametrize(
    ("value", "per_dialogue", "message"),
    [
        ([1.0, 2.0], False, r"'given' returned 2 values for 3 dialogues"),
        (None, False, r"'given' returned NoneType; it must return a list"),
        (1.0, False, r"'given' returned float; it must return a list"),
        ([0.0, 0.0, "high"], False, r"'given' gave 'high', which is not a number, for dialogue 2 .*'the cat sat'"),
        ([0.0, None, 0.0], False, r"'given' gave None, which is not a number, for dialogue 1 with the response ''"),
        ([0.0, 0.0, float("nan")], False, r"gave nan, which is not finite, for dialogue 2 .*'the cat sat'"),
        (float("-inf"), True, r"gave -inf, which is not finite, for dialogue 0 .*'one two'"),
    ],
)
def test_unusable_values(value, per_dialogue, message):
    reward = Given(value, per_dialogue)
    with pytest.raises(RewardError, match=message):
        scored(reward, DIALOGUES)
    with pytest.raises(RewardError, match=message):
        CompositeReward([{"id": "Given", "args": {"value": value, "per_dialogue": per_dialogue}}])(DIALOGUES)


def test_an_exception_names_the_line_of_the_users_file():
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "the deepest line" in text)
    with pytest.raises(RewardError) as caught:
        scored(Given(ValueError("bad word")), DIALOGUES)
    assert str(caught.value).startswith("reward 'given' raised ValueError: bad word at ")
    assert str(caught.value).endswith(f"test_composite.py:{line}")
    assert caught.value.exit_code == 2
    assert isinstance(caught.value.__cause__, ValueError)
    assert "raise_deep" in "".join(traceback.format_exception(caught.value))


def test_an_exception_below_the_users_file_names_the_users_line():
    class Elsewhere(BaseReward):
        def __call__(self, dialogues):
            return [np.linalg.inv(np.zeros((2, 3)))]  # raises inside numpy

    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "inside numpy" in text)
    with pytest.raises(RewardError, match=rf"'elsewhere' raised LinAlgError: .*test_composite\.py:{line}$"):
        scored(Elsewhere(), DIALOGUES)


def test_a_users_error_passes_unchanged():
    with pytest.raises(UserError, match=r"^mend it$") as caught:
        scored(Given(UserError("mend it")), DIALOGUES)
    assert not isinstance(caught.value, RewardError)


def test_a_nested_exception_is_told_once():
    nested = {"id": "CompositeReward", "args": {"parts": [{"id": "Given", "args": {"value": KeyError("k")}}]}}
    with pytest.raises(RewardError, match=r"^reward 'given' raised KeyError: 'k' at \S+$"):
        CompositeReward([nested])(DIALOGUES)


def test_every_fault_of_the_parts_is_told_at_once():
    parts = [
        {"weight": 1},
        {"id": "Meteor", "wieght": 2},
        {"id": "Meteor", "weight": "high"},
        {"id": "Meteor", "weight": float("inf")},
        {"id": "Meteor", "weight": True},
        {"id": "Metoer"},
        {"id": "Meteor", "args": {"meteor_word": "off"}},
        "Meteor",
        {"id": "Meteor", "args": ["off"]},
        {"id": "Meteor", "args": None, "weight": 2},
    ]
    with pytest.raises(UserError) as caught:
        CompositeReward(parts)
    lines = str(caught.value).splitlines()
    expected = [
        "[0]: id is missing",
        "[1]: unknown key 'wieght'; did you mean 'weight'?",
        "[2]: weight 'high' must be a finite number",
        "[3]: weight inf must be a finite number",
        "[4]: weight True must be a finite number",
        "[5]: unknown reward 'Metoer'; did you mean 'Meteor'?",
        "[6]: wrong arguments for Meteor",
        "[7]: 'Meteor' must be a mapping",
        "[8]: args ['off'] must be a mapping",
    ]
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(f"reward_class.args.parts{start}")


@pytest.mark.parametrize("parts", [[], None, {"id": "Meteor"}])
def test_parts_must_be_a_list(parts):
    with pytest.raises(UserError, match=r"reward_class\.args\.parts: give a list"):
        CompositeReward(parts)


def test_an_error_inside_a_part_names_the_part():
    inner = {"id": "Meteor", "args": {"meteor_wordnet": "on"}}
    nested = {"id": "CompositeReward", "args": {"parts": [{"id": "Given"}, inner]}}
    with pytest.raises(UserError, match=r"^reward_class\.args\.parts\[1\]\.args\.meteor_wordnet: 'on'"):
        CompositeReward([{"id": "Given"}, inner])
    with pytest.raises(
        UserError, match=r"^reward_class\.args\.parts\[0\]\.args\.parts\[1\]\.args\.meteor_wordnet: 'on'"
    ):
        CompositeReward([nested])
    with pytest.raises(RewardError, match=r"^reward_class\.args\.parts\[0\]: reward 'Broken' raised ValueError"):
        CompositeReward([{"id": "Broken"}])


def test_build_reward():
    assert build_reward("Given", {"value": 2}).value == 2
    with pytest.raises(RewardError, match=r"'Broken' raised ValueError: .*at .*test_composite\.py:\d+$"):
        build_reward("Broken", {})
    with pytest.raises(UserError, match=r"did you mean 'Broken'"):
        build_reward("Brokn", {})
    RewardFactory.classes["Text"] = type("Text", (), {})
    with pytest.raises(UserError, match=r"subclass of BaseReward"):
        build_reward("Text", {})


def test_nlp_reward_without_intent(caplog):
    caplog.set_level(logging.INFO)
    reward = NLPReward(intent_coef=0, meteor_coef="5e-1", meteor_wordnet="off", use_deepspeed=True)
    scores = scored(reward, DIALOGUES)
    assert list(scores.parts) == ["meteor_exact_stem"]
    assert scores.total == pytest.approx([0, 0, 1 / 6])
    assert reward.needs == ("reference",)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, r"reward_class\.args\.intent_model.*`intent_coef: 0`"),
        ({"intent_coef": 0, "meteor_coef": 0}, r"both 0"),
        ({"intent_coef": "high"}, r"reward_class\.args\.intent_coef: 'high' must be a finite number"),
        ({"intent_coef": 0, "meteor_coef": float("nan")}, r"reward_class\.args\.meteor_coef: nan"),
        ({"intent_model": "./nothing"}, r"reward_class\.args\.intent_model: there is no folder './nothing'"),
        ({"intent_coef": 0, "meteor_wordnet": "on"}, r"reward_class\.args\.meteor_wordnet"),
    ],
)
def test_nlp_reward_mistakes(args, message):
    with pytest.raises(UserError, match=message):
        NLPReward(**args)


# -- no score


SKIP = ScoringRules(skip_unscored=True)


def test_skip_makes_none_and_what_is_not_finite_a_nan(caplog):
    values = [None, math.inf, 2.0]
    inner = {
        "id": "CompositeReward",
        "args": {"parts": [{"id": "Given", "args": {"value": [1, -math.inf, 3], "per_dialogue": False}}]},
    }
    reward = CompositeReward([{"id": "Given", "weight": 0.0, "args": {"value": values, "per_dialogue": False}}, inner])
    scores = scored(reward, DIALOGUES, SKIP)
    assert [str(value) for value in scores.total] == ["nan", "nan", "3.0"]
    assert [str(value) for value in scores.parts["given"].raw] == ["nan", "nan", "2.0"]
    assert [str(value) for value in scores.parts["composite"].raw] == ["1.0", "nan", "3.0"]
    assert caplog.text.count("reward 'given' gave no score to 2 of 3 dialogues (the first is number 0: None)") == 1
    assert caplog.text.count("reward 'given' gave no score to 1 of 3 dialogues (the first is number 1: -inf)") == 1
    kept = scores.of([2])
    assert (kept.total, kept.parts["given"].weighted, kept.parts["composite"].raw) == ([3.0], [0.0], [3.0])


@pytest.mark.parametrize("value", [["high", 1.0, 1.0], [1.0, 2.0], None, ValueError("bug")])
def test_skip_forgives_no_bug(value):
    with pytest.raises(RewardError):
        scored(Given(value, per_dialogue=False), DIALOGUES, SKIP)


def test_skip_asks_for_what_is_available():
    class Server(Given):
        def score_available(self, dialogues):
            return [None, 5, None]

    assert [str(value) for value in scored(Server(1.0), DIALOGUES, SKIP).total] == ["nan", "5.0", "nan"]
    assert scored(Server(1.0), DIALOGUES).total == [1.0] * 3


def test_a_sum_beyond_all_numbers_is_no_crash():
    parts = [{"id": "Given", "args": {"value": 1.5e308}}] * 2
    assert CompositeReward(parts).score(DIALOGUES[:1]).total == [math.inf]


# -- a reward without an end


class Slow(BaseReward):
    """Blocks in Python or in C, or is quick."""

    name = "slow"

    def __init__(self, how):
        self.how = how

    def __call__(self, dialogues):
        here, there = socket.socketpair()
        while self.how == "python":
            pass
        if self.how == "sleep":
            time.sleep(600)
        if self.how == "socket":
            here.recv(1)
        if self.how == "error":
            raise ValueError("bad word")
        if self.how == "ctrl-c":
            raise KeyboardInterrupt
        there.close()
        here.close()
        return [float(threading.current_thread() is threading.main_thread())] * len(dialogues)


def limited(reward, seconds=0.2):
    return scored(reward, DIALOGUES, ScoringRules(timeout_s=seconds))


@pytest.mark.parametrize("how", ["python", "sleep", "socket"])
def test_a_reward_that_does_not_end_is_left_behind_with_its_stack(how, capsys):
    quick = {"id": "Given", "args": {"value": 1.0}}
    reward = CompositeReward([quick, quick])
    slow = Slow(how)
    reward.parts["slow"] = type(reward.parts["given"])(1.0, slow)
    with pytest.raises(RewardTimeout, match=r"reward 'slow' was not done within 0\.\d+ seconds") as caught:
        limited(reward)
    slow.how = "quick"
    assert isinstance(caught.value, RunStopped)
    assert caught.value.exit_code == 3
    assert isinstance(caught.value.__cause__, Stacks)
    line = {"python": "while self.how", "sleep": "time.sleep(600)", "socket": "here.recv(1)"}[how]
    for text in (capsys.readouterr().err, "".join(traceback.format_exception(caught.value))):
        assert "MainThread, most recent call last:" in text
        assert "in __call__" in text
        assert line in text or how == "python"


def test_the_limit_is_for_all_parts_together():
    class Third(BaseReward):
        name = "third"

        def __call__(self, dialogues):
            time.sleep(0.2)
            return [0.0] * len(dialogues)

    reward = CompositeReward([{"id": "Given"}] * 3)
    for part in reward.parts.values():
        part.reward = Third()
    with pytest.raises(RewardTimeout):
        limited(reward, 0.5)
    assert limited(reward, 60).total == [0.0] * 3


def test_within_the_limit_everything_is_as_without():
    assert limited(Slow("quick"), 60).total == [0.0] * 3  # in a thread
    assert scored(Slow("quick"), DIALOGUES).total == [1.0] * 3  # in the caller's own
    with pytest.raises(KeyboardInterrupt):
        limited(Slow("ctrl-c"), 60)
    line = next(
        i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if 'raise ValueError("bad' in text
    )
    with pytest.raises(
        RewardError, match=rf"reward 'slow' raised ValueError: bad word at .*test_composite\.py:{line}$"
    ):
        limited(Slow("error"), 60)


HANGING = """
import re, sys, time
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.rewards import BaseReward, limit, scored
from rlhf_dialog.rewards.scoring import ScoringRules

class Hang(BaseReward):
    def __call__(self, dialogues):
        {body}

limit.GRACE = 0.5
try:
    scored(Hang(), [Dialogue(["a"])], ScoringRules(timeout_s=0.2))
except limit.RewardTimeout as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("time.sleep(3600)", 3),
        ("re.match('(a*)*b', 'a' * 64)", 1),
    ],  # the second one never gives up the interpreter's lock
)
def test_a_process_with_a_hanging_reward_ends(body, code):
    done = run_python("-c", HANGING.format(body=body))
    assert done.returncode == code
    assert "most recent call" in done.stderr
    assert "__call__" in done.stderr


def test_importing_the_rewards_is_light():
    heavy = "[name for name in ('torch', 'transformers', 'nltk', 'huggingface_hub') if name in sys.modules]"
    command = f"import sys, rlhf_dialog.rewards; print({heavy})"
    assert output_of("-c", command).strip() == "[]"


class Threaded(BaseReward):
    """Says in which thread it was asked."""

    def __init__(self, label, uses_device=False, error=None):
        self.label, self.uses_device, self.error, self.threads = label, uses_device, error, []

    @property
    def name(self):
        return self.label

    def __call__(self, dialogues):
        self.threads.append(threading.current_thread())
        if self.error:
            raise self.error
        return [float(len(dialogue.response)) for dialogue in dialogues]


def beside(*rewards, rules=STOPPING):
    reward = CompositeReward.__new__(CompositeReward)
    reward._set_parts([Part(0.5, one) for one in rewards])
    return reward, scored_beside(reward, DIALOGUES, rules)


def test_parts_without_a_device_are_computed_beside_and_the_scores_are_the_same():
    text, device = Threaded("text"), Threaded("device", uses_device=True)
    reward, scores = beside(device, text)
    text_began_at_once = wait_for(lambda: text.threads)
    assert text_began_at_once
    assert not device.threads
    found = scores()
    assert device.threads == [threading.current_thread()]
    assert text.threads != device.threads
    same = scored(reward, DIALOGUES)
    assert found.total == same.total
    assert list(found.parts) == ["device", "text"]
    assert [part.raw for part in found.parts.values()] == [part.raw for part in same.parts.values()]
    assert [part.weighted for part in found.parts.values()] == [part.weighted for part in same.parts.values()]


def test_an_error_beside_is_raised_when_the_scores_are_asked_for():
    _, scores = beside(Threaded("text", error=ZeroDivisionError("no")))
    with pytest.raises(RewardError, match=r"reward 'text' raised ZeroDivisionError: no"):
        scores()


def test_with_a_time_limit_nothing_begins_early():
    text = Threaded("text")
    _, scores = beside(text, rules=ScoringRules(timeout_s=30.0))
    assert not text.threads
    assert scores().total == [0.5 * len(dialogue.response) for dialogue in DIALOGUES]


def test_a_reward_that_uses_the_device_waits_for_its_turn():
    single = Threaded("device", uses_device=True)
    scores = scored_beside(single, DIALOGUES)
    assert not single.threads
    assert scores().parts["device"].raw == [float(len(dialogue.response)) for dialogue in DIALOGUES]


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_a_scorer_asks_its_reward_by_its_rules():
    class Judge(BaseReward):
        def __call__(self, dialogues):
            return [None, *(float(len(dialogue.response)) for dialogue in dialogues[1:])]

    skipping = Scorer(Judge(), ScoringRules(skip_unscored=True), truncation_penalty=0.5)
    for scores in (skipping.score(DIALOGUES), skipping.begin(DIALOGUES)()):
        assert math.isnan(scores.total[0])
        assert scores.total[1:] == [float(len(dialogue.response)) for dialogue in DIALOGUES[1:]]
    with pytest.raises(RewardError, match="gave None"):
        Scorer(Judge()).score(DIALOGUES)
