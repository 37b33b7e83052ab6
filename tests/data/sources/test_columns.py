"""`columns` of a configuration, the built-in names of prompts and replies, and the warning of a text that is not used."""

import pytest

from rlhf_dialog.commands.evaluate import read_columns
from rlhf_dialog.config.settings import ColumnKind
from rlhf_dialog.data.preferences import load_pairs
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.sources import NO_COLUMNS, DialogueRecord, load_records
from rlhf_dialog.data.sources.columns import KINDS
from rlhf_dialog.environments.corpus import CorpusUser
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.learning.tokenized_examples import sft_prompts
from rlhf_dialog.rewards import LengthMatch, NoReward
from rlhf_dialog.runs.data_source import read_source, training_prompts
from rlhf_dialog.training.supervised import sft
from rlhf_dialog.training.supervised.relevance.model import RelevanceTraining
from rlhf_dialog.training.supervised.settings import RelevanceConfig
from tests.parts.data_files import csv_bytes, jsonl_bytes, parquet_bytes, write_split
from tests.parts.trainers import settings

QUESTIONS = [{"q": "Hi there", "gold": "Hey you", "n": "x"}, {"q": "Is it far ?", "gold": "Two streets .", "n": "y"}]
NAMED = {"prompt": "q", "reference": "gold"}
MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def read(folder, rows, columns=NO_COLUMNS):
    (folder / "a.jsonl").write_bytes(jsonl_bytes(rows))
    return load_records(str(folder / "a.jsonl"), "train", columns)


@pytest.mark.parametrize("encode", [csv_bytes, jsonl_bytes, parquet_bytes])
def test_columns_are_read_under_their_kinds(tmp_path, encode):
    path = tmp_path / f"a.{encode.__name__.removesuffix('_bytes')}"
    path.write_bytes(encode(QUESTIONS))
    assert load_records(str(path), "train", NAMED) == [
        DialogueRecord([row["q"]], references=[[row["gold"]]], meta={"n": row["n"]}, is_prompt=True)
        for row in QUESTIONS
    ]


def test_columns_of_the_original_layout_and_of_some_lines(tmp_path):
    path = write_split(tmp_path, "a __eou__ b __eou__\n")
    assert load_records(path, "train", {"messages": "dialog"})[0].turns == ["a", "b"]
    some = read(tmp_path, [{"q": "a"}, {"q": "b", "gold": "c"}], NAMED)
    assert [record.references for record in some] == [None, [["c"]]]


@pytest.mark.parametrize(
    ("row", "columns", "turns", "replies"),
    [
        ({"talk": ["a", "b"], "dialog": ["c", "d"], "prompt": "e"}, {"messages": "talk"}, ["a", "b"], []),
        ({"q": "a", "messages": ["b", "c"], "reply": "d"}, {"prompt": "q", "reference": "reply"}, ["a"], ["d"]),
        ({"q": "a", "response": "old", "gold": None}, {"prompt": "q", "reference": "gold"}, ["a"], []),
        ({"q": "a", "answer": "b"}, {"prompt": "q"}, ["a"], ["b"]),
        ({"prompt": "x", "text": "a", "more": ["c", "d"]}, {"prompt": "text", "references": "more"}, ["a"], ["c", "d"]),
        ({"question": "a", "context": "b"}, {"prompt": "context", "reference": "question"}, ["b"], ["a"]),
        ({"instruction": "a", "input": "b", "gold": "c"}, {"prompt": "instruction", "reference": "gold"}, ["a\n\nb"], ["c"]),
        ({"prompt": "a", "completion": "b"}, {}, ["a"], ["b"]),
        ({"prompt": MESSAGES[:1], "completion": MESSAGES[1:]}, {}, ["a"], ["b"]),
        ({"question": "a", "answer": "b", "id": 3}, {}, ["a"], ["b"]),
        ({"instruction": "a", "input": "b", "output": "c"}, {}, ["a\n\nb"], ["c"]),
        ({"instruction": "a", "input": "", "output": "c"}, {}, ["a"], ["c"]),
        ({"instruction": "a", "input": None, "response": "c"}, {}, ["a"], ["c"]),
        ({"prompt": "a", "reference": "b", "response": "c"}, {}, ["a"], ["b"]),
    ],
)  # fmt: skip
def test_named_columns_come_before_built_in_names(tmp_path, row, columns, turns, replies):
    (record,) = read(tmp_path, [row], columns)
    assert (record.turns, record.references) == (turns, [replies] if replies else None)
    assert not record.meta.keys() & {"instruction", "input", *columns, *columns.values()}


