"""`rlhf-dialog feedback learn`: the nightly job."""

import sys

from rich.progress import Progress

from rlhf_dialog.commands.options import option
from rlhf_dialog.errors import UserError
from rlhf_dialog.feedback.commands.bot import BotOptions
from rlhf_dialog.feedback.store.bot import Bot
from rlhf_dialog.terminal import visible


class LearnOptions(BotOptions):
    dry_run: bool = option("report which feedback would be used; change nothing")
    candidate: str | None = option(
        "instead of training, take this agent, which was trained elsewhere from the champion, and promote it if it passes",
        metavar="DIR",
    )
    trust_config: bool = option("let sft_data_path in the bot's config.yaml name data on the Hub")


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
        with Progress(transient=True, disable=not sys.stdout.isatty()) as bar:
            task = bar.add_task("learning", total=None)
            report = learn(
                bot,
                options.dry_run,
                lambda done, steps: bar.update(task, completed=done, total=steps),
                options.trust_config,
            )
    print("\n".join(visible(line) for line in report.lines()))
