"""One request over HTTP: what is sent, by which way, and what each broken answer raises.

The tests of `RemoteReward` and `MediaWiki` try limits, redirects and the environment's proxies.
"""

import json
import socket
from urllib.parse import urlsplit

import pytest

from rlhf_dialog.http_client import Client, EndedEarly, Refused, RequestLimits, TooLong, Unreachable
from tests.parts.servers import serving

LIMITS = RequestLimits(60, 1000)


def ask(server, limits=LIMITS, **options):
    return Client(urlsplit(server.url), {}, **options).ask("POST", "/score?n=1", limits, b'{"dialogues": []}')


def test_method_target_body_and_headers_are_sent():
    heard = []

    def listens(number, body, handler):
        heard.append((handler.command, handler.path, body, handler.headers.get_all("User-Agent")))
        return 201, b"yes"

    with serving(listens) as server:
        client = Client(urlsplit(server.url), {"x-key": "k", "user-agent": "me"})
        assert client.ask("POST", "/score?n=1", LIMITS, b"{}") == b"yes"
        assert client.ask("GET", "/", LIMITS) == b"yes"
    assert heard == [("POST", "/score?n=1", b"{}", ["me"]), ("GET", "/", b"", ["me"])]
    assert server.headers[0]["X-Key"] == "k"
    assert server.headers[0]["Connection"] == "close"


def test_an_answer_as_long_as_the_limit_is_read():
    with serving(lambda *_: (200, b"yes")) as server:
        assert ask(server, RequestLimits(60, 3)) == b"yes"
        with pytest.raises(TooLong):
            ask(server, RequestLimits(60, 2))


@pytest.mark.parametrize("status", [204, 299, 300, 404])
def test_a_status_is_success_or_refused(status):
    with serving(lambda *_: (status, b"")) as server:
        if status < 300:
            assert ask(server) == b""
        else:
            with pytest.raises(Refused) as caught:
                ask(server)
            assert caught.value.status == status


def test_an_answer_that_ends_early_says_how_many_bytes_are_missing():
    def early(number, body, handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\nabc")

    with serving(early) as server, pytest.raises(EndedEarly) as caught:
        ask(server)
    assert caught.value.missing == 37


@pytest.mark.parametrize(
    ("url", "kind"),
    [("http://127.0.0.1:{port}/", ConnectionRefusedError), (f"http://{'a' * 64}.example/", UnicodeError)],
)
def test_a_server_that_is_not_there(url, kind):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = Client(urlsplit(url.format(port=unused.getsockname()[1])), {})
        with pytest.raises(Unreachable) as caught:
            client.ask("GET", "/", LIMITS)
    assert isinstance(caught.value.reason, kind)


def test_an_address_is_checked_before_the_connection():
    class Wrong(Exception):
        pass

    def refuse(address):
        raise Wrong(address)

    with serving(lambda *_: (200, b"")) as server:
        with pytest.raises(Wrong, match=r"^127\.0\.0\.1$"):
            ask(server, check_address=refuse)
        assert server.requests == []
        assert ask(server, check_address=lambda _: None) == b""
        assert json.loads(server.requests[0]) == {"dialogues": []}