def test_columns_of_utterances_and_lists_in_named_cells(tmp_path):
    (tmp_path / "a.csv").write_text("session,said,intent\n7,Hi,question\n7,Hey,inform\n8,Bye,inform\n")
    columns = {"dialog_id": "session", "utterance": "said", "act": "intent"}
    records = load_records(str(tmp_path / "a.csv"), "train", columns)
    assert records == [DialogueRecord(["Hi", "Hey"], [2, 1]), DialogueRecord(["Bye"], [1])]
    (tmp_path / "b.csv").write_text("talk,plain\n\"['a', 'b']\",\"[['c', 'd']]\"\n")
    (record,) = load_records(str(tmp_path / "b.csv"), "train", {"messages": "talk"})
    assert record == DialogueRecord(["a", "b"], meta={"plain": "[['c', 'd']]"})


def test_columns_of_pairs_and_of_the_corpus_environment(tmp_path):
    read(tmp_path, [{"question": "Hi ?", "good": "Hey", "bad": "No", "talk": ["a", "b"]}])
    (pair,) = load_pairs(str(tmp_path / "a.jsonl"), "train", {"chosen": "good", "rejected": "bad"})
    assert (pair.chosen.prompt_turns, pair.chosen.response, pair.rejected.response) == (["Hi ?"], "Hey", "No")
    assert CorpusUser(str(tmp_path / "a.jsonl"), columns={"messages": "talk"}).reset(seed=0)[0] == "a"


def test_drop_overlap_reads_every_split_with_the_columns(tmp_path):
    talks = {"train": ["one two three four", "b"], "validation": ["one two three four", "c"], "test": ["d", "e"]}
    for split, turns in talks.items():
        rows = [{"talk": turns}, {"talk": ["x", "y"]}]
        (tmp_path / f"{split}.jsonl").write_bytes(jsonl_bytes(rows))
    prompts = PromptRules(drop_overlap=True, columns={"messages": "talk"}).load(str(tmp_path), "train")
    assert [prompt.prompt_turns for prompt in prompts] == [["x"]]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"promt": "q"}, ["columns", "'promt'", "did you mean 'prompt'", "messages, utterance"]),
        ({"prompt": "questoin"}, ["columns.prompt: ", "it has 'question', 'n', 'two'", "did you mean 'question'"]),
        ({"prompt": 3}, ["columns", "'prompt': 3", "{kind: column}"]),
        (["prompt"], ["columns", "['prompt']", "{kind: column}"]),
        ({"prompt": "n"}, ["a.jsonl, line 1: 'n' holds a number, wanted a string or a list of turns"]),
        ({"prompt": "question", "reference": "two"}, ["a.jsonl, line 1: 'two' holds 2 messages, wanted one"]),
        ({"prompt": "question", "reference": "n"}, ["a.jsonl, line 1: 'n' holds a number, wanted a string"]),
    ],
)  # fmt: skip
def test_wrong_columns_are_one_error(tmp_path, columns, words):
    with pytest.raises(UserError) as caught:
        read(tmp_path, [{"question": "a", "n": 3, "two": MESSAGES, "prompt": "b"}], columns)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_an_error_about_pairs_names_the_column_of_the_data(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes([{"prompt": "Hi ?", "chosen": "No", "rejected": 3}]))
    with pytest.raises(UserError, match="'rejected' holds a number"):
        load_pairs(str(tmp_path / "a.jsonl"), "train", {"chosen": "rejected", "rejected": "chosen"})


