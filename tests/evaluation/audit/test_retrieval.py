"""The default judge, against plain loops."""

import math
import re
from collections import Counter

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.evaluation.audit import audit
from tests.parts.audits import talks


def plain_cosine(words, text, texts):
    """Of two lists of words, weighted by count and log(N / number of the N texts with the word, at least 1)."""
    rare = {word: math.log(len(texts) / max(1, sum(word in other for other in texts))) for word in [*words, *text]}
    ours, theirs = ({w: n * rare[w] for w, n in Counter(some).items()} for some in (words, text))
    lengths = [math.sqrt(sum(x * x for x in some.values())) for some in (ours, theirs)]
    return sum(ours[w] * theirs.get(w, 0) for w in ours) / (math.prod(lengths) or 1)


def single(text):
    return re.findall(r"[a-z']+|[0-9]+", text.lower())


def with_pairs(text):
    words = single(text)
    return words + [f"{a} {b}" for a, b in zip(["", *words], [*words, ""], strict=True)]


def plain_judge(prompts, dialogue, nearest):
    last_turns = [single(prompt.prompt_turns[-1]) for prompt in prompts]
    replies = [with_pairs(prompt.reference) for prompt in prompts]
    near = [
        (plain_cosine(single(dialogue.prompt_turns[-1]), turn, last_turns), -i)
        for i, turn in enumerate(last_turns)
        if prompts[i].meta["dialogue"] != dialogue.meta["dialogue"]
    ]
    near = sorted(near, reverse=True)[:nearest]
    values = [plain_cosine(with_pairs(dialogue.response), replies[-i], replies) for _, i in near]
    return sum(w * x for (w, _), x in zip(near, values, strict=True)) / (sum(w for w, _ in near) or 1)


def test_the_judge_equals_plain_loops(monkeypatch):
    monkeypatch.setattr(audit, "NEAREST", 4)
    prompts = talks(40)
    judge = audit.RetrievalJudge(prompts)
    said = [
        prompts[0].reference,
        "The honey is near the mill .",
        "mill the near is honey The",
        "zebra",
        "",
        "The zebra !",
    ]
    dialogues = [
        Dialogue(prompt.prompt_turns, response=text, meta=prompt.meta) for prompt in prompts[:5] for text in said
    ]
    expected = [plain_judge(prompts, dialogue, 4) for dialogue in dialogues]
    assert judge(dialogues) == pytest.approx(expected, abs=1e-12)
    assert max(expected) > 0.1


def test_its_own_dialogue_does_not_help():
    """Two prompts of one dialogue, and one of another: what the latter answers is all that is known."""
    turns = ["Do you sell honey here ?"]
    rows = [
        (turns, "Yes , a jar .", 0),
        (turns, "No , none .", 0),
        (turns, "Ask at the mill .", 1),
        (["Bye ."], "Bye", 2),
    ]
    prompts = [Dialogue(turns, reference=text, meta={"dialogue": number}) for turns, text, number in rows]
    judge = audit.RetrievalJudge(prompts)

    def of(text):
        return judge([Dialogue(turns, response=text, meta={"dialogue": 0})])[0]

    assert of("Yes , a jar .") == of("No , none .") == 0
    assert of("Ask at the mill .") == pytest.approx(1)


def test_without_another_dialogue_everything_is_worth_nothing():
    prompts = [Dialogue(["Hi ."], reference="Hello .", meta={"dialogue": 0})] * 2
    judge = audit.RetrievalJudge(prompts)
    assert judge([Dialogue(["Hi ."], response="Hello .", meta={"dialogue": 0})]) == [0.0]
