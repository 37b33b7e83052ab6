"""The programs of a pretrained size: the leak test and what a chat repeats, each by hand."""

import random

import numpy as np
import pytest

from experiments.dailydialog.pretrained import chat, columns, leak
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.measure import Judges, measure
from rlhf_dialog.evaluation.replies import Replies
from rlhf_dialog.metrics.overlap import rouge
from rlhf_dialog.metrics.text import others

UTTERANCES = [
    "Yes , I am .",
    "I will call you when the train has left the old station .",
    "We had six eggs for breakfast .",
]


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("Yes, I am.", None),  # too short to be anybody's
        ("we had six eggs for breakfast", 2),
        ("We had six eggs for breakfast , and tea .", None),  # six words in a row, and not the whole reply
        ("Well , you when the train has left the station ?", None),  # seven
        ("Well , you when the train : has left the old one ?", 1),  # eight, but for the marks
        ("", None),
    ],
)
def test_a_reply_that_repeats_an_utterance(reply, number):
    assert chat.Utterances(UTTERANCES).number_of(reply) == number


def test_the_last_replies_of_dialogues_and_their_turns_in_another_order():
    prompts = [
        Dialogue([f"{j}" for j in range(k)], reference=f"{i} {k}", meta={"dialogue": i})
        for i in range(6)
        for k in (1, 3)
    ]
    some = leak.last_replies(prompts, 4, 0)
    assert len({one.meta["dialogue"] for one in some}) == 4
    assert all(len(one.prompt_turns) == 3 for one in some)
    moved = [leak.shuffled(one, random.Random(0)) for one in some]
    assert [one.reference for one in moved] == [one.reference for one in some]
    assert all(sorted(one.prompt_turns) == ["0", "1", "2"] and one.prompt_turns != ["0", "1", "2"] for one in moved)
    short = Dialogue(["0"], reference="6 1", meta={"dialogue": 6})  # its only turn has no other order
    assert {one.meta["dialogue"] for one in leak.last_replies([*prompts, short], 7, 0)} == set(range(6))
    same = Dialogue(["a", "a"])
    assert leak.shuffled(same, random.Random(0)) == same


def test_the_columns_of_openrls_documentation():
    prompts = [Dialogue([f"Well {i} ?"], reference=f"word {i} and {i} more", act=1 + i % 4) for i in range(5)]
    said = [one.with_reply(one.reference if i else "word", i == 2) for i, one in enumerate(prompts)]
    measured = measure(Replies(said, [1] * 5), Judges())

    class Judge:
        def predict(self, dialogues):
            return [0] * len(dialogues)

    columns.add(measured, said, Judge(), 7)
    foreign = [prompts[i].reference for i in others(5, 7)]
    margins = [
        rouge([one.reference], one.response)["rouge1"] - rouge([other], one.response)["rouge1"]
        for one, other in zip(said, foreign, strict=True)
    ]
    assert measured.per_prompt["rouge1_margin"] == pytest.approx(margins)
    assert measured.per_prompt["judge_2_accuracy"].tolist() == [1, 0, 0, 0, 1]
    with_end = measured.per_prompt["rouge1_eou"]
    assert with_end[1] == 1
    assert with_end[2] < 1  # it was cut, so no end was added to it
    assert measured.pooled["sacrebleu_eou"].point < 1
    assert columns.ratio_of([2.0, 4.0], [1.0, 5.0]).point == pytest.approx(1.0)
    assert np.isfinite(measured.per_prompt["meteor_eou"]).all()
