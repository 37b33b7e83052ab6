"""Layouts that public data sets have: what becomes of each text, what is left out and counted, and which columns are named."""

import json
import logging

import pytest

from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.sources import load_records, load_rows
from rlhf_dialog.errors import MissingSplit, UserError
from tests.parts.data_files import assistant, csv_bytes, jsonl_bytes, parquet_bytes, user

ENCODERS = {"jsonl": jsonl_bytes, "parquet": parquet_bytes, "csv": csv_bytes}


def asked(folder, rows, encode="jsonl", split="train", **rules):
    path = folder / f"a.{encode}"
    path.write_bytes(json.dumps(rows).encode() if encode == "json" else ENCODERS[encode](rows))
    prompts = PromptRules(50, turn_separator="chat_template", **rules).load(str(path), split)
    return [(prompt.system, prompt.prompt_turns, prompt.references) for prompt in prompts]


ALPACA = {"instruction": "Is it deep ?", "input": "", "output": "Two metres .", "system": "You swim ."}
HISTORY = [["Is it cold ?", "A little ."], ["And clean ?", "Very ."]]
BEFORE = ["Is it cold ?", "A little .", "And clean ?", "Very ."]


@pytest.mark.parametrize("encode", ENCODERS)
def test_system_and_history_of_a_row_are_in_its_prompt(tmp_path, encode):
    rows = [ALPACA | {"history": HISTORY}, ALPACA | {"input": "The lake .", "system": None, "history": []}]
    assert asked(tmp_path, rows, encode) == [
        ("You swim .", [*BEFORE, "Is it deep ?"], ["Two metres ."]),
        (None, ["Is it deep ?\n\nThe lake ."], ["Two metres ."]),
    ]


def test_history_may_be_messages_and_a_system_message_that_is_there_twice_counts_once(tmp_path):
    row = {"history": [user("a"), assistant("b")], "prompt": "c", "response": "d", "system_prompt": "S"}
    assert asked(tmp_path, [row]) == [("S", ["a", "b", "c"], ["d"])]
    talk = {"messages": [{"role": "system", "content": "S"}, user("a"), assistant("b")], "system": "S"}
    assert asked(tmp_path, [talk]) == [("S", ["a"], ["b"])]


@pytest.mark.parametrize("encode", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"history": ["a", "b"], "instruction": "c", "output": "d"}, (None, ["a", "b", "c"], ["d"])),
        (
            {"history": [{"user": "a", "assistant": "b"}], "prompt": "c", "response": "d"},
            (None, ["a", "b", "c"], ["d"]),
        ),
        ({"context": [user("a"), assistant("b")], "prompt": "c", "response": "d"}, (None, ["a", "b", "c"], ["d"])),
        ({"context": "c", "instruction": "a", "response": "d"}, (None, ["a\n\nc"], ["d"])),
        ({"system_message": "S", "question": "a", "response": "b"}, ("S", ["a"], ["b"])),
        ({"system": ["S", "T"], "messages": [user("a"), assistant("b")]}, ("S\n\nT", ["a"], ["b"])),
        ({"conversation": [["a", "b"]]}, (None, ["a"], ["b"])),
        ({"turns": {"speaker": [0, 1], "utterance": ["a", "b"]}}, (None, ["a"], ["b"])),
    ],
)
def test_forms_of_history_of_system_messages_and_of_turns(tmp_path, caplog, encode, row, expected):
    assert asked(tmp_path, [row], encode) == [expected]
    assert "kept for rewards" not in caplog.text


def test_what_stands_beside_a_prompt_and_is_none_of_its_parts_is_kept(tmp_path):
    rows = [{"question": "a", "context": "b", "response": "c"}, {"prompt": "a", "input": "b", "context": ["x", "y"]}]
    for row in rows:
        assert asked(tmp_path, [row])[0][:2] == (None, ["a"])
    (record,) = load_records(str(tmp_path / "a.jsonl"), "train")
    assert record.meta == {"input": "b", "context": ["x", "y"]}


def test_an_utterance_of_a_conversation_may_stand_beside_a_prompt(tmp_path, caplog):
    rows = [{"conv_id": 1, "prompt": "I was sad .", "utterance": text} for text in ("a _comma_ b", "c")]
    assert asked(tmp_path, rows, "csv") == [(None, ["a _comma_ b"], ["c"])]
    assert "1 turns or references hold '_comma_'" in caplog.text
    assert asked(tmp_path, [{"id": 1, "prompt": "a", "response": "b", "text": "c"}]) == [(None, ["a"], ["b"])]


