"""Talking to an agent or a bot in the terminal: what is shown, the words, and how it ends."""

import importlib
import io
import os
import pty
import select

import pytest

from rlhf_dialog.commands import chat
from rlhf_dialog.commands.chat import NOTICE, WELCOME, converse, find_agent
from rlhf_dialog.commands.chat_screen import Screen
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.sessions.chat_session import ChatSession
from rlhf_dialog.terminal import visible
from tests.parts.processes import HANGING, environment, start_python


def shown(pieces: list[str]) -> list[str]:
    """What a terminal gets of a growing answer, piece by piece, as the command writes it."""
    found: list[str] = []
    Screen(found.append, lambda text: found.append(visible(text))).answer(iter(pieces))
    return found


def test_a_terminal_gets_each_piece_once_and_a_pipe_the_whole_answer():
    assert shown(["He", "Hello", "Hello"]) == ["> Agent: ", "He", "llo", "", "\n"]
    assert "".join(shown(["do n", "don't"])) == "> Agent: do n\n> Agent: don't\n"  # what changes is shown again
    assert "".join(shown([""])) == "> Agent: (an empty reply)\n"
    written: list[str] = []
    Screen(written.append).answer(iter(["He", "Hello"]))
    assert written == ["> Agent: Hello"]


@pytest.mark.parametrize("text", ["\x1b]0;owned\x07", "\u202egnp.exe", "one\n> User: two"])
def test_an_answer_that_grows_by_letters_cannot_steer_the_terminal_or_pass_for_a_prompt(text):
    written = "".join(shown([text[:i] for i in range(1, len(text) + 1)]))
    safe = text.encode("unicode_escape").decode().replace("\\n", "\n         ")
    assert written == f"> Agent: {safe}\n"


class Scripted:
    version, problem = "0001", None

    def __init__(self):
        self.asked: list[tuple[str, list[str]]] = []
        self.history: list[str] = []
        self.num_ended = 0

    def begin(self):
        self.history = []
        return self

    def say(self, text: str):
        self.asked.append((text, list(self.history)))
        reply = "" if text == "silence" else f"re {text}"
        self.history += [text, reply]
        yield reply[:2]
        yield reply

    def spoken(self, text: str) -> str:
        return text.replace("<EOU>", "").strip()

    def end(self) -> None:
        self.num_ended += 1


def talk(lines: list[str]) -> tuple[Scripted, list[str]]:
    chat_agent, written, left = Scripted(), [], list(lines)

    def read(prompt: str) -> str:
        assert prompt == "> User: "
        if not left:
            raise EOFError
        return left.pop(0)

    converse(chat_agent.begin, read, Screen(written.append))  # type: ignore[arg-type]
    assert not left, "it ended before the last line"
    return chat_agent, written


def test_a_conversation_keeps_its_history():
    chat_agent, written = talk(["Hello", "", " \t", "silence", "quit"])
    assert chat_agent.asked == [("Hello", []), ("silence", ["Hello", "re Hello"])]
    assert written == [WELCOME, "> Agent: re Hello", "> Agent: (an empty reply)"]
    _, written = talk(["Hi"])
    assert written[-1] == ""  # at the end of the input the shell's prompt comes on a new line


def test_a_separator_in_a_message_is_replaced_with_a_notice():
    chat_agent, written = talk(["Hello <EOU>", "<EOU>", "Bye", "quit"])
    assert chat_agent.asked == [("Hello", []), ("Bye", ["Hello", "re Hello"])]
    assert written == [WELCOME, NOTICE, "> Agent: re Hello", NOTICE, "> Agent: re Bye"]


@pytest.mark.parametrize("word", ["reset", "RESET", " /Reset ", "/reset please"])
def test_reset_forgets_the_history(word):
    chat_agent, written = talk(["Hello", word, "Again", "quit"])
    assert (chat_agent.asked, chat_agent.num_ended) == ([("Hello", []), ("Again", [])], 2)
    assert written.count(WELCOME) == 2


def test_what_is_text_and_what_is_a_word():
    for word in ("quit", "/exit", "  EXIT  ", "/quit now"):
        assert talk([word])[0].asked == []
    chat_agent, written = talk(["quit smoking ?", "good", "//resetting", "/resetting", "quit"])
    assert [text for text, _ in chat_agent.asked] == ["quit smoking ?", "good", "/resetting"]
    assert "did you mean '/reset'?" in written[-1]


def test_find_agent_takes_ppo_agent_then_the_newest_agent_or_bot(bot, tmp_path):
    with pytest.raises(UserError, match="--agent DIR"):
        find_agent(tmp_path / "none")
    root = tmp_path / "root"
    for time, name in ((100, "runs/old/agent"), (300, "run_results/new/agent")):
        (root / name).mkdir(parents=True)
        os.utime(root / name, (time, time))
    (root / "runs/newest").mkdir()
    (root / "runs/newest/agent").touch()  # a file is no agent
    assert find_agent(root) == root / "run_results/new/agent"
    (root / "runs/bot").symlink_to(bot.folder)
    assert find_agent(root) == root / "runs/bot"
    os.utime(bot.folder / "champion", (50, 50))
    assert find_agent(root) == root / "run_results/new/agent"
    (root / "ppo_agent").mkdir()
    assert find_agent(root) == root / "ppo_agent"


# the command


