"""The words of a chat that begin with a slash: how a person rates and steers a dialogue."""

from collections.abc import Callable

from rlhf_dialog.commands.chat_screen import Screen, show_answer, split_command
from rlhf_dialog.errors import UserError, nearest
from rlhf_dialog.feedback.page.chat_session import ChatSession

WORDS = {  # word: its arguments, what it does
    "good": ("[REASON]", "you like the last answer"),
    "bad": ("[REASON]", "you do not like the last answer"),
    "score": ("NUMBER", "give the last answer 1 to 5; 4 and 5 are liked, 1 and 2 disliked"),
    "edit": ("TEXT", "write what the last answer should be; the dialogue goes on with it"),
    "again": ("", "another answer to your last message"),
    "choose": ("NUMBER", "of several answers, this one is the best; the dialogue goes on with it"),
    "why": ("", "what the last answer came from"),
    "forget": ("me", "remove all that is stored of you"),
    "help": ("", "show these words"),
    "reset": ("", "start a new dialogue"),
    "quit": ("", "end the program"),
}


def run_word(talk: ChatSession, line: str, screen: Screen) -> None:
    """Do what `/word arguments` asks for. A mistake, or feedback that could not be stored, is shown."""
    word, arguments = split_command(line)
    if word not in ACTIONS:
        advice = nearest(f"/{word}", [f"/{one}" for one in WORDS])
        screen.note(f"there is no word /{word}{advice or ';'} /help lists them, and // begins a message with a slash")
        return
    try:
        ACTIONS[word](talk, arguments, screen)
    except UserError as error:
        screen.note(error)


def _good(talk: ChatSession, rest: str, screen: Screen) -> None:
    talk.thumb(True, rest)
    screen.note("stored: you like this answer")


def _bad(talk: ChatSession, rest: str, screen: Screen) -> None:
    talk.thumb(False, rest)
    screen.note("stored: you do not like this answer; /edit TEXT shows a better one")


def _score(talk: ChatSession, rest: str, screen: Screen) -> None:
    value = _number(rest, "/score takes a number from 1 to 5, for example /score 4")
    talk.score(value)
    screen.note(f"stored: {value} of 5")


def _edit(talk: ChatSession, rest: str, screen: Screen) -> None:
    if not rest:
        raise UserError("/edit takes the text that the answer should be")
    talk.edit(rest)
    screen.note("stored: the dialogue goes on with your answer")


def _again(talk: ChatSession, rest: str, screen: Screen) -> None:
    number = len(talk.alternatives()) + 1
    show_answer(talk, talk.again(), screen, f"> Agent, answer {number}: ")
    if talk.store is not None:
        screen.note(f"/choose 1 to /choose {number} says which answer is the best")


def _choose(talk: ChatSession, rest: str, screen: Screen) -> None:
    number = _number(rest, "/choose takes the number of an answer, for example /choose 2")
    talk.choose(number)
    screen.note(f"stored: the dialogue goes on with answer {number}")


def _forget(talk: ChatSession, rest: str, screen: Screen) -> None:
    if rest.lower() == "me":
        raise UserError("this removes all your dialogues and ratings, and cannot be undone; /forget me yes does it")
    if rest.lower().split() != ["me", "yes"]:
        raise UserError("/forget me removes all that is stored of you")
    rows = talk.forget()
    screen.note(f"removed: {rows} rows, which is all that was stored of you; a new dialogue begins")
    screen.forget()


def _help(talk: ChatSession, rest: str, screen: Screen) -> None:
    lines = [f"  {f'/{word} {arguments}':<16}{meaning}" for word, (arguments, meaning) in WORDS.items()]
    screen.write("\n".join(lines))


def _number(text: str, advice: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UserError(advice)
    return int(text)


ACTIONS: dict[str, Callable[[ChatSession, str, Screen], None]] = {
    "good": _good,
    "bad": _bad,
    "score": _score,
    "edit": _edit,
    "again": _again,
    "choose": _choose,
    "why": lambda talk, _, screen: screen.note(talk.why()),
    "forget": _forget,
    "help": _help,
}
