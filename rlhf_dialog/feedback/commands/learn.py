"""`rlhf-dialog feedback learn`: the nightly job."""

import sys

from rich.progress import Progress, TaskID

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
        with Steps() as steps:
            report = learn(bot, options.dry_run, steps, options.trust_config)
    print("\n".join(visible(line) for line in report.lines()))


class Steps:
    """A progress bar of optimizer steps on a terminal, which is gone after the last one: others follow it."""

    def __init__(self) -> None:
        self.bar = Progress(transient=True, disable=not sys.stdout.isatty())
        self.task: TaskID | None = None

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, done: int, steps: int) -> None:
        if self.task is None:
            self.bar.start()
            self.task = self.bar.add_task("learning", total=steps)
        self.bar.update(self.task, completed=done)
        if done == steps:
            self.bar.stop()


SUBCOMMANDS = {  # name: its options, and what does it
    "learn": (LearnOptions, run_learn)
}
