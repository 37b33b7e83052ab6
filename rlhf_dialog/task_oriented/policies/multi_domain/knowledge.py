"""A lookup behind a policy: questions about the world are answered from an encyclopedia, all else by the policy."""

import logging
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from rlhf_dialog.config.loading import load_settings
from rlhf_dialog.config.settings import Settings
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.multi_domain import encyclopedia
from rlhf_dialog.task_oriented.policies.multi_domain.encyclopedia import Fetcher, LookupFailed, OfflineFile, WikiPage
from rlhf_dialog.task_oriented.policies.multi_domain.mediawiki import AGENT, WIKIPEDIA, MediaWiki
from rlhf_dialog.terminal import visible

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
    first = encyclopedia.normal(title).split()[:1]
    return title if first and first[0] not in NOT_A_TITLE else None


def find_heading(turn: str) -> tuple[str, bool]:
    """The heading that a question may ask for, and whether it is one of the open page: `What is its history?`."""
    asked = QUESTION.fullmatch(_plain(turn))
    first, *words = encyclopedia.normal(asked[1]).split() or [""] if asked else [""]
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
    words = set(encyclopedia.normal(turn).split())
    if exact := [title for title in offered if encyclopedia.normal(title) == encyclopedia.normal(turn)]:
        return exact[0]
    if find_title(turn) is not None or words & NO:
        return None
    if words & YES and len(offered) == 1:
        return offered[0]
    by_place = [offered[place] for word, place in PLACES.items() if word in words and place < len(offered)]
    names = [set(encyclopedia.normal(title).split()) for title in offered]
    shared = set.intersection(*names) if len(names) > 1 else set()
    by_word = [x for x, name in zip(offered, names, strict=True) if {w for w in name - shared if len(w) > 3} & words]
    return by_word[0] if len(by_word) == 1 else by_place[0] if by_place else None


def _plain(turn: str) -> str:
    return re.sub(r"[\s.,?!]*(?:\bplease)?[\s.?!]*$", "", turn, flags=re.IGNORECASE)


logger = logging.getLogger(__name__)
LONGEST_TURN, LONGEST_TEXT, LONGEST_TITLE = 300, 600, 80  # characters that are read of a turn, and said of a page
MOST = 5  # titles that are offered in a reply


class KnowledgeConfig(Settings):
    """Where a lookup finds its pages"""

    path: str | None = Field(None, description="JSON file with pages of your own; null: the small file of the package")
    network: bool = Field(False, description="true: ask a wiki over the network; false: open no connection")
    url: str = Field(WIKIPEDIA, description="api.php of the wiki, a MediaWiki with TextExtracts; https")
    timeout_s: float = Field(5.0, gt=0, le=600, description="seconds for an answer of the wiki")
    private_hosts: list[str] = Field([], description="hosts that may have a private address, and be asked by http")
    user_agent: str = Field(AGENT, description="what the wiki learns of who asks; give a contact")

    @model_validator(mode="after")
    def _fits(self) -> "KnowledgeConfig":
        if self.network and self.path is not None:
            raise ValueError("path: the file is not read with network: true; leave one of them out")
        if not self.network and (keys := sorted(self.model_fields_set - {"path", "network"})):
            raise ValueError(f"{keys[0]}: has no effect without network: true; leave it out")
        return self

    def fetcher(self) -> Fetcher:
        """The file, or the wiki where `network` is true. Raises UserError for what cannot be read or asked."""
        asked = self.model_dump(exclude={"path", "network"})
        return MediaWiki(**asked) if self.network else OfflineFile(self.path)


