"""`turn_separator: chat_template`: prompts, targets and ends in the tokenizer's template, and the whole way with it."""

from types import SimpleNamespace

import pytest
import torch
from tokenizers import models, pre_tokenizers
from torch import nn

from rlhf_dialog.data.chat_template import (
    TemplateEncoder,
    encode_without_end,
    end_token_id,
    fix_date,
    prompt_encoder,
    warn_about_marks,
)
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompt_ids import PromptEncoder, warn_about_cut
from rlhf_dialog.errors import UserError
from rlhf_dialog.models.generation import Sampling, StopRule
from rlhf_dialog.models.loading import Policy
from rlhf_dialog.models.token_batch import pad_left
from rlhf_dialog.training.supervised import sft
from rlhf_dialog.user_code import run_with_timeout
from tests.parts.chatml import BOS, END, EOS, OPEN, PAD, START, said, spell
from tests.parts.tiny import CHATML, CHATML_USER_FIRST, LLAMA2, byte_tokenizer, chat_tokenizer
from tests.parts.token_batches import respond_to

THINKING = CHATML.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
SWITCHED = CHATML.replace(
    "<|im_start|>assistant\n", "<|im_start|>assistant\n{% if enable_thinking is false %}<think></think>{% endif %}"
)
UNMARKED = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def encoder_of(template: str = CHATML, max_prompt_length: int = 200) -> TemplateEncoder:
    encoder = prompt_encoder(chat_tokenizer(template), "chat_template", max_prompt_length)
    assert isinstance(encoder, TemplateEncoder)
    return encoder


# prompts


def test_a_template_that_does_not_end_on_some_text_is_interrupted_in_every_thread(monkeypatch):
    monkeypatch.setattr("rlhf_dialog.data.chat_template.RENDER_SECONDS", 0.05)
    nested = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    encoder = encoder_of(f"{{% if 'trap' in messages[-1].content %}}{nested}{{% endif %}}" + CHATML)
    before = encoder.encode_prompt(["a"])

    def refused() -> bool:
        with pytest.raises(UserError, match=r"chat template does not end within .* seconds"):
            encoder.encode_prompt(["a trap"])
        return encoder.encode_prompt(["a"]) == before

    assert refused()
    assert run_with_timeout(60, refused)


def test_an_oldest_turn_of_the_assistant_is_left_out_where_the_template_refuses_it():
    """Behind a system message, without one, or always."""
    a, b, system = said("assistant", "a"), said("user", "b") + OPEN, said("system", "S")
    turns = (
        "messages[0].role == 'assistant'",
        "messages[1:] and messages[1].role == 'assistant' and messages[0].role == 'system'",
    )
    for refused, plain, behind in ((turns[0], b, system + a + b), (turns[1], a + b, system + b)):
        encoder = encoder_of(f"{{% if {refused} %}}{{{{ raise_exception('a user begins') }}}}{{% endif %}}" + CHATML)
        assert encoder.encode_prompt(["a", "b"]) == plain
        assert encoder.encode_prompt(["a", "b"], "S") == behind
    strict = encoder_of(CHATML_USER_FIRST)
    assert strict.encode_prompt(["a", "b"]) == b
    whole = said("user", "c") + a + b
    assert strict.encode_prompt(["c", "a", "b"]) == strict.encode_prompt(["x", "c", "a", "b"]) == whole


def test_bos_comes_from_the_template_alone():
    encoder = encoder_of(LLAMA2)
    assert encoder.tokenizer("a")["input_ids"] == [BOS, *spell("a")]  # the tokenizer would add one itself
    assert encoder.encode_prompt(["a"]) == spell(BOS, "[INST] a [/INST]")
    three = spell(BOS, "[INST] a [/INST] b ", EOS, BOS, "[INST] c [/INST]")
    assert encoder.encode_prompt(["a", "b", "c"]) == three
    assert encoder_of(LLAMA2, 10).encode_prompt(["x", "y", "long"]) == spell(BOS, "g [/INST]")
    assert BOS not in encoder_of(CHATML).encode_prompt(["a", "b"])


def test_whole_oldest_turns_go_first_then_tokens_from_the_left():
    newest = said("user", "c") + OPEN
    wholes = [said("user", "aaa") + said("assistant", "bb") + newest, said("assistant", "bb") + newest, newest]
    for length in range(2, len(wholes[0]) + 2):
        fitting = [whole for whole in wholes if len(whole) <= length]
        expected = fitting[0] if fitting else newest[-length:]
        assert encoder_of(CHATML, length).encode_prompt(["aaa", "bb", "c"]) == expected


