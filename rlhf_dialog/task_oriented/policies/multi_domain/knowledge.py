"""A lookup behind a policy: questions about the world are answered from an encyclopedia, all else by the policy.

Pages are in a file, or a MediaWiki has them (with its extension TextExtracts). They are hostile text: shown on one line, and
without what steers a terminal.
"""

import difflib
import json
import logging
import re
from collections.abc import Callable, Collection
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from pydantic import BaseModel, Field

from rlhf_dialog.errors import UserError
from rlhf_dialog.http_client import Client, RequestFailed
from rlhf_dialog.json_files import FAULTS, read_json
from rlhf_dialog.terminal import visible

logger = logging.getLogger(__name__)
WIKIPEDIA, AGENT = "https://en.wikipedia.org/w/api.php", "rlhf-dialog (a lookup in a dialogue)"
MAX_ANSWER = 1 << 21  # bytes
NOT_IN_TITLES = re.compile(r"[\x00-\x1f\x7f#<>\[\]|{}]+")  # `|` and U+001F would ask for several pages
HEADING = re.compile(r"^==(?!=)[ \t]*([^\n]*?)[ \t]*==[ \t]*$", re.MULTILINE)
SUBHEADING = re.compile(r"^===[^\n]*$", re.MULTILINE)


class LookupFailed(Exception):
    """There is no answer."""


class WikiPage(BaseModel):
    """A page: its title, a summary in a few sentences, and its sections, heading -> text."""

    title: str
    summary: str
    sections: dict[str, str] = {}


class Encyclopedia(BaseModel):
    """What a file of pages holds; `ambiguous`: title -> the titles of the pages that it may mean."""

    pages: list[WikiPage] = Field(min_length=1)
    ambiguous: dict[str, list[str]] = {}


class OfflineFile:
    """Pages of a JSON file: `{"pages": [{"title", "summary", "sections": {heading: text}}], "ambiguous": {title: [titles]}}`.

    path: None takes the small file of the package. Raises UserError with the file for what cannot be read.
    """

    def __init__(self, path: str | Path | None = None):
        built_in = resources.files("rlhf_dialog.task_oriented.policies.multi_domain") / "encyclopedia.json"
        source = built_in if path is None else Path(path).expanduser()
        data = Encyclopedia(**read_json(source, f"{source}: holds no pages: ", shape=Encyclopedia))
        self.titles = {normal(page.title): page.title for page in data.pages}
        self.pages: dict[str, WikiPage | list[str]] = {normal(title): x for title, x in data.ambiguous.items()}
        self.pages.update((normal(page.title), page) for page in data.pages)
        if unknown := [x for titles in data.ambiguous.values() for x in titles if normal(x) not in self.titles]:
            raise UserError(f"{source}: ambiguous: {unknown[0]!r} is the title of no page; add the page, or remove it")

    def fetch(self, title: str) -> WikiPage | list[str]:
        """The page, or the titles that are meant or spelled alike; case, punctuation and articles do not matter."""
        alike = difflib.get_close_matches(normal(title), self.titles, n=3, cutoff=0.6)
        return self.pages.get(normal(title), [self.titles[each] for each in alike])