class Knowledge:
    """Answers turns of a dialogue: a question with what a page says, anything else with `policy(turn)`.

    >>> knowledge = Knowledge(lambda turn: "Which area ?", own=("phone number",))
    >>> knowledge.reply("What is the phone number?")
    'Which area ?'

    fetcher: what finds pages (`encyclopedia.Fetcher`); None: the small file of the package
    own: what the policy answers itself, such as the slots of its domain; questions that contain one of them are its
    """

    def __init__(self, policy: Callable[[str], str], fetcher: Fetcher | None = None, own: Collection[str] = ()):
        self.policy = policy
        self.fetcher = fetcher or OfflineFile()
        self.own = [encyclopedia.normal(each) for each in own]
        self.begin()

    @classmethod
    def from_yaml(cls, path: str | Path, policy: Callable[[str], str], own: Collection[str] = ()) -> "Knowledge":
        """As a YAML file says (`KnowledgeConfig`). Raises UserError that lists every mistake in it."""
        return cls(policy, load_settings(KnowledgeConfig, Path(path)).fetcher(), own)

    def begin(self) -> None:
        """Begin a dialogue: no page is open, and no titles are offered."""
        self.page: WikiPage | None = None
        self.offered: list[str] = []
        self.spoke_last = False

    def reply(self, turn: str) -> str:
        """What is said to the user's turn; a lookup that fails is said, and the dialogue goes on."""
        answer = self._answer(turn[:LONGEST_TURN])
        self.spoke_last = answer is not None
        return self.policy(turn) if answer is None else answer

    def _answer(self, turn: str) -> str | None:
        offered, self.offered = self.offered, []
        if offered and (meant := choose_title(turn, offered)):
            return self._look_up(meant)
        if any(f" {name} " in f" {encyclopedia.normal(turn)} " for name in self.own):
            return None
        if self.page and (answer := self._answer_more(self.page, turn)):
            return answer
        title = find_title(turn)
        return None if title is None else self._look_up(title)

    def _answer_more(self, page: WikiPage, turn: str) -> str | None:
        """The section that is asked for, or what there is to ask for; None where the turn is about something else."""
        asked, of_the_page = find_heading(turn)
        names = {asked, encyclopedia.normal(turn)} if self.spoke_last else {asked}
        title = shorten(page.title, LONGEST_TITLE)
        for heading, text in page.sections.items():
            if encyclopedia.normal(heading) in names:
                return f"{title}, {shorten(heading, LONGEST_TITLE)}: {shorten(text, LONGEST_TEXT)}"
        headings = [shorten(heading, LONGEST_TITLE) for heading in page.sections][: 2 * MOST]
        there_is = f"You can ask about: {', '.join(headings)}." if headings else "That is all I have on it."
        if self.spoke_last and wants_more(turn):
            return f"{title}: {there_is}"
        return f"{title}: I have nothing on {shorten(asked, LONGEST_TITLE)}. {there_is}" if of_the_page else None

    def _look_up(self, title: str) -> str:
        shown_title = shorten(title, LONGEST_TITLE)
        try:
            answer = self.fetcher.fetch(title)
            suggestions: Any = (
                getattr(self.fetcher, "suggest_titles", lambda title: [])(title) if answer is None else []
            )
        except (LookupFailed, OSError) as error:
            logger.warning("knowledge: %r was not looked up: %s", title, error)
            return f"I am sorry, I cannot look up {shown_title} now: {shorten(str(error), LONGEST_TEXT)}."
        if isinstance(answer, WikiPage):
            self.page = answer
            return f"{shorten(answer.title, LONGEST_TITLE)}: {shorten(answer.summary, LONGEST_TEXT)}"
        self.offered = suggestions if answer is None else answer
        if not isinstance(self.offered, list) or not all(
            isinstance(each, str) and encyclopedia.normal(each) for each in self.offered
        ):
            name = type(self.fetcher).__name__
            raise UserError(
                f"{name}: found {self.offered!r} for {title!r}; return a WikiPage, a list of titles, or None"
            )
        titles = [shorten(each, LONGEST_TITLE) for each in self.offered[:MOST]]
        choices = f"{', '.join(titles[:-1])} or {titles[-1]}" if titles[1:] else "".join(titles)
        question = f" Do you mean {choices}?" if titles else ""
        return (
            f"I found nothing on {shown_title}.{question}"
            if answer is None
            else f"{shown_title} can mean several things.{question}"
        )


def shorten(text: str, longest: int) -> str:
    """A text of a page on one line, without what steers a terminal; a long one ends with a sentence, or with `...`."""
    text = visible(" ".join(text.split()))
    if len(text) <= longest:
        return text
    end = max(text.rfind(mark, longest // 3, longest) for mark in (". ", "! ", "? "))
    return text[: end + 1] if end > 0 else f"{text[: longest - 4].rstrip()} ..."
