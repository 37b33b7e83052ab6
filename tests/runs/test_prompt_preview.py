"""What of a prompt's turns the model reads; ids of the byte tokenizer are letters, so tokens are counted by hand.

The first prompts of a run, as its model reads them."""

import json

import pytest

from rlhf_dialog.config.schema import Config
from rlhf_dialog.data.chat_template import prompt_encoder
from rlhf_dialog.runs.prompt_preview import AsRead, as_read, shown_prompts
from tests.parts import tiny
from tests.parts.ppo_runs import settings

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


@pytest.fixture
def config(world, tmp_path):
    """A configuration with prompts of these turns and references, which are read in their order."""

    def made(prompts, **keys):
        lines = [json.dumps({"prompt": turns, **({"reference": ref} if ref else {})}) for turns, ref in prompts]
        (tmp_path / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
        place = {"env": {"args": {"data_path": str(tmp_path / "train.jsonl")}}}
        return Config(**(settings(world) | place | keys))

    return made


def test_a_prompt_with_what_was_cut_off_and_its_reference(config):
    one = config([(["Hi .", "No ?", "Yes ."], "Fine .")], max_prompt_length=12)
    first, *lines = shown_prompts(one, 3)
    assert first == (
        "1 training prompt; the first 1 that the run takes, each at most 12 tokens (max_prompt_length) of at most 5 turns "
        "(context_size)"
    )
    assert lines == [
        "",
        "prompt 1: 12 tokens, 1 turn dropped",
        "  | No ?<EOU> Yes .<EOU>",
        "  roles: assistant, user",
        "  dropped turn:",
        "  | Hi .",
        "  reference:",
        "  | Fine .",
        "  learned: the assistant's reply and its end, <EOU>",
    ]


def test_a_turn_that_is_cut_and_no_reference(config):
    lines = [*shown_prompts(config([(["abcdefgh"], None)], max_prompt_length=6), 1)][2:]
    assert lines == [
        "prompt 1: 6 tokens, 3 tokens of the newest turn cut off",
        "  | defgh<EOU>",
        "  roles: user",
        "  cut off:",
        "  | abc",
        "  no reference",
        "  learned: the assistant's reply and its end, <EOU>",
    ]


def test_text_of_others_does_not_steer_the_terminal(config):
    text = "\n".join(shown_prompts(config([(["Hi \x1b[2J\nprompt 2: 1 token"], "Red \x1b[31m")]), 1))
    assert "\x1b" not in text
    assert "\\x1b[2J" in text
    assert "\\x1b[31m" in text
    assert "\nprompt 2" not in text


def test_the_order_is_that_of_the_run(config, world):
    many = config([([f"Turn {i} ."], "Yes .") for i in range(20)], max_prompt_length=40)
    shown = [line for line in shown_prompts(many, 8) if "Turn" in line]
    tiny_run = first_of_a_run(many)
    assert shown == [f"  | {turn}<EOU>" for turn in tiny_run]


def first_of_a_run(config):
    """The turns of the prompts of a run's first iteration."""
    from rlhf_dialog.runs.agent import PPOAgent

    trainer = PPOAgent(config).build()
    return [environment.prompt.prompt_turns[0] for environment in trainer.next_episodes().environments]


def test_an_environment_opens_its_dialogues(world):
    keys = settings(world) | {"env": {"args": {"data_path": ""}}, "environment": {"id": "restaurant", "args": {}}}
    lines = [*shown_prompts(Config(**keys | {"max_prompt_length": 200}), 2)]
    assert lines[0].startswith("environment restaurant; the first 2 that the run takes")
    assert [line.split(":")[0] for line in lines if line.startswith("prompt ")] == ["prompt 1", "prompt 2"]


def test_the_system_message_and_whose_turns_they_are(config, tmp_path):
    one = config(
        [],
        turn_separator="chat_template",
        env={"args": {"data_path": str(tmp_path / "a.jsonl"), "tokenizer_path": str(tmp_path)}},
    )
    tiny.chat_tokenizer().save_pretrained(tmp_path)
    roles = ["system", "assistant", "user", "user"]
    row = {"messages": [{"role": role, "content": text} for role, text in zip(roles, "Sabc", strict=True)]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    assert [*shown_prompts(one, 1)][2:] == [
        "prompt 1: 48 tokens, nothing cut off",
        *("  | <|im_start|>system", "  | S<|im_end|>", "  | <|im_start|>assistant", "  | a<|im_end|>"),
        *("  | <|im_start|>user", "  | b", "  | ", "  | c<|im_end|>", "  | <|im_start|>assistant", "  | "),
        "  roles: assistant, user",
        *("  system message (of the row):", "  | S"),
        "  no reference",
        "  learned: the assistant's reply and its end, <|im_end|>",
    ]
