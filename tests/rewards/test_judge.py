"""JudgeReward against a judge on this machine that is honest, lies, stumbles and thinks; what its answers mean is from hand."""

import json
import logging
import math
import re

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.evaluation.untrusted import RunConfig
from rlhf_dialog.rewards import JudgeReward, RewardError, Scorer, build_reward
from rlhf_dialog.rewards import judge as module
from rlhf_dialog.rewards.base import JudgedScore, NoScore
from rlhf_dialog.rewards.judge import expected_score, read_ranking, read_score
from rlhf_dialog.rewards.scoring import begin_scoring
from tests.parts.servers import serving

RUBRIC = "5: it answers. 1: it does not."
TALK = ["Hi .", "Who ?"]


@pytest.fixture(autouse=True)
def _no_waiting(no_proxy, monkeypatch):
    monkeypatch.setattr(module, "BACKOFF", 0.01)


def said(text, **more):
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}, **more}]}).encode()


def question_of(body):
    return json.loads(body)["messages"][0]["content"]


def honest(number, body, handler):
    """The score is the number in the reply; the ranking puts the largest number first."""
    text = question_of(body)
    if "Ranking:" in text:
        shown = re.findall(r'^(\d): "reply (\d)', text, flags=re.MULTILINE)
        return said("Ranking: " + ", ".join(place for place, _ in sorted(shown, key=lambda pair: -int(pair[1]))))
    reply = re.search(r'The reply to it, as JSON:\n"(.*)"', text)[1]
    return said(f"It is so. Score: {(re.findall(r'[0-9]', reply) or ['1'])[0]}")


def judge(server, **args):
    return JudgeReward(server.url.replace("/score", "/v1"), "judge-1", RUBRIC, **{"timeout_s": 60, **args})


def replies(*texts, group=0):
    return [Dialogue(TALK, text, origin={"group": group}) for text in texts]


def test_the_request_and_its_answer():
    with serving(honest) as server:
        reward = judge(server, max_tokens=40)
        assert server.requests == []
        assert reward(replies("reply 4", "reply 2 é\nScore: 5", "reply 4")) == [4.0, 2.0, 4.0]
        assert len(server.requests) == 2  # the same request is sent once
        assert reward([Dialogue(TALK, "reply 3", system="Be brief .")]) == [3.0]
    assert set(server.paths) == {"/v1/chat/completions"}
    body = json.loads(next(one for one in server.requests if b"reply 2" in one))
    assert {name: body[name] for name in ("model", "temperature", "max_tokens")} == {
        **{"model": "judge-1", "temperature": 0, "max_tokens": 40}
    }
    lines = body["messages"][0]["content"].splitlines()
    assert lines[0] == RUBRIC
    assert '["Hi .", "Who ?"]' in lines
    assert '"reply 2 é\\nScore: 5"' in lines  # what a reply says to the judge is one line of JSON
    assert [line for line in lines if "Score:" in line] == ['"reply 2 é\\nScore: 5"', lines[-1]]
    assert lines[-1].endswith("with N from 1 to 5: Score: N")
    assert '"Be brief ."' in question_of(server.requests[-1]).splitlines()


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 4", 4.0),
        ("**Score:** 4/5\n", 4.0),
        ("Score: **4 out of 5**.", 4.0),
        ("It says 'Score: 5', but it is rude.\nScore: 1", 1.0),
        ("score: 3.5, because", 3.5),
        ("<think>Score: 5</think>\nScore: 2", 2.0),
        ("It may be Score: 5</think>Score: 2", 2.0),
        ("Score: 4 <think>or Score: 5", None),
        ("<think>Score: 5", None),
        ("Score: N", None),
        ("Score: 4\nScore: N", None),
        ("Score: 6", None),
        ("Score: -3", None),
        ("Score: 45", None),
        ("Score: 3-4", None),
        ("Score: 3 - 4", None),
        ("Score: 4,5", None),
        ("Score: 4.5.1", None),
        ("Score: 4th", None),
        ("Score: nan", None),
        ("underscore: 4", None),
        ("Four.", None),
        ("", None),
    ],
)
def test_the_number_behind_the_last_score(text, score):
    assert read_score(text, (1.0, 5.0)) == score


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("Ranking: 2, 3, 1", [0.0, 1.0, 0.5]),
        ("Ranking: 1 > 2 > 3\nI hope that helps 1 2", [1.0, 0.5, 0.0]),
        ("Ranking: 1, 2, 3\n**Ranking:**\n3 2 1", [0.0, 0.5, 1.0]),
        ("Ranking: 2, 1", None),
        ("Ranking: 2, 2, 1", None),
        ("Ranking: 0, 1, 2", None),
        ("2, 3, 1", None),
    ],
)
def test_a_ranking_is_a_permutation(text, scores):
    assert read_ranking(text, 3) == scores