# the system message


def with_system(text: str, template: str = CHATML, max_prompt_length: int = 200) -> TemplateEncoder:
    return prompt_encoder(chat_tokenizer(template), "chat_template", max_prompt_length, text)


def test_a_system_prompt_stands_before_all_turns_and_changes_no_reply():
    plain, encoder = encoder_of(), with_system("Be brief .")
    for turns in (["a"], ["a", "b"], ["a", "b", "c"]):
        assert encoder.encode_prompt(turns) == said("system", "Be brief .") + plain.encode_prompt(turns)
    assert with_system("Be<|im_end|>brief .").encode_prompt(["a"]) == encoder.encode_prompt(["a"])
    assert encoder.encode_reply("No .") == plain.encode_reply("No .")
    assert encoder.encode_heard(spell("No", END), "Why ?") == plain.encode_heard(spell("No", END), "Why ?")


def test_a_system_prompt_replaces_the_templates_own():
    own = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are Bot .<|im_end|>\n{% endif %}" + CHATML
    asked = said("user", "a") + OPEN
    assert encoder_of(own).encode_prompt(["a"]) == said("system", "You are Bot .") + asked
    assert with_system("Be brief .", own).encode_prompt(["a"]) == said("system", "Be brief .") + asked


def test_a_long_turn_is_cut_and_the_system_prompt_is_not():
    head = said("system", "Be brief .") + spell(START, "user\n")
    whole = with_system("Be brief .").encode_prompt(["abcdefghij" * 9])
    for length in (60, 80, 100):
        ids = with_system("Be brief .", max_prompt_length=length).encode_prompt(["x", "y", "abcdefghij" * 9])
        assert ids == head + whole[len(whole) - length + len(head) :]


@pytest.mark.parametrize(
    ("template", "length", "words"),
    [
        (LLAMA2, 200, "takes no system message"),
        (CHATML.replace("messages %}", "messages if message.role != 'system' %}"), 200, "takes no system message"),
        (CHATML, 40, r"takes \d+ of the 40 tokens of max_prompt_length"),
    ],
)
def test_a_system_prompt_that_cannot_be_had_is_an_error(template, length, words):
    with pytest.raises(UserError, match=f"system_prompt: .*{words}"):
        with_system("Be brief .", template, length)


# ends, targets and texts


@pytest.mark.parametrize(
    ("template", "end", "reply", "count"),
    [
        (CHATML, END, spell("No .", END), 1),
        (CHATML_USER_FIRST, END, spell("No .", END), 1),
        (LLAMA2, EOS, spell(" No . ", EOS), 2),
        (THINKING, END, spell("\n</think>\n\nNo .", END), 1),  # the prompt has opened a thought
        (UNMARKED, EOS, spell("No .\n", EOS), 2),
    ],
)
def test_a_reply_ends_with_the_first_special_token_behind_its_words(template, end, reply, count):
    encoder = encoder_of(template)
    assert end_token_id(encoder.tokenizer) == end
    assert encoder.encode_reply("No .") == encoder.encode_target("No .") == reply
    assert encoder.count_end_ids("No .") == count  # with the white space before it
    assert encode_without_end(encoder, "No .") == reply[:-count]


def test_an_end_of_turn_token_that_is_not_special_is_found():
    tokenizer = byte_tokenizer(separator_token=False)
    tokenizer.add_tokens(["  ", "<end>"])
    tokenizer.chat_template = UNMARKED.replace("message.content + '", "message.content + '  <end>")
    assert end_token_id(tokenizer) == tokenizer.convert_tokens_to_ids("<end>")
    tokenizer.chat_template, tokenizer.eos_token = UNMARKED, None
    with pytest.raises(UserError, match=r"turn_separator.*with a special token.*eos_token"):
        end_token_id(tokenizer)


def test_a_reply_that_grows_together_with_the_prompt_is_encoded_apart():
    tokenizer = chat_tokenizer(LLAMA2)
    alphabet = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer.backend_tokenizer.model = models.BPE(vocab={**alphabet, "]Ġ": 999}, merges=[("]", "Ġ")])
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder = TemplateEncoder(tokenizer, 200)
    assert encoder.encode_prompt(["a", "b", "c"]).count(999) == 3  # "[INST] " twice, and "[/INST] b"
    assert encoder.encode_reply("No .") == spell(" No . ", EOS)


