"""The command that serves the page: what it opens, to whom, and how it ends."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from rlhf_dialog.feedback.commands import serve as feedback_serve
from rlhf_dialog.feedback.commands.feedback import main
from rlhf_dialog.feedback.commands.serve import is_loopback, read_logins, resolve_host
from tests.parts.bots import bot  # noqa: F401


def serve(bot, capsys, *arguments):  # noqa: F811
    """The exit code and what was said on standard error."""
    code = main(["serve", "--run", str(bot.folder), *arguments])
    return code, capsys.readouterr().err


def test_without_gradio(bot, capsys, monkeypatch):  # noqa: F811
    monkeypatch.setattr(feedback_serve, "find_spec", lambda name: None)
    code, said = serve(bot, capsys)
    assert (code, 'pip install -e ".[chat]"' in said) == (2, True)


def test_a_port_that_is_taken(bot, capsys):  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, said = serve(bot, capsys, "--port", str(port))
    assert code == 2
    assert f"port {port} of 127.0.0.1 is taken; choose another one with --port" in said


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("127.9.9.9", True), ("0.0.0.0", False), ("10.0.0.1", False)]
)
def test_loopback(host, loopback):
    assert is_loopback(resolve_host(host, 0)[1]) is loopback


def test_passwords(tmp_path):
    login = read_logins("ann:long enough:")
    assert login("ann", "long enough:")
    assert login(" ann ", "long enough:")
    assert not login("ann", "long enough")
    assert not login("ben", "long enough:")
    path = tmp_path / "people"
    path.write_text("ann:password 1\n\nben:pässword 2\n", encoding="utf-8")
    login = read_logins(str(path))
    assert login("ben", "pässword 2")
    assert not login("ann", "pässword 2")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_server_ends_cleanly_while_a_page_is_open(bot, number, code):  # noqa: F811
    pytest.importorskip("gradio", reason="the page needs gradio")
    command = [sys.executable, "-m", "rlhf_dialog.feedback", "serve", "--run", str(bot.folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
    with urllib.request.urlopen(f"{address}gradio_api/heartbeat/tab") as page:
        assert page.readline() == b"data: ALIVE\n"
        process.send_signal(number)
        said = process.communicate()[1]
    assert process.returncode == code
    assert "Traceback" not in said
    assert "127.0.0.1" not in said
