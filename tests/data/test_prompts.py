"""Prompts of a data set, near-duplicates, token ids, and the order of training."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.overlap import find_repeats, long_utterances
from rlhf_dialog.data.prompt_ids import PromptEncoder, PromptSampler, separator_ids
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.sources import DialogueRecord
from rlhf_dialog.errors import UserError
from tests.parts.tiny import byte_tokenizer, merging_tokenizer


def write_jsonl(path, *rows):
    path.write_text("".join(json.dumps({"dialog": list(row)}) + "\n" for row in rows))
    return str(path)


def test_prompts_by_hand(tmp_path):
    row = {"dialog": ["a", "b", "c", "d"], "act": [1, 2, 3, 4]}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + '\n{"dialog": ["x"]}\n{"dialog": ["p", "q"]}\n')

    def prompt(turns, reply, act, index, dialogue):
        meta = {"split": "train", "index": index, "dialogue": dialogue}
        return Dialogue(turns, reference=reply, act=act, meta=meta, references=[reply])

    assert PromptRules(context_size=2).load(str(tmp_path), "train") == [
        prompt(["a"], "b", 2, 0, 0),
        prompt(["a", "b"], "c", 3, 1, 0),
        prompt(["b", "c"], "d", 4, 2, 0),
        prompt(["p"], "q", None, 3, 2),
    ]
    longer = PromptRules(context_size=2, min_context_size=3).load(str(tmp_path), "train")
    assert [(prompt.prompt_turns, prompt.reference) for prompt in longer] == [(["b", "c"], "d")]
    with pytest.raises(UserError, match=r"no prompts; 3 dialogues .* 4 turns, but min_context_size 4 needs 5"):
        PromptRules(min_context_size=4).load(str(tmp_path), "train")


def test_prompts_only_give_one_prompt_a_row(tmp_path):
    def place(number):
        return {"split": "train", "index": number, "dialogue": number}

    rows = [
        {"prompt": "a", "n": 7},
        {"prompt": ["a", "b", "c"], "reference": "d", "references": ["e", "d", "f"], "act": "question"},
        {"prompt": ["a", "b"], "references": ["d", "d"]},
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = [
        Dialogue(["a"], meta={"n": 7, **place(0)}),
        Dialogue(["b", "c"], reference="d", act=2, meta=place(1), references=["d", "e", "f"]),
        Dialogue(["a", "b"], reference="d", meta=place(2), references=["d"]),
    ]
    assert PromptRules(context_size=2).load(str(path), "train") == expected
    longer = PromptRules(min_context_size=2).load(str(path), "train")
    assert [len(prompt.prompt_turns) for prompt in longer] == [3, 2]
    with pytest.raises(UserError, match="longest has 3 turns, but min_context_size 4 needs 4"):
        PromptRules(min_context_size=4).load(str(path), "train")


def test_references_and_meta_of_a_dialogue_and_ids_of_prompts(tmp_path):
    row = {"dialog": ["a", "b", "c"], "references": [["x"], None, ["y", "c", "y"]], "topic": "tea", "index": 99}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row))
    first, second = PromptRules().load(str(tmp_path / "mine.jsonl"), "train")
    assert (first.reference, first.references) == ("b", ["b"])
    assert (second.reference, second.references) == ("c", ["c", "y"])
    assert second.meta == {"topic": "tea", "split": "train", "index": 99, "dialogue": 0}
    assert [one.origin_of("index") for one in (first, second)] == [0, 1]
    rows = [{"dialog_id": one, "prompt": f"a{i}", "reference": "b"} for i, one in enumerate((7, "x", 7, None, "x", 9))]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert [p.meta["dialogue"] for p in PromptRules().load(str(tmp_path / "mine.jsonl"), "train")] == [0, 1, 0, 3, 1, 5]


@pytest.mark.parametrize("separator_token", [True, False])
def test_prompt_reply_and_what_was_heard_are_the_longer_prompt(separator_token):
    encoder = PromptEncoder(byte_tokenizer(separator_token), "<EOU>", 64)
    reply, longer = encoder.encode_reply("b c"), encoder.encode_prompt(["a", "b c", "d"])
    assert encoder.encode_prompt(["a"]) + reply + encoder.encode_heard(reply, "d") == longer
    cut = reply[:2]  # " b" has no separator: it is put behind it
    assert encoder.encode_prompt(["a"]) + cut + encoder.encode_heard(cut, "d") == encoder.encode_prompt(["a", "b", "d"])


def test_a_separator_inside_a_turn_becomes_a_space_and_is_counted(tmp_path, caplog):
    path = write_jsonl(tmp_path / "train.jsonl", ["a | b", "c  d", "|e"], ["x", "chat_template  y"])
    first, second, third = PromptRules(turn_separator="|").load(path, "train")
    assert (first.prompt_turns, first.reference, second.reference) == (["a b"], "c  d", "e")
    assert second.references == ["e"]
    assert third.reference == "chat_template  y"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        f"{path}, train: 2 turns or references hold the turn_separator '|'; a space replaces it there"
    ]
    caplog.clear()
    for separator in ("<EOU>", "chat_template"):
        first, _, third = PromptRules(turn_separator=separator).load(path, "train")
        assert (first.prompt_turns, third.reference) == (["a | b"], "chat_template  y")
    assert {record.levelname for record in caplog.records} <= {"INFO"}


def test_the_separator_is_replaced_in_references_and_a_turn_of_nothing_else_is_refused(tmp_path):
    row = {"prompt": ["a", "b<EOU>"], "reference": "c <EOU> d", "references": ["<EOU> e", "f"]}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row))
    (prompt,) = PromptRules().load(str(tmp_path / "mine.jsonl"), "train")
    assert (prompt.prompt_turns, prompt.reference, prompt.references) == (["a", "b"], "c d", ["c d", "e", "f"])
    path = write_jsonl(tmp_path / "train.jsonl", ["a", "b"], ["a", "<EOU> <EOU>", "b"])
    with pytest.raises(UserError, match=r"train\.jsonl, train: dialogue 2 has .* only the turn_separator '<EOU>'"):
        PromptRules().load(path, "train")


@pytest.mark.parametrize("separator_token", [True, False])
def test_a_separator_that_somebody_says_does_not_end_the_turn(separator_token):
    encoder = PromptEncoder(byte_tokenizer(separator_token), "<EOU>", 64)
    assert encoder.encode_prompt(["a<EOU>b", "c"]) == encoder.encode_prompt(["a b", "c"])
    assert encoder.encode_reply("a <EOU> b") == encoder.encode_reply("a b")
    assert encoder.encode_heard(encoder.encode_reply("a"), "b <EOU>") == encoder.encode_reply("b")
    assert encoder.spoken("a  b") == "a  b"


def test_the_ids_of_a_separator_are_those_that_prompts_hold():
    assert separator_ids(byte_tokenizer(), "<EOU>") == {258}
    assert separator_ids(byte_tokenizer(separator_token=False), "<EOU>") == set()
    assert separator_ids(merging_tokenizer(), "###") == set()
    added = merging_tokenizer()
    added.add_tokens(["###"])
    assert separator_ids(added, "###") == {259, 260}  # with and without its space


@pytest.mark.parametrize(
    ("separator", "count"),
    [("<EOU>", 6), ("###", 1), ("|", 1), ("##", 2), ("\n", 2)],  # "Ġ###" and "Ġ|" are one token
)
def test_the_end_of_a_reply_is_what_follows_its_text(separator, count):
    tokenizer = merging_tokenizer()
    encoder = PromptEncoder(tokenizer, separator, 99)
    for reply in ("Yes.", "Yes #", f"No{separator}no"):
        assert encoder.count_end_ids(reply) == count
        assert tokenizer.decode(encoder.encode_reply(reply)[:-count]) == " " + reply.replace(separator, " ")
        assert encoder.reply_text(encoder.encode_reply(reply) * 2) == reply.replace(separator, " ")
    assert encoder.count_end_ids("") == len(encoder.encode_reply(""))


def utterances(*dialogs):
    return [long_utterances(DialogueRecord(list(turns), None)) for turns in dialogs]


def test_overlap_by_hand():
    held_out = utterances(
        ("We met at the old harbour .", "Was it cold there then ?", "Yes !", "Who paid for the boat ?"),
        ("Nobody knows the answer today .", "Yes !"),
    )
    train = utterances(
        ("WE met , at the old harbour", "Something else is said here ."),  # 1 of 2, other case and punctuation
        ("We met at the old harbour .", "Something else is said here .", "And one more of them ."),  # 1 of 3
        ("Yes !", "No !"),  # only short utterances
        ("Nobody knows the answer today .", "Who paid for the boat ?", "x y z w", "x y z v"),  # 2 of 4, not in one
        ("Nobody knows the answer today .", "Something else is said here .", "Something else is said here ."),
    )
    assert find_repeats(train, held_out) == {0, 4}
    assert find_repeats(train, []) == set()


def test_drop_overlap_touches_train_only_and_says_how_many(tmp_path, caplog):
    near, other = ("One two three four .", "Five"), ("Six seven eight nine .", "Ten")
    write_jsonl(tmp_path / "train.jsonl", near, other, near)
    write_jsonl(tmp_path / "validation.jsonl", ("nothing", "here"))
    write_jsonl(tmp_path / "test.jsonl", near)
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        left = PromptRules(drop_overlap=True).load(str(tmp_path), "train")
    assert [(prompt.reference, prompt.meta["index"], prompt.meta["dialogue"]) for prompt in left] == [("Ten", 0, 1)]
    assert "2 of 3" in caplog.text
    assert len(PromptRules().load(str(tmp_path), "train")) == 3
    assert len(PromptRules(drop_overlap=True).load(str(tmp_path), "test")) == 1


def test_drop_overlap_needs_the_other_splits_and_must_leave_something(tmp_path):
    path = write_jsonl(tmp_path / "talk.jsonl", "ab")
    with pytest.raises(UserError, match=r"drop_overlap: needs .* has no validation split"):
        PromptRules(drop_overlap=True).load(path, "train")
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / f"{split}.jsonl", ("One two three four .", "Five"))
    with pytest.raises(UserError, match="0 are left after drop_overlap"):
        PromptRules(drop_overlap=True).load(str(tmp_path), "train")


TOKENIZERS = {kind: byte_tokenizer(kind) for kind in (True, False)}


def with_bos():
    """A tokenizer that puts its BOS token in front, as Llama's does."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    ids = [("<bos>", tokenizer.bos_token_id)]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", "<bos> $A $B", ids)
    return tokenizer


