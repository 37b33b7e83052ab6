"""What a judge's scores and rankings are like, with judges on this machine whose faults are known."""

import json
import re

import pytest

from experiments.judge import ranked, replies_of, scored
from rlhf_dialog.rewards import JudgeReward
from tests.parts.servers import no_proxy, serving  # noqa: F401

ROWS = [
    {"prompt": ["Hi ."], "replies": {"a": {"response": "one"}, "b": {"response": "one two three"}}},
    {"prompt": ["Who ?"], "replies": {"a": {"response": "four five"}, "b": {"response": "it is me you see"}}},
]


def shown(body):
    """The replies of a request, in its order."""
    text = json.loads(body)["messages"][0]["content"]
    return re.findall(r'^(?:\d: )?"(.*)"$', text, flags=re.MULTILINE)


def answered(text):
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


def by_words(number, body, handler):
    """The score is the number of words, none for two; the longest is ranked first."""
    replies = shown(body)
    if b"Ranking:" in body:
        places = sorted(range(len(replies)), key=lambda i: -len(replies[i]))
        return answered("Ranking: " + ", ".join(str(i + 1) for i in places))
    count = len(replies[0].split())
    return answered("I cannot say." if count == 2 else f"Score: {count}")


def by_place(number, body, handler):
    return answered("Ranking: 1, 2")


def similarity(dialogues):
    """Of a reply and its own prompt less than of longer ones, and 0 of another prompt's."""
    own = {(row["prompt"][0], reply["response"]) for row in ROWS for reply in row["replies"].values()}
    return [-float(len(one.response)) * ((one.prompt_turns[0], one.response) in own) for one in dialogues]


def judge(server, **args):
    return JudgeReward(server.url.replace("/score", "/v1"), "judge-1", "Judge.", timeout_s=60, **args)


@pytest.fixture
def groups():
    return [replies_of(row, i) for i, row in enumerate(ROWS)]


def test_a_judge_that_follows_the_length(no_proxy, groups):  # noqa: F811
    with serving(by_words) as server:
        found = scored(judge(server), groups, similarity)
        assert (found["replies"], found["without_score"]) == (4, 0.25)
        assert found["scores"] == {"1.0": 1, "3.0": 1, "5.0": 1}
        assert found["with_words"] == pytest.approx(1)
        assert found["with_margin"] == pytest.approx(-1)
        order = ranked(judge(server, mode="rank"), groups)
    assert order == {
        **{"requests": 4, "with_ranking": 4, "keeps_order": 1.0},
        **{"first_is_best": 0.5, "last_is_best": 0.5, "by_chance": 0.5},
    }


def test_a_judge_that_prefers_the_first_reply(no_proxy, groups):  # noqa: F811
    with serving(by_place) as server:
        order = ranked(judge(server, mode="rank"), groups)
    assert (order["keeps_order"], order["first_is_best"], order["last_is_best"]) == (0.0, 1.0, 0.0)
