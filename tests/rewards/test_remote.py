"""RemoteReward against a server on this machine that answers, fails, lies and says no; tests/test_http_client.py has the rest."""

import json
import logging
import re
import socket
import threading
import time
from http.server import ThreadingHTTPServer

import pytest

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.http_client import Client, RequestFailed
from rlhf_dialog.rewards import RemoteReward, RewardError, Scorer
from rlhf_dialog.rewards.remote import MAX_ANSWER, as_json
from tests.parts.processes import ROOT
from tests.parts.servers import serving

pytestmark = pytest.mark.usefixtures("no_proxy")
DIALOGUES = [
    Dialogue(["Hi .", "Who ?"], f"reply {i} é", "Ada .", act=1 + i % 4, truncated=i == 2, meta={"index": i})
    for i in range(5)
]


def lengths(number, body, handler):
    """An honest server: the score is the number in the reply."""
    replies = [dialogue["response"] for dialogue in json.loads(body)["dialogues"]]
    return 200, json.dumps({"scores": [int(re.search(r"\d", reply).group()) for reply in replies]}).encode()


def says(status, text):
    return lambda *_: (status, text if isinstance(text, bytes) else text.encode())


def remote(server, **options):
    return RemoteReward(server.url, **{"timeout_s": 60, "backoff_s": 0.01, **options})


def test_the_protocol_to_the_letter():
    with serving(lengths) as server:
        assert remote(server)(DIALOGUES[2:3]) == [2.0]
        assert remote(server, batch_size=2)(DIALOGUES) == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert remote(server)([]) == []
        assert remote(server)([Dialogue(["Hi ."], "reply 7", system="Be brief .")]) == [7.0]
    sent = {"prompt_turns": ["Hi .", "Who ?"], "response": "reply 2 é", "reference": "Ada .", "act": 3}
    assert json.loads(server.requests[0]) == {"dialogues": [sent | {"truncated": True}]}
    assert json.loads(server.requests[-1])["dialogues"][0]["system"] == "Be brief ."
    assert server.sizes == [1, 2, 2, 1, 1]
    assert server.headers[0]["Content-Type"] == "application/json"
    assert "Authorization" not in server.headers[0]


def test_workers_ask_at_the_same_time_and_batches_keep_their_order():
    together = threading.Barrier(3)

    def wait_for_the_others(number, body, handler):
        together.wait(timeout=60)
        return lengths(number, body, handler)

    with serving(wait_for_the_others) as server:
        assert remote(server, batch_size=2, num_workers=3)(DIALOGUES) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_the_server_of_the_documentation():
    page = (ROOT / "docs" / "REWARDS.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    last = 'HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()\n'
    assert code.endswith(last)
    names = {}
    exec(code.removesuffix(last), names)
    names["Handler"].log_message = lambda *_: None
    with ThreadingHTTPServer(("127.0.0.1", 0), names["Handler"]) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        found = RemoteReward(f"http://127.0.0.1:{server.server_port}/score", timeout_s=60)(DIALOGUES[:2])
        server.shutdown()
    assert found == [9 / 50, 9 / 50]  # "reply 0 é"
    request = json.loads(page.split("```json\n")[1].split("```")[0])
    assert [as_json(Dialogue(**dialogue)) for dialogue in request["dialogues"]] == request["dialogues"]


def test_a_passing_failure_is_tried_again_after_twice_the_time(monkeypatch):
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)

    def broken(number, body, handler):
        return (503 if number % 2 else 429, b"busy") if number < 9 else lengths(number, body, handler)

    with serving(broken) as server:
        assert remote(server, retries=8, backoff_s=0.5)(DIALOGUES[:2]) == [0.0, 1.0]
    assert waited == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert len(set(server.requests)) == 1


def test_no_number_of_retries_is_too_large(monkeypatch):
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(Client, "ask", refused)
    with pytest.raises(RewardError, match="tried 1101 times"):
        RemoteReward("http://127.0.0.1:1/score", retries=1100, backoff_s=0.5)(DIALOGUES[:1])
    assert (len(waited), max(waited)) == (1100, 30)


def refused(*_):
    raise RequestFailed("is not there", again=True)


def test_without_arguments_64_dialogues_are_sent_at_once_and_three_more_times():
    with serving(says(500, "")) as server, pytest.raises(RewardError, match="tried 4 times"):
        RemoteReward(server.url, timeout_s=60, backoff_s=0)(DIALOGUES * 13)
    assert server.sizes == [64] * 4
    RemoteReward(server.url, timeout_s=1e-3, backoff_s=86400)


