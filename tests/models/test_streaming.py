"""Replies that grow token by token: what is shown on the way, and the same end as a reply written at once."""

from types import SimpleNamespace

import pytest
import torch

from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.models.chat_agent import GrowingReply, certain, stream
from rlhf_dialog.models.generation import Responder, Sampling, StopRule, random_numbers
from rlhf_dialog.models.packing import ATTENTION
from rlhf_dialog.models.policy import Policy
from tests.parts.tiny import byte_tokenizer, chat_tokenizer, gpt2

TURNS = [["Hello"], ["One", "Two two two", "Three"], ["Where is the ladder ?"]]


def responder(lm, separator="<EOU>", tokenizer=None, packing=True, **sampling) -> Responder:
    lm.set_attn_implementation(ATTENTION if packing else "sdpa")
    tokenizer = tokenizer or byte_tokenizer(separator_token=separator == "<EOU>")
    policy = Policy(lm).eval()
    encoder = prompt_encoder(tokenizer, separator, 60)
    return Responder(policy, encoder, Sampling(**sampling), StopRule(policy, tokenizer, separator))


def steps_of(responder: Responder, turns, numbers) -> list[list[GrowingReply]]:
    """What is shown after each token."""
    steps: list[list[GrowingReply]] = []
    stream(responder, turns, lambda replies: steps.append(replies) is None, numbers)
    return steps


KINDS = {
    "packed": lambda: responder(gpt2(initializer_range=0.1), max_new_tokens=40),
    "padded": lambda: responder(gpt2(initializer_range=0.1), packing=False, max_new_tokens=40),
    "filtered": lambda: responder(gpt2(), max_new_tokens=30, top_p=0.9, temperature=1.3),
    "separator of text": lambda: responder(gpt2(initializer_range=0.1), separator="Q", max_new_tokens=40),
    "chat template": lambda: responder(gpt2(vocab_size=261), "chat_template", chat_tokenizer(), max_new_tokens=30),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_ends_as_a_reply_that_is_written_at_once(kind):
    talker = KINDS[kind]()
    numbers = random_numbers(3, talker.sampling, torch.device("cpu"))
    steps = steps_of(talker, TURNS, numbers)
    responses = talker.generate(talker.encode(TURNS), numbers)
    for row, (reply, grown) in enumerate(zip(talker.read(responses), steps[-1], strict=True)):
        assert (grown.text, list(grown.ids), grown.truncated) == (reply.text, reply.ids, reply.truncated)
        assert list(grown.logprobs) == responses.logprobs[row][responses.tokens.response_mask[row]].tolist()
        assert grown.ended
        before = GrowingReply()
        for reply_now in (step[row] for step in steps):
            assert reply_now.text.startswith(before.text)
            assert len(reply_now.ids) == len(before.ids) + (not before.ended)
            before = reply_now
    assert any(reply.text and not reply.ended for step in steps for reply in step)  # it is shown while it grows


def test_a_stream_ends_when_nobody_wants_more():
    talker, steps = KINDS["packed"](), []
    numbers = random_numbers(3, talker.sampling, torch.device("cpu"))
    stream(talker, TURNS, lambda replies: steps.append(replies) or len(steps) < 3, numbers)
    assert [[len(reply.ids) for reply in step] for step in steps] == [[1] * 3, [2] * 3, [3] * 3]


@pytest.mark.parametrize(
    ("text", "separator", "cleans", "expected"),
    [
        ("do n", "<EOU>", True, "do"),
        ("do n", "<EOU>", False, "do n"),
        ("Yes . <EO", "<EOU>", False, "Yes ."),
        ("Yes # #", "# # #", False, "Yes"),
        ("Yes #\ufffd", "##", False, "Yes"),
        ("Yes \n", "\n\n", False, "Yes"),
        ("a ##", "###", False, "a"),
        ("a ## b", "###", False, "a ## b"),
        ("é\ufffd\ufffd", "###", False, "é"),
    ],
)
def test_what_is_certain(text, separator, cleans, expected):
    tokenizer = SimpleNamespace(clean_up_tokenization_spaces=cleans)
    assert certain(text, SimpleNamespace(tokenizer=tokenizer, separator=separator)) == expected
