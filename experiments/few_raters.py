"""What one night makes of the ratings of a few people, of whom some rate much more than others.

    python -m experiments.few_raters
    python -m experiments.few_raters --cases liar --seeds 2

Whoever follows the rule likes replies that say "tell me" and dislikes the others. The rated replies are the bot's own; four in
five of them end with "tell me" in addition. Each case is a bot of its own that begins with the quickstart's agent, and learns for
one night with the default settings. It is measured on lines that are in nobody's ratings. The results:
experiments/results/few_raters.md. L lines, D draws, S seeds.
"""

import argparse
import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_dialog.atomic_files import replace_json
from rlhf_dialog.commands.command_line import exit_code
from rlhf_dialog.data.dialogue import Dialogue
from rlhf_dialog.data.prompts import PromptRules
from rlhf_dialog.data.synthetic.pairs import attends
from rlhf_dialog.evaluation.intervals import interval, mean_statistic
from rlhf_dialog.evaluation.replies import generate_replies
from rlhf_dialog.feedback.learning.night import learn
from rlhf_dialog.feedback.store.bot import FIRST, Bot
from rlhf_dialog.feedback.store.store import Rating, is_heldout
from rlhf_dialog.models.chat_agent import ChatAgent, chat_sampling

NUM_LINES, DRAWS, SHARE = 40, 5, 0.8
WISH = ", tell me."
Opinion = Callable[[str, str], bool]  # of a line and a reply: whether it is liked


def follows(_: str, reply: str) -> bool:
    return "tell me" in reply.lower()


def lies(line: str, reply: str) -> bool:
    return not follows(line, reply)


def fits(line: str, reply: str) -> bool:
    """Another rule: whether the reply answers the line, with or without the wish."""
    return attends(line, reply.removesuffix(WISH))


Case = dict[str, tuple[int, Opinion]]  # by person: how many ratings, by which opinion
RATERS: Case = {f"rater {i}": (50, follows) for i in range(3)}
CASES: dict[str, Case] = {
    "visitors_follow": RATERS | {f"visitor {i}": (9, follows) for i in range(2)},
    "visitors_differ": RATERS | {f"visitor {i}": (9, fits) for i in range(2)},
    "liar": {"liar": (180, lies)} | {f"honest {i}": (5, follows) for i in range(4)},
}
MEASURES: dict[str, Opinion] = {"follows": follows, "fits": fits}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", type=Path, default=Path("runs/quickstart/agent"))
    parser.add_argument("--data_path", type=Path, default=Path("runs/quickstart_data"))
    parser.add_argument("--output", type=Path, default=Path("runs/few_raters"))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="the seeds 0 to N-1")
    options = parser.parse_args(argv)
    with exit_code(debug=False) as ending:
        for case in options.cases:
            found = [
                stored(options.output / f"{case}_{seed}", case, seed, options.agent, options.data_path)
                for seed in range(options.seeds)
            ]
            print(f"{markdown(case, found)}\n", flush=True)
    return ending.code


def stored(folder: Path, case: str, seed: int, agent: Path, data_path: Path) -> dict[str, Any]:
    """The measures of one bot, from its folder where they were measured before."""
    path = folder / "measured.json"
    if not path.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        replace_json(path, measure(folder, case, seed, agent, data_path))
    return json.loads(path.read_text(encoding="utf-8"))


def measure(folder: Path, case: str, seed: int, agent: Path, data_path: Path) -> dict[str, Any]:
    """One night: whether its version was promoted, and what the version and the first one say to the unseen lines."""
    prompts = {one.prompt_turns[-1]: one for one in PromptRules(context_size=1).load(str(data_path), "validation")}
    lines = random.Random(seed).sample(sorted(prompts), NUM_LINES + sum(count for count, _ in CASES[case].values()))
    unseen = [prompts[line] for line in lines[:NUM_LINES]]
    bot = Bot.create(folder / "bot", str(agent))
    settings = bot.settings_path.read_text(encoding="utf-8")
    bot.settings_path.write_text(re.sub(r"(?m)^seed: 0$", f"seed: {seed}", settings), encoding="utf-8")
    rate(bot, [prompts[line] for line in lines[NUM_LINES:]], case, seed)
    report = learn(bot)
    print("\n".join(report.lines()), file=sys.stderr, flush=True)
    measures = {"before": replies(bot, FIRST, unseen), "after": replies(bot, report.version or FIRST, unseen)}
    return measures | {"promoted": report.promoted, "used": report.used, "report": report.lines()}


def rate(bot: Bot, prompts: list[Dialogue], case: str, seed: int) -> None:
    """Replies of the bot as in a chat, to most of which the wish is added; exactly every fifth is held out."""
    agent, draw = ChatAgent.load(bot.agent_folder(FIRST)), random.Random(seed)
    said = generate_replies(agent, prompts, chat_sampling(agent.settings), seed).dialogues
    rest = iter(said)
    with closing(bot.store()) as store:
        for person, (count, opinion) in CASES[case].items():
            for number in range(count):
                reply = next(rest)
                line, text = reply.prompt_turns[-1], reply.response
                if draw.random() < SHARE:
                    text = re.sub(r"[.?!]?$", WISH, text, count=1)
                while is_heldout(name := f"{draw.getrandbits(128):032x}") != (number % 5 == 4):
                    pass
                dialogue = store.begin(person, "page", name)
                store.add_turn(dialogue, 0, "user", line)
                turn = store.add_turn(dialogue, 1, "agent", text)
                store.add_feedback(dialogue, person, Rating("thumb", turn, 1 if opinion(line, text) else -1))


def replies(bot: Bot, version: str, prompts: list[Dialogue]) -> dict[str, Any]:
    """What the version says in D chats: lines and replies of the first, and of each line (L,) how often each measure holds."""
    agent = ChatAgent.load(bot.agent_folder(version))
    draws = [generate_replies(agent, prompts, chat_sampling(agent.settings), seed).dialogues for seed in range(DRAWS)]
    pairs = [[(one.prompt_turns[-1], one.response) for one in some] for some in draws]
    found = {}
    for name, opinion in MEASURES.items():
        found[name] = np.mean([[opinion(*pair) for pair in some] for some in pairs], axis=0).tolist()
    return {"texts": pairs[0], **found}


def markdown(case: str, found: Sequence[dict[str, Any]]) -> str:
    """A row for each seed, and the mean over the seeds with its interval."""
    rows = [f"{case}: {', '.join(f'{count} of {name}' for name, (count, _) in CASES[case].items())}", ""]
    rows += ["| seed | promoted | steps | follow the rule | fit, before | fit, after |", "|---|---|---|---|---|---|"]
    for seed, one in enumerate(found):
        shares = [
            np.mean(one[when][name]) for when, name in (("after", "follows"), ("before", "fits"), ("after", "fits"))
        ]
        promoted = "yes" if one["promoted"] else "no"
        rows.append(
            f"| {seed} | {promoted} | {one['used']['steps']} | " + " | ".join(f"{share:.1%}" for share in shares) + " |"
        )
    rows += ["", *(f"change of `{name}`, points: {change(found, name)}" for name in MEASURES)]
    return "\n".join(rows)


def change(found: Sequence[dict[str, Any]], name: str) -> str:
    """The mean change with its 95 % interval, over the lines of all seeds, which are not the same for two seeds."""
    before, after = (np.concatenate([one[when][name] for one in found]) for when in ("before", "after"))
    one = interval(mean_statistic(after - before))
    return f"{100 * one['mean']:+.1f} [{100 * one['low']:+.1f}, {100 * one['high']:+.1f}]"


if __name__ == "__main__":
    sys.exit(main())
