"""The relative links of the documents lead to a file and a heading."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "benchmarks",
    "configs",
    "docs",
    "ds_configs",
    "examples",
    "experiments",
    "reward_models",
    "rlhf_dialog",
    "scripts",
    "tests",
)
MARKDOWN = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
PAGES = [path.relative_to(ROOT).as_posix() for path in MARKDOWN]
FENCE = re.compile(r"^ *```.*?^ *```[^\n]*$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def without_code(markdown: str) -> str:
    """The text without blocks of code."""
    return FENCE.sub("", markdown)


def anchors(markdown: str) -> set[str]:
    """The names under which a page's headings are found, as GitHub makes them."""
    titles = re.findall(r"^#+ +(.*)$", without_code(markdown), flags=re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


def dead_links(path: Path) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading of it."""
    links = [link for link in LINK.findall(without_code(path.read_text(encoding="utf-8"))) if "://" not in link]
    return [link for link in links if not leads_somewhere(path, link)]


def leads_somewhere(path: Path, link: str) -> bool:
    """Whether a link from the page at `path` leads to a file, and where it names a heading, to that."""
    name, _, anchor = link.partition("#")
    target = path.parent / name if name else path
    return target.exists() and (not anchor or anchor in anchors(target.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    assert dead_links(ROOT / page) == []


def test_every_page_of_results_is_listed():
    listed = LINK.findall((ROOT / "docs/RESULTS.md").read_text(encoding="utf-8"))
    assert [
        path.name
        for path in (ROOT / "experiments" / "results").glob("*.md")
        if f"../experiments/results/{path.name}" not in listed
    ] == []
