"""The error of a reward that fails: it names the reward and the line that its author can correct."""

import traceback
from functools import partial
from pathlib import Path

import given
import numpy as np
import pytest
from given import DIALOGUES, Given

from rlhf_dialog.errors import SignalExit, UserError
from rlhf_dialog.rewards import BaseReward, CompositeReward, RewardError, scored
from rlhf_dialog.rewards.scoring import scored_beside

pytestmark = pytest.mark.usefixtures("own_rewards")


def test_an_exception_names_the_line_of_the_users_file():
    text = Path(given.__file__).read_text()
    line = next(i for i, line in enumerate(text.splitlines(), 1) if "the deepest line" in line)
    with pytest.raises(RewardError) as caught:
        scored(Given(ValueError("bad word")), DIALOGUES)
    assert str(caught.value).startswith("reward 'given' raised ValueError: bad word at ")
    assert str(caught.value).endswith(f"given.py:{line}")
    assert caught.value.exit_code == 2
    assert isinstance(caught.value.__cause__, ValueError)
    assert "raise_deep" in "".join(traceback.format_exception(caught.value))


def test_an_exception_below_the_users_file_names_the_users_line():
    class Elsewhere(BaseReward):
        def __call__(self, dialogues):
            return [np.linalg.inv(np.zeros((2, 3)))]  # raises inside numpy

    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "inside numpy" in text)
    with pytest.raises(RewardError, match=rf"'elsewhere' raised LinAlgError: .*test_errors\.py:{line}$"):
        scored(Elsewhere(), DIALOGUES)


def test_a_users_error_passes_unchanged():
    with pytest.raises(UserError, match=r"^mend it$") as caught:
        scored(Given(UserError("mend it")), DIALOGUES)
    assert not isinstance(caught.value, RewardError)


def test_a_nested_exception_is_told_once():
    nested = {"id": "CompositeReward", "args": {"parts": [{"id": "Given", "args": {"value": KeyError("k")}}]}}
    with pytest.raises(RewardError, match=r"^reward 'given' raised KeyError: 'k' at \S+$"):
        CompositeReward([nested])(DIALOGUES)


@pytest.mark.parametrize("end", [SystemExit(0), SystemExit(), GeneratorExit()])
def test_a_reward_that_exits_is_an_error_of_its_own(end):
    with pytest.raises(RewardError, match=rf"^reward 'given' raised {type(end).__name__}: 0? at \S+$"):
        scored(Given(end), DIALOGUES)
    with pytest.raises(RewardError, match=f"raised {type(end).__name__}"):
        scored_beside(Given(end), DIALOGUES)()


@pytest.mark.parametrize("end", [KeyboardInterrupt, partial(SignalExit, 143)])
def test_signals_pass_a_reward(end):
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        scored(Given(end()), DIALOGUES)
