"""What a lookup asks: pages by title, from a file on this machine or from a fetcher of the user's own."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from rlhf_dialog.errors import UserError
from rlhf_dialog.json_files import read_json

NEAREST = 3  # titles that are offered where there is no page


class LookupFailed(Exception):
    """There is no answer: its text is the rest of a sentence, such as `the wiki gave no answer within 5 seconds`."""


@dataclass(frozen=True)
class WikiPage:
    """A page: its title, a summary in a few sentences, and its sections, heading -> text."""

    title: str
    summary: str
    sections: Mapping[str, str] = field(default_factory=dict)


class Fetcher(Protocol):
    """Finds pages. A fetcher of yours may also have `suggest_titles(title) -> list[str]`, for a title without a page."""

    def fetch(self, title: str) -> WikiPage | list[str] | None:
        """The page; the titles that an ambiguous one may mean; None where there is nothing. Raises LookupFailed."""


def normal(text: str) -> str:
    """Lower case, without punctuation and articles: what two spellings of a title share.

    >>> normal("The Moon (satellite)")
    'moon satellite'
    """
    words = re.sub(r"[\W_]+", " ", text.casefold()).split()
    return " ".join(words[1:] if len(words) > 1 and words[0] in ("a", "an", "the") else words)


class OfflineFile:
    """Pages of a JSON file: `{"pages": [{"title", "summary", "sections": {heading: text}}], "ambiguous": {title: [titles]}}`.

    path: null takes the small file of the package. Raises UserError with the file and the page for what cannot be read.
    """

    def __init__(self, path: str | Path | None = None):
        built_in = resources.files("rlhf_dialog.task_oriented.policies.multi_domain") / "encyclopedia.json"
        source, where = (Path(path).expanduser(), str(path)) if path is not None else (built_in, "encyclopedia.json")
        self.pages, self.titles = _pages(read_json(source, f"{where}: cannot be read as JSON: "), where)

    def fetch(self, title: str) -> WikiPage | list[str] | None:
        """The page or the candidates of the title; case, punctuation and articles do not matter."""
        return self.pages.get(normal(title))

    def suggest_titles(self, title: str) -> list[str]:
        """The titles that are spelled alike, the nearest first."""
        alike = difflib.get_close_matches(normal(title), self.titles, n=NEAREST, cutoff=0.6)
        return [self.titles[each] for each in alike]


def _pages(data: Any, where: str) -> tuple[dict[str, WikiPage | list[str]], dict[str, str]]:
    """Normal title -> page or candidates, and normal title -> title."""
    pages = data.get("pages") if isinstance(data, dict) else None
    if not isinstance(pages, list) or not pages or set(data) - {"pages", "ambiguous"}:
        raise UserError(f'{where}: expected {{"pages": [...], "ambiguous": {{...}}}} with at least one page')
    by_title: dict[str, WikiPage | list[str]] = {}
    for i, entry in enumerate(pages):
        page = _page(entry, f"{where}: page {i + 1}")
        if by_title.setdefault(normal(page.title), page) is not page:
            raise UserError(f"{where}: page {i + 1}: the title {page.title!r} is there twice; rename or remove one")
    titles = {normal(entry["title"]): entry["title"] for entry in pages}
    ambiguous = data.get("ambiguous", {})
    for title, candidates in ambiguous.items() if isinstance(ambiguous, dict) else [("ambiguous", None)]:
        if not isinstance(candidates, list) or not all(_is_text(each) for each in candidates) or len(candidates) < 2:
            raise UserError(f"{where}: ambiguous: {title!r}: expected a list of two titles or more")
        if unknown := [each for each in candidates if normal(each) not in titles] or [title] * (
            normal(title) in titles
        ):
            raise UserError(f"{where}: ambiguous: {title!r}: {unknown[0]!r} must be a page, and {title!r} must not")
        by_title[normal(title)], titles[normal(title)] = candidates, title
    return by_title, titles


def _page(entry: Any, where: str) -> WikiPage:
    keys = ("title", "summary", "sections")
    sections: Any = entry.get("sections", {}) if isinstance(entry, dict) else None
    is_right = (
        isinstance(sections, dict)
        and not set(entry) - set(keys)
        and all(_is_text(entry.get(key)) for key in keys[:2])
        and normal(entry["title"])
        and all(_is_text(each) for pair in sections.items() for each in pair)
    )
    if not is_right:
        raise UserError(f"{where}: expected the texts title and summary, and sections: {{heading: text}}")
    return WikiPage(entry["title"], entry["summary"], sections)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
