"""Dialogues in words of the handcrafted policy, as prompts with replies."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from many_slots import write_many_slots

from rlhf_dialog.data.chat_template import prompt_encoder, warn_about_cut
from rlhf_dialog.data.prompts import load_prompts
from rlhf_dialog.task_oriented.commands.restaurant_rows import replies
from rlhf_dialog.task_oriented.commands.write_restaurant import WriteRestaurantOptions, main
from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.world.goal_oriented import LINE_LENGTH
from rlhf_dialog.task_oriented.world.restaurant import restaurant
from rlhf_dialog.training.supervised.sft import SFTConfig, read_prompts, starting_point


def test_each_reply_is_a_row_and_a_seed_gives_the_same_dialogues(tmp_path, capsys):
    for name in ("a", "b"):
        assert main(["--output", str(tmp_path / name), "--dialogues", "10", "--lessons", "0"]) == 0
    assert "a/train.jsonl: " in capsys.readouterr().out
    for split, count in (("train", 10), ("validation", 1)):
        text = (tmp_path / "a" / f"{split}.jsonl").read_text()
        assert text == (tmp_path / "b" / f"{split}.jsonl").read_text()
        rows = [json.loads(line) for line in text.splitlines()]
        assert len({row["dialogue"] for row in rows}) == count
        for before, row in pairwise(rows):
            if row["dialogue"] == before["dialogue"]:
                assert row["prompt"][:-1] == [*before["prompt"], before["reference"]]
            assert "\n[db] " in row["prompt"][-1]
    assert len(load_prompts(str(tmp_path / "a"), "train", 60)) > 20


def test_lessons_are_replies_that_give_values_of_the_line(tmp_path):
    assert main(["--output", str(tmp_path / "a"), "--dialogues", "2", "--lessons", "3"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "a" / "train.jsonl").read_text().splitlines()]
    taught = [row for row in rows if row["dialogue"] >= 2]
    assert len({row["dialogue"] for row in taught}) == 3
    assert all(row["reference"].startswith(("How about the", "I am sorry")) for row in taught)
    assert {row["dialogue"] for row in rows} - {row["dialogue"] for row in taught} == {0, 1}


def test_the_line_is_as_long_as_in_the_environment():
    assert WriteRestaurantOptions.line_length == LINE_LENGTH


@pytest.mark.thorough
def test_in_a_domain_with_many_slots_no_prompt_loses_a_word_of_the_guest(tmp_path, caplog):
    """With the shipped configurations: 120 tokens of the tokenizer that SFT makes of these dialogues."""
    domain = write_many_slots(tmp_path)
    options = ["--domain", str(domain), "--output", str(tmp_path / "a"), "--dialogues", "12", "--lessons", "30"]
    assert main(options) == 0
    given = yaml.safe_load(Path("configs/sft_restaurant.yaml").read_text())
    config = SFTConfig(**given | {"data_path": str(tmp_path / "a"), "output": "none"})
    training = read_prompts(config, "train", None, print)
    _, tokenizer = starting_point(config, training)
    encoder = prompt_encoder(tokenizer, config.turn_separator, config.max_prompt_length)
    ppo = yaml.safe_load(Path("configs/restaurant_dialogue.yaml").read_text())
    assert (
        (ppo["max_prompt_length"], ppo["context_size"]) == (config.max_prompt_length, config.context_size) == (120, 1)
    )
    met = [row["prompt"][-1] for row in replies(restaurant(str(domain)), range(2**20, 2**20 + 8), True)]
    warn_about_cut(encoder, [*met, *(prompt.prompt_turns[-1] for prompt in training)])
    assert "lose the beginning" not in caplog.text
    entity = load_domain(domain).entities[0]
    full = "[db] 3 match: " + ", ".join(f"{slot}={value}" for slot, value in entity.items())
    assert len(full) >= 600
    warn_about_cut(encoder, [f"Hello .\n{full}", *met])  # as it was, the guest's words were lost
    assert f"1 of {len(met) + 1} prompts lose the beginning of their newest turn" in caplog.text
