"""What of a prompt's turns the model reads; ids of the byte tokenizer are letters, so tokens are counted by hand."""

import pytest
import tiny

from rlhf_dialog.data.as_read import AsRead, as_read
from rlhf_dialog.data.chat_template import prompt_encoder

TURNS = ["Hi .", "No ?", "Yes ."]


def read(turns, limit, tokenizer=None, separator="<EOU>", system=None):
    return as_read(prompt_encoder(tokenizer or tiny.byte_tokenizer(), separator, limit, system), turns)


def test_what_fits_is_whole():
    # 4 letters and <EOU>, a space, 4 letters and <EOU>, a space, 5 letters and <EOU>; the token takes the space before it
    assert read(TURNS, 18) == AsRead("Hi .<EOU> No ?<EOU> Yes .<EOU>", 18)


def test_the_oldest_turn_is_dropped_whole():
    assert read(TURNS, 17) == AsRead("No ?<EOU> Yes .<EOU>", 12, ("Hi .",))
    assert read(TURNS, 11) == AsRead("Yes .<EOU>", 6, ("Hi .", "No ?"))


def test_then_the_newest_turn_loses_its_beginning():
    assert read(TURNS, 5) == AsRead("es .<EOU>", 5, ("Hi .", "No ?"), "Y", 1)
    assert read(["aaaaaa"], 4) == AsRead("aaa<EOU>", 4, (), "aaa", 3)


def test_behind_a_system_message_the_turn_is_cut():
    whole = read(["abcdef"], 200, tiny.chat_tokenizer(), "chat_template", "Be kind .")
    assert (
        whole.text
        == "<|im_start|>system\nBe kind .<|im_end|>\n<|im_start|>user\nabcdef<|im_end|>\n<|im_start|>assistant\n"
    )
    short = read(["abcdefgh"], whole.num_tokens, tiny.chat_tokenizer(), "chat_template", "Be kind .")
    assert (short.text, short.cut, short.num_cut) == (whole.text.replace("abcdef", "cdefgh"), "ab", 2)


def test_a_first_turn_that_the_template_leaves_out_was_dropped():
    template = (
        "{% if messages[0]['role'] == 'assistant' %}{{ raise_exception('the user begins') }}{% endif %}" + tiny.CHATML
    )
    found = read(["I begin", "You go on"], 200, tiny.chat_tokenizer(template), "chat_template")
    assert found.dropped == ("I begin",)
    assert found.num_cut == 0


@pytest.mark.parametrize("limit", range(3, 20))
def test_no_letter_is_lost(limit):
    found = read(["abcabcabc", "xyzxyzxyz"], limit)
    newest = found.text.replace("<EOU>", " ").split()[-1]
    assert found.cut + newest == "xyzxyzxyz"
    assert found.num_tokens + found.num_cut >= 10
