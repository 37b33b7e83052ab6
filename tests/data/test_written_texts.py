"""Texts that hold a dialogue already: marks of chat templates, transcripts, and messages as JSON."""

import json

import pytest

from rlhf_dialog.data.chat_template import keep_with_room, prompt_encoder
from rlhf_dialog.data.preferences import load_pairs
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.sources import load_records
from rlhf_dialog.data.written_texts import read_transcript
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.store.formats import trl
from tests.parts.data_files import assistant, csv_bytes, jsonl_bytes, parquet_bytes, user
from tests.parts.scalars import write_pairs
from tests.parts.tiny import CHATML, LLAMA2, chat_tokenizer

CHATML_TEXT = "<|im_start|>user\nIs it deep ?<|im_end|>\n<|im_start|>assistant\n"
PAIR = {"prompt": "Is it far ?", "chosen": "Two streets .", "rejected": "No ."}
PROMPT = {"prompt": "Is it far ?", "reference": "Two streets ."}


def records(folder, rows, **options):
    (folder / "a.jsonl").write_bytes(jsonl_bytes(rows))
    return load_records(str(folder / "a.jsonl"), "train", **options)


def pairs(folder, rows):
    return load_pairs(write_pairs(folder / "pairs.jsonl", rows), "train")


# marks of chat templates

MARKED = [
    CHATML_TEXT,
    "What does <|im_start|>user mean ?",
    "Yes .<|im_end|>",
    "<s>[INST] <<SYS>>\nYou swim .\n<</SYS>>\n\nIs it deep ? [/INST]",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nIs it deep ?<|eot_id|>",
    "<start_of_turn>user\nIs it deep ?<end_of_turn>\n<start_of_turn>model\n",
    "<|turn>user\nIs it deep ?<turn|>\n<|turn>model\n",
    "<|user|>\nIs it deep ?<|end|>\n<|assistant|>\n",
    "<|user|>\nIs it deep ?</s>\n<|assistant|>\n",
    "<｜begin▁of▁sentence｜><｜User｜>Is it deep ?<｜Assistant｜>",
    "USER: Is it deep ? ASSISTANT: No .</s>",
    "<|start|>assistant<|channel|>final<|message|>No .",
    "No .<|endoftext|>\n",
]


@pytest.mark.parametrize("text", MARKED)
def test_every_place_of_a_text_is_looked_at(tmp_path, caplog, text):
    rows = [
        {"prompt": text},
        PROMPT | {"reference": text},
        PROMPT | {"references": ["a", text]},
        PROMPT | {"system": text},
    ]
    rows += [
        {"prompt": [user("a"), assistant(text), user("b")]},
        {"prompt": [{"role": "system", "content": text}, user("a")]},
    ]
    for bad in rows:
        assert len(records(tmp_path, [*[PROMPT] * 9, bad])) == 9
        assert "1 of 10 rows cannot be used" in caplog.text
        with pytest.raises(UserError, match=r"(?s)1 of 9 rows.*line 9.*chat template"):
            records(tmp_path, [*[PROMPT] * 8, bad])
    sides = [PAIR | {key: text} for key in PAIR] + [
        PAIR | {"system": text},
        PAIR | {"chosen": [user("a"), assistant(text)]},
    ]
    for bad in sides:
        assert len(pairs(tmp_path, [*[PAIR] * 9, bad])) == 9
        with pytest.raises(UserError, match=r"(?s)1 of 9 rows.*line 9.*chat template"):
            pairs(tmp_path, [*[PAIR] * 8, bad])


PLAIN = [
    "### Instruction:\nGo .\n\n### Response:",
    "a <s>b</s> c",
    "Is [1] < 2 | x ?",
    "User says [inst]",
    "<b>x</b>",
    "<think>a</think>b",
]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_words_and_other_brackets_are_no_marks(tmp_path, text):
    ((read,),) = [record.turns for record in records(tmp_path, [{"prompt": text, "reference": text}])]
    assert read == text


def test_dialogues_utterances_and_imports_are_looked_at(tmp_path):
    for row in ({"messages": [user("a"), assistant("b <|eot_id|>")]}, {"dialog": ["a", "b <|eot_id|>"]}):
        with pytest.raises(UserError, match=r"eot_id"):
            records(tmp_path, [row])
    with pytest.raises(UserError, match="im_end"):
        trl.read([("row 1", {"prompt": "a", "completion": "b <|im_end|>", "label": True})], "kto")


