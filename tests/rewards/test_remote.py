"""RemoteReward against a server on this machine that answers, hangs, lies, dies and points elsewhere."""

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
from rlhf_dialog.rewards import CompositeReward, RemoteReward, RewardError, build_reward, score_dialogues
from rlhf_dialog.rewards.remote import MAX_ANSWER, MAX_BACKOFF, as_json
from rlhf_dialog.rewards.scoring import ScoringRules
from tests.parts.processes import ROOT
from tests.parts.servers import serving

pytestmark = pytest.mark.usefixtures("no_proxy")
DIALOGUES = [
    Dialogue(["Hi .", "Who ?"], f"reply {i} é", "Ada .", act=1 + i % 4, truncated=i == 2, meta={"index": i})
    for i in range(5)
]
SKIP = ScoringRules(skip_unscored=True)


def lengths(number, body, handler):
    """An honest server: the score is the number in the reply."""
    replies = [dialogue["response"] for dialogue in json.loads(body)["dialogues"]]
    return 200, json.dumps({"scores": [int(re.search(r"\d", reply).group()) for reply in replies]}).encode()


def says(status, text):
    return lambda *_: (status, text if isinstance(text, bytes) else text.encode())


def remote(server, **options):
    return RemoteReward(server.url, **{"timeout_s": 60, "backoff_s": 0.01, **options})


# -- a server that works


def test_the_protocol_to_the_letter():
    with serving(lengths) as server:
        assert remote(server)(DIALOGUES[1:3]) == [1.0, 2.0]
    assert json.loads(server.requests[0]) == {
        "dialogues": [
            {
                "prompt_turns": ["Hi .", "Who ?"],
                "response": "reply 1 é",
                "reference": "Ada .",
                "act": 2,
                "truncated": False,
            },
            {
                "prompt_turns": ["Hi .", "Who ?"],
                "response": "reply 2 é",
                "reference": "Ada .",
                "act": 3,
                "truncated": True,
            },
        ]
    }
    assert server.headers[0]["Content-Type"] == "application/json"
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_batches_keep_their_order(num_workers):
    def slow_first(number, body, handler):
        time.sleep(0.05 if b"reply 0" in body else 0)
        return lengths(number, body, handler)

    with serving(slow_first) as server:
        reward = remote(server, batch_size=2, num_workers=num_workers)
        assert reward(DIALOGUES) == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert sorted(server.sizes) == [1, 2, 2]
        assert reward([]) == []
        assert len(server.requests) == 3


def test_workers_ask_at_the_same_time():
    together = threading.Barrier(3)

    def wait_for_the_others(number, body, handler):
        together.wait(timeout=60)
        return lengths(number, body, handler)

    with serving(wait_for_the_others) as server:
        assert remote(server, batch_size=2, num_workers=3)(DIALOGUES) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_built_by_the_registry_as_a_part():
    with serving(lengths) as server:
        part = {"id": "RemoteReward", "weight": 0.5, "args": {"url": server.url, "timeout_s": "6e1"}}
        reward = build_reward("CompositeReward", {"parts": [part]})
        scores = score_dialogues(reward, DIALOGUES)
    assert (list(scores.parts), scores.total) == (["remote"], [0.0, 0.5, 1.0, 1.5, 2.0])


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


# -- a server that fails for a while


@pytest.mark.parametrize("status", [503, 429])
def test_a_passing_failure_is_tried_again(status):
    def twice_broken(number, body, handler):
        return (status, b"busy") if number < 3 else lengths(number, body, handler)

    with serving(twice_broken) as server:
        assert remote(server)(DIALOGUES[:2]) == [0.0, 1.0]
    assert len(server.requests) == 3
    assert len(set(server.requests)) == 1


def test_it_waits_twice_as_long_each_time(monkeypatch):
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    with (
        serving(says(500, "")) as server,
        pytest.raises(RewardError, match=r"500 Internal Server Error \(tried 9 times\)"),
    ):
        remote(server, retries=8, backoff_s=0.5)(DIALOGUES)
    assert waited == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert MAX_BACKOFF == 30


# -- a server that does not


def stuck(server_holder, before=b"", every=None):
    """Says `before`, then nothing more, or `every` again and again."""

    def answer(number, body, handler):
        handler.wfile.write(before)
        while not server_holder[0].closing.wait(0.01 if every else 3):
            handler.wfile.write(every or b"")

    return answer


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("before", "every"),
    [
        (b"", None),  # never answers
        pytest.param(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a", marks=pytest.mark.slow),  # headers without an end
        (ENDLESS + b'{"scores": [', b" "),  # a body that drips
    ],
)
def test_a_server_that_hangs(before, every):
    holder = []
    with serving(stuck(holder, before, every)) as server:
        holder.append(server)
        start = time.monotonic()
        with pytest.raises(RewardError, match=r"gave no complete answer within 0\.2 seconds \(tried 2 times\)"):
            remote(server, retries=1, timeout_s=0.2)(DIALOGUES)
        assert time.monotonic() - start >= 0.4
        assert len(server.requests) == 2


