"""Acts as plain English, and back: templates for both sides of a dialogue, keywords for what is said otherwise."""

import re
from collections.abc import Iterable, Iterator, Mapping
from random import Random

from rlhf_dialog.task_oriented.domains import DONTCARE, NAME, TYPE, UNKNOWN, Domain
from rlhf_dialog.task_oriented.world.acts import Act
from rlhf_dialog.task_oriented.world.tracker import NOTHING

ANY, VALUE = "*", "value"
Templates = Mapping[tuple[str, str, str], tuple[str, ...]]  # (intent, slot or ANY, kind of value) -> sentences
Keywords = tuple[tuple[str, Act], ...]

USER: Templates = {
    ("hello", "", ""): ("Hello .", "Hi there ."),
    ("thankyou", "", ""): ("Thank you .", "Thanks a lot ."),
    ("ack", "", ""): ("Okay .", "Good ."),
    ("bye", "", ""): ("Goodbye .", "That is all , goodbye ."),
    ("affirm", "", ""): ("Yes .", "Yes , please ."),
    ("negate", "", ""): ("No .", "No , that is not right ."),
    ("reqalts", "", ""): ("Is there another one ?", "What else is there ?"),
    ("reqmore", "", ""): ("Can you say more ?",),
    ("repeat", "", ""): ("Can you say that again ?",),
    ("null", "", ""): ("Hm .",),
    ("inform", "", DONTCARE): ("I do not care .", "That does not matter ."),
    ("inform", TYPE, VALUE): ("I am looking for a {value} .", "Can you find me a {value} ?"),
    ("inform", NAME, VALUE): ("I mean {value} .",),
    ("inform", "food", VALUE): ("I would like {value} food .", "It should serve {value} food ."),
    ("inform", ANY, VALUE): ("The {slot} should be {value} .", "I want the {slot} to be {value} ."),
    ("inform", ANY, DONTCARE): ("Any {slot} is fine .", "I do not mind the {slot} ."),
    ("inform", ANY, ""): ("About the {slot} .",),
    ("deny", ANY, VALUE): ("The {slot} should not be {value} .",),
    ("deny", ANY, DONTCARE): ("The {slot} does matter .",),
    ("deny", ANY, ""): ("Not the {slot} .",),
    ("confirm", ANY, VALUE): ("Is the {slot} {value} ?",),
    ("confirm", ANY, DONTCARE): ("Does the {slot} not matter ?",),
    ("request", NAME, ""): ("What is it called ?",),
    ("request", ANY, ""): ("What is the {slot} ?", "Can you give me the {slot} ?"),
}
SYSTEM: Templates = {
    ("hello", "", ""): ("Hello , how can I help you ?",),
    ("bye", "", ""): ("Goodbye .", "Goodbye , and enjoy it ."),
    ("reqmore", "", ""): ("Can I help you with anything else ?",),
    ("null", "", ""): ("Pardon ?",),
    ("request", "food", ""): ("What kind of food would you like ?",),
    ("request", ANY, ""): ("Which {slot} would you like ?",),
    ("confirm", ANY, VALUE): ("The {slot} should be {value} , right ?",),
    ("confirm", ANY, DONTCARE): ("Any {slot} is fine , right ?",),
    ("select", ANY, VALUE): ("Would you prefer {value} as the {slot} ?",),
    ("select", ANY, DONTCARE): ("Or would any {slot} do ?",),
    ("inform", NAME, NOTHING): ("I am sorry , I found nothing .",),
    ("inform", NAME, VALUE): ("How about {value} ?", "I can offer {value} ."),
    ("except", NAME, VALUE): ("There is only {value} .",),
    ("inform", "food", VALUE): ("It serves {value} food .",),
    ("inform", ANY, VALUE): ("Its {slot} is {value} .", "The {slot} is {value} ."),
    ("inform", ANY, DONTCARE): ("Any {slot} was fine .",),
    ("inform", ANY, ""): ("I do not know its {slot} .",),
    ("missed", "food", VALUE): ("I looked for {value} food .",),  # `inform` in a turn which says that nothing fits
    ("missed", ANY, VALUE): ("I looked for the {slot} {value} .",),
    ("missed", ANY, DONTCARE): ("I looked for any {slot} .",),
}
USER_KEYWORDS: Keywords = (
    ("bye|goodbye", Act("bye")),
    ("thank|thanks", Act("thankyou")),
    ("another|else|different|other", Act("reqalts")),
    ("any|anything|whichever|care|matter|preference", Act("inform", "", DONTCARE)),
    ("yes|yeah|yep|right|correct|sure", Act("affirm")),
    ("no|nope|not|wrong", Act("negate")),
    ("hello|hi|hey", Act("hello")),
    ("ok|okay|good|fine", Act("ack")),
)
SYSTEM_KEYWORDS: Keywords = (
    ("bye|goodbye", Act("bye")),
    ("nothing|sorry|none", Act("inform", NAME, NOTHING)),
    ("else|more", Act("reqmore")),
    ("hello|welcome", Act("hello")),
)
CALLED = {"pricerange": "price range", "phone": "phone number", "hours": "opening hours"}
MARKS = re.compile(r"\s*([.,?!;])(?=[\s.,?!;]|$)\s*")
END = r"(?: [.?!;](?= |$)|$) *"


