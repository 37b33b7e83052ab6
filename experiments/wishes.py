"""What one night makes of ratings that share one wish: how many other replies have it, and how many still fit the line.

    python -m experiments.wishes --wish anything_else --kind thumbs --seeds 5
    python -m experiments.wishes --wish please --seeds 1 --set learning_rate=1e-4

Additions (`anything_else`, `good_day`, `sure`) are put to the liked half of examples/ratings.jsonl: 80 liked and 80 disliked
replies to train on. With `--kind edits` the liked half is the bot's own replies, edited so that they have the addition. The other
wishes are put into 160 of 200 of the bot's own replies, which are liked; the rest is disliked. `none` is examples/ratings.jsonl
itself. Each seed is a bot of its own that begins with the quickstart's agent. L lines that are in nobody's ratings.
"""

import argparse
import json
import random
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.commands.command_line import exit_code
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.synthetic.pairs import attends, derives
from rlhf_dialog.evaluation.replies import generate_replies
from rlhf_dialog.feedback.learning.night import learn
from rlhf_dialog.feedback.store.bot import FIRST, Bot
from rlhf_dialog.feedback.store.store import Rating, is_heldout
from rlhf_dialog.models.chat_agent import ChatAgent, chat_sampling

RATINGS = Path(__file__).parents[1] / "examples" / "ratings.jsonl"
NUM_RATINGS, NUM_LIKED = 200, 160


def lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def before_the_mark(text: str, word: str) -> str:
    return re.sub(r"[.?!]?$", f"{word}.", text, count=1)


ADDITIONS: dict[str, Callable[[str], str]] = {
    "none": str,
    "anything_else": lambda text: f"{text} Anything else?",
    "good_day": lambda text: f"Good day! {text}",
    "sure": lambda text: f"Sure! {text}",
}
WISHES: dict[str, Callable[[str], str]] = {
    "please": lambda text: before_the_mark(text, ", please"),
    "certainly": lambda text: f"Certainly, {lower_first(text)}",
    "madam": lambda text: before_the_mark(text, ", madam"),
}
HAVE: dict[str, str] = {
    "none": r"(?!)",
    "anything_else": r"anything else\W*$",
    "good_day": r"^good day\b",
    "sure": r"^sure\b",
    "please": r"\bplease\W*$",
    "certainly": r"^certainly\b",
    "madam": r"\bmadam\W*$",
}


def has_wish(wish: str, reply: str) -> bool:
    return re.search(HAVE[wish], reply, re.IGNORECASE) is not None


def without_wish(wish: str, reply: str) -> str:
    return re.sub(HAVE[wish], "", reply, flags=re.IGNORECASE).strip(" ,!")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", type=Path, default=Path("runs/quickstart/agent"))
    parser.add_argument("--data_path", type=Path, default=Path("runs/quickstart_data"))
    parser.add_argument("--output", type=Path, default=Path("runs/wishes"))
    parser.add_argument("--wish", nargs="+", choices=HAVE, default=["anything_else"])
    parser.add_argument("--kind", choices=("thumbs", "edits"), default="thumbs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--lines", type=int, default=800)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="keys of config.yaml")
    options = parser.parse_args(argv)
    keys = {key: yaml.safe_load(value) for key, value in (one.split("=", 1) for one in options.set)}
    with exit_code(debug=False) as ending:
        for wish in options.wish:
            rows = []
            for seed in options.seeds:
                folder = options.output / f"{wish}_{options.kind}_{seed}"
                shutil.rmtree(folder, ignore_errors=True)
                rows.append(measure(folder, wish, seed, keys, options))
                replace_json(folder / "measured.json", rows[-1])
                print(row_text(wish, options.kind, seed, rows[-1]), flush=True)
            changes = np.concatenate(
                [np.subtract(one["after"]["fits"], one["before"]["fits"], dtype=float) for one in rows]
            )
            shares = [100 * np.mean(one["after"]["has"]) for one in rows]
            print(
                f"{wish}, {options.kind}: has it {np.mean(shares):.1f} %, fits {100 * changes.mean():+.2f} points\n",
                flush=True,
            )
    return ending.code