def test_the_special_tokens_that_a_template_writes_are_marks_and_others_are_not(tmp_path, caplog):
    """<s> stands in the Llama 2 template and <turn> in the other; <pad> in none, and a space replaces it."""
    (tmp_path / "turns").mkdir()
    for template, mark in ((LLAMA2, "<s>"), (CHATML.replace("<|im_start|>", "<turn>"), "<turn>")):
        tokenizer = chat_tokenizer(template)
        tokenizer.add_special_tokens({"extra_special_tokens": ["<turn>"]})
        encoder = prompt_encoder(tokenizer, "chat_template", 2000)

        def kept(rows, encoder=encoder):
            (tmp_path / "a.jsonl").write_bytes(jsonl_bytes(rows))
            rules = PromptRules(50, turn_separator="chat_template")
            return len(keep_with_room(encoder, rules.load(str(tmp_path / "a.jsonl"), "train")))

        for bad in ({"prompt": f"{mark} a"}, PROMPT | {"reference": f"b {mark}"}, PROMPT | {"system": mark}):
            assert kept([*[PROMPT] * 9, bad]) == 9
            assert "1 of 10 rows cannot be used" in caplog.text
            with pytest.raises(UserError, match=rf"(?s)1 of 9 rows.*dialogue 9 of the train split.*{mark}"):
                kept([*[PROMPT] * 8, bad])
        assert kept([{"prompt": "<pad> a"}, {"prompt": "a <turn> b" if mark == "<s>" else "<s> a"}]) == 2


# messages as JSON

TALK = [user("Is it far ?"), assistant("Two streets .")]


@pytest.mark.parametrize("write", [json.dumps, str])
@pytest.mark.parametrize("encode", [jsonl_bytes, csv_bytes, parquet_bytes])
def test_texts_that_are_json_of_messages_are_these_messages(tmp_path, encode, write):
    path = tmp_path / f"a.{encode.__name__.removesuffix('_bytes')}"
    path.write_bytes(encode([{"chosen": write(TALK), "rejected": write([*TALK[:1], assistant("No .")])}]))
    (pair,) = load_pairs(str(path), "train")
    assert (pair.chosen.prompt_turns, pair.chosen.response, pair.rejected.response) == (
        ["Is it far ?"],
        "Two streets .",
        "No .",
    )
    path.write_bytes(
        encode([{"prompt": write(TALK[:1]), "completion": write(TALK[1])}, {"prompt": "a", "completion": "b"}])
    )
    assert [(one.turns, one.references) for one in load_records(str(path), "train")] == [
        (["Is it far ?"], [["Two streets ."]]),
        (["a"], [["b"]]),
    ]
    path.write_bytes(encode([{"messages": write(TALK)}]))
    assert load_records(str(path), "train")[0].turns == ["Is it far ?", "Two streets ."]


def test_a_message_that_is_json_of_messages_is_these_messages(tmp_path):
    rows = [{"messages": [json.dumps(one) for one in TALK]}, {"messages": [user(json.dumps(TALK))]}]
    assert [one.roles for one in records(tmp_path, rows)] == [["user", "assistant"]] * 2


JSON_TEXTS = [
    '[{"name": "Ada"}]',
    '{"role": "owner", "content": "x"}',
    '{"role": "user"}',
    "[1, 2]",
    '[{"role": "user", "con',
    "{}",
]


@pytest.mark.parametrize("text", JSON_TEXTS)
def test_other_json_is_a_text(tmp_path, text):
    assert records(tmp_path, [{"question": text, "answer": text}])[0].references == [[text]]


def test_messages_as_numpy_prints_them_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"(?s)line 1: 'chosen' holds .*numpy"):
        pairs(tmp_path, [PAIR | {"chosen": "\n ".join(map(str, TALK)).join("[]")}])


# transcripts

HELD = [("user", "Is it far ?"), ("assistant", "No ."), ("user", "Sure ?"), ("assistant", "")]
NEMO = "<extra_id_1>Assistant\nNo .\n<extra_id_1>User\nSure ?\n<extra_id_1>Assistant\n"  # also HelpSteer2's
TRANSCRIPTS = [
    "\n\nHuman: Is it far ?\n\nAssistant: No .\n\nHuman: Sure ?\n\nAssistant:",
    "Human: Is it far ?\n\nAssistant: No .\n\nHuman: Sure ?\n\nAssistant: ",
    "Human: Is it far ?\nAssistant: No .\nHuman: Sure ?\nAssistant:",
    "USER: Is it far ?\r\nASSISTANT: No .\r\nUSER: Sure ?\r\nASSISTANT:",
    "User: Is it far ?\nAI: No .\nUser: Sure ?\nAI:",
    "H: Is it far ?\n\nA: No .\n\nH: Sure ?\n\nA:",
    "### Human: Is it far ?\n### Assistant: No .\n### Human: Sure ?\n### Assistant:",
    "<human>: Is it far ?\n<bot>: No .\n<human>: Sure ?\n<bot>:",
    "**User:** Is it far ?\n\n**Assistant:** No .\n\n**User:** Sure ?\n\n**Assistant:**",
    f"<extra_id_0>System\n\n<extra_id_1>User\nIs it far ?\n{NEMO}",
    f"Is it far ?\n{NEMO}",
]
SYSTEM = [
    "You swim .\n\nHuman: Is it far ?\n\nAssistant: No .\n\nHuman: Sure ?\n\nAssistant:",
    "System: You swim .\nUser: Is it far ?\nAssistant: No .\nUser: Sure ?\nAssistant:",
    f"<extra_id_0>System\nYou swim .\n<extra_id_1>User\nIs it far ?\n{NEMO}",
]