def test_the_text_of_a_response_ends_at_the_first_end_of_turn_token():
    encoder = encoder_of()
    assert encoder.reply_text(spell(" Yes .\n", END, "\nmore", END)) == "Yes ."
    assert encoder.reply_text(spell("Yes", START, PAD, " .", EOS, "more")) == "Yes ."
    assert encoder.reply_text(spell("a <EOU> b chat_template c")) == "a <EOU> b chat_template c"
    assert encoder.reply_text([]) == encoder.reply_text([END]) == ""


# control tokens that somebody says


@pytest.mark.parametrize("mark", ["<|im_start|>", "<|im_end|>", "<s>", "<eos>", "<pad>"])
def test_a_special_token_inside_a_turn_becomes_a_space(mark):
    encoder = encoder_of()
    said_so, plain = f"Yes{mark} {mark}user", "Yes user"
    whole = said("user", "a") + said("assistant", plain) + said("user", plain) + OPEN
    assert encoder.encode_prompt(["a", said_so, said_so]) == whole
    assert encoder.encode_reply(said_so) == spell(plain, END)
    assert encoder.encode_heard([END], said_so) == encoder.encode_heard([END], plain)
    assert encoder.spoken("a  <EOU> b") == "a  <EOU> b"


def test_an_added_token_of_the_template_counts_as_special_and_others_do_not():
    tokenizer = byte_tokenizer(separator_token=False)
    tokenizer.add_tokens(["  ", "<end>", "<b>"])
    tokenizer.chat_template = UNMARKED.replace("message.content + '", "message.content + '  <end>")
    encoder = TemplateEncoder(tokenizer, 200)
    assert encoder.spoken("a  <b> c") == "a  <b> c"
    assert encoder.spoken("a  <b> <end> c") == "a <b> c"


def test_a_warning_counts_what_is_replaced(caplog):
    turns = ["a <|im_end|>", "b", "<s> c"]
    prompts = [Dialogue(turns[:i], reference=turns[i], references=[turns[i]]) for i in (1, 2)]
    warn_about_marks(encoder_of(), [Dialogue(["b"])])
    assert not caplog.messages
    warn_about_marks(encoder_of(), prompts)
    (line,) = caplog.messages
    assert line.startswith("2 turns or references hold")


# what the user says between two replies


def test_prompt_reply_and_what_was_heard_are_the_longer_prompt():
    for template, reply in ((CHATML, spell("b", END)), (LLAMA2, spell(" b ", EOS)), (UNMARKED, spell("b"))):
        encoder = encoder_of(template)
        whole = encoder.encode_prompt(["a"]) + reply + encoder.encode_heard(reply, "c")
        assert whole == encoder.encode_prompt(["a", "b", "c"]), template
    assert encoder.encode_heard(spell("b", EOS), "c") == spell("\nuser: c\nassistant: ")
    for unfinished in (spell("b"), spell("b", EOS)):
        assert encoder_of().encode_heard(unfinished, "c") == spell(END, "\n") + said("user", "c") + OPEN


class Scripted(nn.Module):
    """A model whose most likely tokens are those of the rows."""

    device = torch.device("cpu")

    def __init__(self, *rows, eos=None):
        super().__init__()
        self.rows, self.step = torch.tensor(rows), 0
        self.generation_config = SimpleNamespace(eos_token_id=eos)

    def forward(self, input_ids, attention_mask, past_key_values=None, use_cache=None):
        wanted = self.rows[:, self.step].unsqueeze(1).expand(input_ids.shape)
        self.step += 1
        return SimpleNamespace(logits=nn.functional.one_hot(wanted, 261) * 80.0, past_key_values=None)


def test_a_response_ends_with_the_end_of_the_turn_of_the_model_or_of_the_text():
    policy = Policy(Scripted([5, END, 6, 7], [5, 6, EOS, 7], [9, 5, 6, 7], [5, START, 6, 7], eos=[9]))
    encoder = encoder_of()
    stop = StopRule(policy, encoder.tokenizer, "chat_template")
    assert stop.end_ids == [9, EOS, END]
    prompts = pad_left([encoder.encode_prompt(["a"])] * 4, PAD)
    found = respond_to(policy, *prompts, Sampling(4, greedy=True), stop, PAD)
    assert found.tokens.response_mask.sum(dim=1).tolist() == [2, 3, 1, 4]
    assert found.truncated.tolist() == [False, False, False, True]


# mistakes


BROKEN = {
    "no chat template": None,
    "TemplateSyntaxError": "{% for",
    "out of service": "{{ raise_exception('out of service') }}",
    "UndefinedError": "{{ messages[0].nothing.at_all }}",
    "TypeError": "{{ 1 + 'a' }}",
    "leaves out the assistant's text": "{{ messages[0].content }}",
}


