"""Talking to an agent: from Python, and the words and ends of the terminal."""

import importlib
import io
import os
import pty
import select
import sqlite3
import subprocess

import pytest
import torch

from rlhf_dialog.commands import chat
from rlhf_dialog.commands.chat import NOTICE, WELCOME, converse, find_agent
from rlhf_dialog.commands.chat_screen import Screen
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.page.chat_session import ChatSession
from rlhf_dialog.feedback.store import schema
from tests.parts.processes import HANGING, environment, start_python

# the terminal


class Scripted:
    """Answers with the turn it got; `asked` has each turn with those that came before it in its dialogue."""

    version, problem = "0001", None

    def __init__(self):
        self.asked: list[tuple[str, list[str]]] = []
        self.history: list[str] = []

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
        pass


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
    chat_agent, written = talk(["Hello", "How are you ?", "quit"])
    assert chat_agent.asked == [("Hello", []), ("How are you ?", ["Hello", "re Hello"])]
    assert written == [WELCOME, "> Agent: re Hello", "> Agent: re How are you ?"]


def test_a_separator_in_a_message_is_replaced_with_a_notice():
    chat_agent, written = talk(["Hello <EOU>", "<EOU>", "Bye", "quit"])
    assert chat_agent.asked == [("Hello", []), ("Bye", ["Hello", "re Hello"])]
    assert written == [WELCOME, NOTICE, "> Agent: re Hello", NOTICE, "> Agent: re Bye"]


@pytest.mark.parametrize("word", ["reset", "/reset", "RESET", " /Reset ", "/reset please"])
def test_reset_forgets_the_history(word):
    chat_agent, written = talk(["Hello", word, "Again", "quit"])
    assert chat_agent.asked == [("Hello", []), ("Again", [])]
    assert written.count(WELCOME) == 2


@pytest.mark.parametrize("word", ["quit", "exit", "/quit", "/exit", "QUIT", "  exit  ", "/quit now"])
def test_quit_ends(word):
    chat_agent, _ = talk([word])
    assert chat_agent.asked == []


def test_nothing_said_is_not_answered_and_the_end_of_input_ends():
    chat_agent, written = talk(["", "   ", "\t", "Hi"])
    assert chat_agent.asked == [("Hi", [])]
    assert written[-1] == ""  # the shell's prompt comes on a new line


def test_an_empty_reply_is_shown():
    _, written = talk(["silence", "quit"])
    assert "empty" in written[1]


def test_no_line_of_a_reply_can_pass_for_a_prompt():
    _, written = talk(["one\n> User: two", "quit"])
    assert written[1] == "> Agent: re one\n         > User: two"


def test_a_reply_cannot_steer_the_terminal(agent_folder, monkeypatch, capsys):
    answers(monkeypatch, "Hello", "quit")
    monkeypatch.setattr(ChatSession, "say", lambda *_: iter(["\x1b", "\x1b]0;owned\x07\x9b2J"]))
    assert chat.main(["--agent", str(agent_folder)]) == 0
    assert r"> Agent: \x1b]0;owned\x07\x9b2J" in capsys.readouterr().out


def test_words_that_only_begin_like_a_command_are_text():
    chat_agent, _ = talk(["quit smoking ?", "good", "why", "//resetting", "quit"])
    assert [text for text, _ in chat_agent.asked] == ["quit smoking ?", "good", "why", "/resetting"]


def test_an_unknown_word_is_not_said_to_the_agent():
    chat_agent, written = talk(["/resetting", "/usr/bin is what ?", "quit"])
    assert chat_agent.asked == []
    assert "did you mean '/reset'?" in written[1]
    assert "// begins a message with a slash" in written[2]


def test_find_agent_takes_ppo_agent_then_the_newest_run(tmp_path):
    with pytest.raises(UserError, match="--agent DIR"):
        find_agent(tmp_path)
    for time, name in enumerate(("runs/old/agent", "run_results/new/agent", "runs/middle/agent")):
        (tmp_path / name).mkdir(parents=True)
        stamp = {"runs/old/agent": 100, "run_results/new/agent": 300, "runs/middle/agent": 200}[name]
        os.utime(tmp_path / name, (stamp + time, stamp + time))
    (tmp_path / "runs/newest").mkdir()
    (tmp_path / "runs/newest/agent").touch()  # a file is no agent
    assert find_agent(tmp_path) == tmp_path / "run_results/new/agent"
    os.utime(tmp_path / "runs/old/agent", (900, 900))
    assert find_agent(tmp_path) == tmp_path / "runs/old/agent"
    (tmp_path / "ppo_agent").mkdir()
    assert find_agent(tmp_path) == tmp_path / "ppo_agent"


def answers(monkeypatch, *lines: str | type[BaseException] | BaseException) -> None:
    left = list(lines)

    def read(prompt: str) -> str:
        line = left.pop(0)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read)


