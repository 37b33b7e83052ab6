"""Who replies: roles, messages of one speaker in a row, system messages, and what is left out."""

import json
import logging

import pytest

from rlhf_dialog.data.chat_template import keep_with_room, prompt_encoder
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.errors import UserError
from tests.parts.chatml import OPEN, said
from tests.parts.tiny import byte_tokenizer, chat_tokenizer


def messages(*parts, **columns):
    """A row of messages: `"user: a"` says a."""
    pairs = (part.split(": ", 1) for part in parts)
    return {"messages": [{"role": role, "content": text} for role, text in pairs]} | columns


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def asked(prompts):
    return [(prompt.prompt_turns, prompt.reference) for prompt in prompts]


@pytest.mark.parametrize(
    ("reply", "other"),
    [("assistant", "user"), ("gpt", "human"), ("bot", "prompter"), ("model", "user"), ("Chatbot", "User")],
)
def test_replies_are_those_of_the_assistant_alone(tmp_path, reply, other):
    row = messages(f"{other}: a", f"{reply}: b", f"{other}: c", f"{reply}: d")
    prompts = PromptRules().load(written(tmp_path / "a.jsonl", row), "train")
    assert asked(prompts) == [(["a"], "b"), (["a", "b", "c"], "d")]
    path = written(
        tmp_path / "b.jsonl", messages("user: a", "tool: {}"), messages(f"{reply}: a", "user: b", f"{reply}: c")
    )
    (prompt,) = PromptRules().load(path, "train")
    assert (asked([prompt]), prompt.meta["dialogue"]) == ([(["a", "b"], "c")], 0)  # of the rows that are read


def test_messages_of_one_role_in_a_row_are_one_turn(tmp_path):
    row = messages(
        "user: a", "user: b", "assistant: c", "assistant: d", act=[1, 2, 3, 4], references=[[], [], ["x"], ["y"]]
    )
    (prompt,) = PromptRules().load(written(tmp_path / "a.jsonl", row), "train")
    assert (prompt.prompt_turns, prompt.references, prompt.act) == (["a\n\nb"], ["c\n\nd", "y"], 4)


OTHERS = messages("guest: a", "cook: b", "waiter: c", "guest: d", "waiter: e")


def test_rows_with_other_roles_go_as_before_with_one_line(tmp_path, caplog):
    path = written(tmp_path / "a.jsonl", OTHERS, messages("user: a", "assistant: b"))
    assert len(PromptRules().load(path, "train")) == 4 + 1
    (line,) = [record for record in caplog.records if "reply" in record.getMessage()]
    assert line.levelname == "WARNING"
    assert "1 of 2 dialogues have roles besides user and assistant (cook, guest, waiter)" in line.getMessage()
    assert "reply_roles: [waiter]" in line.getMessage()


def test_reply_roles_name_who_replies(tmp_path, caplog):
    path = written(tmp_path / "a.jsonl", OTHERS)
    rules = PromptRules(reply_roles=("waiter",))
    assert asked(rules.load(path, "train")) == [(["a", "b"], "c"), (["a", "b", "c", "d"], "e")]
    in_template = PromptRules(reply_roles=("waiter",), turn_separator="chat_template").load(path, "train")
    assert asked(in_template) == [(["a\n\nb"], "c"), (["a\n\nb", "c", "d"], "e")]
    assert not caplog.records
    with pytest.raises(
        UserError, match=r"has the role 'waitor'; did you mean 'waiter'\? The roles are: guest, waiter, cook"
    ):
        PromptRules(reply_roles=("waitor",)).load(path, "train")


def test_a_record_that_ends_with_the_user_gives_one_prompt_more_where_it_is_asked_for(tmp_path):
    path = written(tmp_path / "a.jsonl", messages("user: a", "assistant: b", "user: c", act=[1, 2, 3]))
    assert asked(PromptRules().load(path, "train")) == [(["a"], "b")]
    first, last = PromptRules(unanswered=True).load(path, "train")
    assert asked([first, last]) == [(["a"], "b"), (["a", "b", "c"], None)]
    assert (first.act, last.act, last.references, last.meta["unanswered"]) == (2, None, [], True)