class MediaWiki:
    """Asks a wiki over the network; redirects are not followed, and no proxy is used.

    url: of its api.php; timeout_s: seconds for an answer, from the name's resolution to the last byte
    user_agent: what the wiki learns of who asks; Wikipedia wants a contact in it
    """

    def __init__(self, url: str = WIKIPEDIA, timeout_s: float = 5.0, user_agent: str = AGENT):
        self.parts = urlsplit(url)
        if self.parts.scheme not in ("http", "https") or not self.parts.hostname:
            raise UserError(f"url: {url!r} must be the address of a wiki's api.php, such as {WIKIPEDIA}")
        headers = {"User-Agent": user_agent, "Accept": "application/json"}
        self.client = Client(self.parts, headers, timeout_s, MAX_ANSWER)

    def fetch(self, title: str) -> WikiPage | list[str]:
        """The page; of a disambiguation page the titles that it links to, those with the title first. Raises LookupFailed."""
        title = NOT_IN_TITLES.sub(" ", title).strip()
        query = {"format": "json", "formatversion": 2, "action": "query", "titles": title, "redirects": 1}
        query |= {"prop": "extracts|pageprops|links", "ppprop": "disambiguation", "explaintext": 1}
        target = f"{self.parts.path}?{urlencode(query | {'plnamespace': 0, 'pllimit': 50})}"
        try:
            answer = json.loads(self.client.ask("GET", target))
            page = (answer.get("query", {}).get("pages") or [{"missing": True}])[0]
            if page.keys() & {"missing", "invalid", "special"}:
                return []
            if "disambiguation" in page.get("pageprops", {}):
                links = [link["title"] for link in page.get("links", [])]
                return sorted(links, key=lambda link: title.casefold() not in link.casefold())
            return _page(page["title"], page["extract"])
        except RequestFailed as error:
            raise LookupFailed(str(error)) from error
        except FAULTS:
            raise LookupFailed("an answer that cannot be read") from None


def _page(title: str, extract: str) -> WikiPage:
    summary, *parts = HEADING.split(extract)
    sections = {heading: SUBHEADING.sub("", text) for heading, text in zip(parts[::2], parts[1::2], strict=True)}
    return WikiPage(title=title, summary=summary, sections={name: x for name, x in sections.items() if x.strip()})


QUESTION = re.compile(
    r"(?:\w+\W+you\W+)?(?:please\W+)?(?:know\W+|say\W+|tell\W+me\W+)?"
    r"(?:(?:what|who)(?:\W+(?:is|are|was|were)|['’]s)|(?:something\W+|more\W+|what\W+)?about|more\W+on|look\W+up|define)\W+(\w.*)",
    re.IGNORECASE,
)
OF_THE_PAGE = {"its", "his", "her", "their"}
NOT_A_TITLE = OF_THE_PAGE | {"it", "that", "this", "these", "those", "there", "i", "you", "he", "she", "we", "they"}
NOT_A_TITLE |= {"my", "your", "our", "me", "him", "us", "them"}
YES, NO = {"yes", "yeah", "yep", "sure", "right"}, {"no", "not", "neither", "none"}
LONGEST_TURN, LONGEST_TEXT, LONGEST_TITLE = 300, 600, 80  # characters that are read of a turn, and said of a page
MOST = 5  # titles that are offered in a reply


def normal(text: str) -> str:
    """Lower case, without punctuation and articles: what two spellings of a title share.

    >>> normal("The Moon (satellite)")
    'moon satellite'
    """
    words = re.sub(r"[\W_]+", " ", text.casefold()).split()
    return " ".join(words[1:] if len(words) > 1 and words[0] in ("a", "an", "the") else words)


def find_title(turn: str) -> str | None:
    """The title that a turn asks for, or None.

    >>> find_title("What is the Moon?")
    'Moon'
    """
    title = re.sub(r"^(?:the|an?)\s+", "", _asked(turn)).strip("'\"“”‘’")
    first = normal(title).split()[:1]
    return title if first and first[0] not in NOT_A_TITLE else None


def choose_title(turn: str, offered: list[str]) -> str | None:
    """The title that a turn chooses: by its name, by a word that only it has, or by `yes` to a single one.

    >>> choose_title("the planet, please", ["Mercury (element)", "Mercury (planet)"])
    'Mercury (planet)'
    """
    words, names = set(normal(turn).split()), [normal(title) for title in offered]
    if normal(turn) in names:
        return offered[names.index(normal(turn))]
    if find_title(turn) is not None or words & NO:
        return None
    if words & YES and len(offered) == 1:
        return offered[0]
    all_words = " ".join(names).split()
    own_words = [{word for word in name.split() if len(word) > 3 and all_words.count(word) == 1} for name in names]
    by_word = [title for title, own in zip(offered, own_words, strict=True) if own & words]
    return by_word[0] if len(by_word) == 1 else None


