"""Tools and calls of tools in a chat template, whose ids are those of transformers."""

import json

import pytest

from rlhf_dialog.data.chat_template import keep_with_room, prompt_encoder
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.errors import UserError
from rlhf_dialog.runs.identity import data_fingerprint
from rlhf_dialog.training.supervised.sft import example
from tests.parts.data_files import jsonl_bytes, parquet_bytes
from tests.parts.tiny import CHATML, chat_tokenizer

WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WEATHER = {"type": "function", "function": {"name": "weather", "description": "the sky"}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
MESSAGES = [
    {"role": "user", "content": "Is the weather wet ?"},
    {"role": "assistant", "content": "I look .", "tool_calls": [CALL]},
    {"role": "tool", "content": "rain"},
    {"role": "assistant", "content": "It rains ."},
    {"role": "user", "content": "Thanks ."},
    {"role": "assistant", "content": "Bye ."},
]
PLAIN = {"messages": [{"role": "user", "content": "Hi ."}, {"role": "assistant", "content": "Hello ."}]}


def read(folder, rows, template=WITH_TOOLS, encode=jsonl_bytes):
    path = folder / f"a.{encode.__name__.removesuffix('_bytes')}"
    path.write_bytes(encode(rows))
    encoder = prompt_encoder(chat_tokenizer(template), "chat_template", 2000)
    return encoder, keep_with_room(encoder, PromptRules(50, turn_separator="chat_template").load(str(path), "train"))


@pytest.mark.parametrize("encode", [jsonl_bytes, parquet_bytes])
@pytest.mark.parametrize("tools", [[WEATHER], json.dumps([WEATHER]), None])
def test_prompts_and_what_is_learned_are_the_ids_of_transformers(tmp_path, tools, encode):
    encoder, prompts = read(tmp_path, [{"messages": MESSAGES, "tools": tools}], encode=encode)
    offered = [WEATHER] if tools else None
    ends = [number for number, message in enumerate(MESSAGES) if message["role"] == "assistant"]
    assert len(prompts) == len(ends)
    for prompt, end in zip(prompts, ends, strict=True):
        wanted = encoder.tokenizer.apply_chat_template(
            MESSAGES[:end], tools=offered, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        whole = encoder.tokenizer.apply_chat_template(
            MESSAGES[: end + 1], tools=offered, tokenize=True, return_dict=False
        )
        assert encoder.encode_prompt(prompt.prompt_turns, prompt.system) == wanted
        row = example(encoder, prompt)
        assert row["input_ids"] == whole[: len(row["input_ids"])]
        assert len(whole) - len(row["input_ids"]) <= 1  # the line end behind the end-of-turn token


def test_rows_with_calls_are_left_out_where_the_template_does_not_write_them(tmp_path, caplog):
    """The name of the tool and its city stand in other texts, too."""
    _, prompts = read(tmp_path, [{"messages": MESSAGES, "tools": [WEATHER]}, PLAIN], CHATML)
    assert [prompt.prompt_turns for prompt in prompts] == [["Hi ."]]
    assert "1 of 2 rows have tool messages, which the chat template does not write, and are left out" in caplog.text
    with pytest.raises(UserError, match="all rows"):
        read(tmp_path, [{"messages": MESSAGES}], CHATML)


def test_tools_that_the_template_does_not_write_are_named(tmp_path, caplog):
    _, prompts = read(tmp_path, [PLAIN | {"tools": [WEATHER]}, PLAIN], CHATML)
    assert len(prompts) == 2
    assert "1 of 2 rows have tools, which the chat template does not write" in caplog.text


def test_an_answer_of_a_tool_does_not_begin_a_prompt_that_was_cut(tmp_path):
    encoder, prompts = read(tmp_path, [{"messages": MESSAGES}])
    encoder.max_prompt_length = 110
    text = encoder.tokenizer.decode(encoder.encode_prompt(prompts[2].prompt_turns))
    assert text.startswith("<|im_start|>assistant\nIt rains .")


def test_tools_belong_to_the_identity_of_the_data(tmp_path):
    prints = {
        data_fingerprint(read(tmp_path, [PLAIN | {"tools": tools}])[1])
        for tools in (None, [WEATHER], [{**WEATHER, "type": "x"}])
    }
    assert len(prints) == 3
