"""What a reward model reads, by hand: each form, its cuts, and marks inside a turn."""

import pytest
from transformers import BertConfig

from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.errors import UserError
from rlhf_dialog.rewards.reward_inputs import RewardInput, reads_in_pairs, trained_form
from tests.parts.classifiers import CLS, SEP, word_tokenizer
from tests.parts.tiny import CHATML, LLAMA2, byte_tokenizer, chat_tokenizer

A, B, C, D = range(4, 8)


def text_of(inputs, dialogue):
    return inputs.tokenizer.decode(inputs.encode(dialogue)["input_ids"], skip_special_tokens=False)


@pytest.mark.parametrize(
    ("form", "separator", "tokenizer", "text"),
    [
        ("dialogue", "<EOU>", byte_tokenizer(), "a<EOU> b<EOU> c<EOU>"),
        ("dialogue", "##", byte_tokenizer(), "a ## b ## c ##"),
        ("dialogue", "[SEP]", word_tokenizer(), "[CLS] a [SEP] b [SEP] c [SEP]"),
        ("text", "\n", byte_tokenizer(), "a\nb\nc<eos>"),
        ("text", " ", chat_tokenizer(), "<s>a b c<eos>"),
        ("pair", " ", word_tokenizer(), "[CLS] a b [SEP] c [SEP]"),
    ],
)
def test_each_form_by_hand(form, separator, tokenizer, text):
    assert text_of(RewardInput(tokenizer, form, separator, 100), Dialogue(["a", "b"], "c")) == text


def test_a_chat_template_is_rendered_whole_as_trl_does():
    tokenizer = chat_tokenizer(CHATML)
    messages = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    messages.append({"role": "assistant", "content": "d"})
    theirs = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    inputs = RewardInput(tokenizer, "chat_template", "chat_template", 200)
    assert inputs.encode(Dialogue(["a", "b", "c"], "d"))["input_ids"] == theirs


def test_a_template_in_which_a_user_begins_loses_the_oldest_turn():
    inputs = RewardInput(chat_tokenizer(LLAMA2), "chat_template", "chat_template", 200)
    assert (
        text_of(inputs, Dialogue(["x", "a"], "b"))
        == text_of(inputs, Dialogue(["a"], "b"))
        == "<s>[INST] a [/INST] b <eos>"
    )


def test_token_types_of_a_pair():
    found = RewardInput(word_tokenizer(), "pair", " ", 100).encode(Dialogue(["a"], ""))
    assert found == {"input_ids": [CLS, A, SEP, SEP], "token_type_ids": [0, 0, 0, 1]}


@pytest.mark.parametrize(
    ("max_length", "ids"),
    [
        (7, [CLS, A, SEP, B, SEP, C, SEP]),
        (6, [CLS, B, SEP, C, SEP]),  # the oldest turn goes as a whole
        (4, [CLS, SEP, C, SEP]),  # then tokens from the left, behind [CLS]
        (2, [CLS, SEP]),
    ],
)
def test_the_oldest_turns_are_cut_first(max_length, ids):
    inputs = RewardInput(word_tokenizer(), "dialogue", "[SEP]", max_length)
    assert inputs.encode(Dialogue(["a", "b"], "c"))["input_ids"] == ids


def test_separators_and_special_tokens_inside_a_turn_become_a_space():
    inputs = RewardInput(byte_tokenizer(), "dialogue", "<EOU>", 100)
    assert text_of(inputs, Dialogue(["a <EOU> <eos> b"], "c<EOU>d")) == "a b<EOU> c d<EOU>"
    assert inputs.spoken("a  b") == "a  b"


def test_without_a_prompt_and_after_more_turns():
    inputs = RewardInput(byte_tokenizer(), "dialogue", "<EOU>", 100)
    assert text_of(inputs, Dialogue([], "c")) == " c<EOU>"
    dialogue = Dialogue(["a"], "b").with_user_turn("c").with_reply("d").with_user_turn("never seen")
    assert text_of(inputs, dialogue) == text_of(inputs, Dialogue(["a", "b", "c"], "d"))


def test_which_form_a_folder_gets():
    assert trained_form(byte_tokenizer(), BertConfig()) == "text"
    assert trained_form(chat_tokenizer(), BertConfig()) == "chat_template"
    assert trained_form(chat_tokenizer(), BertConfig(rlhf_dialog_input="dialogue")) == "dialogue"
    assert reads_in_pairs(word_tokenizer())
    assert not reads_in_pairs(byte_tokenizer())


def test_a_template_that_is_missing():
    with pytest.raises(UserError, match="no chat template"):
        RewardInput(byte_tokenizer(), "chat_template", "chat_template", 100)


@pytest.mark.parametrize(
    ("form", "separator", "tokenizer", "text"),
    [
        ("dialogue", "<EOU>", byte_tokenizer(), "S<EOU> a<EOU> c<EOU>"),
        (
            *("chat_template", "chat_template", chat_tokenizer(CHATML)),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n",
        ),
        ("chat_template", "chat_template", chat_tokenizer(LLAMA2), "<s>[INST] S\n\na [/INST] c <eos>"),
        ("text", "\n", byte_tokenizer(), "a\nc<eos>"),
    ],
)
def test_the_system_message_of_the_data(form, separator, tokenizer, text):
    assert text_of(RewardInput(tokenizer, form, separator, 200), Dialogue(["a"], "c", system="S")) == text


def test_a_system_message_is_not_cut():
    inputs = RewardInput(byte_tokenizer(), "dialogue", "<EOU>", 13)
    assert text_of(inputs, Dialogue(["b", "abcdefgh"], "c", system="S")) == "S<EOU> cdefgh<EOU> c<EOU>"