@pytest.mark.parametrize("parent", ["parent", "reply-to", "reply_to"])
def test_other_names_of_the_message_above(tmp_path, parent):
    rows = [{parent if key == "parent_id" else key: value for key, value in row.items()} for row in tree_rows()]
    assert asked(tmp_path, rows) == asked(tmp_path, tree_rows())
    rows[0][parent] = "gone"
    with pytest.raises(UserError, match=f"'{parent}' that is not in the data"):
        asked(tmp_path, rows[:1])


def test_a_column_split_decides_where_it_names_splits(tmp_path):
    rows = [{"prompt": f"p {name}", "response": "a", "split": name} for name in ("train", "dev", "train", "Test")]
    for split, count in (("train", 2), ("validation", 1), ("test", 1)):
        found = asked(tmp_path, rows, "csv", split)
        assert len(found) == count
    with pytest.raises(MissingSplit, match=r"no test split, 'split' of its rows is train, dev"):
        asked(tmp_path, rows[:3], "jsonl", "test")
    named = [row | {"split": row["split"] + "_sft"} for row in rows]
    assert len(asked(tmp_path, named)) == 4
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes(named))
    assert len(load_rows(str(tmp_path / "a.jsonl"), "train", names={"train": "train_sft"})) == 2


def test_a_list_in_a_cell_is_read_beside_a_column_split(tmp_path):
    rows = [{"dialog": '["a", "b"]', "split": name} for name in ("train", "test")]
    assert asked(tmp_path, rows, "csv") == [(None, ["a"], ["b"])]


def test_references_of_a_row_that_is_a_turn(tmp_path, caplog):
    rows = [{"id": 1, "text": "a"}, {"id": 1, "text": "b", "references": ["c", "d"]}]
    assert asked(tmp_path, rows) == [(None, ["a"], ["b", "c", "d"])]
    assert "not read" not in caplog.text


def test_an_id_that_is_a_list_is_no_internal_error(tmp_path):
    rows = tree_rows()
    rows[3]["message_id"] = ["b"]
    with pytest.raises(UserError, match="line 4: 'message_id' holds a list"):
        asked(tmp_path, rows)
    rows = tree_rows()
    rows[3]["parent_id"] = ["a"]
    assert asked(tmp_path, rows) == [(None, ["Is it far ?"], ["Three ."])]


@pytest.mark.parametrize("turns", [{"speaker": [], "utterance": []}, {}])
def test_an_object_of_no_turns_is_a_bad_row(tmp_path, turns):
    good = [{"turns": {"speaker": [0, 1], "utterance": ["a", f"b {i}"]}} for i in range(20)]
    assert len(asked(tmp_path, [*good, {"turns": turns}])) == 20


def test_columns_of_the_data_keep_their_values_in_meta(tmp_path):
    row = {"prompt": "a", "response": "b", "index": 100, "group": "g", "split": "easy", "dialogue": "d"}
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes([row]))
    (prompt,) = PromptRules().load(str(tmp_path / "a.jsonl"), "train")
    assert prompt.meta == {"index": 100, "group": "g", "split": "easy", "dialogue": "d"}
    prompt = prompt.from_origin(group=5)
    assert prompt.meta["group"] == "g"
    assert [prompt.origin_of(name) for name in ("split", "index", "dialogue", "group")] == ["train", 0, 0, 5]


def test_a_transcript_with_human_and_assistant_is_turns(tmp_path):
    row = {"prompt": "\n\nHuman: Is it far ?\n\nAssistant: No .\n\nHuman: Sure ?\n\nAssistant:", "completion": " Yes ."}
    assert asked(tmp_path, [row]) == [(None, ["Is it far ?", "No .", "Sure ?"], ["Yes ."])]


TREE = [
    ("c", "b", "prompter", "Sure ?"),
    ("b2", "a", "assistant", "Three ."),
    ("d", "c", "assistant", "Yes ."),
    ("b", "a", "assistant", "Two ."),
    ("a", None, "prompter", "Is it far ?"),
    ("e", "b2", "prompter", "Why ?"),
]


def tree_rows(rows=TREE):
    return [dict(zip(("message_id", "parent_id", "role", "text"), row, strict=True)) for row in rows]


