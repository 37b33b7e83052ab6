"""What a turn of the user asks of an encyclopedia: a title, a section, or which of several titles is meant."""

import re

from rlhf_dialog.task_oriented.policies.multi_domain.encyclopedia import normal

QUESTION = re.compile(
    r"(?:\w+\W+you\W+)?(?:please\W+)?(?:know\W+|say\W+|tell\W+me\W+)?"
    r"(?:(?:what|who)(?:\W+(?:is|are|was|were)|['’]s)|(?:something\W+|more\W+|what\W+)?about|more\W+on|look\W+up|define)\W+(\w.*)",
    re.IGNORECASE,
)
MORE = re.compile(r"(?:.*\W)?more(?:\W+about\W+(?:it|this|that|him|her|them))?", re.IGNORECASE)
OF_THE_PAGE = {"its", "his", "her", "their"}
NOT_A_TITLE = OF_THE_PAGE | {"it", "that", "this", "these", "those", "there", "i", "you", "he", "she", "we", "they"}
NOT_A_TITLE |= {"my", "your", "our", "me", "him", "us", "them"}
PLACES = {"first": 0, "former": 0, "second": 1, "third": 2, "last": -1, "latter": -1}
YES, NO = {"yes", "yeah", "yep", "sure", "right"}, {"no", "not", "neither", "none"}


def find_title(turn: str) -> str | None:
    """The title that a turn asks for, or None.

    >>> find_title("What is the Moon?")
    'Moon'
    """
    asked = QUESTION.fullmatch(_plain(turn))
    title = re.sub(r"^(?:the|an?)\s+", "", asked[1]).strip("'\"“”‘’") if asked else ""
    first = normal(title).split()[:1]
    return title if first and first[0] not in NOT_A_TITLE else None


def find_heading(turn: str) -> tuple[str, bool]:
    """The heading that a question may ask for, and whether it is one of the open page: `What is its history?`."""
    asked = QUESTION.fullmatch(_plain(turn))
    first, *words = normal(asked[1]).split() or [""] if asked else [""]
    of_the_page = first in OF_THE_PAGE and bool(words)
    return " ".join(words if of_the_page else [first, *words]), of_the_page


def wants_more(turn: str) -> bool:
    """Whether a turn asks for more of what was said, and does not say what."""
    return MORE.fullmatch(_plain(turn)) is not None


def choose_title(turn: str, offered: list[str]) -> str | None:
    """The title that a turn chooses: by its name, its place, a word that only it has, or `yes` to a single one.

    >>> choose_title("the planet, please", ["Mercury (element)", "Mercury (planet)"])
    'Mercury (planet)'
    """
    words = set(normal(turn).split())
    if exact := [title for title in offered if normal(title) == normal(turn)]:
        return exact[0]
    if find_title(turn) is not None or words & NO:
        return None
    if words & YES and len(offered) == 1:
        return offered[0]
    by_place = [offered[place] for word, place in PLACES.items() if word in words and place < len(offered)]
    names = [set(normal(title).split()) for title in offered]
    shared = set.intersection(*names) if len(names) > 1 else set()
    by_word = [
        title for title, name in zip(offered, names, strict=True) if {w for w in name - shared if len(w) > 3} & words
    ]
    return by_word[0] if len(by_word) == 1 else by_place[0] if by_place else None


def _plain(turn: str) -> str:
    return re.sub(r"[\s.,?!]*(?:\bplease)?[\s.?!]*$", "", turn, flags=re.IGNORECASE)
