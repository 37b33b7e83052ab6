"""Talking to an agent: from Python, and the words and ends of the terminal."""

import json
import os
from pathlib import Path

import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_dialog.commands import chat
from rlhf_dialog.commands.chat import WELCOME, converse, find_agent
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.chat_agent import AGENT_FILE, AgentSettings, ChatAgent


def save(folder: Path, settings: dict | None = None, **config) -> Path:
    tiny.gpt2(**config).save_pretrained(folder)
    tiny.byte_tokenizer().save_pretrained(folder)
    if settings is not None:
        (folder / AGENT_FILE).write_text(json.dumps({"format_version": 1, **settings}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An agent of 256 positions that answers 12 tokens."""
    return save(tmp_path_factory.mktemp("agents") / "agent", {"max_new_tokens": 12, "max_prompt_length": 100})


@pytest.fixture(scope="module")
def agent(folder):
    return ChatAgent.load(folder)


def test_settings_come_from_the_folder_and_have_defaults(folder, tmp_path):
    agent = ChatAgent.load(folder)
    assert (agent.sampling.max_new_tokens, agent.settings.max_prompt_length) == (12, 100)
    assert (agent.sampling.temperature, agent.sampling.top_k, agent.sampling.top_p) == (1.0, 0, 1.0)
    plain = ChatAgent.load(save(tmp_path / "plain"))  # any causal LM folder is an agent
    assert plain.settings == AgentSettings()
    assert plain.settings.turn_separator == "<EOU>"
    assert isinstance(plain.chat("Hello"), str)


def test_a_reply_is_text_up_to_the_separator_and_the_seed_decides_it(agent):
    torch.manual_seed(3)
    first = [agent.chat("Hello there") for _ in range(8)]
    torch.manual_seed(3)
    assert [agent.chat("Hello there") for _ in range(8)] == first
    assert len(set(first)) > 1
    for reply in first:
        assert reply == reply.strip()
        assert not any(word in reply for word in ("<EOU>", "<eos>", "<pad>"))


def greedy_by_hand(folder: Path, turns: list[str], max_new_tokens: int) -> str:
    """The most likely tokens after `a <EOU> b <EOU>`, one whole forward pass each, without cache and padding."""
    lm, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(" <EOU> ".join(turns) + " <EOU>", add_special_tokens=False)["input_ids"]
    separator, end = tokenizer.convert_tokens_to_ids("<EOU>"), tokenizer.eos_token_id
    written: list[int] = []
    with torch.no_grad():
        while len(written) < max_new_tokens and not (written and written[-1] in (separator, end)):
            written.append(int(lm(torch.tensor([ids + written])).logits[0, -1].argmax()))
    return tokenizer.decode([i for i in written if i not in (separator, end, tokenizer.pad_token_id)]).strip()


def test_the_prompt_is_the_history_in_order_with_separators(tmp_path):
    """At a temperature near 0 sampling is greedy, so the reply shows what the prompt was."""
    folder = save(
        tmp_path / "sharp", {"max_new_tokens": 8, "temperature": 1e-4, "context_size": 3}, initializer_range=0.3
    )
    agent = ChatAgent.load(folder)
    expected = greedy_by_hand(folder, ["two", "three", "four"], 8)
    assert agent.chat("  four ", history=["one", "two ", "three"]) == expected  # the last 3 turns, stripped
    assert expected != greedy_by_hand(folder, ["one", "two", "three", "four"], 8)
    assert agent.chat("four") == greedy_by_hand(folder, ["four"], 8)


def test_a_history_longer_than_the_models_positions_still_works(agent, tmp_path):
    assert isinstance(agent.chat("Hi", history=["word " * 300] * 40), str)
    assert isinstance(agent.chat("word " * 2000), str)
    short = ChatAgent.load(save(tmp_path / "short", {"max_new_tokens": 5, "max_prompt_length": 500}, n_positions=32))
    assert isinstance(short.chat("word " * 50, history=["more words"] * 9), str)


def test_a_model_with_fewer_positions_than_a_reply_says_so_or_works(tmp_path):
    folder = save(tmp_path / "small", {"max_new_tokens": 20}, n_positions=16)
    try:
        reply = ChatAgent.load(folder).chat("a long text that does not fit into sixteen positions")
    except UserError:
        return
    assert isinstance(reply, str)


@pytest.mark.parametrize(
    "text",
    [
        '{"format_version": 1, "max_new',
        "[]",
        "3",
        '{"max_new_tokens": "many"}',
        '{"odd_key": 1}',
        '{"top_p": 7}',
        "\x00",
    ],
)
def test_a_damaged_settings_file_is_the_users_error(tmp_path, text):
    save(tmp_path)
    (tmp_path / AGENT_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=AGENT_FILE):
        ChatAgent.load(tmp_path)


def test_a_settings_file_of_a_newer_program_says_so(tmp_path):
    save(tmp_path, {"format_version": 2, "a_key_of_tomorrow": 1})
    with pytest.raises(UserError, match=f"{AGENT_FILE}: has format version 2, this program reads up to 1; update"):
        ChatAgent.load(tmp_path)


def test_another_tokenizer_folder(tmp_path):
    tiny.gpt2().save_pretrained(tmp_path / "lm")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "words")
    assert isinstance(ChatAgent.load(tmp_path / "lm", tokenizer=str(tmp_path / "words")).chat("Hi"), str)


def test_a_tokenizer_larger_than_the_model_is_the_users_error(folder, tmp_path):
    words = tiny.byte_tokenizer()
    words.add_tokens(["anew"])
    words.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="260"):
        ChatAgent.load(folder, tokenizer=str(tmp_path))


def test_a_speaker_answers_after_all_that_has_been_said(tmp_path):
    """The user's turn behind the policy's own is seen; replies come in the order of the dialogues, with their ids."""
    settings = {"max_new_tokens": 8, "temperature": 1e-4}
    folder = save(tmp_path / "sharp", settings, initializer_range=0.3)
    agent = ChatAgent.load(folder)
    longer = Dialogue(["one"], response="two").heard("three")
    replies = agent.reply([longer, Dialogue(["one"])])
    assert [reply.text for reply in replies] == [
        greedy_by_hand(folder, list(t), 8) for t in (("one", "two", "three"), ("one",))
    ]
    assert [agent.encoder.reply_text(reply.ids) for reply in replies] == [reply.text for reply in replies]
    assert [reply.truncated for reply in replies] == [len(r.ids) == 8 and r.ids[-1] not in (257, 258) for r in replies]


# the terminal


class Scripted:
    """Answers with the turn it got and how many turns came before it."""

    def __init__(self):
        self.asked: list[tuple[str, list[str]]] = []

    def chat(self, text: str, history: list[str]) -> str:
        self.asked.append((text, list(history)))
        return "" if text == "silence" else f"re {text}"


def talk(lines: list[str]) -> tuple[Scripted, list[str]]:
    agent, written, left = Scripted(), [], list(lines)

    def read(prompt: str) -> str:
        assert prompt == "> User: "
        if not left:
            raise EOFError
        return left.pop(0)

    converse(agent, read, written.append)  # type: ignore[arg-type]
    assert not left, "it ended before the last line"
    return agent, written


def test_a_conversation_keeps_its_history():
    agent, written = talk(["Hello", "How are you ?", "quit"])
    assert agent.asked == [("Hello", []), ("How are you ?", ["Hello", "re Hello"])]
    assert written == [WELCOME, "> Agent: re Hello", "> Agent: re How are you ?"]


@pytest.mark.parametrize("word", ["reset", "/reset", "RESET", " /Reset "])
def test_reset_forgets_the_history(word):
    agent, written = talk(["Hello", word, "Again", "quit"])
    assert agent.asked == [("Hello", []), ("Again", [])]
    assert written.count(WELCOME) == 2


@pytest.mark.parametrize("word", ["quit", "exit", "/quit", "/exit", "QUIT", "  exit  "])
def test_quit_ends(word):
    agent, _ = talk([word])
    assert agent.asked == []


def test_nothing_said_is_not_answered_and_the_end_of_input_ends():
    agent, written = talk(["", "   ", "\t", "Hi"])
    assert agent.asked == [("Hi", [])]
    assert written[-1] == ""  # the shell's prompt comes on a new line


def test_an_empty_reply_is_shown():
    _, written = talk(["silence", "quit"])
    assert "empty" in written[1]


def test_words_that_only_begin_like_a_command_are_text():
    agent, _ = talk(["quit smoking ?", "/resetting", "quit"])
    assert [text for text, _ in agent.asked] == ["quit smoking ?", "/resetting"]


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


def answers(monkeypatch, *lines: str | type[BaseException]) -> None:
    left = list(lines)

    def read(prompt: str) -> str:
        line = left.pop(0)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read)


def test_main_talks_and_says_with_whom(folder, monkeypatch, capsys):
    answers(monkeypatch, "Hello", "/reset", "Hello", "/quit")
    assert chat.main(["--agent", str(folder), "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert str(folder) in out.splitlines()[0]
    assert out.count("> Agent: ") == 2


def test_main_finds_the_newest_agent(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "run_results" / "x").mkdir(parents=True)
    (tmp_path / "run_results" / "x" / "agent").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    answers(monkeypatch, EOFError)
    assert chat.main([]) == 0
    assert "run_results/x/agent" in capsys.readouterr().out


def test_control_c_is_130_without_a_traceback(folder, monkeypatch, capsys):
    answers(monkeypatch, "Hello", KeyboardInterrupt)
    assert chat.main(["--agent", str(folder)]) == 130
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no agent here"),
        (["--agent", "./absent"], "no folder './absent'"),
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


def test_a_device_that_is_not_there_is_exit_code_2(folder, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chat.main(["--agent", str(folder), "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err