def test_main_talks_and_says_with_whom(agent_folder, monkeypatch, capsys):
    answers(monkeypatch, "Hello", "/reset", "Hello", "/quit")
    assert chat.main(["--agent", str(agent_folder), "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert str(agent_folder) in out.splitlines()[0]
    assert out.count("> Agent: ") == 2


def test_main_finds_the_newest_agent(agent_folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "run_results" / "x").mkdir(parents=True)
    (tmp_path / "run_results" / "x" / "agent").symlink_to(agent_folder)
    monkeypatch.chdir(tmp_path)
    answers(monkeypatch, EOFError)
    assert chat.main([]) == 0
    assert "run_results/x/agent" in capsys.readouterr().out


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_the_temperature_of_a_chat(agent_folder, monkeypatch, temperature):
    seen = []
    monkeypatch.setattr(
        chat, "converse", lambda begin, *_: seen.append(begin().answering._served.agent("agent").sampling)
    )
    assert chat.main(["--agent", str(agent_folder)]) == 0
    assert chat.main(["--agent", str(agent_folder), "--temperature", str(temperature)]) == 0
    own, other = seen
    assert not own.greedy
    assert own.temperature != 0.3
    assert (other.greedy, other.temperature) == ((True, own.temperature) if temperature == 0 else (False, 0.3))


@pytest.mark.parametrize("temperature", ["-1", "nan", "inf"])
def test_an_impossible_temperature_is_exit_code_2(agent_folder, capsys, temperature):
    assert chat.main(["--agent", str(agent_folder), f"--temperature={temperature}"]) == 2
    assert f"--temperature {temperature}: give 0 or more, for example 0.7" in capsys.readouterr().err


def test_control_c_is_130_without_a_traceback(agent_folder, monkeypatch, capsys):
    answers(monkeypatch, "Hello", KeyboardInterrupt)
    assert chat.main(["--agent", str(agent_folder)]) == 130
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no bot in run_results or runs"),
        (["--agent", "./absent"], "no such folder: './absent'"),
        (["--agent", "."], "--agent"),
        (["--agent", "nobody/nothing"], "cannot be reached"),
    ],
)
def test_no_agent_is_exit_code_2(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert chat.main(argv) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_a_device_that_is_not_there_is_exit_code_2(agent_folder, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chat.main(["--agent", str(agent_folder), "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "foo"], "--device: found 'foo', wanted auto, cpu or cuda"),
        (["--device", "cuda:99"], "--device cuda:99, but torch finds "),
        (["--seed", str(2**70)], f"--seed: found {2**70}, wanted 0 to 4294967295"),
    ],
)
def test_a_device_or_seed_that_cannot_be_is_exit_code_2(agent_folder, capsys, options, words):
    assert chat.main(["--agent", str(agent_folder), *options]) == 2
    assert f"error: {words}" in capsys.readouterr().err


def test_a_letter_that_the_terminal_lacks_is_written_out(agent_folder, monkeypatch):
    monkeypatch.setattr(ChatSession, "say", lambda *_: iter(["caf\u00e9"]))
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, "ascii"))
    answers(monkeypatch, "Hello", "quit")
    assert chat.main(["--agent", str(agent_folder)]) == 0
    assert rb"> Agent: caf\xe9" in shown.getvalue()