def test_a_port_without_a_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/score"
    with pytest.raises(RewardError, match=r"ConnectionRefusedError.*\(tried 3 times\)") as caught:
        RemoteReward(url, retries=2, backoff_s=0, timeout_s=60)(DIALOGUES)
    assert url in str(caught.value)
    assert "on_reward_error: skip" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message", "tries"),
    [
        ("<html>Welcome</html>", "not JSON", 2),
        ("[" * 100_000, "not JSON", 2),
        ('{"score": [1, 2]}', 'no list "scores"', 1),
        ('{"scores": [1]}', "1 scores for 2 dialogues", 1),
        ('{"scores": [1, NaN]}', r"number 1 of 2", 1),
        ('{"scores": [1, true]}', r"number 1 of 2", 1),
        ('{"scores": [1, "NaN"]}', r"number 1 of 2", 1),
        ('{"scores": [1, null]}', "null for dialogue 1", 1),
        (" " * (MAX_ANSWER + 1), f"more than {1 << 20} bytes", 1),
    ],
)
def test_a_server_that_lies(text, message, tries):
    with serving(says(200, text)) as server:
        with pytest.raises(RewardError, match=message) as caught:
            remote(server, retries=1)(DIALOGUES[:2])
        assert len(server.requests) == tries
    assert "Welcome" not in str(caught.value)


def test_skip_leaves_out_batches_and_nulls(caplog):
    """After a batch without an answer the others have one try."""

    def refuses_one(number, body, handler):
        if b"reply 2" in body or b"reply 3" in body:
            return 500, b""
        return 200, json.dumps({"scores": [None if b"reply 4" in body else 1.5] * body.count(b"reply")}).encode()

    with serving(refuses_one) as server:
        first, second, third, fourth, last = remote(server, batch_size=1, retries=1).score_available(DIALOGUES)
        assert (first, second, last) == (1.5, 1.5, None)
        assert third.why == f"{server.url} answered 500 Internal Server Error (tried 2 times)"
        assert fourth.why == f"{server.url} answered 500 Internal Server Error (tried once)"
        total = Scorer(remote(server, batch_size=1, retries=0), skip_unscored=True).score(DIALOGUES).total
    assert [value == value for value in total] == [True, True, False, False, False]
    assert "500 Internal Server Error (tried 2 times)" in caplog.text


@pytest.mark.parametrize("num_workers", [1, 2])
def test_stop_asks_no_further_after_the_first_batch_without_an_answer(num_workers):
    with serving(says(400, "")) as server:
        with pytest.raises(RewardError):
            remote(server, batch_size=1, num_workers=num_workers)(DIALOGUES)
        assert len(server.requests) <= num_workers


def test_secrets_come_from_the_environment_and_are_never_said(monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_TOKEN", "s3cret-t0ken")

    def echo(number, body, handler):
        return 400, handler.headers["Authorization"].encode()

    with serving(echo) as server:
        url = server.url + "?api_key=qu3ry"
        reward = RemoteReward(url, token_env="MY_TOKEN", timeout_s=60)
        with pytest.raises(RewardError) as caught:
            reward(DIALOGUES)
        reward.score_available(DIALOGUES)
    assert server.paths[0].endswith("?api_key=qu3ry")
    assert server.headers[0]["Authorization"] == "Bearer s3cret-t0ken"
    everything = str(caught.value) + repr(caught.value) + repr(reward) + caplog.text
    assert not [secret for secret in ("s3cret", "qu3ry") if secret in everything]
    assert server.url in everything


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"token_env": "NOT_SET"}, "'NOT_SET' is not set"),
        ({"token_env": "hf_realtoken"}, "given is not set"),
        ({"token_env": "FOLDED"}, "one line"),
        ({"url": "http://user:pass@h/score"}, "token_env"),
        ({"url": "http://user@h/score"}, "token_env"),
        ({"url": "file:///etc/passwd"}, "http or https"),
        ({"url": "http://h/a\r\nX: y"}, "http or https"),
        ({"batch_size": 0}, "0 .*at least 1"),
        ({"retries": -1}, "-1 .*at least 0"),
        ({"timeout_s": 0}, "0 .*seconds"),
        ({"backoff_s": -1}, "-1 "),
        ({"backoff_s": 86401}, "86401 "),
        ({"num_workers": 0}, "0 "),
    ],
)
def test_mistakes(monkeypatch, args, words):
    monkeypatch.setenv("FOLDED", "a\r\nX-Other: b")
    with pytest.raises(UserError, match=rf"^reward_class\.args\.{next(iter(args))}: .*{words}") as caught:
        RemoteReward(**{"url": "http://127.0.0.1:1/", **args})
    assert not [secret for secret in ("pass@", "hf_realtoken", "X-Other") if secret in str(caught.value)]
