"""`rlhf-dialog feedback invite | revoke | people`: who has a key to a bot's API."""

import logging
from contextlib import closing

from rich.table import Table

from rlhf_dialog.commands.options import option
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.commands.bot import BotOptions
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.people import ROLES, People
from rlhf_dialog.terminal import Console

logger = logging.getLogger(__name__)
RATINGS = "SELECT person, count(*) AS number FROM feedback WHERE kind != 'withdrawn' GROUP BY person"


class InviteOptions(BotOptions):
    name: str = option("whom you invite, as you call them; it stays in people.json", metavar="NAME", form="positional")
    role: str | None = option(
        "user: talks and rates own answers; teacher: rates all answers; gateway: a program that names its users, such as Open "
        "WebUI (default: user, or the role of before)",
        choices=ROLES,
    )
    page: bool = option("print an end of the page's address, which makes a browser this person's, once", False)


def run_invite(options: InviteOptions) -> None:
    """Make a key, or a code for the page, and print it."""
    people = People.load(Bot(options.run).folder)
    if options.page:
        if options.role is not None:
            raise UserError(
                "--role: is not for the page, where all are users; give a key with a role in a command of its own"
            )
        code = people.invite_to_page(options.name)
        logger.info("%s: %s opens the page with this behind its address, once:", people.path, options.name)
        print(f"#invite={code}")
        return
    key = people.invite(options.name, options.role)
    logger.info(
        "%s: the key of %s (%s), which is shown only now:", people.path, options.name, people.get(options.name).role
    )
    print(key)


class RevokeOptions(BotOptions):
    name: str = option("whose keys", metavar="NAME", form="positional")


def run_revoke(options: RevokeOptions) -> None:
    """Let the keys of a person work no more."""
    people = People.load(Bot(options.run).folder)
    if not (number := people.revoke(options.name)):
        raise UserError(f"{people.path}: {options.name} has no key that works")
    logger.info("%s: %d key%s of %s revoked", people.path, number, "s" * (number > 1), options.name)


def run_people(options: BotOptions) -> None:
    bot = Bot(options.run)
    people = People.load(bot.folder)
    if not (found := people.list()):
        logger.info("%s: nobody was invited yet; give a key with `feedback invite NAME`", bot.folder)
        return
    with closing(bot.store()) as store:
        ratings = {row["person"]: row["number"] for row in store.rows(RATINGS)}
        table = Table("name", "role", "keys", "hash in the store", "ratings", box=None)
        for one, record in found:
            keys = f"revoked {record['revoked'][:10]}" if record.get("revoked") else str(len(record["keys"]))
            person = store.hash_person(one.person)
            table.add_row(one.name, one.role, keys, person, str(ratings.get(person, 0)))
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 140
    console.print(table)
