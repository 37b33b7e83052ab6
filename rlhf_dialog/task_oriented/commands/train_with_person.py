"""`train-policy` with `user: person`: you talk with the policy in the terminal, and it learns from your rewards."""

import sys

from rlhf_dialog.commands.chat import read_text
from rlhf_dialog.commands.terminal_state import edit_lines
from rlhf_dialog.runs.services.interrupts import WhileWaiting
from rlhf_dialog.task_oriented.runs.person_run import PersonRun
from rlhf_dialog.task_oriented.runs.settings import ActionsConfig, PolicyConfig
from rlhf_dialog.task_oriented.world.users.teacher import Teacher
from rlhf_dialog.terminal import visible

WELCOME = """\
Talk with the system in words{acts}; /end{goodbye} ends a dialogue.
{rewards} from {low:g} (bad) to {high:g} (good) is what it learns from; Enter gives none. Each dialogue is saved at its end.
/help shows the words that begin with a slash; /quit, Ctrl-D or Ctrl-C ends the day."""


def train_with_person(config: PolicyConfig, overwrite: bool = False) -> None:
    """Go on with the run of this configuration, or begin it. Raises UserError for what the user can correct."""
    interrupts = WhileWaiting()

    def ask(prompt: str) -> str:
        with interrupts.waiting():
            line = read_text(prompt)
        if not sys.stdin.isatty():
            write(line)
        return line

    (low, high), each_answer = config.reward_range, config.rewards_each_answer
    teacher = Teacher(ask, write, (low, high), each_answer)
    run = PersonRun(config, teacher, write, interrupts, overwrite)
    rewards = "Your reward for each answer," if each_answer else "Your reward at its end,"
    has_acts = not isinstance(config.domain, ActionsConfig)
    acts, goodbye = (", or in acts such as inform(food=thai)", " or a goodbye") if has_acts else ("", "")
    write(WELCOME.format(rewards=rewards, acts=acts, goodbye=goodbye, low=low, high=high))
    edit_lines()
    run.run()


def write(text: str) -> None:
    print(visible(text), flush=True)