def answers(monkeypatch, *lines: str | type[BaseException] | BaseException) -> None:
    left = list(lines)

    def read(prompt: str) -> str:
        line = left.pop(0)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read)


def test_the_newest_agent_talks_and_says_who_it_is(agent_folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "run_results" / "x").mkdir(parents=True)
    (tmp_path / "run_results" / "x" / "agent").symlink_to(agent_folder)
    monkeypatch.chdir(tmp_path)
    answers(monkeypatch, "Hello", "/good", "/reset", "Hello", KeyboardInterrupt)
    assert chat.main(["--seed", "3"]) == 130
    out = capsys.readouterr().out
    assert "run_results/x/agent" in out.splitlines()[0]
    assert out.count("> Agent: ") == 2
    assert "feedback init" in out  # whose ratings could be stored
    assert "is stored in" not in out
    assert importlib.import_module("rlhf_dialog.chat").main is chat.main  # the path that scripts import


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_the_temperature_of_a_chat(agent_folder, monkeypatch, temperature):
    seen = []
    monkeypatch.setattr(
        chat, "converse", lambda begin, *_: seen.append(begin().answering._served.agent("agent").sampling)
    )
    assert chat.main(["--agent", str(agent_folder)]) == 0
    assert chat.main(["--agent", str(agent_folder), "--temperature", str(temperature)]) == 0
    own, other = seen
    assert (own.greedy, own.temperature == 0.3) == (False, False)
    assert (other.greedy, other.temperature) == ((True, own.temperature) if temperature == 0 else (False, 0.3))


@pytest.mark.parametrize(("encoding", "errors"), [("utf-8", "strict"), ("ascii", "surrogateescape")])
def test_input_that_is_not_utf_8(agent_folder, monkeypatch, capsys, encoding, errors):
    text = io.BytesIO("Hello\ncaf\u00e9 ?\n".encode("latin-1"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(text, encoding, errors=errors))
    assert chat.main(["--agent", str(agent_folder)]) == 2
    assert "standard input is not UTF-8 text" in capsys.readouterr().err


def test_a_letter_that_the_terminal_lacks_is_written_out(agent_folder, monkeypatch):
    monkeypatch.setattr(ChatSession, "say", lambda *_: iter(["caf\u00e9"]))
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, "ascii"))
    answers(monkeypatch, "Hello", "quit")
    assert chat.main(["--agent", str(agent_folder)]) == 0
    assert rb"> Agent: caf\xe9" in out.getvalue()


# a bot


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "rlhf-dialog"


def test_a_bot_says_what_it_stores_and_learns_from_words(bot, state, monkeypatch, capsys):
    answers(monkeypatch, "Hello", "/good kind", "reset", "Bye", EOFError)
    assert chat.main(["--agent", str(bot.folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Agent: {bot.folder}, version 0001"
    assert f"{bot.folder}/feedback.sqlite" in lines[1]
    assert lines[2] == WELCOME
    store = bot.store()
    person = store.hash_person((state / "person").read_text().strip())
    assert [(one.person, one.source) for one in store.dialogues()] == [(person, "terminal")] * 2
    assert [(event.kind, event.value, event.text) for event in store.feedback()] == [("thumb", 1.0, "kind")]
    store.close()


@pytest.mark.slow
def test_a_bot_draws_new_answers_each_time_and_with_a_seed_the_same(bot, state, monkeypatch):
    for seed in (["--seed", "3"], ["--seed", "3"], [], []):
        answers(monkeypatch, "Hello", "quit")
        assert chat.main(["--agent", str(bot.folder), *seed]) == 0
    store = bot.store()
    first, second, third, fourth = [
        (turn.token_ids, turn.sampling["seed"]) for one in store.dialogues() for turn in store.turns(one.id)[1:]
    ]
    assert first == second
    assert third != fourth
    store.close()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda bot: bot.store_path.write_text("no database " * 99), "feedback.sqlite"),
        (lambda bot: bot.store_path.unlink(), "no store"),
        (lambda bot: (bot.folder / "champion").write_text("0007"), "not a version"),
        (lambda bot: (bot.agent_folder("0001") / "model.safetensors").unlink(), "version 0001"),
    ],
)
def test_a_damaged_bot_is_one_clear_message(bot, state, capsys, damage, words):
    damage(bot)
    assert chat.main(["--agent", str(bot.folder)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("error: ") == 1


@pytest.mark.slow
def test_on_a_terminal_the_answer_grows(bot, state):
    """In a terminal of its own: the label is there before the answer, and no line is kept beside the person's id."""
    ours, theirs = pty.openpty()
    words = ["-m", "rlhf_dialog", "chat", "--agent", str(bot.folder), "--seed", "0"]
    with start_python(*words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(TERM="dumb")) as process:
        os.close(theirs)
        seen, left = b"", [b"Hello\n", b"/good\n", b"caf\xe9\n", b"quit\n"]  # one line is not UTF-8
        while select.select([ours], [], [], HANGING)[0]:
            try:
                new = os.read(ours, 4096)
            except OSError:  # Linux's end of a terminal
                break
            seen += new
            if seen.endswith(b"> User: ") and left:
                os.write(ours, left.pop(0))
        assert process.wait(HANGING) == 0
    os.close(ours)
    assert b"> Agent: " in seen
    assert b"(stored: you like this answer)" in seen
    assert [path.name for path in state.iterdir()] == ["person"]
