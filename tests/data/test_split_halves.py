"""How training dialogues are divided, and what the folder of a model says of its half."""

import json
import logging

import pytest

from rlhf_dialog.data.learned_half import LearnedHalf, are_apart, learned_half
from rlhf_dialog.data.sources import DialogueRecord
from rlhf_dialog.data.split_halves import _assignment, divide


def records(*dialogues):
    """A dialogue of each text: each of its letters is a long utterance."""
    return [DialogueRecord([f"{letter} {letter}1 {letter}2 {letter}3" for letter in letters]) for letters in dialogues]


@pytest.mark.parametrize(
    ("first", "second", "are_tied"),
    [
        ("abcd", "abxy", True),  # two, half of either
        ("ABCD", "ABxyzuvw", True),  # half of the shorter one
        ("abcde", "abxyz", False),  # two of five
        ("abcde", "abcxyz", True),
        ("ab", "ac", False),  # one
        ("a", "a", False),
        ("ab", "abcdefghijk", True),
    ],
)
def test_which_dialogues_are_tied(first, second, are_tied):
    assert divide(records(first, second)).largest_cluster == 1 + are_tied


def test_clusters_chain_and_go_whole_to_one_half():
    halves = divide(records("abcd", "mnop", "cdef", "uvwx", "efgh"))  # 0 and 4 share nothing
    assert halves.parts == ["reward", "judge", "reward", "judge", "reward"]
    assert (halves.num_dialogues, halves.largest_cluster) == (5, 3)
    alone = divide(records(*"abcdefg")).parts
    assert (alone.count("reward"), alone.count("judge")) == (4, 3)


@pytest.mark.parametrize(("holders", "largest"), [(10, 10), (11, 1)])
def test_what_stands_in_more_than_ten_dialogues_ties_nobody(holders, largest):
    own = [chr(0x4E00 + number) for number in range(2 * 11)]
    dialogues = [f"ab{own[2 * number]}{own[2 * number + 1]}" for number in range(holders)]
    assert divide(records(*dialogues)).largest_cluster == largest


def test_what_still_repeats_the_rewards_half_is_in_neither(caplog):
    """One shared utterance ties nobody, but is half of the second dialogue."""
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        halves = divide(records("abcd", "ax", "mnop", "qrst"))
    assert halves.parts == ["reward", "dropped", "reward", "judge"]
    assert "halves of 4 training dialogues" in caplog.text
    assert "has 1 (25.00 %), the halves differ by 0, and 1 that still repeat" in caplog.text


def test_prompts_of_one_dialogue_stay_together():
    def prompt(letter, **meta):
        return DialogueRecord([letter * 3], references=[["Yes ."]], meta=meta, is_prompt=True)

    rows = [prompt("a", id=1), prompt("b", id=2), prompt("c", id=1), prompt("d", id=2), prompt("e")]
    halves = divide(rows)
    assert halves.parts == ["reward", "judge", "reward", "judge", "reward"]
    assert halves.num_dialogues == 3


def test_all_prompts_of_a_dialogue_count_for_its_cluster():
    """The first row of dialogue 1 repeats dialogue 2, its second row does not."""
    texts = [["a" * 3, "b" * 3], ["a" * 3, "b" * 3, "c" * 3], ["d" * 3, "e" * 3]]
    turns = [[f"{text} 1 2 3" for text in some] for some in texts]
    rows = [
        DialogueRecord(some, meta={"id": number}, is_prompt=True) for some, number in zip(turns, (1, 2, 1), strict=True)
    ]
    assert divide(rows).largest_cluster == 2
    assert divide(rows).parts == ["reward"] * 3


def test_the_hash_is_of_data_and_rule(monkeypatch):
    some = records("abcd", "mnop", "cdef")
    found = divide(some).assignment
    assert divide(records("abcd", "mnop", "cdef")).assignment == found
    others = [records("abcd", "cdef", "mnop"), records("abcd", "mnop"), records("abcd", "mnop", "cdeg")]
    assert found not in [divide(other).assignment for other in others]
    assert (
        _assignment(some, ["reward", "judge", "dropped"]) != found == _assignment(some, ["reward", "judge", "reward"])
    )
    monkeypatch.setattr("rlhf_dialog.data.split_halves.MAX_HOLDERS", 9)
    assert divide(some).parts == ["reward", "judge", "reward"]
    assert divide(some).assignment != found


# what a model's folder says


def test_only_the_two_halves_of_one_assignment_are_apart():
    reward, judge, other = LearnedHalf("a", "reward"), LearnedHalf("a", "judge"), LearnedHalf("b", "judge")
    assert are_apart(reward, judge)
    assert are_apart(judge, reward)
    assert not any(are_apart(reward, one) for one in (reward, other, LearnedHalf("a", "all"), None))
    assert not are_apart(None, reward)


def test_what_a_report_says_of_the_half(tmp_path):
    whole = {"learned_half": {"assignment": "a", "part": "judge"}, "settings": {}}
    wrong = ["{", "[]", "{}", "[" * 10**5, *({"learned_half": one} for one in (None, 3, {"part": "judge"}))]
    wrong += [{"learned_half": {"part": ["judge"], "assignment": {}}}]
    for content in (whole, *wrong):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "report.json").write_text(text, encoding="utf-8")
        assert learned_half(tmp_path) == (LearnedHalf("a", "judge") if content is whole else None), text[:50]
    assert learned_half(tmp_path / "nowhere") is None