@pytest.mark.parametrize("encode", ENCODERS)
def test_each_reply_of_a_tree_stands_once_behind_its_ancestors(tmp_path, encode):
    replies = [
        (None, ["Is it far ?"], ["Three ."]),
        (None, ["Is it far ?", "Two .", "Sure ?"], ["Yes ."]),
        (None, ["Is it far ?"], ["Two ."]),
    ]
    assert asked(tmp_path, tree_rows(), encode) == replies
    assert asked(tmp_path, tree_rows(), encode, unanswered=True) == [
        *replies,
        (None, ["Is it far ?", "Three .", "Why ?"], []),
    ]
    prompts = PromptRules(50, turn_separator="chat_template").load(str(tmp_path / f"a.{encode}"), "train")
    assert {prompt.meta["dialogue"] for prompt in prompts} == {0}  # one tree


def test_what_has_no_beginning_in_a_tree_is_left_out_and_counted(tmp_path, caplog):
    greeting = [("r", None, "assistant", "Hello ."), ("s", "r", "prompter", "Hi ?"), ("t", "s", "assistant", "Yes .")]
    assert asked(tmp_path, tree_rows(greeting)) == [(None, ["Hello .", "Hi ?"], ["Yes ."])]
    assert not caplog.messages
    lost = [("x", "gone", "assistant", "Lost ."), ("y", "z", "assistant", "In"), ("z", "y", "assistant", "circles .")]
    alone = ("w", None, "assistant", "First .")
    assert len(asked(tmp_path, tree_rows([*TREE, *lost, alone]))) == 3
    assert "3 of 8 replies have a 'parent_id' that is not in the data" in caplog.text
    assert "1 of 8 replies have no message before them" in caplog.text
    with pytest.raises(UserError, match=r"line 2: 'message_id' holds 'c', wanted an id that no other row has"):
        asked(tmp_path, tree_rows([TREE[0], TREE[0]]))


def talk(split, first="Is it far ?"):
    turns = [{"speaker": "user", "utterance": first}, {"speaker": "system", "utterance": "Two ."}]
    return {"data_split": split, "dialogue_id": f"{split}-1", "turns": turns}


def test_the_split_of_a_row_decides_and_the_advice_names_who_replies(tmp_path, caplog):
    rows = [talk("train"), talk("validation", "Is it near ?"), talk("train", "Is it open ?")]
    assert [turns for _, turns, _ in asked(tmp_path, rows, "json")] == [["Is it far ?"], ["Is it open ?"]]
    assert "reply_roles: [system]" in caplog.text
    assert [turns for _, turns, _ in asked(tmp_path, rows, "json", "validation")] == [["Is it near ?"]]
    with pytest.raises(MissingSplit, match=r"no test split.*train, validation.*split: \{test: train\}"):
        asked(tmp_path, rows, "json", "test")
    (tmp_path / "whole").mkdir()
    (tmp_path / "a.json").rename(tmp_path / "whole/dialogues.json")
    assert len(load_records(str(tmp_path / "whole"), "train")) == 2


CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Bern"}}}
AS_TEXT = {**CALL, "function": {**CALL["function"], "arguments": json.dumps({"city": "Bern"})}}
ANSWERS = [{"role": "tool", "content": "yes"}, assistant("Yes .")]
TEXTS = ("Rain ?", json.dumps(CALL["function"]), "yes", "Yes .")
ROLES = ("human", "function_call", "observation", "gpt"), ("user", "Tool-Call", "tool_response", "assistant")
WITH_CALLS = [
    *(
        {"messages": [user("Rain ?"), {"role": "assistant", "content": None} | call, *ANSWERS]}
        for call in ({"tool_calls": [CALL]}, {"tool_calls": [AS_TEXT]}, {"function_call": AS_TEXT["function"]})
    ),
    *(
        {"conversations": [{"from": role, "value": text} for role, text in zip(roles, TEXTS, strict=True)]}
        for roles in ROLES
    ),
]


@pytest.mark.parametrize("row", WITH_CALLS, ids=range(len(WITH_CALLS)))
def test_calls_of_tools_are_messages_for_a_template(tmp_path, row):
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes([row]))
    first, second = PromptRules(50, turn_separator="chat_template").load(str(tmp_path / "a.jsonl"), "train")
    assert first.prompt_turns == ["Rain ?"]
    (call,), (answer,) = first.reference.messages, second.prompt_turns[2].messages
    assert (call["role"], call["tool_calls"]) == ("assistant", [CALL])
    assert (answer, second.reference) == ({"role": "tool", "content": "yes"}, "Yes .")