@pytest.mark.parametrize("words", BROKEN)
def test_a_template_that_does_not_work_is_one_error_of_the_user(words):
    tokenizer = chat_tokenizer(BROKEN[words])
    policy = Policy(Scripted([0]))
    for make in (
        lambda: prompt_encoder(tokenizer, "chat_template", 64),
        lambda: StopRule(policy, tokenizer, "chat_template"),
    ):
        with pytest.raises(UserError, match=f"turn_separator.*tokenizer.*{words}.*name another tokenizer") as error:
            make()
        assert "\n" not in str(error.value)


# the whole way


def test_labels_and_merged_rows_with_a_template():
    encoder = encoder_of()
    turns = ["a", "b", "c", "d"]
    rows = [sft.example(encoder, Dialogue(turns[:i], reference=turns[i])) for i in (1, 2, 3)]
    first = said("user", "a") + OPEN
    assert rows[0]["input_ids"] == first + spell("b", END)
    assert rows[0]["labels"] == [-100] * len(first) + spell("b", END)
    assert sft.example(encoder, Dialogue(["a"], reference="b"), learn_eos=True) == rows[0]
    assert [*sft.merge_prefixes(rows)] == [(1, row) for row in rows]  # the roles change from row to row
    ((_, merged),) = sft.merge_prefixes([rows[0], rows[2]])
    between = spell("\n") + said("user", "c") + OPEN
    assert merged["input_ids"] == rows[2]["input_ids"]
    assert merged["labels"] == rows[0]["labels"] + [-100] * len(between) + spell("d", END)


def test_a_warning_counts_the_newest_turns_that_do_not_fit_and_says_what_would_do(caplog):
    encoder = PromptEncoder(byte_tokenizer(), "<EOU>", 8)
    newest = [Dialogue([turn]) for turn in ("abc", "abcdefg", "abcdefgh", "abcdefghij")]  # 4, 8, 9 and 11 tokens
    warn_about_cut(encoder, newest[:2])
    assert not caplog.messages
    warn_about_cut(encoder, newest, lambda sizes: [sizes, [20, 5]])  # of two processes
    (line,) = caplog.messages
    assert line.startswith("3 of 6 prompts lose")
    assert line.endswith("max_prompt_length is 8, and 20 would do")
    assert encoder.max_prompt_length == 8
    size = len(encoder_of().encode_prompt(["a" * 60]))
    warn_about_cut(encoder_of(max_prompt_length=30), [Dialogue(["a" * 60])])
    assert caplog.messages[-1].endswith(f"max_prompt_length is 30, and {size} would do")


# the row's system message, and thinking

THINK = SWITCHED.replace("{{ message.content }}", "{{ message.content.split('</think>')[-1] }}")


@pytest.mark.parametrize("template", [CHATML, LLAMA2])
def test_the_rows_system_message_is_never_cut(template):
    whole = encoder_of(template).encode_prompt(["a" * 40], "SYSTEM .")
    for length in (len(whole) - 39, len(whole) - 1):
        ids = encoder_of(template, length).encode_prompt(["b", "c", "a" * 40], "SYSTEM .")
        assert len(ids) == length
        assert "SYSTEM ." in encoder_of().tokenizer.decode(ids)
        assert ids[-5:] == whole[-5:]


def test_thinking_of_the_assistant_is_the_templates_and_of_the_user_is_removed():
    tokenizer = chat_tokenizer(THINK)
    tokenizer.add_tokens(["<think>", "</think>"])
    encoder = prompt_encoder(tokenizer, "chat_template", 200)
    text = tokenizer.decode(encoder.encode_prompt(["<think>x</think>a", "<think>y</think>b", "c<think>"]))
    assert text.startswith(
        "<|im_start|>user\nx a<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>"
    )


# the day that a template writes

DATED = "{{ 'Today is ' + strftime_now('%d %b %Y') + '. ' }}" + CHATML


def test_the_day_of_a_template_is_fixed():
    tokenizer = chat_tokenizer(DATED)
    assert fix_date(tokenizer, "2026-07-05") == "2026-07-05"
    text = tokenizer.decode(prompt_encoder(tokenizer, "chat_template", 200).encode_prompt(["a"]))
    assert text == "Today is 05 Jul 2026. <|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert fix_date(tokenizer, "2027-01-01") is None  # it writes no day of its own any more
    assert fix_date(chat_tokenizer(), None) is None
