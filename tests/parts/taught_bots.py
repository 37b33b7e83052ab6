"""A tiny bot that people talked to."""

import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.store import Rating, is_heldout
from tests.parts.agents import save

SETTINGS: dict[str, Any] = {"device": "cpu", "learning_rate": 0.003, "warmup_steps": 3, "epochs": 1.0, "batch_size": 8}
SETTINGS |= {
    "checkpoint_steps": 2,
    "beta": 0.5,
    "liked_weight": 0,
    "sft_share": 0,
    "min_heldout": 6,
    "guard_prompts": 2,
}
SETTINGS |= {"max_relative_kl": 10_000, "max_worsening": 10**9, "min_distinct_2": 0}
GOOD, BAD = ("Why ?", "Who ?", "How so ?"), ("No no no .", "I see the sea .", "It is so .")


def new_bot(folder: Path, **settings: Any) -> Bot:
    """A bot that begins with a tiny GPT-2, with SETTINGS and these."""
    sizes = {"n_embd": 16, "n_layer": 1, "n_positions": 128}
    bot = Bot.create(folder / "bot", str(save(folder / "agent", {"max_new_tokens": 4}, **sizes)))
    set_keys(bot, **settings)
    return bot


def set_keys(bot: Bot, **settings: Any) -> None:
    """Write SETTINGS and these as the bot's config.yaml."""
    bot.settings_path.write_text(yaml.safe_dump(SETTINGS | settings), encoding="utf-8")


def dialogue_id(draw: random.Random, heldout: bool) -> str:
    """A random id of a dialogue that is held out, or is not."""
    while is_heldout(found := f"{draw.getrandbits(128):032x}") != heldout:
        pass
    return found


def talk_to(bot: Bot, count: int, seed: int = 0, wrong: float = 0.0) -> None:
    """`count` dialogues whose one answer somebody judges: questions are liked, and some of the others are edited into one.

    Exactly a fifth is held out, the same ones in every run.
    """
    draw, store = random.Random(seed), bot.store()
    for number in range(count):
        person = f"person {draw.randrange(4)}"
        with patch("secrets.token_hex", lambda _, n=number: dialogue_id(draw, n % 5 == n // 5 % 5)):
            dialogue = store.begin(person, "terminal")
        store.add_turn(dialogue, 0, "user", f"Hello {seed} {number} .")
        is_good = draw.random() < 0.5
        turn = store.add_turn(dialogue, 1, "agent", draw.choice(GOOD if is_good else BAD))
        if number % 5 == 4 and not is_good:
            store.add_feedback(dialogue, person, Rating("edit", turn=turn, text=draw.choice(GOOD)))
        else:
            store.add_feedback(dialogue, person, Rating("thumb", turn, 1 if is_good != (draw.random() < wrong) else -1))
    store.close()
