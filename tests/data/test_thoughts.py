"""Replies with thoughts and channels: what is learned continues the prompt of the template, and is read back as the reply."""

import pytest

from rlhf_dialog.data.chat_template import TemplateEncoder, opening_of, warn_about_marks, warn_about_replies
from rlhf_dialog.data.dialogue import Dialogue
from tests.parts.families import family_tokenizer, messages, with_template
from tests.parts.tiny import CHATML

ANSWER, THOUGHT = "Behind the mill .", "<think>\nThey ask for it .\n</think>\n\nBehind the mill ."
OPENS = CHATML.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")  # and writes a reply as it is

# how the prompt ends, and what is learned after it: without a thought in the data, and with one
IM, DS = "<|im_end|>", "<｜end▁of▁sentence｜>"
OPEN = ("<think>\n", f"\n</think>\n\n{ANSWER}"), ("<think>\n", f"They ask for it .\n</think>\n\n{ANSWER}")
PLAIN = ("<|im_start|>assistant\n", ANSWER), ("<|im_start|>assistant\n", THOUGHT)
LEARNED = {
    "deepseek_r1_distill": (*OPEN, DS),
    "deepseekv3": (*OPEN, DS),
    "qwen3": (("<|im_start|>assistant\n", f"<think>\n\n</think>\n\n{ANSWER}"), PLAIN[1], IM),
    "qwen3_5_think": (*OPEN, IM),
    "qwen3_5_nothink": (*[("</think>\n\n", ANSWER)] * 2, IM),  # the prompt is always behind an empty thought
    "qwen3_8": (("</think>\n\n", ANSWER), OPEN[1], IM),  # writes an empty thought in front of that of a reply
    "nemotron_3_nano": (("<think></think>", ANSWER), OPEN[1], IM),
    "glm4moe": (
        ("/nothink<|assistant|>\n<think></think>", f"\n{ANSWER}"),
        ("Where ?<|assistant|>", f"\n<think>They ask for it .</think>\n{ANSWER}"),
        "<eos>",
    ),
    "qwen2_5": (*PLAIN, IM),
    OPENS: (*OPEN, IM),
}


def encoder_of(name: str) -> TemplateEncoder:
    return TemplateEncoder(with_template(name) if "{%" in name else family_tokenizer(name), 4000)