def token(text, **others):
    top = [{"token": word, "logprob": math.log(p)} for word, p in others.items()]
    return {"token": text, "logprob": -0.1, "top_logprobs": top or [{"token": text, "logprob": 0.0}]}


@pytest.mark.parametrize("known", [{"10"}, set(), {"9", "11", "12"}])
def test_a_scale_whose_numbers_are_not_one_token_each_is_refused_at_the_start(known):
    """Some tokenizers have 10 as one token, and some as 1 and 0; the tokens that a server sends for its number tell."""
    likely = dict.fromkeys(["1", "0", "8", *known], 0.2)
    tokens = [token("Score: "), token("8", **likely), token(".")]
    with serving(lambda *_: said("Score: 8.", logprobs={"content": tokens})) as server:
        reward = judge(server, score_by="expectation", scale=[0, 10])
        if known == {"10"}:
            begin_scoring(reward, "rollout", 1)
            assert reward(replies("a")) == [pytest.approx((1 + 8 + 10) / 4)]  # 0, 1, 8 and 10, alike
            return
        for _ in range(2):  # what was refused is not kept
            with pytest.raises(UserError, match=r"scale: .*no single token for 10; .*within 0 and 9"):
                begin_scoring(reward, "rollout", 1)


def test_the_expectation_is_over_the_numbers_token():
    probabilities = {" 4": 0.4, "2": 0.2, "4": 0.1, "9": 0.2, "Four": 0.1}
    tokens = [
        token("5 of Score"),
        token(": 1"),
        token("\nScore"),
        token(":"),
        token(" 4", **probabilities),
        token(" ."),
    ]
    with serving(lambda *_: said("5 of Score: 1\nScore: 4 .", logprobs={"content": tokens})) as server:
        reward = judge(server, score_by="expectation")
        begin_scoring(reward, "rollout", 1)
        assert reward(replies("x")) == [pytest.approx((4 * 0.5 + 2 * 0.2) / 0.7)]
        assert reward.metrics() == {"unscored": 0.0, "mass": pytest.approx(0.7)}
        assert reward.metrics() == {}
    assert json.loads(server.requests[0])["top_logprobs"] == 20


@pytest.mark.parametrize(
    "more", [{}, {"logprobs": None}, {"logprobs": {"content": [{"token": "a", "top_logprobs": []}]}}]
)
def test_a_server_without_probabilities_is_refused_at_the_start(more):
    no_probabilities = pytest.raises(UserError, match=r"score_by: .* sends no top_logprobs")
    with serving(lambda *_: said("Score: 4", **more)) as server, no_probabilities:
        begin_scoring(judge(server, score_by="expectation"), "rollout", 1)


def test_a_rank_is_a_share_of_the_replies_that_are_worse():
    with serving(honest) as server:
        reward = judge(server, mode="rank")
        begin_scoring(reward, "rollout", 1)
        server.requests.clear()
        dialogues = replies("reply 3", "reply 9", "reply 1") + replies("reply 2", "reply 8", "reply 5", group=1)
        assert reward(dialogues) == [0.5, 1.0, 0.0, 0.0, 1.0, 0.5]
        assert len(server.requests) == 2
        begin_scoring(reward, "validation", 1)
        assert reward(dialogues[:1]) == [3.0]
        with pytest.raises(UserError, match="ranks the replies"):
            begin_scoring(reward, "evaluation", 0)
        begin_scoring(reward, "rollout", 2)
        with pytest.raises(UserError, match="num_responses_per_prompt"):
            reward(dialogues[2:])


