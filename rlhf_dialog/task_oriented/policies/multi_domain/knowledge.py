"""A lookup behind a policy: questions about the world are answered from an encyclopedia, all else by the policy."""

import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from rlhf_dialog.config.loading import load_settings
from rlhf_dialog.config.settings import Settings
from rlhf_dialog.errors import UserError
from rlhf_dialog.task_oriented.policies.multi_domain.encyclopedia import (
    Fetcher,
    LookupFailed,
    OfflineFile,
    WikiPage,
    normal,
)
from rlhf_dialog.task_oriented.policies.multi_domain.lookup_requests import (
    choose_title,
    find_heading,
    find_title,
    wants_more,
)
from rlhf_dialog.task_oriented.policies.multi_domain.mediawiki import AGENT, WIKIPEDIA, MediaWiki
from rlhf_dialog.terminal import visible

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
        self.own = [normal(each) for each in own]
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
        if any(f" {name} " in f" {normal(turn)} " for name in self.own):
            return None
        if self.page and (answer := self._answer_more(self.page, turn)):
            return answer
        title = find_title(turn)
        return None if title is None else self._look_up(title)

    def _answer_more(self, page: WikiPage, turn: str) -> str | None:
        """The section that is asked for, or what there is to ask for; None where the turn is about something else."""
        asked, of_the_page = find_heading(turn)
        names = {asked, normal(turn)} if self.spoke_last else {asked}
        title = shorten(page.title, LONGEST_TITLE)
        for heading, text in page.sections.items():
            if normal(heading) in names:
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
            isinstance(each, str) and normal(each) for each in self.offered
        ):
            name = type(self.fetcher).__name__
            raise UserError(
                f"{name}: found {self.offered!r} for {title!r}; return a WikiPage, a list of titles, or None"
            )
        question = f" Do you mean {_join_titles(self.offered)}?" if self.offered else ""
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


def _join_titles(titles: list[str]) -> str:
    *first, last = [shorten(title, LONGEST_TITLE) for title in titles[:MOST]]
    return f"{', '.join(first)} or {last}" if first else last
