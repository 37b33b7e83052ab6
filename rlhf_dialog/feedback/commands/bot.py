"""`rlhf-dialog feedback init | learn | status | rollback | forget`: a bot folder, its versions and its people."""

import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote

from rich.progress import Progress
from rich.text import Text
from rich.tree import Tree

from rlhf_dialog.commands.options import Options, option
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.feedback.learning.gate import describe_power, last_gate
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.examples import Examples, format_counts, heldout_set, read_examples
from rlhf_dialog.feedback.store.people import People
from rlhf_dialog.feedback.store.settings import read_settings
from rlhf_dialog.feedback.store.store import SAMPLES
from rlhf_dialog.terminal import Console, TimeLeft, visible

logger = logging.getLogger(__name__)
INTERVAL = 10.0  # seconds between the lines of a night that no terminal shows


class BotOptions(Options):
    """The options that every subcommand has."""

    run: Path = option("folder of the bot, e.g. runs/bot")


class InitOptions(BotOptions):
    agent: str = option("the first version: an agent folder, a training run, or a name on the Hub")
    system_prompt: str | None = option(
        "system message of all dialogues with the bot, for answers and for learning (default: that of the agent)",
        metavar="TEXT",
    )
    trust_config: bool = option("follow an agent folder of a run that is a link out of the run")


def run_init(options: InitOptions) -> None:
    bot = Bot.create(options.run, options.agent, options.system_prompt, options.trust_config)
    logger.info("bot made in %s; talk to it: rlhf-dialog chat --agent %s", bot.folder, quote(str(bot.folder)))


class LearnOptions(BotOptions):
    dry_run: bool = option("report which feedback would be used; change nothing")
    candidate: str | None = option(
        "instead of training, take this agent, which was trained elsewhere from the champion, and promote it if it passes",
        metavar="DIR",
    )
    trust_config: bool = option(
        "let sft_data_path in the bot's config.yaml name data on the Hub, and follow a --candidate that is a link out of its run"
    )


def run_learn(options: LearnOptions) -> None:
    """Learn for one night, with a progress bar on a terminal, or judge a candidate; print the report."""
    if options.candidate is not None and options.dry_run:
        raise UserError("--candidate: cannot be combined with --dry_run; leave one out")
    bot = Bot(options.run)
    from transformers.utils import logging as transformers_logging

    from rlhf_dialog.feedback.learning.night import learn, learn_from_candidate

    transformers_logging.disable_progress_bar()
    if options.candidate is not None:
        report = learn_from_candidate(bot, options.candidate, options.trust_config)
    else:
        with night_progress() as watch:
            report = learn(bot, options.dry_run, watch, options.trust_config)
    print("\n".join(visible(line) for line in report.lines()))


@contextmanager
def night_progress() -> Iterator[Callable[[int, int], None]]:
    """To be called with the steps done and all steps: a bar on a terminal; else a line after `INTERVAL` seconds or more."""
    if sys.stdout.isatty():
        with Progress(transient=True) as bar:
            task = bar.add_task("learning", total=None)
            yield lambda done, steps: bar.update(task, completed=done, total=steps)
        return
    left, last_told = TimeLeft(), time.monotonic()

    def watch(done: int, steps: int) -> None:
        nonlocal last_told
        rest = left.text(done / steps)
        if done == steps:
            logger.info("learning: testing the new version")
        elif time.monotonic() - last_told >= INTERVAL:
            last_told = time.monotonic()
            logger.info("learning: step %d of %d%s", done, steps, f", {rest}" if rest else "")

    yield watch


class RollbackOptions(BotOptions):
    version: str = option("the version to go back to, e.g. 0002, of `status`", metavar="VERSION", form="positional")


def run_rollback(options: RollbackOptions) -> None:
    """Point the champion at an earlier version."""
    bot = Bot(options.run)
    before = bot.champion()
    bot.rollback(options.version)
    logger.info("%s: the champion is %s now (it was %s); new dialogues use it", bot.folder, options.version, before)


