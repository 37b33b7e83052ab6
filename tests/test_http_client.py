"""One request over HTTP: what is sent, by which way, and what each broken answer raises.

The tests of `RemoteReward` and `MediaWiki` try limits, redirects and the environment's proxies.
"""

import json
import socket
import threading
from http.client import HTTPConnection, HTTPSConnection
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


def test_a_proxy_is_given_the_whole_address_and_the_name_of_the_server():
    places = []
    with serving(lambda number, body, handler: places.append(handler.path) or (200, b"")) as proxy:
        client = Client(urlsplit("http://scores.example/score"), {}, proxy=urlsplit(proxy.url))
        assert client.ask("POST", "/score?n=1", LIMITS, b"{}") == b""
    assert places == ["http://scores.example/score?n=1"]
    assert proxy.headers[0]["Host"] == "scores.example"


def test_what_is_encrypted_goes_through_a_tunnel_and_the_key_of_the_proxy_to_it_alone(monkeypatch):
    """With a TLS that adds nothing."""
    monkeypatch.setattr(HTTPSConnection, "connect", HTTPConnection.connect)
    heard = []

    def tunnel():
        connection, _ = door.accept()
        with connection:
            for answer in (b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"):
                heard.append(connection.recv(4096).decode())
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=tunnel, daemon=True).start()
        proxy = urlsplit(f"http://127.0.0.1:{door.getsockname()[1]}")
        client = Client(urlsplit("https://scores.example/"), {"proxy-authorization": "Basic k"}, proxy=proxy)
        assert client.ask("GET", "/score?n=1", LIMITS) == b"yes"
    assert heard[0].startswith("CONNECT scores.example:443 HTTP/1.")
    assert "Proxy-Authorization: Basic k\r\n" in heard[0]
    assert heard[1].startswith("GET /score?n=1 HTTP/1.1\r\nHost: scores.example\r\n")
    assert "Basic k" not in heard[1]


def test_the_key_of_a_proxy_that_reads_the_request_is_in_the_request():
    with serving(lambda *_: (200, b"")) as proxy:
        client = Client(urlsplit("http://scores.example/"), {"proxy-authorization": "k"}, proxy=urlsplit(proxy.url))
        client.ask("POST", "/", LIMITS, b"{}")
    assert proxy.headers[0]["Proxy-Authorization"] == "k"


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