@pytest.mark.parametrize("kind", [True, False])
def test_encoded_prompt_and_target_by_hand(kind):
    tokenizer = TOKENIZERS[kind]
    encoder = PromptEncoder(tokenizer, "<EOU>", 64)
    code = {letter: tokenizer.convert_tokens_to_ids("Ġ" if letter == " " else letter) for letter in "ab <EOU>"}
    separator = [tokenizer.convert_tokens_to_ids("<EOU>")] if kind else [code[letter] for letter in " <EOU>"]
    a, b, space = [code["a"]], [code["b"]], [code[" "]]
    assert encoder.encode_prompt(["a", "b"]) == a + separator + space + b + separator
    assert encoder.encode_target("b") == space + b + separator + [tokenizer.eos_token_id]


def test_bos_stays_in_front_and_counts():
    tokenizer = with_bos()
    plain = PromptEncoder(byte_tokenizer(), "<EOU>", 5)
    encoder = PromptEncoder(tokenizer, "<EOU>", 6)
    for turns in (["a"], ["a", "b"], ["a long one"], ["x", "a long one"]):
        assert encoder.encode_prompt(turns) == [tokenizer.bos_token_id, *plain.encode_prompt(turns)]
    assert tokenizer.bos_token_id not in encoder.encode_target("a")
    not_added = byte_tokenizer()
    not_added.add_special_tokens({"bos_token": "<bos>"})
    assert not_added.bos_token_id not in PromptEncoder(not_added, "<EOU>", 64).encode_prompt(["a"])
    not_added.eos_token = None
    with pytest.raises(UserError, match="eos_token"):
        PromptEncoder(not_added, "<EOU>", 64).encode_target("a")


SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=12)


@given(st.integers(1, 9), st.integers(0, 2**32 - 1), SIZES)
def test_every_prompt_comes_once_per_epoch_whatever_is_taken(num_prompts, seed, sizes):
    sampler = PromptSampler(num_prompts, seed)
    taken = [index for size in sizes for index in sampler.take(size)]
    assert len(taken) == sum(sizes)
    epochs = [taken[start : start + num_prompts] for start in range(0, len(taken), num_prompts)]
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(num_prompts))
    assert sampler.state_dict() == {"epoch": len(taken) // num_prompts, "index": len(taken) % num_prompts}


@given(st.integers(1, 9), st.integers(0, 100), SIZES, st.integers(0, 12))
def test_a_resumed_sampler_goes_on_as_the_uninterrupted_one(num_prompts, seed, sizes, stop):
    whole = PromptSampler(num_prompts, seed)
    expected = [whole.take(size) for size in sizes]
    first = PromptSampler(num_prompts, seed)
    before = [first.take(size) for size in sizes[:stop]]
    resumed = PromptSampler(num_prompts, seed)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + [resumed.take(size) for size in sizes[stop:]] == expected


def test_epochs_and_seeds_are_shuffled_differently():
    sampler = PromptSampler(50, seed=1)
    first, second, other = sampler.take(50), sampler.take(50), PromptSampler(50, seed=2).take(50)
    assert len({tuple(order) for order in (first, second, other, list(range(50)))}) == 4


def test_a_position_of_other_data_is_refused():
    for state in ({"epoch": 0, "index": 9}, {"epoch": -1, "index": 0}):
        with pytest.raises(UserError, match="outside the 9 prompts"):
            PromptSampler(9, seed=0).load_state_dict(state)
    with pytest.raises(ValueError, match="at least one"):
        PromptSampler(0, seed=0)
