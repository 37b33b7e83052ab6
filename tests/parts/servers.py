"""A server on this machine that answers as a test says, and the fixture `no_proxy`."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@pytest.fixture
def no_proxy(monkeypatch):
    """Requests to this machine pass by a proxy of the environment."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")


class Server:
    """Remembers the requests; `answer(number of the request, body)` gives status and bytes, or does as it likes."""

    def __init__(self, answer):
        self.requests, self.paths, self.headers, self.closing = [], [], [], threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = body_of(self)
                server.requests.append(body)
                server.paths.append(self.path)
                server.headers.append(dict(self.headers))
                try:
                    found = answer(len(server.requests), body, self)
                    if found is not None:
                        status, text = found
                        self.send_response(status)
                        self.send_header("Content-Length", str(len(text)))
                        self.end_headers()
                        self.wfile.write(text)
                except OSError:
                    pass

            do_GET = do_HEAD = do_PUT = do_POST

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/score"

    @property
    def sizes(self):
        return [len(json.loads(body)["dialogues"]) for body in self.requests]


def body_of(handler) -> bytes:
    if handler.headers.get("Transfer-Encoding") != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    parts = []
    while size := int(handler.rfile.readline(), 16):
        parts.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(parts)


@contextmanager
def serving(answer):
    server = Server(answer)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.http.shutdown()
        server.http.server_close()
