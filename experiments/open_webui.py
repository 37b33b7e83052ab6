"""Open WebUI in front of a bot, played by Chromium: sign up, three turns, thumbs with reasons, another answer, an edited message;
then `feedback pull`, `learn`, and the answer to a new dialogue.

    python -m experiments.open_webui --agent runs/quickstart/agent --open_webui .venv-open-webui/bin/open-webui

It prints what the store has of it, and writes screenshots to --work. `make open-webui` installs what it needs. Without
--headers, Open WebUI sends no ids of messages, and ratings are laid by history and text.
"""

import argparse
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlhf_dialog.http_client import Client, RequestFailed

LINES = ("Hello , when is breakfast ?", "And on Sunday ?", "Is there a parking place ?")
EDITED, NEW = "And is there a sauna ?", "Do you have a room for tonight ?"
PERSON = {"name": "Ann", "email": "ann@example.org", "password": "a long password 1"}
SETTINGS = {
    **{"HF_HUB_OFFLINE": "1", "OFFLINE_MODE": "true", "ENABLE_OLLAMA_API": "false", "RAG_EMBEDDING_ENGINE": "openai"},
    **{"ENABLE_FORWARD_USER_INFO_HEADERS": "true", "ENABLE_API_KEYS": "true", "ANONYMIZED_TELEMETRY": "false"},
}
HEADERS = {"0": {"headers": {"X-Message-Id": "{{MESSAGE_ID}}", "X-Task": "{{TASK}}"}}}
NO_TASKS = {f"ENABLE_{task}_GENERATION": "false" for task in ("TITLE", "TAGS", "FOLLOW_UP")}
BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
FEEDBACK = [sys.executable, "-P", "-m", "rlhf_dialog.feedback"]
WAIT = 120_000  # milliseconds that the page may take for one step
GOOD, BAD, DETAILS = "Good Response", "Bad Response", "Feel free to add specific details"
STORED = """SELECT kind, value, feedback.text, turns.text FROM feedback JOIN turns ON turns.id = feedback.turn
    JOIN dialogues ON dialogues.id = feedback.dialogue WHERE source = 'api' ORDER BY feedback.id"""