def test_every_configuration_that_names_data_has_columns(tmp_path):
    rows = [*QUESTIONS, {"q": "Who is it ?", "gold": "Me .", "n": "z"}]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_bytes(jsonl_bytes(rows))
    data = {"data_path": str(tmp_path), "columns": NAMED}
    run = settings(env={"args": data}, eval_interval=1, turn_separator="<EOU>")
    prompts, validation = read_source(run, NoReward())
    pairs = RelevanceTraining(RelevanceConfig(**data, output="x"), tmp_path, print).pairs("train")
    of_sft = sft.read_prompts(sft.SFTConfig(**data, output="x", turn_separator="<EOU>"), "train", None, print)
    of_evaluation = PromptRules.from_keys(run).load(str(tmp_path), "validation")
    read = [prompts, validation.prompts, pairs, of_sft, training_prompts(run), of_evaluation]
    read.append(sft_prompts(str(tmp_path), "train", 5, "<EOU>", tuple(NAMED.items())))
    replies = {"Hey you", "Two streets .", "Me ."}
    assert [{dialogue.reference for dialogue in dialogues} for dialogues in read] == [replies] * 7
    rules = PromptRules.from_keys(run, **read_columns("{prompt: gold, reference: q}"))
    found = [dialogue.reference for dialogue in rules.load(str(tmp_path), "validation")]
    assert found == ["Hi there", "Is it far ?", "Who is it ?"]


def test_ppo_keeps_prompts_of_disliked_replies_where_the_reward_needs_no_reference(tmp_path, caplog):
    rows = [{"prompt": f"p {i} ?", "completion": "Yes .", "label": i > 0} for i in range(3)]
    (tmp_path / "train.jsonl").write_bytes(jsonl_bytes(rows))
    (tmp_path / "validation.jsonl").write_bytes(jsonl_bytes(rows))
    run = settings(env={"args": {"data_path": str(tmp_path)}}, eval_interval=1, turn_separator="<EOU>")
    prompts, validation = read_source(run, NoReward())
    assert [prompt.reference for prompt in prompts] == [None, "Yes .", "Yes ."]
    assert len(validation.prompts) == 2
    prompts, _ = read_source(run, LengthMatch())
    assert [prompt.reference for prompt in prompts] == ["Yes .", "Yes ."]


PAIRS = [{"input": "a", "output": "b"}, {"input": "c", "output": "d"}]
EMPATHETIC = [
    {"conv_id": number, "prompt": "I was sad .", "speaker_idx": speaker, "utterance": text}
    for number, speaker, text in ((0, 7, "a"), (0, 8, "b"), (1, 7, "c"), (1, 8, "d"))
]
CONVOKIT = [
    {"id": "r", "reply-to": None, "speaker": "Ann", "text": "a", "conversation_id": "r"},
    {"id": "s", "reply-to": "r", "speaker": "Bob", "text": "b", "conversation_id": "r"},
    {"id": "t", "reply-to": "r", "speaker": "Cid", "text": "c", "conversation_id": "r"},
    {"id": "u", "reply-to": "t", "speaker": "Ann", "text": "d", "conversation_id": "r"},
]
NODES = [
    {"uid": 1, "above": None, "said": "a"},
    {"uid": 2, "above": 1, "said": "b"},
    {"uid": 3, "above": 2, "said": "c"},
]


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        # the prompt and what stands before it
        ([{"q": "a", "who": "S", "r": "b"}], {"prompt": "q", "system": "who", "reference": "r"}, [("S", ["a"], ["b"])]),
        ([{"prompt": "a", "persona": ["S", "T"], "response": "b"}], {"system": "persona"}, [("S\n\nT", ["a"], ["b"])]),
        ([{"prompt": "c", "past": ["a", "b"], "response": "d"}], {"history": "past"}, [(None, ["a", "b", "c"], ["d"])]),
        ([{"prompt": "c", "past": "a", "response": "d"}], {"history": "past"}, [(None, ["a", "c"], ["d"])]),
        ([{"question": "a", "passage": "b", "answer": "c"}], {"input": "passage"}, [(None, ["a\n\nb"], ["c"])]),
        ([{"q": "a", "p": "b", "answer": "c"}], {"prompt": "q", "input": "p"}, [(None, ["a\n\nb"], ["c"])]),
        # keys of turns
        (
            [{"conversation": PAIRS}],
            {"turn.user": "input", "turn.assistant": "output"},
            [(None, ["a"], ["b"]), (None, ["a", "b", "c"], ["d"])],
        ),
        (
            [{"log": [{"who": "user", "msg": "a"}, {"who": "bot", "msg": "b"}]}],
            {"messages": "log", "turn.role": "who", "turn.utterance": "msg"},
            [(None, ["a"], ["b"])],
        ),
        (
            [{"prompt": "c", "response": "d", "history": PAIRS[:1]}],
            {"turn.user": "input", "turn.assistant": "output"},
            [(None, ["a", "b", "c"], ["d"])],
        ),
        # the named columns decide the layout
        (EMPATHETIC, {"utterance": "utterance", "dialog_id": "conv_id"}, [(None, ["a"], ["b"]), (None, ["c"], ["d"])]),
        (EMPATHETIC[:1], {"prompt": "prompt", "reference": "utterance"}, [(None, ["I was sad ."], ["a"])]),
        (
            [{"prompt": "x", "dialog": ["y"], "id": 1, "said": t} for t in "ab"],
            {"utterance": "said", "dialog_id": "id"},
            [(None, ["a"], ["b"])],
        ),
        (
            [{"prompt": "x"} | row for row in NODES],
            {"parent": "above", "message_id": "uid", "utterance": "said"},
            [(None, ["a"], ["b"]), (None, ["a", "b"], ["c"])],
        ),
        (
            CONVOKIT,
            {"parent": "reply-to", "dialog_id": "conversation_id"},
            [(None, ["a"], ["b"]), (None, ["a"], ["c"]), (None, ["a", "c"], ["d"])],
        ),
    ],
)
def test_a_named_column_is_read_as_it_is_named(tmp_path, rows, columns, expected):
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes(rows))
    prompts = PromptRules(50, columns=columns, turn_separator="chat_template").load(str(tmp_path / "a.jsonl"), "train")
    assert [(prompt.system, prompt.prompt_turns, prompt.references) for prompt in prompts] == expected