def test_nulls_with_which_parquet_fills_calls_are_no_arguments(tmp_path):
    other = {"type": "function", "function": {"name": "clock", "arguments": {"zone": None, "hours": [{"from": 1}]}}}
    rows = [
        {"messages": [user("?"), {"role": "assistant", "tool_calls": [call]}, *ANSWERS], "tools": [call["function"]]}
        for call in (CALL, other)
    ]
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(rows))
    prompts = PromptRules(50, turn_separator="chat_template").load(str(tmp_path / "a.parquet"), "train")
    calls = [prompts[number].reference.messages[0]["tool_calls"] for number in (0, 2)]
    assert calls == [[CALL], [{**other, "function": {"name": "clock", "arguments": {"hours": [{"from": 1}]}}}]]
    assert prompts[0].system.tools == [CALL["function"]]
    assert "tools" not in prompts[0].meta  # which holds what is read nowhere else


# -- bad rows


BAD = [{"messages": [user("Anyone ?"), assistant(text)]} for text in ("", None, "  ")]
GOOD = [{"messages": [user(f"Question {i} ?"), assistant("Yes .")]} for i in range(40)]


@pytest.mark.parametrize(("encode", "place"), [("jsonl", "line 21"), ("parquet", "row 21")])
def test_a_few_bad_rows_are_left_out_and_counted_in_one_line(tmp_path, caplog, encode, place):
    assert len(asked(tmp_path, [*GOOD[:20], *BAD, *GOOD[20:]], encode)) == 40
    (line,) = [line for line in caplog.messages if "left out" in line]
    assert "3 of 43 rows" in line
    assert place in line


def test_more_than_a_tenth_are_one_error_that_lists_the_first_five(tmp_path):
    with pytest.raises(UserError, match="6 of 46 rows cannot be used") as caught:
        asked(tmp_path, [*GOOD, *BAD, *BAD])
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0].rpartition(", ")[2] for line in lines[1:]] == [f"line {n}" for n in range(41, 46)]
    assert len(asked(tmp_path, [*GOOD[:27], *BAD])) == 27  # exactly a tenth
    (tmp_path / "dialogues_train.txt").write_text("a __eou__ b __eou__\n" * 20 + "a __eou__ __eou__ b __eou__\n")
    assert len(load_records(str(tmp_path), "train")) == 20


def test_a_prompt_without_text_is_bad_and_one_without_a_reply_is_a_prompt(tmp_path):
    rows = [{"prompt": f"p {i}", "reference": None if i % 2 else "x"} for i in range(20)]
    for more in ([], [{"prompt": None}], [{"prompt": "q", "reference": " "}]):
        assert len(asked(tmp_path, rows + more)) == 20


def test_what_is_left_out_by_design_has_no_limit_but_some_row_must_be_left(tmp_path, caplog):
    parts = [{"type": "image_url"}, {"type": "text", "text": "a"}]
    image = {"messages": [user(parts), assistant("b")]}
    assert len(asked(tmp_path, [image, GOOD[0], image, image])) == 1
    assert "3 of 4 rows have images" in caplog.text
    assert len(asked(tmp_path, [GOOD[0], GOOD[1] | {"images": ["a.png"]}])) == 1
    with pytest.raises(UserError, match=r"line 1: no row can be used.* images"):
        asked(tmp_path, [image])


# -- columns


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"prompt": "a", "reply": "b c"},
            ["'reply' (1 rows); 1 prompts have no reference", "columns: {reference: ...}"],
        ),
        ({"prompt": "a", "response": "b", "topic": "home"}, ["kept for rewards", "'topic' (1 rows)"]),
        ({"dialog": ["a", "b"], "tools": [{"name": "weather"}]}, ["kept for rewards", "'tools' (1 rows)"]),
        ({"prompt": "a", "response": "b", "answer": "c"}, ["kept for rewards", "'answer' (1 rows)"]),
        ({"prompt": "a", "response": "b", "labels": {"tone": ["dry"]}}, ["kept for rewards", "'labels' (1 rows)"]),
        ({"prompt": "a", "response": "b", "history": "User: x"}, ["kept for rewards", "'history' (1 rows)"]),
        ({"messages": [user("a") | {"name": "Ann"}, assistant("b")]}, ["not read", "'name of a turn' (1 rows)"]),
        ({"turns": [{"text": "a"}, {"text": "b", "content": "c"}]}, ["not read", "'content of a turn' (1 rows)"]),
    ],
)
def test_a_column_with_text_that_is_in_no_prompt_is_named_once(tmp_path, caplog, row, words):
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes([row]))
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        PromptRules(50).load(str(tmp_path / "a.jsonl"), "train")
    (line,) = [line for line in caplog.messages if words[0] in line]
    assert all(word in line for word in words), line
    assert ("no reference" in line) is (row.keys() == {"prompt", "reply"})