def slot_in_words(slot: str) -> str:
    """The slot in words.

    >>> slot_in_words("pricerange"), slot_in_words("parking_space")
    ('price range', 'parking space')
    """
    return CALLED.get(slot, slot.replace("_", " "))


def normalize(text: str) -> str:
    """Lower case, one space between words, and one before each mark at the end of a word.

    >>> normalize("It is  Thai, and cheap.")
    'it is thai , and cheap .'
    """
    return " ".join(MARKS.sub(r" \1 ", text.lower()).split())


class Words:
    """What one side says, in words and read from them. Sentences of the templates are read as they were meant.

    templates: sentences for each act; keywords: acts of words in other sentences
    invents: whether this side may name values that the domain lacks, so that they are read too
    """

    def __init__(self, domain: Domain, templates: Templates, keywords: Keywords, invents: bool):
        self.domain, self.templates, self.invents = domain, templates, invents
        self.keywords = [(re.compile(rf"\b(?:{words})\b"), act) for words, act in keywords]
        self.slots = tuple(dict.fromkeys([*domain.constraints, *domain.requestable, TYPE]))
        self.only_type = {TYPE} - {*domain.constraints}
        self.values = {}
        for slot in self.slots:
            known = [domain.type]
            if slot not in self.only_type:
                known = [*domain.values(slot), *(entity[slot] for entity in domain.entities), UNKNOWN]
            self.values[slot] = {normalize(value): value for value in known}
        self.patterns = sorted(self._patterns(False), key=lambda text: -text[0])
        self.patterns += sorted(self._patterns(True), key=lambda text: -text[0]) if invents else []
        self.mentions = {value: (slot, text) for slot in self.slots[::-1] for value, text in self.values[slot].items()}
        self.mentions.pop(normalize(UNKNOWN))
        self.mentioned = re.compile(rf"(?<!\w)({_alternatives(self.mentions)})(?:ly)?(?!\w)")  # "moderately priced"

    def say(self, acts: Iterable[Act], rng: Random | None) -> str:
        """The turn in words, a sentence for each act; `rng` chooses among templates, without it the first one is said.

        Raises KeyError without a template.
        """
        acts = list(acts)
        missed = any((act.slot, act.value) == (NAME, NOTHING) for act in acts)
        sentences = ((act, self._sentences(act, missed)) for act in acts)
        chosen = ((act, rng.choice(texts) if rng else texts[0]) for act, texts in sentences)
        return " ".join(text.format(slot=slot_in_words(act.slot), value=act.value) for act, text in chosen)

    def read(self, text: str) -> list[Act]:
        """The acts of a turn, in its order; `null` where nothing is understood."""
        text, acts = normalize(text), []
        while text:
            matched = next((result for pattern in self.patterns if (result := self._match(pattern, text))), None)
            if matched is None:
                sentence, mark, text = (*re.split(r"(?:^| )([.?!;])(?= |$) *", text, maxsplit=1), "", "")[:3]
                acts += self._by_keywords(sentence, mark == "?")
            else:
                acts.append(matched[0])
                text = text[matched[1] :]
        return acts or [Act("null")]

    def _sentences(self, act: Act, missed: bool) -> tuple[str, ...]:
        kind = VALUE if act.value else ""
        if act.value == DONTCARE or (act.slot, act.value) == (NAME, NOTHING):
            kind = act.value
        intents = ["missed", act.intent] if missed and act.intent == "inform" and act.slot != NAME else [act.intent]
        keys = [(intent, slot, kind) for intent in intents for slot in (act.slot, ANY)]
        return self.templates[next((key for key in keys if key in self.templates), keys[-1])]

    def _patterns(self, invented: bool) -> Iterator[tuple[int, re.Pattern[str], str, str, str]]:
        """For each template and slot: its number of fixed letters, its expression, intent, slot and kind of value."""
        for (intent, slot, kind), sentences in self.templates.items():
            for template_slot in self.slots if slot == ANY else [slot]:
                if kind == VALUE and template_slot not in self.values:
                    continue
                values = "[^.?!;]+?" if invented else _alternatives(self.values.get(template_slot, ()))
                for sentence in sentences:
                    words = normalize(sentence).rstrip(" .?").replace("{slot}", slot_in_words(template_slot))
                    parts = words.split("{value}")
                    if not invented or len(parts) > 1:
                        text = f"(?P<value>{values})".join(map(re.escape, parts))
                        read_intent = "inform" if intent == "missed" else intent
                        yield sum(map(len, parts)), re.compile(text + END), read_intent, template_slot, kind

    def _match(self, pattern: tuple[int, re.Pattern[str], str, str, str], text: str) -> tuple[Act, int] | None:
        """The act with which the text begins, and its length."""
        _, expression, intent, slot, kind = pattern
        match = expression.match(text)
        if not match:
            return None
        value = self.values[slot].get(match["value"], match["value"]) if kind == VALUE else kind
        return Act(intent, slot, value), match.end()

    def _by_keywords(self, sentence: str, question: bool) -> list[Act]:
        """Values that are named, and slots that are asked for; else the first keyword."""
        named = [self.mentions[value] for value in self.mentioned.findall(sentence)]
        slots = self.domain.constraints if self.invents else self.domain.requestable
        asked = [slot for slot in slots if self._mentions(sentence, slot)]
        if named:
            asks = question and NAME not in dict(named)
            acts = [Act("confirm" if asks and slot not in self.only_type else "inform", slot, x) for slot, x in named]
            return [*acts, *(Act("request", slot) for slot in self._facts(asked) if slot not in dict(named))]
        if question and asked:
            return [Act("request", slot) for slot in asked]
        if facts := self._facts(asked):
            return [Act("request", slot) for slot in facts]
        acts = next(([act] for words, act in self.keywords if words.search(sentence)), [])
        if acts == [Act("inform", "", DONTCARE)]:
            about = [slot for slot in self.domain.constraints if self._mentions(sentence, slot)]
            return [Act("inform", slot, DONTCARE) for slot in about] or acts
        return acts

    def _mentions(self, sentence: str, slot: str) -> bool:
        return bool(re.search(rf"\b(?:{_alternatives({slot_in_words(slot), slot})})\b", sentence))

    def _facts(self, slots: Iterable[str]) -> list[str]:
        """Of the slots those that only a user asks for, also without a question mark: "their phone number , please"."""
        return [] if self.invents else [slot for slot in slots if slot not in (NAME, *self.domain.constraints)]


def user_words(domain: Domain) -> Words:
    return Words(domain, USER, USER_KEYWORDS, invents=False)


def system_words(domain: Domain) -> Words:
    """What systems say; they may invent a value, which is read as it is."""
    return Words(domain, SYSTEM, SYSTEM_KEYWORDS, invents=True)


def _alternatives(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=lambda text: (-len(text), text))))
