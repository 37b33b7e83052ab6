"""The first prompts of a run, as its model reads them; ids of the byte tokenizer are letters, so tokens are counted by hand."""

import json
import logging

import pytest

from rlhf_dialog.config.schema import Config
from rlhf_dialog.runs.agent import PPOAgent
from rlhf_dialog.runs.data_source import training_prompts
from rlhf_dialog.runs.prompt_preview import shown_prompts
from tests.parts import tiny
from tests.parts.ppo_runs import settings


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
    # 4 letters and <EOU>, a space, 4 letters and <EOU>, a space, 5 letters and <EOU>; the token takes the space before it
    one = config([(["Hi .", "No ?", "Yes ."], "Fine .")], max_prompt_length=12)
    assert [*shown_prompts(one, 3)] == [
        "prompt 1: 12 tokens, 6 cut off",
        "  | No ?<EOU> Yes .<EOU>",
        "  reference:",
        "  | Fine .",
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
    environments = PPOAgent(many).build().next_episodes().environments
    assert shown == [f"  | {one.prompt.prompt_turns[0]}<EOU>" for one in environments]


def test_a_chat_template_with_its_system_message(config, tmp_path):
    one = config(
        [],
        turn_separator="chat_template",
        env={"args": {"data_path": str(tmp_path / "a.jsonl"), "tokenizer_path": str(tmp_path)}},
    )
    tiny.chat_tokenizer().save_pretrained(tmp_path)
    roles = ["system", "assistant", "user", "user"]
    row = {"messages": [{"role": role, "content": text} for role, text in zip(roles, "Sabc", strict=True)]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    assert [*shown_prompts(one, 1)] == [
        "prompt 1: 48 tokens, 0 cut off",
        *("  | <|im_start|>system", "  | S<|im_end|>", "  | <|im_start|>assistant", "  | a<|im_end|>"),
        *("  | <|im_start|>user", "  | b", "  | ", "  | c<|im_end|>", "  | <|im_start|>assistant", "  | "),
    ]


def test_all_columns_that_are_in_no_prompt_are_named(config, tmp_path, caplog):
    one = config([], turn_separator="<EOU>")
    rows = [{"prompt": "Hi ?", "response": "No ."} | {f"column_{k}": i + k for k in range(30)} for i in range(3)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="rlhf_dialog"):
        training_prompts(one)
        assert "and 18 more" in caplog.text
        caplog.clear()
        list(shown_prompts(one, 1))
    assert all(f"'column_{k}' (3 rows)" in caplog.text for k in range(30))
