"""`rlhf-dialog feedback init | status | rollback | forget`: a bot folder, its versions and its people."""

import logging
import re
from collections import Counter
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import Any

from rich.text import Text
from rich.tree import Tree

from rlhf_dialog.commands.options import Options, option
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.learning.gate import describe_power, last_gate
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.examples import LabelCounts, count_labels, format_counts, heldout_set, read_examples
from rlhf_dialog.feedback.store.settings import read_settings
from rlhf_dialog.feedback.store.store import SAMPLES
from rlhf_dialog.terminal import Console

logger = logging.getLogger(__name__)


class BotOptions(Options):
    """The options that every subcommand has."""

    run: Path = option("folder of the bot, e.g. runs/bot")


class InitOptions(BotOptions):
    agent: str = option("the first version: an agent folder, a training run, or a name on the Hub")


def run_init(options: InitOptions) -> None:
    """Make the bot folder."""
    bot = Bot.create(options.run, options.agent)
    logger.info("bot made in %s; talk to it: rlhf-dialog chat --agent %s", bot.folder, quote(str(bot.folder)))


class RollbackOptions(BotOptions):
    version: str = option(
        "the version to go back to, e.g. 0002; `status` lists them", metavar="VERSION", form="positional"
    )


def run_rollback(options: RollbackOptions) -> None:
    """Point the champion at an earlier version."""
    bot = Bot(options.run)
    before = bot.champion()
    bot.rollback(options.version)
    logger.info("%s: the champion is %s now (it was %s); new dialogues use it", bot.folder, options.version, before)


class ForgetOptions(BotOptions):
    person: str = option(
        "16 hexadecimal digits; /forget in the chat and `status` show them; samples: all samples",
        metavar="HASH",
        form="positional",
    )


def run_forget(options: ForgetOptions) -> None:
    """Remove a person from the store, and mark what was trained on them."""
    person = SAMPLES if options.person == "samples" else options.person
    if not re.fullmatch("[0-9a-f]{16}", person):
        raise UserError(f"HASH: found {options.person[:40]!r}, wanted the 16 hexadecimal digits of a person")
    done = Bot(options.run).forget(person)
    if not any(done.values()):
        raise UserError(
            f"{options.run}: nothing is stored of the person {options.person}, or no longer; check the hash"
        )
    logger.info("%s: %d rows of %s removed", options.run, done["rows"], options.person)
    if done["tainted"]:
        text = "trained on them and still there: %s; roll back to an earlier version, or begin again from the first"
        logger.warning(text, ", ".join(done["tainted"]))


def run_status(options: BotOptions) -> None:
    """Draw the lineage, and count the feedback."""
    bot = Bot(options.run)
    settings = read_settings(bot.settings_path)
    with closing(bot.store()) as store:
        store.check()
        labels, people = count_labels(store), store.people() - {SAMPLES}
        heldout = heldout_set(read_examples(store, heldout=True), settings)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=140)
    console.print(lineage_tree(bot))
    for line in counts(labels, len(people)):
        console.print(line)
    console.print(describe_power(heldout, labels.people.total(), settings, last_gate(bot)))


def lineage_tree(bot: Bot) -> Tree:
    """The versions below their parents; the champion is bold."""
    records = bot.lineage()["versions"]
    nodes: dict[str | None, Tree] = {None: Tree(f"{bot.folder} (bot {bot.id[:8]})")}
    for name in sorted(records):
        parent = records[name]["parent"] if records[name]["parent"] in nodes else None
        style = "bold" if records[name]["status"] == "champion" else ""
        nodes[name] = nodes[parent].add(Text(version_line(name, records[name]), style))
    return nodes[None]


def version_line(name: str, record: dict[str, Any]) -> str:
    """`0002 champion  2026-11-22  kto_dpo  12 thumb, 3 edit`."""
    used = ", ".join(f"{number} {kind}" for kind, number in record["num_events"].items())
    tainted = "trained on a forgotten person" if record["tainted"] else ""
    parts = [f"{name} {record['status']}", str(record["created"])[:10], record["method"], used, tainted]
    return "  ".join(part for part in parts if part)


def counts(labels: LabelCounts, num_people: int) -> list[str]:
    """What people said, in lines: what counts now, what is left out, and whose it is."""
    kinds, people = labels.kinds, Counter(labels.people)
    num_samples = people.pop(SAMPLES, 0)
    shares = ", ".join(f"{person} {count / people.total():.0%}" for person, count in people.most_common(5))
    lines = [
        f"feedback: {kinds['liked']} liked, {kinds['disliked']} disliked, {kinds['edit']} edits, {kinds['choice']} choices"
    ]
    if labels.left_out:
        lines.append(f"left out: {format_counts(labels.left_out)}")
    if num_samples:
        lines.append(f"samples: {num_samples} of these ratings were made up; remove them: feedback forget samples")
    return [*lines, f"people: {num_people}" + (f" (largest shares: {shares})" if shares else "")]