@pytest.mark.parametrize(("columns", "speaker"), [({"speaker": "speaker_idx"}, "speaker_idx"), ({}, "speaker")])
def test_numbers_of_speakers_are_roles(tmp_path, columns, speaker):
    rows = [
        {"conv_id": 1, speaker: number, "role": None, "utterance": text}
        for number, text in ((7, "a"), (8, "b"), (7, "c"))
    ]
    rows = [{key: value for key, value in row.items() if columns or key != "role"} for row in rows]
    (tmp_path / "a.jsonl").write_bytes(jsonl_bytes(rows))
    rules = PromptRules(columns=columns, reply_roles=("8",))
    assert [prompt.reference for prompt in rules.load(str(tmp_path / "a.jsonl"), "train")] == ["b"]


def test_candidates_are_references_only_with_a_word(tmp_path, caplog):
    rows = [{"q": "a", "candidates": ["b", "c"], "more": ["d"]}]
    read(tmp_path, rows, {"prompt": "q", "references": "more"})
    assert "acceptable" not in caplog.text
    (record,) = read(tmp_path, rows, {"prompt": "q", "references": "candidates"})
    assert record.references == [["b", "c"]]
    assert "'candidates'" in caplog.text
    assert "acceptable reply" in caplog.text


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        ([{"conversation": PAIRS}], {"turn.user": "inptu"}, ["columns.turn.user", "'input', 'output'", "did you mean 'input'"]),
        ([{"conversation": PAIRS}], {}, ["without a text", "columns: {turn.user: input, turn.assistant: output}"]),
        ([{"conversation": [{"msg": "a"}]}], {}, ["columns: {turn.utterance: msg}"]),
        ([{"log": [{"text": "a"}, {"text": "b"}]}], {}, ["no turns", "columns: {messages: log}"]),
        ([{"q": "a"}], {"turn.usr": "q"}, ["'turn.usr'", "did you mean 'turn.user'"]),
    ],
)  # fmt: skip
def test_an_error_says_what_can_be_named(tmp_path, rows, columns, words):
    with pytest.raises(UserError) as caught:
        read(tmp_path, rows, columns)
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_kinds_are_those_of_the_configuration():
    assert set(ColumnKind.__args__) == set(KINDS)
