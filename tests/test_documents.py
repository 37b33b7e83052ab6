"""Where the links of the documents lead, and what their advice and programs are."""

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


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


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


def test_the_readme_lists_its_own_sections():
    text = text_of("README.md")
    assert [link[2:-1] for link in re.findall(r"\(#[^)]+\)", text)] == [
        title.lower().replace(" ", "-") for title in re.findall(r"^## (.*)$", without_code(text), flags=re.MULTILINE)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    assert dead_links(ROOT / page) == []


def test_every_page_of_results_is_listed():
    listed = LINK.findall(text_of("docs/RESULTS.md"))
    assert [
        path.name
        for path in (ROOT / "experiments" / "results").glob("*.md")
        if f"../experiments/results/{path.name}" not in listed
    ] == []


def test_dead_links_and_anchors(tmp_path):
    (tmp_path / "other.md").write_text("# Ein Titel, mit `code` (2)\n```bash\n# no heading\n```\n## Another_one\n")
    (tmp_path / "page.md").write_text(
        "# Top\n[a](other.md) [b](other.md#ein-titel-mit-code-2) [c](#top) [d](https://example.org/x)\n"
        "[e](gone.md) [f](other.md#no-heading) [g](#missing) `code`\n```\n[h](in_code.md)\n```\n"
    )
    assert dead_links(tmp_path / "page.md") == ["gone.md", "other.md#no-heading", "#missing"]
    assert anchors("## Another_one\n### A - b") == {"another_one", "a---b"}


def test_no_advice_names_a_package_that_no_index_has():
    """From the checkout it is `pip install -e ".[chat]"`; without -e it would replace the editable install by a copy."""
    files = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py", ".yaml")
    ]
    texts = {path: path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.md"), *files] if path != Path(__file__)}
    wrong = r"rlhf-dialog\[|pip install (?!-e )[\"']?\.\["
    assert {str(path): found for path, text in texts.items() if (found := re.findall(wrong, text))} == {}


def test_a_program_of_the_documents_imports_the_package_before_torch():
    """Otherwise a run of it warns of torch's idle threads."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    programs = [block for text in texts for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    late = [
        text
        for text in programs
        if re.search(r"^(import torch|from transformers).*^from rlhf_dialog", text, re.M | re.S)
    ]
    assert len(programs) > 10
    assert late == []
