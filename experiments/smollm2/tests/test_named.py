"""Conversations with names: which names, where the person says them, what is left out."""

import json
import random
import unicodedata
from collections import Counter

import pytest

from experiments.smollm2.named import (
    HARD,
    LINES,
    NAMES,
    QUESTIONS,
    all_names,
    behind_name,
    held_out_names,
    named,
    piece_of,
    without_name,
    write_named,
)
from experiments.smollm2.tests.test_conversations import message, wheel_of
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules


def test_the_list_has_names_of_one_word_and_holds_out_a_sixth_of_each_number_of_tokens():
    header, *lines = NAMES.read_text(encoding="utf-8").splitlines()
    assert header == "name\tlanguage\ttokens"
    names, languages, tokens = zip(*(line.split("\t") for line in lines), strict=True)
    assert len({name.casefold() for name in names}) == 240
    assert all(len(name) >= 3 and name.isalpha() and name == unicodedata.normalize("NFC", name) for name in names)
    assert all(unicodedata.name(letter).startswith("LATIN") for name in names for letter in name)
    assert len(set(languages)) >= 12
    held_out = held_out_names()
    assert len(set(held_out) & set(all_names())) == len(held_out) == 40
    number = dict(zip(names, tokens, strict=True))
    every, drawn = Counter(tokens), Counter(number[name] for name in held_out)
    assert all(abs(drawn[count] - every[count] / 6) < 1 for count in every)


def write(tmp_path, **conversations):
    talks = {
        name: {"messages": [[message("ab"[i % 2], text) for i, text in enumerate(texts)]]}
        for name, texts in conversations.items()
    }
    return write_named(wheel_of(tmp_path, json.dumps(talks)), tmp_path)


def test_a_person_says_the_name_of_the_system_prompt_and_no_held_out_name_is_trained_on(tmp_path):
    texts = ("Do you swim ?", "In the sea", "Is it cold ?", "Very .", "And now", "It rains .")
    write(tmp_path, **{f"c{i}": texts[: 2 + i % 5] for i in range(300)})
    sizes = {}
    for split in ("train", "validation", "test"):
        prompts = PromptRules(context_size=3, turn_separator="chat_template").load(str(tmp_path), split)
        rows = [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
        names = {prompt.meta["name"] for prompt in prompts}
        assert not names & set(held_out_names()) if split == "train" else names <= set(held_out_names())
        for prompt in prompts:
            assert prompt.system.count(prompt.meta["name"]) == 1
            assert prompt.roles[-1] == "user"
            assert prompt.reference in texts  # what the assistant said is as it was
        lines = {row["conversation"].partition(":")[0]: row["hard"] for row in rows if len(row["dialog"]) == 1}
        assert lines == ({HARD.name: True, QUESTIONS.name: False} if split == "train" else {})
        rows = [row for row in rows if len(row["dialog"]) > 1]
        sizes[split] = len(rows)
        for row in rows:
            said = [turn["content"] for turn in row["dialog"] if row["name"] in turn["content"]]
            assert len(said) == 1
            assert any(text in said[0] for text in texts)
    assert sum(sizes.values()) == 300


@pytest.mark.parametrize(
    "text", ["Hi Kyle !", "whats your name", "I'm Kimberly", "I met JOOST .", "And Benoi\u0302t ?"]
)
def test_what_says_a_name_already_is_left_out(tmp_path, text):
    assert write(tmp_path, a=("Hello .", text)).endswith("; 1 that say a name left out")


def test_what_says_no_name_stays(tmp_path):
    for text in ("I'm here .", "Joosten", "Hi there !"):
        assert write(tmp_path, a=("Hello .", text)).endswith("; 0 that say a name left out")


class First:
    """Draws the first or the last of everything."""

    def __init__(self, last):
        self.last = last

    def randint(self, low, high):
        return high if self.last else low

    def randrange(self, count):
        return count - 1 if self.last else 0

    def choice(self, items):
        return items[-1 if self.last else 0]


def test_the_name_is_before_or_behind_what_is_said():
    turns = ["a ?", "b", "c", "d", "e"]
    assert piece_of(turns, First(False)) == ["a ?", "b", "c", "d"]
    assert piece_of(turns, First(True)) == ["b", "c", "d", "e"]
    assert piece_of(turns[:3], First(True)) == ["b", "c"]
    said = [turn["content"] for turn in named(turns[:4], "Zuri", First(False))]
    assert said == ["Hi, I'm Zuri. a ?", "b", "c", "d"]
    said = [turn["content"] for turn in named(turns[:4], "Zuri", First(True))]
    assert said == ["a ?", "b", "c. (My name is Zuri.)", "d"]


def said(reply, name="Zuri", truncated=False):
    turns = [f"Hi, I'm {name}. Is it cold?"]
    return Dialogue(turns, response=reply, truncated=truncated, meta={"name": name})


def test_a_name_is_taken_out_of_prompt_and_reply():
    replies = {
        "Zuri, it is.": "it is.",
        "It is, Zuri.": "It is.",
        "It is, Zuri, and Zurich too": "It is and Zurich too",
        "zuri! Yes": "! Yes",
        "No.": "No.",
    }
    assert [without_name(said(reply)).response for reply in replies] == list(replies.values())
    assert without_name(said("It is .")).prompt_turns == ["Hi, I'm. Is it cold?"]
    assert without_name(Dialogue(["Zuri ?"], response="Zuri .")) == Dialogue(["Zuri ?"], response="Zuri .")


def test_a_reply_behind_the_name_ends_with_its_last_whole_sentence():
    dialogues = [behind_name(said(reply, truncated=True)) for reply in ("That is it. And when", "I do! No", "and so")]
    assert [one.response for one in dialogues] == ["Zuri, that is it.", "Zuri, I do!", "Zuri, and so"]
    assert [one.truncated for one in dialogues] == [False, False, True]


def test_the_thirty_lines_have_five_of_the_held_out_names_in_turn():
    rows = [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]
    assert Counter(row["kind"] for row in rows) == {"sad": 10, "angry": 10, "factual": 10}
    assert [row["name"] for row in rows] == random.Random(0).sample(held_out_names(), 5) * 6
    assert all(row["system"].startswith(f"You are chatting with {row['name']}. ") for row in rows)


@pytest.mark.parametrize("path", [HARD, QUESTIONS])
def test_no_line_of_training_is_one_of_the_thirty(path):
    def key(text):
        return "".join(filter(str.isalpha, text.casefold()))

    trained = [key(line) for line in path.read_text(encoding="utf-8").splitlines()]
    held_out = [key(json.loads(line)["prompt"]) for line in LINES.read_text(encoding="utf-8").splitlines()]
    assert len(set(trained)) == len(trained)
    assert not set(trained) & set(held_out)
