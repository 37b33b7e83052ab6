"""The user of a real dialogue."""

import pytest

from rlhf_dialog.config.registry import EnvironmentFactory
from rlhf_dialog.data.sources import DialogueRecord
from rlhf_dialog.environments.base import EpisodeLimits, answer, open_episode
from rlhf_dialog.environments.corpus import CorpusUser
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.world import users

ODD = DialogueRecord(["Hi .", "Hello .", "Is it far ?", "Two streets .", "Thanks ."], [1, 1, 2, 1, 1], meta={"a": 1})
TWO = DialogueRecord(["Why ?", "So ."], [2, 1], [[], ["Because .", "So ."]])
PROMPT = DialogueRecord(["One .", "Two .", "Three ."], [4], [["Four .", "Five ."]], is_prompt=True)
LONELY = DialogueRecord(["Nobody answers ."])


def heard(user, seed=None, dialogue=None, reply="Hm ."):
    """The user's turns, the references on the way, and the end of one dialogue."""
    text, info = user.reset(seed, None if dialogue is None else {"dialogue": dialogue})
    texts, references, ended, cut = [text], [info["reference"]], False, False
    while not (ended or cut):
        text, reward, ended, cut, info = user.step(reply)
        assert reward == 0
        texts.append(text)
        references.append(info["reference"])
    return texts, references, ended, cut


def test_the_next_turn_of_the_data_until_its_end():
    found = heard(CorpusUser([ODD]), 0)
    assert found == (["Hi .", "Is it far ?", "Thanks ."], ["Hello .", "Two streets .", None], True, False)
    assert heard(CorpusUser([TWO]), 0) == (["Why ?", ""], ["So .", None], True, False)
    assert heard(CorpusUser([ODD], max_turns=1), 0) == (["Hi .", "Is it far ?"], ["Hello .", None], False, True)


def test_the_prompt_has_what_rewards_read_of_the_last_reply():
    prompt = open_episode(CorpusUser([ODD], "test"), 0)
    assert (prompt.prompt_turns, prompt.reference, prompt.act) == (["Hi ."], "Two streets .", 1)
    assert prompt.meta == {"a": 1, "split": "test", "dialogue": 0}
    assert open_episode(CorpusUser([ODD], max_turns=1), 0).reference == "Hello ."
    assert open_episode(CorpusUser([TWO]), 0).references == ["So .", "Because ."]


def test_prompts_are_dialogues_of_one_reply():
    user = CorpusUser([PROMPT])
    prompt = open_episode(user, 0)
    assert (prompt.prompt_turns, prompt.references, prompt.act) == (
        ["One .", "Two .", "Three ."],
        ["Four .", "Five ."],
        4,
    )
    assert answer(user, "Six .", EpisodeLimits())[:4] == ("", 0.0, True, False)


def test_a_seed_has_an_order_in_which_each_dialogue_comes_once():
    records = [DialogueRecord([f"turn {i}", "yes"]) for i in range(20)]
    user, same, other = CorpusUser(records), CorpusUser(records), CorpusUser(records)
    order = [user.reset(seed=3 if i == 0 else None)[0] for i in range(40)]
    assert sorted(order[:20]) == sorted(order[20:]) == sorted(record.turns[0] for record in records)
    assert order[:20] != order[20:]
    assert [same.reset(3, {"dialogue": i})[0] for i in range(40)] == order
    assert [other.reset(seed=4 if i == 0 else None)[0] for i in range(20)] != order[:20]
    assert heard(user, 5, reply="a") == heard(user, 5, reply="b")


def test_it_is_built_from_a_yaml_and_reads_any_source(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"dialog": ["Hi .", "Hello ."]}\n')
    assert EnvironmentFactory.classes["corpus"] is users.CorpusUser
    user = EnvironmentFactory.create("corpus", {"data_path": str(tmp_path / "a.jsonl")})
    assert user.reset(seed=0)[0] == "Hi ."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([LONELY],), "of 1 dialogues none has a reply"),
        (([TWO], "train", 0), "max_turns is 0; give 1 or more"),
        (("nowhere.jsonl",), "no such file"),
    ],
)
def test_what_cannot_be_played_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        CorpusUser(*arguments)


def test_with_roles_the_policy_takes_the_turns_of_the_assistant():
    roles = ["assistant", "user", "user", "assistant", "user", "assistant", "assistant", "user"]
    user = CorpusUser([DialogueRecord(list("abcdefgh"), list(range(8)), roles=roles, system=[(0, "S")])])
    prompt = open_episode(user, 0)
    assert (prompt.prompt_turns, prompt.reference, prompt.act, prompt.system) == (["a", "b\n\nc"], "f\n\ng", 6, "S")
    assert heard(user, 0) == (["b\n\nc", "e", "h"], ["d", "f\n\ng", None], True, False)