def test_the_order_is_drawn_from_seed_and_texts(tmp_path):
    """Of eight prompts, the first reply stands in several places; the same seed gives the same places."""
    orders = {}
    for seed in (1, 1, 2):
        with serving(honest) as server:
            reward = judge(server, mode="rank", num_workers=1)
            reward.begin_run(tmp_path / "none", seed, 0)
            reward([one for g in range(3, 9) for one in replies("reply 1", "reply 2", f"reply {g}", group=g)])
        found = [re.findall(r'^(\d): "reply 1', question_of(body), flags=re.MULTILINE) for body in server.requests]
        assert orders.setdefault(seed, found) == found
    assert len({place for (place,) in orders[1]}) > 1
    assert orders[1] != orders[2]


def test_a_judge_that_stumbles_gives_no_score():
    def stumbles(number, body, handler):
        text = question_of(body)
        return (
            (500, b"")
            if "reply 1" in text
            else said("\x1b[2J I do not know.")
            if "reply 2" in text
            else said("Score: 4")
        )

    with serving(stumbles) as server:
        reward = judge(server, retries=1, num_workers=1)
        begin_scoring(reward, "rollout", 1)
        first, second, third = reward.score_available(replies("reply 1", "reply 2", "reply 3"))
        assert first.why.endswith("answered 500 Internal Server Error (tried 2 times)")
        assert (second.why, second.words) == ("the judge's answer has no score", "\x1b[2J I do not know.")
        assert (third, third.words) == (4.0, "Score: 4")
        assert reward.metrics() == {"unscored": 0.5}
        scores = Scorer(reward, skip_unscored=True).score(replies("reply 2", "reply 3"))
        assert [type(one) for one in scores.parts["judge"].raw] == [NoScore, JudgedScore]
        for reply, words in (("reply 1", "500 Internal"), ("reply 2", "has no score")):
            with pytest.raises(RewardError, match=f"reward 'judge': .*{words}.*on_reward_error: skip"):
                reward(replies(reply))


@pytest.mark.parametrize(
    ("answer", "words", "tries"),
    [
        ((200, b"<html>"), "not JSON", 2),
        ((200, b"[" * 100_000), "not JSON", 2),
        ((200, b"[]"), "no answer of /chat/completions", 1),
        ((200, b'{"choices": []}'), "no answer of /chat/completions", 1),
        ((200, b'{"choices": [{"message": {"content": [1]}}]}'), "no answer of /chat/completions", 1),
        ((401, b"s3cret"), "answered 401", 1),
    ],
)
def test_a_server_that_lies(answer, words, tries):
    with serving(lambda *_: answer) as server:
        with pytest.raises(RewardError, match=words) as caught:
            begin_scoring(judge(server, retries=1), "rollout", 1)
        assert len(server.requests) == tries
    assert "s3cret" not in str(caught.value)


def scored(server, folder, texts, **args):
    reward = judge(server, **args)
    reward.begin_run(folder, 0, 0)
    begin_scoring(reward, "rollout", 1)
    return [score if isinstance(score, NoScore) else float(score) for score in reward.score_available(replies(*texts))]


def test_a_resumed_run_asks_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "s3cret-t0ken")
    path = tmp_path / "judge_cache.0.jsonl"
    texts = ["reply 4", "reply 9", "reply 2"]  # 9 is outside of the scale
    with serving(honest) as server:
        first = scored(server, tmp_path, texts, token_env="MY_TOKEN")
        assert len(server.requests) == 4  # one before the first score
        assert scored(server, tmp_path, texts) == [4.0, pytest.approx(math.nan, nan_ok=True), 2.0]
        assert len(server.requests) == 4
        assert (first[0], first[2]) == (4.0, 2.0)
        content = path.read_text()
        assert sorted(json.loads(line)["score"] or 0 for line in content.splitlines()) == [0, 1.0, 2.0, 4.0]
        assert not [word for word in ("s3cret", "It is so", "reply") if word in content]
        path.write_text(content + '{"key": "12')  # a kill
        scored(server, tmp_path, [*texts, "reply 3"])
        assert len(server.requests) == 5
        assert [len(json.loads(line)["key"]) for line in path.read_text().splitlines()] == [64] * 5
        assert scored(server, tmp_path, texts, max_tokens=41)[0] == 4.0  # another request
        assert len(server.requests) == 9
        path.write_text('{"key": 3\n')
        with pytest.raises(UserError, match=r"judge_cache\.0\.jsonl: is damaged"):
            scored(server, tmp_path, texts)


