"""The topic manager: finds out of which domain the user speaks, before that domain's policy does."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.domains import MultiDomain
from rlhf_dialog.task_oriented.domains.domain import check_known
from rlhf_dialog.task_oriented.world.acts import Act

SHORTEST = 3  # letters of a value that points to a domain by itself
BYE, HELLO = r"\b(bye|goodbye|quit)\b", r"\b(hello|hi|hey)\b"


class Topics:
    """Greets, asks which topic is meant, and hangs up after `attempts` turns in a row that name none.

    domain: its domains are the topics; words: topic -> further words that mean it, such as {"restaurant": ["dinner"]}
    topic: the domain whose policy speaks now, "" while that is open; is_over: whether the dialogue has ended
    Raises UserError for words of an unknown topic, and for something else than a list of words.

    >>> topics = Topics(open_domain("multiwoz", folder, ["hotel", "train"]))
    >>> topics.begin()
    'Hello! I can help you with hotel or train. What are you looking for?'
    >>> topics.hear("I need a room in a hotel"), topics.topic
    ('', 'hotel')
    """

    def __init__(self, domain: MultiDomain, words: Mapping[str, Iterable[str]] | None = None, attempts: int = 3):
        self.domain, self.attempts = domain, attempts
        self.names = tuple(domain.services)
        for name, synonyms in (words or {}).items():
            check_known("words:", name, self.names)
            if isinstance(synonyms, str) or not all(isinstance(word, str) and word.strip() for word in synonyms):
                raise UserError(f"words: found {synonyms!r} for '{name}', wanted a list of words")
        self._name_patterns = {name: _pattern([name, f"{name}s", *(words or {}).get(name, ())]) for name in self.names}
        self._value_patterns = {name: _pattern(values) for name, values in _unshared_values(domain).items()}
        self.begin()

    def begin(self) -> str:
        """Begin a dialogue: the greeting."""
        self.topic = ""
        self.is_over = False
        self.num_missed = 0
        return f"Hello! I can help you with {self._join_names(self.names)}. What are you looking for?"

    def hear(self, turn: str | Sequence[Act]) -> str:
        """Take in the user's words, or acts; what to answer, "" where the policy of `topic` speaks.

        A topic stays until another one is named, or the user says goodbye.
        """
        words = turn.lower().strip() if isinstance(turn, str) else " ".join(act.intent for act in turn)
        topics = self._find_topics(turn)
        if len(topics) == 1:
            self.topic, self.num_missed = topics[0], 0
            return ""
        if re.search(BYE, words):
            self.topic, self.is_over = "", True
            return "Goodbye!"
        return "" if self.topic else self._ask(topics, words)

    def _find_topics(self, turn: str | Sequence[Act]) -> list[str]:
        """The topics that are named; where there is none yet, those that a value means."""
        if not isinstance(turn, str):
            return list(dict.fromkeys(name for act in turn if (name := act.slot.partition("-")[0]) in self.names))
        named = [name for name in self.names if self._name_patterns[name].search(turn.lower())]
        if named or self.topic:
            return [] if self.topic in named and len(named) > 1 else named
        patterns = self._value_patterns
        return [name for name in self.names if name in patterns and patterns[name].search(turn.lower())]

    def _ask(self, topics: Sequence[str], words: str) -> str:
        self.num_missed += 1
        if self.num_missed >= self.attempts:
            self.is_over = True
            return "I am sorry, I could not find out what you are looking for. Goodbye!"
        if topics:
            return f"Is it about {self._join_names(topics)}? We can do one after the other."
        start = "Hello!" if re.search(HELLO, words) else "I am sorry, I did not understand that."
        return f"{start} Please name one of these: {self._join_names(self.names)}."

    def _join_names(self, names: Sequence[str]) -> str:
        return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _pattern(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(re.escape(word.lower()) for word in words)})\b")


def _unshared_values(domain: MultiDomain) -> dict[str, list[str]]:
    """For each domain the values of its slots that no other domain has; none with digits, which are numbers of people too."""
    values_by_name = {
        name: {value for chances in service.constraints.values() for value in chances.shares}
        for name, service in domain.services.items()
    }
    counts = Counter(value for values in values_by_name.values() for value in values)
    unshared = {
        name: sorted(v for v in values if counts[v] == 1 and len(v) >= SHORTEST and not re.search(r"\d", v))
        for name, values in values_by_name.items()
    }
    return {name: values for name, values in unshared.items() if values}
