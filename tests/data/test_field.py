"""Messages as others read them: the text of transformers' chat templates."""

import itertools
import json
import random
from importlib.resources import files

import pytest
from transformers import AddedToken

from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.training.supervised.sft import example
from tests.parts.tiny import chat_tokenizer

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
SPECIAL = ("<start_of_turn>", "<end_of_turn>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
NUM_ROWS = 200


def template(name):
    path = files("trl") / "chat_templates" / f"{name}.jinja"
    return MISTRAL if name == "mistral" else path.read_text(encoding="utf-8")


def tokenizer_of(name):
    tokenizer = chat_tokenizer(template(name))
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>", *SPECIAL]})
    if name == "qwen3":
        tokenizer.add_tokens([AddedToken("<think>"), AddedToken("</think>")])
    return tokenizer


def rows():
    """Messages of made-up dialogues: system messages, thinking, roles that do not alternate, a leading assistant."""
    draw = random.Random(7)
    words = ("rain", "Bread ?", "no", "{{ x }}", "two\nlines", "it's 5 %", "é", "ok .")

    def text():
        inner = " ".join(draw.choices(words, k=draw.randint(1, 4)))
        return draw.choice(("", " ", "\n")) + inner + draw.choice(("", " \n"))

    for _ in range(NUM_ROWS):
        roles = draw.choices(("user", "assistant"), k=draw.randint(2, 9))
        messages = [{"role": "system", "content": text()}] if draw.random() < 0.5 else []
        for role in roles:
            thought = f"<think>{text()}</think>{text()}" if role == "assistant" and draw.random() < 0.2 else text()
            messages.append({"role": role, "content": thought})
        yield messages


def prepared(messages):
    groups = itertools.groupby(messages, key=lambda message: message["role"])
    return [{"role": role, "content": "\n\n".join(x["content"].strip() for x in said)} for role, said in groups]


def accepted(tokenizer, messages):
    """The messages as the template takes them: no assistant at the beginning, the system message before the first user's."""
    for change in (lambda x: x, without_leading, with_system_inside, lambda x: with_system_inside(without_leading(x))):
        try:
            tokenizer.apply_chat_template(change(messages), tokenize=False)
            return change(messages)
        except Exception:
            continue
    raise AssertionError(messages)


def without_leading(messages):
    first = next(i for i, message in enumerate(messages) if message["role"] != "system")
    return messages[:first] + messages[first + 1 :] if messages[first]["role"] == "assistant" else messages


def with_system_inside(messages):
    if messages[0]["role"] != "system":
        return messages
    system, rest = messages[0]["content"], [dict(message) for message in messages[1:]]
    user = next(message for message in rest if message["role"] == "user")
    user["content"] = f"{system}\n\n{user['content']}"
    return rest


def replies(messages):
    for i, message in enumerate(messages):
        if message["role"] == "assistant" and any(x["role"] == "user" for x in messages[:i]):
            yield messages[: i + 1]


def sft_rows(tmp_path, tokenizer):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows()))
    prompts = PromptRules(context_size=1000, turn_separator="chat_template").load(str(tmp_path), "train")
    encoder = prompt_encoder(tokenizer, "chat_template", 10**6)
    return [example(encoder, prompt) for prompt in prompts]


@pytest.mark.parametrize("name", ["mistral", "qwen3", "gemma"])
def test_every_prefix_that_ends_with_a_reply_reads_as_transformers_writes_it(tmp_path, name):
    tokenizer = tokenizer_of(name)
    expected = [
        tokenizer.apply_chat_template(accepted(tokenizer, prefix), tokenize=False, enable_thinking=False).rstrip("\n")
        for messages in rows()
        for prefix in replies(prepared(messages))
    ]
    ours = [tokenizer.decode(row["input_ids"]) for row in sft_rows(tmp_path, tokenizer)]
    assert len(ours) > NUM_ROWS
    assert ours == expected