def test_a_body_without_end_is_cut_off():
    holder = []
    with serving(stuck(holder, ENDLESS + b" " * (MAX_ANSWER + 1), b" " * 65536)) as server:
        holder.append(server)
        with pytest.raises(RewardError, match=r"more than 1048576 bytes \(tried once\)"):
            remote(server)(DIALOGUES)


def test_a_port_without_a_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/score"
    with pytest.raises(RewardError, match=r"ConnectionRefusedError: Connection refused\) \(tried 3 times\)") as caught:
        RemoteReward(url, retries=2, backoff_s=0, timeout_s=60)(DIALOGUES)
    assert url in str(caught.value)
    assert "on_reward_error: skip" in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"not HTTP at all\r\n\r\n", HEAD + b'{"scores"'])
def test_a_server_that_breaks_off(text):
    def break_off(number, body, handler):
        handler.wfile.write(text)

    with serving(break_off) as server:
        with pytest.raises(RewardError, match=r"(cannot be reached|bytes early).*tried 2 times") as caught:
            remote(server, retries=1)(DIALOGUES)
        assert "not HTTP" not in str(caught.value)
        assert len(server.requests) == 2


def test_a_server_that_dies_in_the_middle():
    """Two batches of three are scored; the third meets a dead server."""

    def dies(number, body, handler):
        return lengths(number, body, handler) if number <= 2 else handler.connection.close()

    with serving(dies) as server:
        with pytest.raises(RewardError, match="tried 2 times"):
            remote(server, batch_size=2, retries=1)(DIALOGUES)
        assert server.sizes == [2, 2, 1, 1]


@pytest.mark.parametrize(
    ("text", "message", "tries"),
    [
        ("<html>Welcome</html>", "answered with what is not JSON", 2),
        ("[1, 2]", 'without a list "scores"', 1),
        ('{"score": [1, 2]}', 'without a list "scores"', 1),
        ('{"scores": [1]}', "1 scores for 2 dialogues", 1),
        ('{"scores": [1, NaN]}', r"\(number 1 of 2\) that is not finite", 1),
        ('{"scores": [1, 1e999]}', "that is not finite", 1),
        ('{"scores": [1, "NaN"]}', "that is a str", 1),
        ('{"scores": [[1], 2]}', "that is a list", 1),
        ('{"scores": [1, null]}', "gave null for dialogue 1", 1),
    ],
)
def test_a_server_that_lies(text, message, tries):
    with serving(says(200, text)) as server:
        with pytest.raises(RewardError, match=message) as caught:
            remote(server, retries=1)(DIALOGUES[:2])
        assert len(server.requests) == tries
    assert "Welcome" not in str(caught.value)


@pytest.mark.parametrize("status", [404, 999])
def test_a_refusal_is_told_at_once(status):
    tries = 2 if status == 999 else 1
    with serving(says(status, "secret words")) as server:
        with pytest.raises(RewardError, match=f"answered {status}.*tried") as caught:
            remote(server, retries=1)(DIALOGUES)
        assert len(server.requests) == tries
    assert "secret words" not in str(caught.value)


@pytest.mark.parametrize("status", [302, 308])
def test_redirects_are_not_followed(status):
    def elsewhere(number, body, handler):
        handler.send_response(status)
        handler.send_header("Location", other.url)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with serving(lengths) as other, serving(elsewhere) as server:
        with pytest.raises(RewardError, match=rf"answered {status} .*redirects are not followed.*tried once"):
            remote(server)(DIALOGUES)
        assert (len(server.requests), other.requests) == (1, [])


# -- skipping


def test_skip_leaves_out_one_batch_and_nulls(caplog):
    def refuses_one(number, body, handler):
        if b"reply 2" in body:
            return 500, b""
        return 200, json.dumps({"scores": [None if b"reply 4" in body else 1.5] * body.count(b"reply")}).encode()

    with serving(refuses_one) as server:
        reward = remote(server, batch_size=2, retries=1)
        *given, first, second, last = reward.score_available(DIALOGUES)
        assert (given, last) == ([1.5, 1.5], None)
        said = f"{server.url.partition('?')[0]} answered 500 Internal Server Error (tried 2 times)"
        assert first.why == second.why == said
        scores = score_dialogues(
            CompositeReward(
                [{"id": "RemoteReward", "args": {"url": server.url, "batch_size": 2, "backoff_s": 0, "retries": 0}}]
            ),
            DIALOGUES,
            SKIP,
        )
    assert scores.total[:2] == [1.5, 1.5]
    assert all(value != value for value in scores.total[2:])
    assert "500 Internal Server Error (tried 2 times)" in caplog.text
    assert "reward 'remote' gave no score for 3 of 5 dialogues" in caplog.text


