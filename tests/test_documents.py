"""The relative links of the documents lead to a file and a heading."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SKIPPED = ("runs", "run_results", "fetched", "build", "site", "shared")  # of what a checkout gathers
FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", *SKIPPED))]
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))])
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


def leads_somewhere(path: Path, link: str) -> bool:
    """Whether a link from the page at `path` leads to a file, and where it names a heading, to that."""
    name, _, anchor = link.partition("#")
    target = path.parent / name if name else path
    return target.exists() and (not anchor or anchor in anchors(target.read_text(encoding="utf-8")))


def test_every_relative_link_leads_to_a_file_and_a_heading():
    assert len(PAGES) > 30
    for page in PAGES:
        links = LINK.findall(without_code(page.read_text(encoding="utf-8")))
        assert [link for link in links if "://" not in link and not leads_somewhere(page, link)] == [], page


def test_every_page_of_results_is_listed():
    listed = LINK.findall((ROOT / "docs/RESULTS.md").read_text(encoding="utf-8"))
    pages = [f"../experiments/results/{path.name}" for path in (ROOT / "experiments" / "results").glob("*.md")]
    assert set(pages) <= set(listed)