@pytest.mark.parametrize(
    ("text", "system"), [(text, []) for text in TRANSCRIPTS] + [(text, [(0, "You swim .")]) for text in SYSTEM]
)
def test_a_transcript_is_turns_with_roles(tmp_path, text, system):
    found = [(one["role"], one["content"].strip()) for one in read_transcript(text)]
    assert found == [*(("system", said) for _, said in system), *HELD]
    (record,) = records(tmp_path, [{"prompt": text, "response": "Yes ."}])
    assert (record.turns, record.roles) == (["Is it far ?", "No .", "Sure ?"], ["user", "assistant", "user"])
    assert (record.system, record.references) == (system, [["Yes ."]])
    (pair,) = pairs(tmp_path, [{"prompt": text, "chosen": "Yes .", "rejected": "No ."}])
    assert (pair.chosen.prompt_turns, pair.chosen.response) == (["Is it far ?", "No .", "Sure ?"], "Yes .")
    assert pair.chosen.system == (system[0][1] if system else None)
    (pair,) = pairs(tmp_path, [{"chosen": f"{text} Yes .", "rejected": f"{text} No ."}])
    assert (pair.chosen.prompt_turns, pair.rejected.response) == (["Is it far ?", "No .", "Sure ?"], "No .")
    (record,) = records(tmp_path, [{"conversation": f"{text} Yes ."}])
    assert record.turns == ["Is it far ?", "No .", "Sure ?", "Yes ."]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_marks_behind_blank_lines_win_and_other_labels_are_text(line_end):
    here = "Here :\nHuman: Hi\nUser: Ho\n\nBot: Hu"
    text = f"\n\nHuman: Write a play .\n\nAssistant: {here}\n\nHuman: Ok".replace("\n", line_end)
    assert [one["content"].strip() for one in read_transcript(text)] == ["Write a play .", here, "Ok"]


NONE = [
    "A : Hi\nH : Ho",
    "Human: Hi Assistant: Ho",
    "User: Hi\nUser: Ho",
    "Human: Hi\nA: Ho",
    "He said\nAssistant: no",
    "userx: a\nbotany: b",
]


@pytest.mark.parametrize("text", NONE)
def test_what_has_no_two_marks_that_alternate_is_no_transcript(text):
    assert len({one["role"] for one in read_transcript(text)}) < 2


def test_nine_in_ten_decide_and_fewer_are_counted_in_one_line(tmp_path, caplog):
    row, other = {"prompt": TRANSCRIPTS[1]}, {"prompt": "Is it deep ?"}
    read = records(tmp_path, [*[row] * 9, other])
    assert [len(record.turns) for record in read] == [3] * 9 + [1]
    assert not caplog.messages
    assert [len(record.turns) for record in records(tmp_path, [*[row] * 8, other])] == [1] * 9
    (line,) = caplog.messages
    assert "8 of 9 texts in 'prompt'" in line
    caplog.clear()
    records(tmp_path, [*[row] * 8, other], quiet=True)
    assert not caplog.messages
    one_role = {"prompt": "\n\nHuman: Is it deep ?\n\nHuman: And cold ?"}
    assert records(tmp_path, [*[row] * 9, one_role])[9].turns == ["Is it deep ?", "And cold ?"]
    side = {"chosen": f"{TRANSCRIPTS[1]} Yes .", "rejected": f"{TRANSCRIPTS[1]} No ."}
    plain = {"chosen": "User: a\nBot: b", "rejected": "c"}
    assert [len(pair.chosen.prompt_turns) for pair in pairs(tmp_path, [*[side] * 9, plain])] == [3] * 9 + [1]
    assert [len(pair.chosen.prompt_turns) for pair in pairs(tmp_path, [*[side] * 8, plain])] == [0] * 9


@pytest.mark.parametrize("empty", ["chosen", "rejected"])
def test_a_reply_of_a_transcript_that_is_empty_is_a_bad_pair(tmp_path, caplog, empty):
    side = {"chosen": f"{TRANSCRIPTS[1]} Yes .", "rejected": f"{TRANSCRIPTS[1]} No ."}
    assert len(pairs(tmp_path, [*[side] * 9, side | {empty: TRANSCRIPTS[1]}])) == 9
    assert "1 of 10 rows cannot be used" in caplog.text