def test_after_a_batch_without_an_answer_the_others_have_one_try():
    with serving(says(500, "")) as server:
        found = remote(server, batch_size=2, retries=3).score_available(DIALOGUES)
        assert [score.why.partition(" (")[2] for score in found] == ["tried 4 times)"] * 2 + ["tried once)"] * 3
        assert server.sizes == [2, 2, 2, 2, 2, 1]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_stop_asks_no_further_after_the_first_batch_without_an_answer(num_workers):
    with serving(says(400, "")) as server:
        with pytest.raises(RewardError):
            remote(server, batch_size=1, num_workers=num_workers)(DIALOGUES)
        assert len(server.requests) <= num_workers + 1


# -- secrets


def test_secrets_come_from_the_environment_and_are_never_said(monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_TOKEN", "s3cret-t0ken")
    monkeypatch.setenv("MY_KEY", "k3y-value")

    def echo(number, body, handler):
        return 400, handler.headers["Authorization"].encode()

    with serving(echo) as server:
        url = server.url + "?api_key=qu3ry"
        reward = RemoteReward(url, token_env="MY_TOKEN", headers_env={"X-Api-Key": "MY_KEY"}, timeout_s=60)
        with pytest.raises(RewardError) as caught:
            reward(DIALOGUES)
        reward.score_available(DIALOGUES)
    assert server.headers[0]["Authorization"] == "Bearer s3cret-t0ken"
    assert server.headers[0]["X-Api-Key".title()] == "k3y-value"
    everything = str(caught.value) + repr(caught.value) + repr(reward) + caplog.text
    assert not [secret for secret in ("s3cret", "k3y", "qu3ry") if secret in everything]
    assert server.url in everything


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"token_env": "NOT_SET"}, r"token_env: the environment variable 'NOT_SET' is not set"),
        ({"token_env": "hf_realtoken"}, r"token_env: the environment variable given is not set"),
        ({"headers_env": {"X-Key": "NOT_SET"}}, r"headers_env: the environment variable 'NOT_SET' is not set"),
        ({"headers_env": {"X Key": "FINE"}}, r"headers_env: 'X Key' is not a valid header name"),
        ({"headers_env": ["FINE"]}, r"headers_env: must be a mapping"),
        ({"token_env": "FOLDED"}, r"token_env: .* one line of ASCII"),
        ({"url": "http://user:pass@h/score"}, r"url: holds a user or password"),
        ({"proxy": "http://user:pass@h:3128"}, r"proxy: holds a user or password"),
        ({"proxy": "socks5://h:1080"}, r"proxy: must be an address"),
        ({"url": "file:///etc/passwd"}, r"url: must be an address"),
        ({"url": "h/score"}, r"url: must be an address"),
        ({"url": "http://h/a b"}, r"url: must be an address"),
        ({"url": "http://h/a\r\nX: y"}, r"url: must be an address"),
        ({"batch_size": 0}, r"batch_size: 0 must be a whole number, at least 1"),
        ({"retries": -1}, r"retries: -1 must be a whole number, at least 0"),
        ({"timeout_s": 0}, r"timeout_s: 0 must be a number of seconds"),
        ({"backoff_s": -1}, r"backoff_s: -1 must be"),
    ],
)
def test_mistakes(monkeypatch, args, message):
    monkeypatch.setenv("FOLDED", "a\r\nX-Other: b")
    monkeypatch.setenv("FINE", "a")
    with pytest.raises(UserError, match=r"^reward_class\.args\." + message) as caught:
        RemoteReward(**{"url": "http://127.0.0.1:1/", **args})
    assert not [secret for secret in ("pass@", "hf_realtoken", "X-Other") if secret in str(caught.value)]


# -- proxies


@pytest.fixture
def with_proxy(monkeypatch):
    """The environment names a proxy for everything."""

    def name(url: str) -> None:
        for variable in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        for variable in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(variable, url)

    return name


def test_a_proxy_of_the_environment_hears_nothing(with_proxy, monkeypatch):
    monkeypatch.setenv("REWARD_TOKEN", "secret")
    with serving(lengths) as server, serving(lengths) as proxy:
        with_proxy(proxy.url)
        assert remote(server, token_env="REWARD_TOKEN")(DIALOGUES) == [0, 1, 2, 3, 4]
        assert len(server.requests) == 1
        assert proxy.requests == []


@pytest.mark.parametrize("bypass", ["", "*", "127.0.0.1"])
def test_a_proxy_that_is_asked_for_hears_the_whole_request(bypass, monkeypatch):
    monkeypatch.setenv("no_proxy", bypass)
    with serving(lengths) as server, serving(lengths) as proxy:
        assert remote(server, proxy=proxy.url.removesuffix("/score"))(DIALOGUES[:2]) == [0, 1]
        assert server.requests == []
        assert proxy.sizes == [2]
        assert proxy.headers[0]["Host"] == server.url.split("/")[2]
