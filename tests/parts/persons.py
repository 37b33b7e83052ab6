"""People who type, for runs that learn from a person."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlhf_dialog.runs.services.interrupts import WhileWaiting
from rlhf_dialog.task_oriented.runs.person_run import PersonRun
from rlhf_dialog.task_oriented.world.users.teacher import Teacher
from tests.parts.policy_runs import policy_config

GOOD = ["inform(tea=green) inform(area=north)", "what is the phone number ?", "bye", "20"]
BAD = ["hi", "black tea", "bye", "-5"]
SHOP = {"domain": {"actions": "actions.json"}}
ASKED = ["hello", "1", "when do you open ?", "-1", "/end", "do you sell vouchers ?", "", "when ?", "0.5", "/end"]


def typing(lines: Iterable[str], **options: Any) -> tuple[Teacher, list[str]]:
    """A person who types these lines, and then closes the terminal; and what is shown, prompts included."""
    typed, shown = iter(lines), list[str]()

    def ask(prompt: str) -> str:
        shown.append(prompt)
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    return Teacher(ask, shown.append, **{"rewards": (-20.0, 20.0)} | options), shown


def person_run(
    folder: Path, lines: Iterable[str], overwrite: bool = False, **changes: Any
) -> tuple[PersonRun, list[str]]:
    """A day in `folder`/run with a person who types these lines, which has not begun; and what is shown."""
    settings = {"user": "person", "error_rate": 0.0, "policy": {"id": "gp_sarsa", "args": {}}}
    config = policy_config(folder, **settings | changes)
    teacher, shown = typing(lines, rewards=config.reward_range, each_answer=config.rewards_each_answer)
    return PersonRun(config, teacher, shown.append, WhileWaiting(), overwrite), shown


def talked(folder: Path, lines: Iterable[str], **options: Any) -> list[str]:
    """What is shown on a day that ends when the lines are used up."""
    run, shown = person_run(folder, lines, **options)
    run.run()
    return shown
