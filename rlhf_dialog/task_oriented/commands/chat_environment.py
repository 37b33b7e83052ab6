"""`chat --environment`: a person is the user of a goal-oriented environment; the goal is shown, and in the end the verdict."""

from collections.abc import Callable
from itertools import tee

from rlhf_dialog.commands.chat_screen import ENDS, AnsweringTalk, Screen, show_answer
from rlhf_dialog.task_oriented.domains import load_domain
from rlhf_dialog.task_oriented.world.goal_oriented import GoalOriented
from rlhf_dialog.task_oriented.world.success import Evaluator
from rlhf_dialog.task_oriented.world.tracker import FocusTracker
from rlhf_dialog.task_oriented.world.users.human import HumanUser, why_failed
from rlhf_dialog.task_oriented.world.words import system_words


def converse_in(
    domain_name: str, begin: Callable[[], AnsweringTalk], read: Callable[[str], str], screen: Screen, seed: int | None
) -> bool:
    """One dialogue about a goal of the domain, until the person says goodbye or the turns are used up; whether it succeeded.

    `begin` starts the agent's side, which reads the line of the data base behind each turn, too; the person does not see it.
    Raises UserError for an unknown domain.
    """
    domain = load_domain(domain_name)

    def ask() -> str | None:
        while True:
            try:
                typed = read("> User: ").strip()
            except EOFError:
                screen.write("")
                return None
            if typed.lower().removeprefix("/") in ENDS:
                return None
            if typed.startswith("/") and not typed.startswith("//"):
                screen.note("there is only the word /quit here; // begins a message with a slash")
            elif typed:
                return typed.removeprefix("/")

    user = HumanUser(domain, ask, screen.write)
    environment = GoalOriented(user, FocusTracker(domain), Evaluator(domain), system_words(domain).read)
    talk = begin()
    try:
        text, _ = environment.reset(seed=seed)
        ended = False
        while not ended:
            answer, shown = tee(talk.say(text))  # a growing reply
            show_answer(talk, shown, screen)
            text, _, terminated, truncated, info = environment.step((list(answer) or [""])[-1])
            ended = terminated or truncated
    finally:
        talk.end()
    if not info["success"]:
        screen.note(why_failed(domain, info))
    verdict = "succeeded" if info["success"] else "failed"
    screen.write(f"The dialogue has {verdict} (turns: {info['turns']}).")
    return bool(info["success"])
