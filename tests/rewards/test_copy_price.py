import pytest

from rlhf_dialog.config.registry import RewardFactory
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards import CopyPrice, build_reward

TURNS = ["the old mill", "how are you today", "fine , thanks"]


@pytest.mark.parametrize(
    ("turns", "response", "price"),
    [
        (2, "How are you today", -1.0),
        (2, "fine , thanks", -1.0),
        (2, "fine , thanks how are you", -4 / 5),  # all bigrams but "thanks how"
        (1, "how are you today", 0.0),
        (2, "the old mill", 0.0),
        (3, "the old mill", -1.0),
        (2, "fine", 0.0),
        (2, "", 0.0),
    ],
)
def test_bigrams_of_the_last_turns_cost(turns, response, price):
    assert RewardFactory.create("CopyPrice", {"turns": turns})([Dialogue(TURNS, response)]) == [pytest.approx(price)]


def test_in_a_longer_episode_the_last_turns_are_those_before_the_response():
    dialogue = Dialogue(TURNS).with_reply("yes it is").with_user_turn("is it far").with_reply("is it far")
    assert CopyPrice(turns=1)([dialogue]) == [-1.0]
    assert CopyPrice(turns=1)(
        [Dialogue(TURNS).with_reply("yes it is").with_user_turn("why so").with_reply("fine , thanks")]
    ) == [0.0]


@pytest.mark.parametrize("turns", [0, -1, 1.5, True, "2"])
def test_another_number_of_turns_is_refused(turns):
    with pytest.raises(UserError, match=r"reward_class\.args\.turns: .* whole number"):
        build_reward("CopyPrice", {"turns": turns})