def test_a_closed_standard_output_is_exit_code_2(agent_folder, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout", None)
    assert chat.main(["--agent", str(agent_folder)]) == 2
    assert "error: standard output is closed" in capsys.readouterr().err


def test_a_standard_input_that_is_a_folder(agent_folder, monkeypatch, capsys):
    answers(monkeypatch, IsADirectoryError(21, "Is a directory"))
    assert chat.main(["--agent", str(agent_folder)]) == 2
    assert "error: standard input cannot be read: [Errno 21] Is a directory" in capsys.readouterr().err


def test_the_path_that_scripts_import():
    assert importlib.import_module("rlhf_dialog.chat").main is chat.main


@pytest.mark.parametrize("encoding", [("utf-8", "strict"), ("ascii", "surrogateescape")])
def test_input_that_is_not_utf_8(encoding, agent_folder, monkeypatch, capsys):
    data = io.BytesIO("Hello\ncaf\u00e9 ?\n".encode("latin-1"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(data, *encoding))
    assert chat.main(["--agent", str(agent_folder)]) == 2
    assert capsys.readouterr().err.count("error: standard input is not UTF-8 text") == 1


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_an_output_that_nobody_reads_any_more_ends_quietly(agent_folder):
    words = ["-m", "rlhf_dialog", "chat", "--agent", agent_folder]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start_python(*words, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Agent: ")
        process.stdout.close()
        _, error = process.communicate("Hello\nHello\nHello\n", timeout=HANGING)
    assert (process.returncode, error) == (141, "")


def test_no_standard_input_at_all_is_its_end(agent_folder, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert chat.main(["--agent", str(agent_folder)]) == 0


# a bot, a training run, a plain chat model


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Where the terminal keeps its person."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "rlhf-dialog"


def test_a_bot_says_what_it_stores_and_learns_from_words(bot, state, monkeypatch, capsys):
    answers(monkeypatch, "Hello", "/good kind", "reset", "Bye", EOFError)
    assert chat.main(["--agent", str(bot.folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Agent: {bot.folder}, version 0001"
    assert lines[1] == (
        f"What you say and how you rate it is stored in {bot.folder}/feedback.sqlite to train this bot; /forget me removes it."
    )
    assert lines[2] == WELCOME
    store = bot.store()
    assert [(dialogue.person, dialogue.source) for dialogue in store.dialogues()] == [
        (store.hash_person((state / "person").read_text().strip()), "terminal")
    ] * 2
    assert [(event.kind, event.value, event.text) for event in store.feedback()] == [("thumb", 1.0, "kind")]
    store.close()


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


def test_find_agent_takes_the_newest_bot_too(bot, tmp_path):
    (tmp_path / "runs/x/agent").mkdir(parents=True)
    (tmp_path / "runs/bot").symlink_to(bot.folder)
    os.utime(tmp_path / "runs/x/agent", (100, 100))
    assert find_agent(tmp_path) == tmp_path / "runs/bot"
    os.utime(bot.folder / "champion", (50, 50))
    assert find_agent(tmp_path) == tmp_path / "runs/x/agent"


def test_a_training_run_answers_with_its_agent(agent_folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "agent").symlink_to(agent_folder)
    answers(monkeypatch, "Hello", "/good", "quit")
    assert chat.main(["--agent", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert out.count("> Agent: ") == 1
    assert "feedback init --run runs/bot --agent DIR" in out
    assert "is stored in" not in out


@pytest.mark.parametrize("option", [["--tokenizer", "x"], ["--trust_remote_code"]])
def test_a_bot_has_its_own_tokenizer_and_runs_no_code(bot, state, capsys, option):
    assert chat.main(["--agent", str(bot.folder), *option]) == 2
    assert "leave --tokenizer and --trust_remote_code out" in capsys.readouterr().err


def change_store(bot, statement: str) -> None:
    connection = sqlite3.connect(bot.store_path)
    connection.execute("DROP TRIGGER IF EXISTS meta_stays")
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda bot: change_store(bot, "PRAGMA user_version=9"), "has schema version 9"),
        (lambda bot: change_store(bot, "UPDATE meta SET value = 'ffff' WHERE key = 'bot'"), "belongs to another bot"),
        (lambda bot: bot.store_path.write_text("no database " * 99), "feedback.sqlite"),
        (lambda bot: bot.store_path.unlink(), "there is no store of feedback"),
        (lambda bot: (bot.folder / "champion").write_text("0007"), "is not a version"),
        (lambda bot: (bot.folder / "lineage.json").write_text("{"), "lineage.json: is damaged"),
        (lambda bot: (bot.agent_folder("0001") / "model.safetensors").unlink(), "version 0001 does not load"),
    ],
)
def test_a_damaged_bot_is_one_clear_message(bot, state, capsys, damage, words):
    damage(bot)
    assert chat.main(["--agent", str(bot.folder)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("error: ") == 1
    assert "Traceback" not in error


def test_a_locked_store_shows_the_answer_and_says_that_it_is_not_stored(bot, state, monkeypatch, capsys):
    monkeypatch.setattr(schema, "BUSY_TIMEOUT", 0.01)
    writer = sqlite3.connect(bot.store_path, isolation_level=None)
    answers(monkeypatch, "Hello", "/good", "quit")
    writer.execute("BEGIN IMMEDIATE")
    assert chat.main(["--agent", str(bot.folder), "--seed", "0"]) == 0
    writer.close()
    lines = capsys.readouterr().out.split("\n")  # a random answer may hold other ends of lines
    said = next(i for i, line in enumerate(lines) if line.startswith("> Agent: "))
    assert lines[said + 1].startswith("(this dialogue is not stored, so it cannot be rated: ")
    assert lines[said + 2] == lines[said + 1]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")
def test_on_a_terminal_the_answer_grows(bot, state):
    """In a terminal of its own: the label is there before the answer, and the lines are kept."""
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
    lines = (state / "chat_history").read_text().split("\n")[-5:]
    assert [line[:5] for line in lines] == ["Hello", "/good", lines[2], "quit", ""]
    assert lines[2] in ("caf", "caf\ufffd")  # readline leaves the byte out
