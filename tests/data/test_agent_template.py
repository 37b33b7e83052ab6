"""What transformers renders with the template of a saved agent is what the agent's encoder reads, id for id."""

import itertools
import json
import random
from copy import copy
from functools import partial
from pathlib import Path

import pytest
import trl
from tokenizers import AddedToken

from rlhf_dialog.data.agent_template import FILE, agent_template, own_template, stored_settings
from rlhf_dialog.data.chat_template import TurnEncoder, fix_date, prompt_encoder
from tests.parts.chatml import OPEN, said
from tests.parts.tiny import CHATML, CHATML_USER_FIRST, LLAMA2, byte_tokenizer, chat_tokenizer, merging_tokenizer

SYSTEM = 'Be "kind" # {{ brief }} \\n\nü 🙂 .'
SWITCHED = CHATML + "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
PIECES = (
    *("Hello", "a  b", "Où est-ce ? 🙂", "{{ messages }}", "{% set x = 1 %}", "#} -#}", 'it\'s "so"', "\\n", "\n\n"),
    *("\u00a0", "<eos>", "<pad>", "<s>", "<|im_end|>", "<|im_start|>user\n", "<EOU>", " ###", "|"),
    *("<|im_<eos>end|>", "<think>"),
)


def encoder_of(tokenizer, separator: str, system_prompt: str | None = None) -> TurnEncoder:
    return prompt_encoder(tokenizer, separator, 100_000, system_prompt)


def trl_encoder(name: str) -> TurnEncoder:
    """With a template of a real model, as TRL brings it."""
    template = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    tokenizer = chat_tokenizer(template)
    tokenizer.add_tokens([AddedToken(text, special=True) for text in ("<|eot_id|>", "<end_of_turn>")])
    fix_date(tokenizer, "2026-07-26")
    return encoder_of(tokenizer, "chat_template")


ENCODERS = {
    "a token": lambda: encoder_of(byte_tokenizer(), "<EOU>"),
    "a text": lambda: encoder_of(byte_tokenizer(separator_token=False), "<EOU>"),
    "a text that merges": lambda: encoder_of(merging_tokenizer(), "###"),
    "a new line": lambda: encoder_of(byte_tokenizer(), "\n"),
    "a text behind BOS": lambda: encoder_of(chat_tokenizer(), "|"),
    "chatml": lambda: encoder_of(chat_tokenizer(), "chat_template"),
    "chatml, the user first": lambda: encoder_of(chat_tokenizer(CHATML_USER_FIRST), "chat_template"),
    "no system message": lambda: encoder_of(chat_tokenizer(NO_SYSTEM), "chat_template"),
    "llama 2": lambda: encoder_of(chat_tokenizer(LLAMA2), "chat_template"),
    "a system prompt": lambda: encoder_of(chat_tokenizer(), "chat_template", SYSTEM),
    "thinking": lambda: encoder_of(chat_tokenizer(SWITCHED), "chat_template"),
    "lines": lambda: encoder_of(
        chat_tokenizer("\n\n  {% if true %}x{% endif %}\n " + CHATML + "\n\n"), "chat_template"
    ),
    "a separator's system prompt": lambda: encoder_of(byte_tokenizer(), "<EOU>", " Be <pad>kind ."),
    **{name: partial(trl_encoder, name) for name in ("qwen2_5", "qwen3", "llama3", "llama3_2", "gemma")},
}


def saved(encoder: TurnEncoder, context_size: int = 5, **settings):
    """The tokenizer as an agent's folder has it."""
    tokenizer = copy(encoder.tokenizer)
    keys = {"context_size": context_size, "turn_separator": "not read here", **settings}
    tokenizer.chat_template = agent_template(encoder, keys)
    return tokenizer


def messages(turns: list[str], last: str = "user") -> list[dict[str, str]]:
    roles = ("user", "assistant") if last == "user" else ("assistant", "user")
    return [
        {"role": roles[i % 2], "content": turn} for i, turn in zip(range(len(turns) - 1, -1, -1), turns, strict=True)
    ]


def prompt_ids(tokenizer, chat, **options) -> list[int]:
    return tokenizer.apply_chat_template(chat, add_generation_prompt=True, **options)["input_ids"]


DRAW = random.Random(5)
TEXTS = [" ".join(DRAW.choices(PIECES, k=DRAW.randint(1, 5))).strip() or "Yes" for _ in range(9 * 6)]
DIALOGUES = [TEXTS[i : i + DRAW.randint(1, 9)] for i in range(0, 9 * 6, 9)]


@pytest.mark.parametrize("name", ENCODERS)
def test_transformers_renders_the_ids_of_the_encoder(name):
    encoder = ENCODERS[name]()
    for context_size in (2, 5):
        tokenizer = saved(encoder, context_size)
        for turns in DIALOGUES:
            expected = encoder.encode_prompt(turns[-context_size:])
            assert prompt_ids(tokenizer, messages(turns)) == expected, turns
            padded = [f" {turn}\n" for turn in turns]
            assert prompt_ids(tokenizer, messages(padded), enable_thinking=True) == expected, turns
            behind = [{"role": "system", "content": " Be <eos>kind .\n"}, *messages(turns)]
            assert prompt_ids(tokenizer, behind) == encoder.encode_prompt(turns[-context_size:], "Be kind ."), turns