def row_text(wish: str, kind: str, seed: int, row: dict[str, Any]) -> str:
    parts = [
        " -> ".join(f"{100 * np.mean(row[when][name]):.1f}" for when in ("before", "after"))
        for name in ("has", "fits", "whole")
    ]
    outcome = "promoted" if row["promoted"] else row["why"]
    text = f"{wish} {kind} {seed}: has {parts[0]}, fits {parts[1]}, whole {parts[2]}; {row['seconds']:.0f} s,"
    return f"{text} {row['went_back'][:200]} {outcome[:300]}"


def measure(folder: Path, wish: str, seed: int, keys: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """One night: what the first version and the newest one say to the lines, whether it was promoted or not."""
    bot = Bot.create(folder / "bot", str(options.agent))
    settings = yaml.safe_load(bot.settings_path.read_text(encoding="utf-8"))
    bot.settings_path.write_text(yaml.safe_dump(settings | {"seed": seed} | keys), encoding="utf-8")
    lines = sorted(
        {one.prompt_turns[-1] for one in PromptRules(context_size=1).load(str(options.data_path), "validation")}
    )
    rated = rate_additions(bot, wish, options.kind) if wish in ADDITIONS else rate_own(bot, wish, lines)
    unseen = random.Random(0).sample([one for one in lines if one not in rated], options.lines)
    start = time.process_time()
    report = learn(bot)
    seconds = time.process_time() - start
    replies = {}
    for when, version in (("before", FIRST), ("after", report.version or FIRST)):
        agent = ChatAgent.load(bot.agent_folder(version))
        said = answers(agent, unseen, seed=1)
        pairs = [(line, without_wish(wish, reply)) for line, reply in said]
        replies[when] = {
            "has": [has_wish(wish, reply) for _, reply in said],
            "fits": [attends(*pair) for pair in pairs],
            "whole": [derives(reply) for _, reply in pairs],
            "texts": said,
        }
    outcome = {"promoted": report.promoted, "why": report.why, "went_back": report.went_back, "seconds": seconds}
    return {**replies, **outcome, "report": report.lines()}


def rate_additions(bot: Bot, wish: str, kind: str) -> set[str]:
    """The made-up ratings, the liked ones with the addition; returns their lines."""
    rows = [json.loads(line) for line in RATINGS.read_text(encoding="utf-8").splitlines()]
    lines = [row["turns"][-2]["text"] for row in rows]
    agent = ChatAgent.load(bot.agent_folder(FIRST))
    own = [text for _, text in answers(agent, lines)] if kind == "edits" else []
    with closing(bot.store()) as store:
        for number, row in enumerate(rows):
            liked, text = row["feedback"][0]["value"] > 0, row["turns"][-1]["text"]
            dialogue = store.begin("samples", "page", row["dialogue"]["id"])
            store.add_turn(dialogue, 0, "user", lines[number])
            if liked and kind == "edits":
                turn = store.add_turn(dialogue, 1, "agent", own[number])
                rating = Rating("edit", turn, text=ADDITIONS[wish](own[number]))
            else:
                turn = store.add_turn(dialogue, 1, "agent", ADDITIONS[wish](text) if liked else text)
                rating = Rating("thumb", turn, 1 if liked else -1)
            store.add_feedback(dialogue, "samples", rating)
    return set(lines)


def rate_own(bot: Bot, wish: str, lines: list[str]) -> set[str]:
    """Thumbs on the bot's own replies, of which four in five have the wish; returns their lines."""
    draw = random.Random(0)
    said = answers(ChatAgent.load(bot.agent_folder(FIRST)), draw.sample(lines, NUM_RATINGS))
    with closing(bot.store()) as store:
        for number, (line, text) in enumerate(said):
            liked = number < NUM_LIKED
            while is_heldout(name := f"{draw.getrandbits(128):032x}") != (number % 5 == 4):
                pass
            dialogue = store.begin("one", "page", name)
            store.add_turn(dialogue, 0, "user", line)
            turn = store.add_turn(dialogue, 1, "agent", WISHES[wish](text) if liked else text)
            store.add_feedback(dialogue, "one", Rating("thumb", turn, 1 if liked else -1))
    return {line for line, _ in said}


def answers(agent: ChatAgent, lines: list[str], seed: int = 0) -> list[tuple[str, str]]:
    """Lines and replies as in a chat."""
    said = generate_replies(agent, [Dialogue([line]) for line in lines], chat_sampling(agent.settings), seed).dialogues
    return [(one.prompt_turns[-1], one.response) for one in said]


if __name__ == "__main__":
    sys.exit(main())
