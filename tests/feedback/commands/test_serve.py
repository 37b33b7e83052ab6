"""The command that serves the page: what it opens, to whom, and how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

from rlhf_dialog.feedback.commands import serve as feedback_serve
from rlhf_dialog.feedback.commands.feedback import main
from rlhf_dialog.feedback.commands.serve import is_loopback, read_logins, resolve_host
from rlhf_dialog.feedback.store.people import People


def serve(bot, capsys, *arguments):
    """The exit code and what was said on standard error."""
    code = main(["serve", "--run", str(bot.folder), *arguments])
    return code, capsys.readouterr().err


def test_a_port_that_is_taken_and_no_gradio(bot, capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, said = serve(bot, capsys, "--port", str(port))
    assert (code, f"--port {port}: " in said) == (2, True)
    monkeypatch.setattr(feedback_serve, "find_spec", lambda name: None)
    code, said = serve(bot, capsys)
    assert (code, 'pip install -e ".[chat]"' in said) == (2, True)


def test_what_is_served(bot, capsys, monkeypatch):
    pytest.importorskip("gradio", reason="the page needs gradio")
    served = []
    monkeypatch.setattr(
        feedback_serve, "http_server", lambda *args: served.append(args) or SimpleNamespace(run=lambda sockets: None)
    )
    bot.settings_path.write_text("page_message_chars: 9\n")
    for words in (["--allow_host", "chat.example.org"], ["--auth", "ann:open sesame"]):
        assert main(["serve", "--run", str(bot.folder), "--port", "0", *words]) == 0
    assert re.search(r"version 0001 answers on http://127\.0\.0\.1:\d+/ ", capsys.readouterr().out)
    (mine, seconds), (guarded, _) = served
    assert (mine._hosts, guarded._hosts) == ({"127.0.0.1", "localhost", "::1", "chat.example.org"}, None)
    assert (mine._is_logged_in({}), guarded._is_logged_in({})) == (True, False)
    assert (mine._limits.page_message_chars, seconds) == (9, 2)


def test_what_page_and_api_are_served_to_whom(bot, capsys, monkeypatch):
    served = []
    monkeypatch.setattr(
        feedback_serve, "http_server", lambda app, *_: served.append(app) or SimpleNamespace(run=lambda sockets: None)
    )
    api = ["--api", "--no_page", "--port", "0"]
    code, said = serve(bot, capsys, "--no_page")
    assert (code, "add --api" in said) == (2, True)
    for words in (["--host", "0.0.0.0"], ["--allow_host", "chat.example.org"]):
        code, said = serve(bot, capsys, *api, *words)
        assert (code, "feedback invite NAME" in said) == (2, True)
        assert main(["serve", "--run", str(bot.folder), *api, *words, "--visitors"]) == 0
    code, said = serve(bot, capsys, *api, "--allow_origin", "chat.example.org")
    assert (code, "--allow_origin" in said) == (2, True)
    People.load(bot.folder).invite("Ann")
    assert main(["serve", "--run", str(bot.folder), *api, "--host", "0.0.0.0"]) == 0
    assert re.search(r"version 0001 answers on http://0\.0\.0\.0:\d+/v1 ", capsys.readouterr().out)
    assert len(served) == 3
    monkeypatch.setattr(feedback_serve, "find_spec", lambda name: None)
    code, said = serve(bot, capsys, *api)
    assert (code, "the API needs uvicorn" in said) == (2, True)


@pytest.mark.slow
def test_page_and_api_answer_on_one_port(bot, tmp_path):
    pytest.importorskip("gradio", reason="the page needs gradio")
    command = [sys.executable, "-m", "rlhf_dialog.feedback", "serve", "--run", str(bot.folder), "--port", "0", "--api"]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
    with urllib.request.urlopen(f"{address}v1/models") as models:
        assert json.load(models)["data"][0]["id"] == "bot"
    with urllib.request.urlopen(address) as page:
        assert b"gradio" in page.read()
    for path in ("docs", "v1/docs", "v1"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}{path}")
    process.terminate()
    assert "Traceback" not in process.communicate()[1]
    assert process.returncode == 143


def test_loopback():
    hosts = {"127.0.0.1": True, "127.9.9.9": True, "0.0.0.0": False, "10.0.0.1": False}
    assert {host: is_loopback(resolve_host(host, 0)[1]) for host in hosts} == hosts


def test_passwords(tmp_path):
    assert read_logins("ann:long enough:") == [("ann", "long enough:")]
    (tmp_path / "people").write_text("ann:password 1\n\n ben:pässword 2\n", encoding="utf-8")
    assert read_logins(str(tmp_path / "people")) == [("ann", "password 1"), ("ben", "pässword 2")]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_server_ends_cleanly_while_a_page_is_open(bot, number, code):
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
