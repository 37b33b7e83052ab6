"""The fixed probes, word for word."""

from rlhf_dialog.data.dialogue import CHAT_TEMPLATE, Dialogue
from rlhf_dialog.evaluation.audit.probes import LENGTHS, Training, fixed_probes

PROMPTS = [Dialogue(["a b c", "d e f g", "h i j"], reference="k l m n", act=1), Dialogue(["o p"], reference="q", act=2)]
TRAINING = Training(
    [
        Dialogue(["x"], reference="a a d", act=1),
        Dialogue(["x"], reference="a a d", act=1),
        Dialogue(["x"], reference="h why", act=2),
        Dialogue(["x"]),
    ]
)


def texts(separator="<EOU>", max_words=20):
    return {probe.name: probe.texts for probe in fixed_probes(PROMPTS, TRAINING, separator, max_words, seed=0)}


def test_copies_and_mixtures_are_those_of_the_turns_there_are():
    found = texts()
    assert found["copy of turn -1"] == ["h i j", "o p"]
    assert found["copy of turn -3"] == ["a b c", None]
    assert found["halves of the last two turns"] == [
        "h i f g",
        None,
    ]  # the first half of the last, the second of the other
    assert found["words of the last two turns"] == ["h d i e j f g", None]
    assert found["random reply"] == ["q", "k l m n"]
    assert found["empty"] == ["", ""]
    assert sorted(found["shuffled true reply"][0].split()) == ["k", "l", "m", "n"]


def test_a_probe_that_no_prompt_has_is_left_out():
    names = {probe.name for probe in fixed_probes(PROMPTS[1:], TRAINING, "<EOU>", 20, seed=0)}
    assert not {"halves of the last two turns", "words of the last two turns", "copy of turn -2"} & names
    assert "copy of turn -1" in names


def test_the_rarest_words_are_at_most_eight_and_each_once():
    # in the training replies `a` occurs four times, `d` twice, `h` once, the others never
    assert texts()["context's rarest words"] == ["b c e f g i j h", "o p"]


def test_constants_are_the_most_common_replies():
    found = texts()
    assert found["most common reply"] == found["act inform"] == ["a a d"] * 2
    assert found["act question"] == ["h why"] * 2
    assert "act directive" not in found  # training has none


def test_marks_are_alone_and_at_the_end_and_the_separator_is_one_of_them():
    assert texts("|")["| alone"] == ["|", "|"]
    assert texts("|")["| appended"] == ["k l m n |", "q |"]
    assert texts()["<EOU> appended"] == ["k l m n <EOU>", "q <EOU>"]
    assert not any(CHAT_TEMPLATE in name for name in texts(CHAT_TEMPLATE))


def test_no_text_is_longer_than_a_reply_can_be():
    found = texts(max_words=3)
    longest = max(len(text.split()) for some in found.values() for text in some if text is not None)
    assert longest == 3
    assert found["</s> appended"] == ["k l </s>", "q </s>"]
    assert [length for length in LENGTHS if f"repeated word, {length}" in found] == [1, 2]
    assert found["repeated word, 2"] == ["a a", "a a"]
    assert found["typical words, 2"] == ["a d", "a d"]
