"""Reads exchanges by the rules that wrote them: is a reply a sentence of the desk, and does it answer the guest's line?"""

import functools
import re
from collections.abc import Iterator

from rlhf_dialog.data.synthetic.exchanges import Slots, Subject, load_desk
from rlhf_dialog.data.synthetic.notation import expression, normal

Reading = tuple[str, int, int, Slots]  # subject, number of the thing, number of the kind, words of the slots

_FIELD = re.compile(r"\{(\w+)\}")


def derives(reply: str) -> bool:
    """Whether `reply` is a sentence of the receptionist, true or not. Case and punctuation do not count."""
    return any(pattern.fullmatch(normal(reply)) for pattern in _sentences())


def attends(prompt: str, reply: str) -> bool:
    """Whether the receptionist can say `reply` to this line of a guest: the same thing, kind of question and words of slots."""
    answers = [*_readings("clerk", reply)]
    return any(
        one[:3] == other[:3] and all(one[3].get(slot, word) == word for slot, word in other[3].items())
        for one in _readings("guest", prompt)
        for other in answers
    )


def _readings(side: str, text: str) -> Iterator[Reading]:
    for subject, thing, kind, pattern in _patterns(side):
        if match := pattern.fullmatch(normal(text)):
            yield subject.name, thing, kind, {slot: word for slot, word in match.groupdict().items() if word}


@functools.cache
def _sentences() -> list[re.Pattern[str]]:
    """The receptionist's lines, each with the fields of any thing of its subject."""
    desk, patterns = load_desk(), []
    for subject in desk.subjects:
        names = {name for thing in subject.things for name in thing}
        fields = {name: "|".join(thing[name] for thing in subject.things) for name in names}
        patterns += [re.compile(_expression(line, fields)) for kind in subject.kinds for line in kind.clerk]
    return patterns


@functools.cache
def _patterns(side: str) -> list[tuple[Subject, int, int, re.Pattern[str]]]:
    desk = load_desk()
    aside, greeting = ((expression(f"[<{name}>]", desk.words) if side == "guest" else "") for name in ("aside", "hi"))
    return [
        (subject, thing, kind, re.compile(aside + greeting + _expression(line, subject.things[thing]) + aside))
        for subject in desk.subjects
        for thing in range(len(subject.things))
        for kind in range(len(subject.kinds))
        for line in getattr(subject.kinds[kind], side)
    ]


def _expression(line: str, fields: dict[str, str]) -> str:
    """The normalised wordings of a line about one thing; the slots are named groups."""
    told = _FIELD.sub(lambda name: f"({fields[name[1]]})" if name[1] in fields else name[0], line)
    return expression(told, load_desk().words)