def test_a_prompt_that_ends_with_the_assistant_is_left_out_and_counted(tmp_path, caplog):
    rows = [messages("user: a", "assistant: b"), messages("user: a"), messages("user: c", "user: d")]
    path = written(tmp_path / "a.jsonl", *({"prompt": row["messages"], "reference": "r"} for row in rows))
    assert asked(PromptRules().load(path, "train")) == [(["a"], "r"), (["c\n\nd"], "r")]
    assert "1 of 3 prompts end with the assistant and are left out" in caplog.text


def test_a_reply_is_read_behind_the_system_messages_before_it(tmp_path):
    row = messages("system: S", "system: T", "user: a", "assistant: b", "system: U", "user: c", "assistant: d")
    rows = [row, messages("user: a", "assistant: b"), messages("user: a", "system: V", "assistant: b", "system: W")]
    path = written(tmp_path / "a.jsonl", *rows)
    assert [prompt.system for prompt in PromptRules(context_size=1).load(path, "train")] == [
        "S\n\nT",
        "S\n\nT\n\nU",
        None,
        "V",
    ]


# the system message in a prompt


def test_with_a_separator_the_system_message_is_the_first_turn_and_is_not_cut():
    encoder = prompt_encoder(byte_tokenizer(), "<EOU>", 12)
    assert encoder.tokenizer.decode(encoder.encode_prompt(["abc", "de"], "S")) == "S<EOU> abc<EOU> de<EOU>"
    assert encoder.tokenizer.decode(encoder.encode_prompt(["abcde", "de"], "S")) == "S<EOU> de<EOU>"
    assert encoder.tokenizer.decode(encoder.encode_prompt(["abcdefghijkl"], "S")) == "S<EOU> efghijkl<EOU>"


def test_the_rows_message_wins_over_system_prompt():
    for tokenizer, separator in ((byte_tokenizer(), "<EOU>"), (chat_tokenizer(), "chat_template")):
        encoder = prompt_encoder(tokenizer, separator, 200, "Key .")
        plain = prompt_encoder(tokenizer, separator, 200)
        assert encoder.encode_prompt(["a"], "Row .") == plain.encode_prompt(["a"], "Row .")
        assert encoder.encode_prompt(["a"]) == plain.encode_prompt(["a"], "Key .") != plain.encode_prompt(["a"])
    assert encoder.encode_prompt(["a"], "Row .") == said("system", "Row .") + said("user", "a") + OPEN


def prompt_with(system, number, turn="Hi"):
    return Dialogue([turn], system=system, meta={"split": "train", "dialogue": number})


def test_rows_whose_system_message_leaves_too_few_tokens_are_left_out_and_counted(caplog):
    caplog.set_level(logging.INFO)
    encoder = prompt_encoder(byte_tokenizer(), "<EOU>", 26)  # a system message of 9 letters and <EOU> leaves 16
    prompts = [prompt_with(x, i) for i, x in enumerate(["s" * 9, "s" * 10, "s" * 30, None])]
    assert keep_with_room(encoder, prompts) == [prompts[0], prompts[3]]
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 4 rows have a system message that leaves fewer than 16 of the 26 tokens of max_prompt_length for turns; 47 would "
        "do; they are left out",
        "system message: that of the row in 1 rows, none in 1",
    ]
    assert keep_with_room(prompt_encoder(byte_tokenizer(), "<EOU>", 47), prompts) == prompts
    with pytest.raises(UserError, match=r"max_prompt_length: 2 of 2 rows have a system message .* 47 would do"):
        keep_with_room(encoder, prompts[1:3])
    with pytest.raises(UserError, match="system_prompt: takes 12 of the 15 tokens of max_prompt_length"):
        prompt_encoder(byte_tokenizer(), "<EOU>", 15, "abcdefghij")
    assert prompt_encoder(byte_tokenizer(), "<EOU>", 16, "abcdefghij").count_room("abcdefghij") == len("Hello")
    keep_with_room(prompt_encoder(chat_tokenizer(), "chat_template", 200), prompts[2:])
    keep_with_room(prompt_encoder(chat_tokenizer(), "chat_template", 200, "Key ."), prompts[2:])
    of_the_row = "system message: that of the row in 1 rows, "
    assert caplog.messages[-2:] == [f"{of_the_row}that of the chat template in 1", f"{of_the_row}system_prompt in 1"]