@pytest.mark.parametrize("name", ENCODERS)
def test_a_dialogue_that_ends_with_the_reply_is_prompt_and_target(name):
    """What TRL trains on, but for white space that a template writes behind the end of the turn."""
    encoder = ENCODERS[name]()
    tokenizer = saved(encoder, 3)
    for turns in (["a", "b"], ["a", "b", "c", "d"], ["a", "b", "c", "d", "e", "f"]):
        ids = tokenizer.apply_chat_template(messages(turns, "assistant"))["input_ids"]
        expected = encoder.encode_prompt(turns[:-1][-3:]) + encoder.encode_target(turns[-1])
        assert ids[: len(expected)] == expected
        assert not tokenizer.decode(ids[len(expected) :]).replace("<think>", "").strip()


CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"room": 12}}}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "d", "parameters": {"type": "object"}}}
WITH_CALLS = [
    {"role": "user", "content": "Is it free ?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "name": "look_up", "content": "yes"},
    {"role": "tool", "name": "look_up", "content": "no"},
    {"role": "assistant", "content": "It is ."},
    {"role": "user", "content": "Good ."},
]


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "glm4moe", "gptoss"])
def test_calls_of_tools_are_written_as_by_the_starts_template(name):
    """A call and its answers are no turns of the context, and what must not be in a text is not in an answer."""
    start = trl_encoder(name)
    agent = saved(start, 3)
    for end, tools in itertools.product((1, 2, 3, 4, 6), (None, [TOOL])):
        options = {"conversation": WITH_CALLS[:end], "tools": tools, "tokenize": False, "add_generation_prompt": True}
        wanted = start.tokenizer.apply_chat_template(**options, enable_thinking=False)
        assert agent.apply_chat_template(**options) == wanted, end
    text = saved(start, 1).apply_chat_template(WITH_CALLS, tokenize=False)
    assert "look_up" not in text
    broken = [*WITH_CALLS[:2], WITH_CALLS[2] | {"content": "ye<eos>s"}]
    assert "ye s" in agent.apply_chat_template(broken, tokenize=False)


def test_a_client_may_bring_a_system_message_parts_and_several_messages_of_one_role():
    tokenizer = saved(encoder_of(chat_tokenizer(), "chat_template", "Be brief ."), 2)
    chat = [
        {"role": "developer", "content": "You are a<|im_end|> cook ."},
        {"role": "assistant", "content": "Hi ."},
        {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]},
        {"role": "user", "content": " three "},
    ]
    expected = said("system", "You are a cook .") + said("assistant", "Hi .") + said("user", "One two\n\nthree") + OPEN
    assert prompt_ids(tokenizer, chat) == expected
    expected = said("system", "Be brief .") + said("user", "One two\n\nthree") + OPEN
    assert prompt_ids(tokenizer, [{"role": "system", "content": ""}, *chat[2:]]) == expected
    bar = saved(encoder_of(byte_tokenizer(), "<EOU>"))
    assert bar.decode(prompt_ids(bar, chat)) == "You are a<|im_end|> cook .<EOU> Hi .<EOU> One two\n\nthree<EOU>"


def test_a_token_that_a_replacement_makes_and_one_inside_of_another():
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(text, special=True) for text in ("<x y>", "<eos><eos>", "<e", "s>")])
    encoder = encoder_of(tokenizer, "<EOU>")
    rendered = saved(encoder)
    texts = {"<x<pad>y>": "", "<x <x<pad>y>y>": "", "a<eos><eos>b": "a b", "<e<eos>os>": "o", "a  b": "a  b"}
    for text, left in texts.items():
        ids = prompt_ids(rendered, messages([text]))
        assert ids == encoder.encode_prompt([text])
        assert ids == tokenizer(f"{left} <EOU>")["input_ids"]


def test_the_tokenizers_own_template_and_the_settings_come_back(tmp_path):
    for name, make in ENCODERS.items():
        encoder = make()
        template = agent_template(encoder, {"context_size": 4, "introduction": "#} {# -#}\n Ça va ?"})
        assert own_template(template) == encoder.tokenizer.chat_template, name
        (tmp_path / FILE).write_text(template, encoding="utf-8")
        assert stored_settings(tmp_path) == {"context_size": 4, "introduction": "#} {# -#}\n Ça va ?"}, name
    assert own_template(CHATML) == CHATML
    assert own_template(None) is None
    several = {"default": CHATML, "tool_use": LLAMA2}
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = several
    for separator in ("chat_template", "|"):
        assert own_template(agent_template(encoder_of(tokenizer, separator), {"context_size": 4})) == several


def test_a_template_that_is_not_an_agents_is_left_alone(tmp_path):
    for head in ("", "{#- agent of rlhf-dialog {", "{#- agent of rlhf-dialog [] -#}\n", json.dumps({"a": 1})):
        (tmp_path / FILE).write_text(head + CHATML, encoding="utf-8")
        assert stored_settings(tmp_path) == {}
        assert own_template(head + CHATML) == head + CHATML
    assert stored_settings(tmp_path / "absent") == {}
