"""`rlhf-dialog feedback export | import | backup`: feedback to and from files."""

import json
import logging
from contextlib import closing
from functools import cache
from pathlib import Path

from rlhf_dialog.atomic_files import replace_file
from rlhf_dialog.commands.command_line import check_output
from rlhf_dialog.commands.options import option
from rlhf_dialog.commands.terminal_state import terminal_person
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.commands.bot import BotOptions
from rlhf_dialog.feedback.door.callers import Callers
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.feedback.store.examples import read_examples
from rlhf_dialog.feedback.store.formats import native, trl
from rlhf_dialog.feedback.store.formats.open_webui import IsSender
from rlhf_dialog.feedback.store.formats.record import ImportResult
from rlhf_dialog.feedback.store.imports import KNOWN, import_file
from rlhf_dialog.feedback.store.people import People
from rlhf_dialog.feedback.store.store import Store

logger = logging.getLogger(__name__)


class FeedbackExportOptions(BotOptions):
    file: Path = option("file to write, whose name ends in .jsonl", metavar="FILE", form="positional")
    format: str = option(
        "jsonl: everything, one dialogue per line, for `import`; kto: TRL's columns prompt, completion, label, of thumbs and "
        "scores; dpo: prompt, chosen, rejected, of edits and choices (default: jsonl)",
        "jsonl",
        choices=("jsonl", *trl.NEEDED),
    )
    without_heldout: bool = option("kto and dpo: leave out the dialogues on which `learn` judges a new version")


def run_export(options: FeedbackExportOptions) -> None:
    path = options.file
    if options.without_heldout and options.format == "jsonl":
        raise UserError("--without_heldout: is for --format kto and dpo; leave it out")
    if path.suffix.lower() != ".jsonl":
        raise UserError(f"FILE: '{path}' does not end in .jsonl; name it so")
    check_output("FILE", path, str(path))
    with closing(Bot(options.run).store()) as store:
        if options.format == "jsonl":
            rows = native.export_rows(store)
        else:
            examples = [one for one in read_examples(store).all if not (options.without_heldout and one.heldout)]
            rows = trl.export_rows(examples, options.format)
    if not rows:
        what = {"jsonl": "dialogues", "kto": "liked or disliked answers", "dpo": "edits or choices"}[options.format]
        raise UserError(f"{options.run}: there are no {what} to export yet")
    replace_file(path, "".join(f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n" for row in rows))
    logger.info("%d rows written to %s", len(rows), path)


class ImportOptions(BotOptions):
    description = f"Add the feedback of a file; its columns decide the format. Known are {KNOWN}."

    file: Path = option(
        ".jsonl, .json, .csv or .parquet file, or folder of save_to_disk", metavar="FILE", form="positional"
    )
    name: str | None = option("name of the source: import:NAME (default: the format's name)")
    ignore: str = option("columns to leave out", "", metavar="COLUMN,...")


def run_import(options: ImportOptions) -> None:
    bot = Bot(options.run)
    with closing(bot.store()) as store:
        ignored = tuple(name for name in options.ignore.split(",") if name)
        added = import_file(store, options.file, options.name, ignored, sender_check(bot, store))
    log_import(str(options.file), added)


def sender_check(bot: Bot, store: Store) -> IsSender:
    """Whether a user of Open WebUI may be who has a dialogue; keys and the terminal's id are read when the first rating asks."""

    @cache
    def callers() -> Callers:
        return Callers(People.load(bot.folder), store, terminal_person())

    return lambda *who: callers().may_be(*who)


def log_import(source: str, added: ImportResult) -> None:
    message = "%s (%s): %d dialogues and %d events added; %d were there already"
    logger.info(message, source, added.format, added.dialogues, added.events, added.num_known)
    if added.withdrawn:
        logger.info("withdrawn: %d events that were changed or deleted there", added.withdrawn)
    for reason, count in added.left_out.items():
        logger.warning("left out: %d %s", count, reason)
    if added.unread:
        logger.warning("not read: %s", ", ".join(f"{name} ({count} rows)" for name, count in added.unread.items()))


class BackupOptions(BotOptions):
    file: Path = option("SQLite file to write; an earlier one is replaced", metavar="FILE", form="positional")


def run_backup(options: BackupOptions) -> None:
    """Copy the store while others write to it."""
    check_output("FILE", options.file, str(options.file))
    with closing(Bot(options.run).store()) as store:
        if options.file.exists() and options.file.samefile(store.path):
            raise UserError(f"FILE: '{options.file}' is the store itself; name another file")
        store.backup(options.file)
    logger.info("%s copied to %s", store.path, options.file)