class ForgetOptions(BotOptions):
    person: str = option(
        "a name of `people`, or 16 hexadecimal digits; /forget in the chat and `status` show them; samples: all samples",
        metavar="PERSON",
        form="positional",
    )


def run_forget(options: ForgetOptions) -> None:
    """Remove a person from the store and from people.json, and mark what was trained on them."""
    bot, person = Bot(options.run), SAMPLES if options.person == "samples" else options.person
    people = People.load(bot.folder)
    with closing(bot.store()) as store:
        hashes = {one.name: store.hash_person(one.person) for one, _ in people.list()}
    if not re.fullmatch("[0-9a-f]{16}", person := hashes.get(person, person)):
        known = f"{nearest(person, hashes)} `feedback people` lists the names" if hashes else ""
        raise UserError(
            f"PERSON: found {person[:40]!r}, wanted the 16 hexadecimal digits of a person, or a name{known}"
        )
    names = [name for name, own in hashes.items() if own == person]
    for name in names:
        people.revoke(name)  # so that nothing comes meanwhile
    done = bot.forget(person)
    for name in names:
        people.forget(name)
    if not any((*done.values(), names)):
        raise UserError(f"{options.run}: nothing is stored of the person {options.person} now; check the hash")
    logger.info("%s: %d rows of %s removed", options.run, done["rows"], options.person)
    if names:
        logger.info("%s: name, id and keys of %s removed", people.path, ", ".join(names))
    if done["tainted"]:
        text = "trained on them and still there: %s; roll back to an earlier version, or begin again from the first"
        logger.warning(text, ", ".join(done["tainted"]))


def run_status(options: BotOptions) -> None:
    """Draw the lineage, and count the feedback."""
    bot = Bot(options.run)
    settings = read_settings(bot.settings_path)
    with closing(bot.store()) as store:
        store.check()
        examples, people = read_examples(store, with_ids=False), store.people() - {SAMPLES}
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(lineage_tree(bot))
    for line in counts(examples, len(people)):
        console.print(line)
    console.print(describe_power(heldout_set(examples, settings), len(examples), settings, last_gate(bot)))


def lineage_tree(bot: Bot) -> Tree:
    """The versions below their parents; the champion is bold."""
    records = bot.lineage()["versions"]
    nodes: dict[str | None, Tree] = {None: Tree(f"{bot.folder} (bot {bot.id[:8]})")}
    for name, record in sorted(records.items()):
        parent = record["parent"] if record["parent"] in nodes else None
        style = "bold" if record["status"] == "champion" else ""
        used = ", ".join(f"{number} {kind}" for kind, number in record["num_events"].items())
        tainted = "trained on a forgotten person" if record["tainted"] else ""
        parts = [f"{name} {record['status']}", str(record["created"])[:10], record["method"], used, tainted]
        nodes[name] = nodes[parent].add(Text("  ".join(part for part in parts if part), style))
    return nodes[None]


def counts(examples: Examples, num_people: int) -> list[str]:
    """What people said, in lines: what counts now, what is left out, and whose it is."""
    liked = Counter(one.liked for one in examples.answers)
    pairs = Counter(one.kind for one in examples.pairs)
    people = Counter(one.person for one in examples.all)
    num_samples = people.pop(SAMPLES, 0)
    shares = ", ".join(f"{person} {count / people.total():.0%}" for person, count in people.most_common(5))
    said = f"{liked[True]} liked, {liked[False]} disliked, {pairs['edit']} edits, {pairs['choice']} choices"
    lines = [f"feedback: {said}"]
    if examples.left_out:
        lines.append(f"left out: {format_counts(examples.left_out)}")
    if num_samples:
        lines.append(f"samples: {num_samples} of these ratings were made up; remove them: feedback forget samples")
    return [*lines, f"people: {num_people}" + (f" (largest shares: {shares})" if shares else "")]
