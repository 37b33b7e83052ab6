"""What real and simulated users say."""

import pytest

from experiments.users import user_talks
from experiments.users.fidelity import UserTurns
from experiments.users.user_talks import labels, real_talk
from rlhf_dialog.data.sources import DialogueRecord
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.words import user_words
from tests.parts.small_domain import small_domain

TEA = small_domain()
GOAL = {"text": "Find a green tea.", "constraints": {"tea": "green", "area": "north"}, "requests": ["phone"]}
CAMREST = DialogueRecord(
    ["Green tea .", "Ada .", "Her phone ?", "11 ."],
    meta={"goal": GOAL, "dialogue_acts": ["inform(tea=green) inform(area=north)", "", "request(phone)", ""]},
)
DAILY = DialogueRecord(["Hi .", "Yes ?", "A bun , please .", "Here .", "Thanks ."], [1, 2, 3, 4, 1])
PLAIN = DialogueRecord(["One .", "Two .", "Three ."])


def test_the_real_users_turns_and_acts():
    assert real_talk(CAMREST) == UserTurns(
        ["Green tea .", "Her phone ?"], [["inform tea", "inform area"], ["request phone"]]
    )
    assert real_talk(DAILY, 1) == UserTurns(["A bun , please .", "Thanks ."], [["directive"], ["inform"]])
    assert real_talk(PLAIN) == UserTurns(["One .", "Three ."], None)
    assert labels([]) == ["other"]
    assert labels([Act("bye"), Act("inform", "tea", "a"), Act("inform", "tea", "b")], {"inform tea"}) == ["inform tea"]


def test_the_agenda_user_has_the_goals_of_the_data():
    unknown = DialogueRecord(["a", "b"], meta={"goal": {"constraints": {"tea": "blue"}, "requests": []}})
    found = user_talks.agenda(TEA, "friendly", None, [CAMREST, unknown, CAMREST], [CAMREST], 0, lambda: None)
    read = [acts_read for turn in found.simulated[0].turns for acts_read in user_words(TEA).read(turn)]
    assert {Act("inform", "tea", "green"), Act("inform", "area", "north"), Act("request", "phone")} <= set(read)
    assert read[-1] == Act("bye")
    assert {label for acts in found.simulated[0].acts for label in acts} == {
        *("inform tea", "inform area", "request phone", "other")
    }
    assert found.notes == ["2 of 3 goals are those of the data; the others are drawn from the domain."]
    again = user_talks.agenda(TEA, "friendly", None, [CAMREST, unknown, CAMREST], [CAMREST], 0, lambda: None)
    assert again.simulated == found.simulated
    assert found.simulated[0] != found.simulated[2]


@pytest.mark.parametrize("persona", ["", "Be Ada."])
def test_a_language_model_talks_with_another(chat_agent, persona):
    records = [CAMREST, DAILY]
    given = (chat_agent, chat_agent, persona, 2, records, [DAILY], 5)
    done = []
    found = user_talks.language_model(*given, lambda: done.append(1))
    assert len(done) == len(found.simulated) == 2
    assert max(len(talk.turns) for talk in found.simulated) == (2 if persona else 1)
    assert user_talks.language_model(*given, lambda: None).simulated == found.simulated
    if persona:
        assert found.real == [real_talk(DAILY)]
        assert found.notes == []
    else:
        assert found.real == [real_talk(DAILY, 1)]
        assert "first turn" in found.notes[0]
        assert not {talk.turns[0] for talk in found.simulated} & {record.turns[0] for record in records}