def _asked(turn: str) -> str:
    """What a turn asks about, or an empty text."""
    asked = QUESTION.fullmatch(re.sub(r"[\s.,?!]*(?:\bplease)?[\s.?!]*$", "", turn, flags=re.IGNORECASE))
    return asked[1] if asked else ""


class Knowledge:
    """Answers turns of a dialogue: a question with what a page says, anything else with `policy(turn)`.

    >>> knowledge = Knowledge(lambda turn: "Which area ?", own=("phone number",))
    >>> knowledge.reply("What is the phone number?")
    'Which area ?'

    fetcher: finds pages: `fetch(title)` returns one, or the titles that may be meant, or raises LookupFailed; None: the small
        file of the package
    own: what the policy answers itself, such as the slots of its domain; questions that contain one of them are its
    """

    def __init__(self, policy: Callable[[str], str], fetcher: Any = None, own: Collection[str] = ()):
        self.policy = policy
        self.fetcher = fetcher or OfflineFile()
        self.own = [normal(each) for each in own]
        self.begin()

    def begin(self) -> None:
        """Begin a dialogue: no page is open, and no titles are offered."""
        self.page: WikiPage | None = None
        self.offered: list[str] = []

    def reply(self, turn: str) -> str:
        """What is said to the user's turn; a lookup that fails is said, and the dialogue goes on."""
        answer = self._answer(turn[:LONGEST_TURN])
        return self.policy(turn) if answer is None else answer

    def _answer(self, turn: str) -> str | None:
        offered, self.offered = self.offered, []
        if offered and (meant := choose_title(turn, offered)):
            return self._look_up(meant)
        if any(f" {name} " in f" {normal(turn)} " for name in self.own):
            return None
        if self.page and (answer := self._answer_more(self.page, turn)):
            return answer
        title = find_title(turn)
        return None if title is None else self._look_up(title)

    def _answer_more(self, page: WikiPage, turn: str) -> str | None:
        """The section that is asked for; of `its colour`, where there is no such section, what there is to ask for. None where
        the turn is about something else."""
        asked = normal(_asked(turn))
        first, _, rest = asked.partition(" ")
        is_of_the_page = first in OF_THE_PAGE and bool(rest)
        title = shorten(page.title, LONGEST_TITLE)
        for heading, text in page.sections.items():
            if normal(heading) == (rest if is_of_the_page else asked):
                return f"{title}, {shorten(heading, LONGEST_TITLE)}: {shorten(text, LONGEST_TEXT)}"
        headings = ", ".join(shorten(heading, LONGEST_TITLE) for heading in list(page.sections)[: 2 * MOST])
        return f"{title}: you can ask about {headings or 'nothing more'}." if is_of_the_page else None

    def _look_up(self, title: str) -> str:
        shown_title = shorten(title, LONGEST_TITLE)
        try:
            answer = self.fetcher.fetch(title)
        except (LookupFailed, OSError) as error:
            logger.warning("knowledge: %r was not looked up: %s", title, error)
            return f"I am sorry, I cannot look up {shown_title} now."
        if isinstance(answer, WikiPage):
            self.page = answer
            return f"{shorten(answer.title, LONGEST_TITLE)}: {shorten(answer.summary, LONGEST_TEXT)}"
        self.offered = answer
        *titles, last = [shorten(each, LONGEST_TITLE) for each in answer[:MOST]] or [""]
        choices = f"{', '.join(titles)} or {last}" if titles else last
        return f"I have no page on {shown_title}.{f' Do you mean {choices}?' if choices else ''}"


def shorten(text: str, longest: int) -> str:
    """A text of a page on one line, without what steers a terminal; a long one ends with a sentence, or with `...`."""
    text = visible(" ".join(text.split()))
    if len(text) <= longest:
        return text
    end = max(text.rfind(mark, longest // 3, longest) for mark in (". ", "! ", "? "))
    return text[: end + 1] if end > 0 else f"{text[: longest - 4].rstrip()} ..."