def text_of(encoder: TemplateEncoder, ids: list[int]) -> str:
    return encoder.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", LEARNED, ids=lambda name: "own" if "{%" in name else name)
@pytest.mark.parametrize("with_thought", [False, True])
def test_what_is_learned_continues_the_prompt_and_closes_its_thought(name, with_thought):
    encoder = encoder_of(name)
    prompt, target = encoder.encode_example(["Where ?"], THOUGHT if with_thought else ANSWER)
    begin, learned = LEARNED[name][with_thought]
    assert text_of(encoder, prompt).endswith(begin)
    assert text_of(encoder, target) == learned + LEARNED[name][2]
    kinds = [
        encoder.tokenizer.apply_chat_template(
            messages("Where ?"), add_generation_prompt=True, return_dict=False, **options
        )
        for options in ({}, {"enable_thinking": False})
    ]
    assert prompt in kinds  # one that the template opens


def test_thoughts_in_other_forms_are_closed_once():
    square = encoder_of(CHATML.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n[THINK]"))
    for reply in ("No", "[THINK]Yes[/THINK]No", "<think>Yes</think>No"):
        learned = text_of(square, square.encode_example(["a"], reply)[1])
        assert learned == f"{'Yes' if 'Yes' in reply else ''}[/THINK]No<|im_end|>"
    encoder = encoder_of("deepseek_r1_distill")
    for reply in ("<think>Yes</think>No", "Yes\n</think>\nNo", "<think>\nYes\n</think>\n\nNo"):
        assert text_of(encoder, encoder.encode_example(["a"], reply)[1]) == "Yes\n</think>\n\nNo<｜end▁of▁sentence｜>"


FAMILIES = (
    *("cohere", "cohere2", "deepseek_r1_distill", "gemma", "gemma3", "gemma4", "glm4moe", "gptoss", "lfm2", "llama3"),
    *("llama3_1", "muse_glimmer", "nemotron_3_nano", "phi3", "qwen2_5", "qwen3", "qwen3_5_think", "qwen3_8"),
)


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_are_those_of_apply_chat_template_and_replies_come_back(name, caplog):
    encoder = encoder_of(name)
    for turns in (["a"], ["Where ?", "There .", "Why ?"], ["a\n\nb", "<think>\nx\n</think>\n\ny", "c", "d", "e ?"]):
        expected = encoder.tokenizer.apply_chat_template(
            messages(*turns), add_generation_prompt=True, enable_thinking=False, return_dict=False
        )
        assert encoder.encode_prompt(turns) == expected
    for text in (ANSWER, "Yes :\n\n1. no", "final"):
        assert encoder.reply_text(encoder.encode_reply(text)) == text
    warn_about_replies(encoder)
    assert not caplog.messages


def test_a_warning_counts_no_thoughts_of_replies(caplog):
    encoder = encoder_of("deepseek_r1_distill")
    warn_about_marks(encoder, [Dialogue(["a", THOUGHT, "b"], reference=THOUGHT, references=[THOUGHT])])
    assert not caplog.messages
    warn_about_marks(encoder, [Dialogue([THOUGHT], reference="a", references=["a"])])  # the user's
    assert caplog.messages[0].startswith("1 turns")


REWRITE = {"deepseek_r1_distill", "glm4moe", "gptoss", "qwen3", "qwen3_5_think"}


@pytest.mark.parametrize("name", FAMILIES)
def test_history_that_is_written_otherwise_is_known(name):
    encoder = encoder_of(name)
    assert encoder.rewrites_history == (name in REWRITE)
    if name not in REWRITE:
        whole = encoder.encode_prompt(["a"]) + encoder.encode_reply("b") + encoder.encode_heard([encoder.end_id], "c")
        assert whole == encoder.encode_prompt(["a", "b", "c"])


def test_the_reply_of_channels_is_the_text_of_the_final_one():
    encoder = encoder_of("gptoss")

    def read(text):
        return encoder.reply_text(encoder.tokenizer(text, add_special_tokens=False)["input_ids"])

    final = "<|channel|>final<|message|>Quite so .<|return|>"
    assert read(final) == "Quite so ."
    assert read("<|channel|>analysis<|message|>Is it so ?<|end|><|start|>assistant" + final) == "Quite so ."
    assert read("<|channel|>analysis<|message|>Is it so ?") == ""
    assert read("Quite so .<|return|>") == "Quite so ."


def test_a_thought_that_is_not_closed_is_no_reply():
    encoder = encoder_of("deepseek_r1_distill")
    ids = encoder.encode_reply(ANSWER)
    assert encoder.reply_text(encoder.tokenizer("They ask for it")["input_ids"]) == ""
    assert encoder.reply_text([*encoder.tokenizer("They ask for it")["input_ids"], *ids]) == ANSWER


def test_a_template_that_changes_replies_is_named(caplog):
    shouts = CHATML.replace("message.content", "(message.content | upper)")
    with pytest.raises(Exception, match="leaves out"):
        encoder_of(shouts)
    warn_about_replies(encoder_of(CHATML.replace("message.content", "message.content | replace(':', ';')")))
    (line,) = caplog.messages
    assert "turn_separator" in line
    assert "1. go" in line


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("a<|assistant|>", ("a<|assistant|>", "", False)),
        ("a <assistant>\n", ("a <assistant>\n", "", False)),
        ("a<think>\n", ("a", "<think>\n", True)),
        ("a<seed:think>", ("a", "<seed:think>", True)),
        ("a<think>\n\n</think>\n\n", ("a", "<think>\n\n</think>\n\n", False)),
        ("a<think></thinking>", ("a<think></thinking>", "", False)),
    ],
)
def test_the_end_of_a_generation_prompt(prompt, parts):
    opening = opening_of(prompt)
    assert (opening.stem, opening.thought, opening.is_open) == parts