@contextmanager
def running(command: list[str], log: Path, **environment: str) -> Iterator[None]:
    """A program that is ended with the block."""
    with log.open("w") as output:
        program = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})
        try:
            yield
        finally:
            program.terminate()
            program.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def ask(url: str, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
    """The JSON of an answer. Raises RequestFailed."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    client = Client(urlsplit(url), headers, 60, 1 << 26)
    return json.loads(client.ask(method, path, None if body is None else json.dumps(body).encode()))


def wait_for(url: str, path: str) -> None:
    for _ in range(300):
        try:
            ask(url, "GET", path)
            return
        except (RequestFailed, ValueError):
            time.sleep(1)
    raise TimeoutError(f"{url}{path} does not answer")


class Chat:
    """One person's browser."""

    def __init__(self, page: Any, url: str, work: Path):
        self.page, self.url, self.work = page, url, work
        page.set_default_timeout(WAIT)

    def show(self, name: str) -> None:
        self.page.wait_for_timeout(1000)
        self.page.screenshot(path=str(self.work / f"{name}.png"))

    def button(self, label: str, place: int) -> None:
        """Click one of the buttons below the messages, which are seen only under the mouse."""
        self.page.locator(f'button[aria-label="{label}"]').nth(place).dispatch_event("click")

    def wait_for_answers(self, count: int) -> None:
        script = f"n => document.querySelectorAll('button[aria-label=\"{GOOD}\"]').length >= n"
        self.page.wait_for_function(script, arg=count)
        self.page.wait_for_timeout(2000)

    def sign_up(self) -> None:
        self.page.goto(self.url, wait_until="domcontentloaded")
        self.page.get_by_text("Get started").click()
        self.page.get_by_placeholder("Enter Your Full Name").fill(PERSON["name"])
        self.page.get_by_placeholder("Enter Your Email").fill(PERSON["email"])
        self.page.get_by_placeholder("Enter Your Password").fill(PERSON["password"])
        self.page.get_by_role("button", name="Create Admin Account").click()
        self.page.get_by_role("button", name="Okay, Let's Go!").click()

    def say(self, line: str, count: int) -> None:
        self.page.click("#chat-input")
        self.page.keyboard.type(line)
        self.page.keyboard.press("Enter")
        self.wait_for_answers(count)

    def rate(self, label: str, place: int, comment: str, reason: str | None = None, of_ten: int | None = None) -> None:
        self.button(label, place)
        self.page.get_by_placeholder(DETAILS).wait_for()
        self.page.wait_for_timeout(1000)
        if of_ten is not None:
            steps = self.page.locator("#messages-container button").filter(has_text=re.compile(rf"^\s*{of_ten}\s*$"))
            steps.first.click()
        if reason is not None:
            self.page.get_by_text(reason).click()
        self.page.get_by_placeholder(DETAILS).fill(comment)
        self.show(f"rated_{place}")
        self.page.get_by_role("button", name="Save", exact=True).click()
        self.page.wait_for_timeout(2000)

    def regenerate(self) -> None:
        self.page.locator('button[aria-label="Regenerate"]').last.dispatch_event("click")
        self.page.get_by_text("Try Again").last.click()
        self.page.wait_for_function("() => document.body.innerText.includes('2/2')")
        self.page.wait_for_timeout(4000)

    def edit_second_message(self, text: str) -> None:
        self.button("Edit", 2)  # of the first message, of its answer, of the second message
        self.page.locator("textarea").first.fill(text)
        self.page.get_by_role("button", name="Send", exact=True).click()
        self.page.wait_for_timeout(1000)
        self.wait_for_answers(2)


def play(chat: Chat) -> None:
    """Talk and rate: a thumb up, one down, a second answer that is better, and an edited message."""
    chat.sign_up()
    for number, line in enumerate(LINES, 1):
        chat.say(line, number)
    chat.rate(GOOD, 0, "Short and right", "Accurate information", of_ten=9)
    chat.rate(BAD, 1, "It is from eight on Sunday", "Not factually correct")
    chat.regenerate()
    chat.rate(GOOD, 2, "Better than the first")
    chat.edit_second_message(EDITED)
    chat.button(GOOD, 1)
    chat.show("edited")


def run(arguments: argparse.Namespace) -> None:
    work: Path = arguments.work
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    bot = str(work / "bot")
    subprocess.run([*FEEDBACK, "init", "--run", bot, "--agent", str(arguments.agent)], check=True)
    api, page = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    serve = [*FEEDBACK, "serve", "--run", bot, "--api", "--no_page", "--port", api.rpartition(":")[2]]
    start = [str(arguments.open_webui), "serve", "--host", "127.0.0.1", "--port", page.rpartition(":")[2]]
    settings = SETTINGS | {"OPENAI_API_BASE_URL": f"{api}/v1", "OPENAI_API_KEY": "none", "WEBUI_SECRET_KEY": "played"}
    settings |= {"OPENAI_API_CONFIGS": json.dumps(HEADERS)} if arguments.headers else NO_TASKS
    from playwright.sync_api import sync_playwright

    with ExitStack() as stack:
        stack.enter_context(running(serve, work / "serve.log"))
        wait_for(api, "/v1/models")
        stack.enter_context(
            running(start, work / "open_webui.log", DATA_DIR=str((work / "data").resolve()), **settings)
        )
        wait_for(page, "/health")
        driver = stack.enter_context(sync_playwright())
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=BROWSER)
        chat = Chat(browser.new_page(viewport={"width": 1000, "height": 700}), page, work)
        play(chat)
        signed_in = ask(page, "POST", "/api/v1/auths/signin", PERSON)["token"]
        key = ask(page, "POST", "/api/v1/auths/api_key", {}, signed_in)["api_key"]
        pull = [*FEEDBACK, "pull", "--run", bot, "--open_webui", page, "--token_env", "OPEN_WEBUI_KEY"]
        for _ in range(2):
            subprocess.run(pull, check=True, env={**os.environ, "OPEN_WEBUI_KEY": key})
        with closing(sqlite3.connect(f"{bot}/feedback.sqlite")) as store:
            for row in store.execute(STORED):
                print(*row, sep=" | ")
        subprocess.run([*FEEDBACK, "import", "--run", bot, "examples/ratings.jsonl"], check=True)
        subprocess.run([*FEEDBACK, "learn", "--run", bot], check=True)
        chat.page.goto(page, wait_until="domcontentloaded")
        chat.say(NEW, 1)
        chat.show("another_version")
        with closing(sqlite3.connect(f"{bot}/feedback.sqlite")) as store:
            print(*store.execute("SELECT version, text FROM turns WHERE speaker = 'agent' ORDER BY id DESC LIMIT 1"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", type=Path, default=Path("runs/quickstart/agent"), help="the bot's first version")
    parser.add_argument("--open_webui", type=Path, default=Path(".venv-open-webui/bin/open-webui"), help="its program")
    parser.add_argument("--work", type=Path, default=Path("runs/open_webui"), help="folder, which is made anew")
    parser.add_argument("--headers", action=argparse.BooleanOptionalAction, default=True, help="send ids of messages")
    run(parser.parse_args())