def lines_of(caplog, folder, rows, **rules):
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        asked(folder, rows, **rules)
    return caplog.messages


def test_what_is_read_empty_or_the_same_in_all_rows_is_not_named(tmp_path, caplog):
    row = ALPACA | {"history": [], "tools": "", "id": "x", "note": " ", "source": "shop", "split_by": 3, "safe": True}
    assert lines_of(caplog, tmp_path, [row, row | {"id": "y"}]) == []
    assert "'note' (1 rows)" in lines_of(caplog, tmp_path, [row, row | {"note": "new"}])[0]


def test_columns_that_may_decide_come_first_and_at_most_twelve_are_named(tmp_path, caplog):
    rows = [
        {"prompt": f"a {i}", "response": "b"}
        | {f"text_{k}": f"{k} {i}" for k in range(15)}
        | {"flag": i % 2 == 0, "score": i / 7, "topic": f"{i}"}
        for i in range(8)
    ]
    (line,) = lines_of(caplog, tmp_path, rows)
    begin, _, more = line.partition("kept for rewards, in no prompt: ")[2].partition(" and 6 more")
    assert more == ""
    assert [name.split("'")[1] for name in begin.split(", ")] == ["score", "flag", *(f"text_{k}" for k in range(10))]
    assert begin.startswith("'score' (8 rows), 'flag' (8 rows)")
    with caplog.at_level(logging.DEBUG, logger="rlhf_dialog.data.row_counts"):
        (line,) = lines_of(caplog, tmp_path, rows)
    assert "'topic' (8 rows)" in line


def test_columns_of_utterances_and_those_that_the_configuration_hides_are_named(tmp_path, caplog):
    asked(tmp_path, [{"id": 1, "text": text, "topic": text} for text in "ab"])
    assert "not read: 'topic' (2 rows)" in caplog.text
    asked(tmp_path, [{"talk": ["a", "b"], "prompt": "c"}], columns={"messages": "talk"})
    assert "not read, because `columns` names others: 'prompt' (1 rows)" in caplog.text


# -- what decides whether a reply is learned


def talk_with(flags):
    first = assistant("broken") | flags
    return {"messages": [user("a"), first, user("b"), assistant("c")]}


@pytest.mark.parametrize(
    "flags", [{"weight": 0}, {"train": False}, {"loss": False}, {"trainable": "false"}, {"weight": 0.0}]
)
@pytest.mark.parametrize("encode", ["jsonl", "parquet"])
def test_a_message_that_is_not_to_be_learned_is_context(tmp_path, caplog, flags, encode):
    learned = [(None, ["a", "broken", "b"], ["c"])]
    assert asked(tmp_path, [talk_with(flags)], encode) == learned
    assert "1 replies are not learned" in caplog.text
    assert asked(tmp_path, [talk_with(flags)], encode, unanswered=True) == [(None, ["a"], []), *learned]
    assert "not read" not in caplog.text


@pytest.mark.parametrize("flags", [{"weight": 1}, {"train": True}, {"loss": None}, {"weight": 0.5}, {"train": "soon"}])
def test_other_weights_are_learned_and_those_that_are_no_flags_are_named(tmp_path, caplog, flags):
    assert len(asked(tmp_path, [talk_with(flags)])) == 2
    ((name, value),) = flags.items()
    assert (f"not read: '{name} of a turn'" in caplog.text) is (value in (0.5, "soon"))


def test_weights_of_utterances_of_users_and_of_replies_in_columns(tmp_path, caplog):
    rows = [{"id": 1, "role": r, "text": t, "weight": w} for r, t, w in (("user", "a", 0), ("assistant", "b", 1))]
    assert asked(tmp_path, rows) == [(None, ["a"], ["b"])]
    assert not caplog.messages
    rows = [{"prompt": "a", "completion": [assistant("b") | {"weight": w}]} for w in (0, 1)]
    assert asked(tmp_path, rows) == [(None, ["a"], ["b"])]
    two = {"messages": [user("a"), assistant("b"), assistant("c") | {"weight": 0}, user("d"), assistant("e")]}
    assert asked(tmp_path, [two]) == [(None, ["a", "b\n\nc", "d"], ["e"])]