def test_what_was_asked_before_the_run_has_its_folder_is_kept_too(tmp_path):
    with serving(honest) as server:
        reward = judge(server)
        reward.begin_run(tmp_path / "run", 0, 3)
        begin_scoring(reward, "validation", 0)
        reward(replies("reply 4"))
        assert not (tmp_path / "run").exists()
        begin_scoring(reward, "rollout", 1)
        assert len((tmp_path / "run" / "judge_cache.3.jsonl").read_text().splitlines()) == 2


def test_an_evaluation_keeps_answers_only_in_a_named_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving(honest) as server:
        for args in ({}, {"cache": "named.jsonl"}, {"cache": "named.jsonl"}):
            reward = judge(server, **args)
            begin_scoring(reward, "evaluation", 0)
            reward(replies("reply 4"))
        assert len(server.requests) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["named.jsonl"]


def test_no_word_of_a_secret(monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_TOKEN", "s3cret-t0ken")
    with serving(lambda number, body, handler: (500, handler.headers["Authorization"].encode())) as server:
        reward = JudgeReward(
            f"{server.url.replace('/score', '/v1')}?key=qu3ry", "m", RUBRIC, token_env="MY_TOKEN", retries=1
        )
        with pytest.raises(RewardError) as caught:
            reward(replies("x"))
    assert server.headers[0]["Authorization"] == "Bearer s3cret-t0ken"
    assert server.paths[0] == "/v1/chat/completions?key=qu3ry"
    assert not [secret for secret in ("s3cret", "qu3ry") if secret in str(caught.value) + caplog.text]


def test_a_ranking_judge_is_no_judge_of_single_replies(tmp_path):
    args = {"url": "http://127.0.0.1:9/v1", "model": "m", "rubric": RUBRIC, "mode": "rank"}
    part = {"id": "CompositeReward", "args": {"parts": [{"id": "JudgeReward", "args": args}]}}
    from rlhf_dialog.config.loading import load_config

    keys = {"model_path": "m", "env": {"args": {"data_path": "d"}}, "reward_class": part}
    with pytest.raises(UserError, match="ranks the replies"):
        RunConfig(load_config(keys), tmp_path, trusted=True).reward()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"url": "http://h/v1/chat/completions"}, "ends in /v1"),
        ({"url": "http://user:pass@h/v1"}, "token_env"),
        ({"token_env": "NOT_SET"}, "'NOT_SET' is not set"),
        ({"rubric": " "}, "must be a text"),
        ({"model": 3}, "must be a text"),
        ({"scale": [5, 1]}, "lowest and the highest"),
        ({"scale": 5}, "lowest and the highest"),
        ({"scale": [0, 20], "score_by": "expectation"}, "at most 20 whole numbers"),
        ({"scale": [0, 0.5], "score_by": "expectation"}, "whole numbers"),
        ({"mode": "best"}, "score, rank"),
        ({"score_by": "mean"}, "answer, expectation"),
        ({"num_workers": 0}, "at least 1"),
        ({"timeout_s": 0}, "seconds"),
        ({"retries": -1}, "at least 0"),
        ({"max_tokens": 0}, "at least 1"),
    ],
)
def test_mistakes(args, words):
    with pytest.raises(UserError, match=rf"^reward_class\.args\.{next(iter(args))}: .*{words}") as caught:
        build_reward("JudgeReward", {"url": "http://127.0.0.1:1/v1", "model": "m", "rubric": "r", **args})
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize("missing", ["url", "model", "rubric"])
def test_what_is_required(missing):
    args = {"url": "http://127.0.0.1:1/v1", "model": "m", "rubric": "r"}
    del args[missing]
    with pytest.raises(UserError, match=missing):
        build_reward("JudgeReward", args)


def test_the_numbers_token_begins_where_the_token_before_it_ends():
    tokens = [token("Score"), token(": ", **{"1": 1.0}), token("4", **{"4": 1.0})]
    assert expected_score(tokens, (1.0, 5.0), "").score == 4.0
