"""The words of a chat that begin with a slash: how a person rates and steers a dialogue."""

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
    if word not in WORDS or word in ("reset", "quit"):
        advice = nearest(f"/{word}", [f"/{one}" for one in WORDS])
        screen.note(f"there is no word /{word}{advice or ';'} /help lists them, and // begins a message with a slash")
        return
    try:
        _act(talk, word, arguments, screen)
    except UserError as error:
        screen.note(error)


def _act(talk: ChatSession, word: str, rest: str, screen: Screen) -> None:
    match word:
        case "good":
            talk.thumb(True, rest)
            screen.note("stored: you like this answer")
        case "bad":
            talk.thumb(False, rest)
            screen.note("stored: you do not like this answer; /edit TEXT shows a better one")
        case "score":
            value = _number(rest, "/score takes a number from 1 to 5, for example /score 4")
            talk.score(value)
            screen.note(f"stored: {value} of 5")
        case "edit":
            if not rest:
                raise UserError("/edit takes the text that the answer should be")
            talk.edit(rest)
            screen.note("stored: the dialogue goes on with your answer")
        case "again":
            number = len(talk.alternatives()) + 1
            show_answer(talk, talk.again(), screen, f"> Agent, answer {number}: ")
            if talk.store is not None:
                screen.note(f"/choose 1 to /choose {number} says which answer is the best")
        case "choose":
            number = _number(rest, "/choose takes the number of an answer, for example /choose 2")
            talk.choose(number)
            screen.note(f"stored: the dialogue goes on with answer {number}")
        case "why":
            screen.note(talk.why())
        case "forget":
            if rest.lower().split() != ["me", "yes"]:
                raise UserError(
                    "/forget me removes all your dialogues and ratings, and cannot be undone; /forget me yes does it"
                )
            rows = talk.forget()
            screen.note(f"removed: {rows} rows, which is all that was stored of you; a new dialogue begins")
            screen.forget()
        case "help":
            lines = [f"  {f'/{name} {arguments}':<16}{meaning}" for name, (arguments, meaning) in WORDS.items()]
            screen.write("\n".join(lines))


def _number(text: str, advice: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UserError(advice)
    return int(text)
