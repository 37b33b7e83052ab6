"""Pairs as text: as the model has learned prompts and replies, without the oldest turns where they are too long."""

from experiments.dailydialog.dpo import texts_of
from rlhf_dialog.data.chat_template import prompt_encoder
from tests.parts.tiny import byte_tokenizer

PAIR = {"prompt": ["Hello .", "Is it far ?"], "chosen": "Two streets .", "rejected": "Far ."}


def test_the_tokens_are_those_of_prompt_and_reply():
    tokenizer = byte_tokenizer()
    encoder = prompt_encoder(tokenizer, "<EOU>", 96, None)
    texts = texts_of(PAIR, "<EOU>", lambda _: True)
    prompt = encoder.encode_prompt(PAIR["prompt"])
    for name in ("chosen", "rejected"):
        together = tokenizer(texts["prompt"] + texts[name])["input_ids"]
        assert together == prompt + encoder.encode_reply(PAIR[name])


def test_the_oldest_turns_go_first():
    texts = texts_of(PAIR, "<EOU>", lambda text: len(text) < 20)
    assert texts["prompt"] == "Is it far ? <EOU>"
    assert texts_of(PAIR, "<EOU>", lambda text: len(text) < 5) is None