RATED = [
    {"prompt": "a", "completion": "b", "label": False, "act": 1},
    {"prompt": [user("c")], "completion": [assistant("d")], "label": True},
]


@pytest.mark.parametrize("encode", ["jsonl", "json", "csv"])
def test_a_disliked_reply_is_no_reference_but_its_prompt_stays(tmp_path, caplog, encode):
    rows = [RATED[0], {"prompt": "c", "completion": "d", "label": True, "act": 2}]
    assert asked(tmp_path, rows, encode) == [(None, ["c"], ["d"])]
    assert "1 replies are not learned" in caplog.text
    assert asked(tmp_path, rows, encode, unanswered=True) == [(None, ["a"], []), (None, ["c"], ["d"])]
    prompts = PromptRules(unanswered=True).load(str(tmp_path / f"a.{encode}"), "train")
    assert [prompt.act for prompt in prompts] == [None, 2]


def test_other_layouts_of_rated_replies_and_labels_that_are_none(tmp_path):
    chats = [{"messages": [user("a"), assistant("b")], "label": flag} for flag in (False, True)]
    assert asked(tmp_path, chats) == [(None, ["a"], ["b"])]
    tagged = [{"instruction": "a", "output": "b", "kto_tag": flag} for flag in (False, True)]
    assert asked(tmp_path, tagged) == [(None, ["a"], ["b"])]
    classes = [{"prompt": "a", "response": "b", "label": False}, {"prompt": "a", "response": "b", "label": 0}]
    assert len(asked(tmp_path, classes)) == 2
    assert len(asked(tmp_path, [{"messages": [user("a"), assistant("b")], "label": 0}])) == 1


@pytest.mark.parametrize("flags", [{"deleted": True}, {"review_result": False}, {"deleted": "True", "text": None}])
def test_replies_that_people_have_taken_out_go_with_their_replies(tmp_path, caplog, flags):
    rows = [row | {"deleted": False, "review_result": True} for row in tree_rows()]
    rows[3] |= flags  # b, to which c replies, to which d replies
    assert asked(tmp_path, rows) == [(None, ["Is it far ?"], ["Three ."])]
    assert "2 of 4 replies have 'deleted: true' or 'review_result: false' in them or above" in caplog.text
    rows[1] |= flags  # all replies of a
    assert asked(tmp_path, [rows[1], rows[4]], unanswered=True) == [(None, ["Is it far ?"], [])]


# -- names of splits


def test_a_key_names_the_splits_of_a_folder(tmp_path):
    (tmp_path / "train_sft.jsonl").write_bytes(jsonl_bytes(GOOD[:3]))
    (tmp_path / "README").write_text("x")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/test_sft-00000-of-00001.parquet").write_bytes(parquet_bytes(GOOD[:2]))
    with pytest.raises(MissingSplit) as caught:
        load_records(str(tmp_path), "train")
    assert all(word in str(caught.value) for word in ("train_sft", "test_sft", "split: {train: train_sft}"))
    with pytest.raises(MissingSplit, match=r"split: \{validation: t\w+_sft\}"):
        load_records(str(tmp_path), "validation")
    names = {"train": "train_sft", "validation": "test_sft"}
    assert len(load_rows(str(tmp_path), "train", names=names)) == 3
    rules = PromptRules.from_keys(type("Keys", (), {"split": names}))
    assert [len(rules.load(str(tmp_path), split)) for split in ("train", "validation")] == [3, 2]
    with pytest.raises(UserError, match=r"split\.train: .* has no split 'train_stf'.*did you mean 'train_sft'"):
        load_records(str(tmp_path), "train", names={"train": "train_stf"})
    with pytest.raises(UserError, match=r"split\.train: .*leave split out"):
        load_records(str(tmp_path / "train_sft.jsonl"), "train", names=names)


def test_rows_of_which_no_reply_may_be_learned_are_one_error(tmp_path):
    rows = [RATED[0], RATED[0] | {"prompt": "c"}]
    with pytest.raises(UserError, match="no reply may be learned, 2 are left out"):
        asked(tmp_path, rows)
    assert len(asked(tmp_path, rows, unanswered=True)) == 2
