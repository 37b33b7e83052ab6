"""The words that users read: `--help`, errors, log lines, docstrings and documents are free of phrases that puzzle a reader."""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rlhf_dialog.commands import dispatcher

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("rlhf_dialog", "scripts", "reward_models")
    for path in (ROOT / folder).rglob("*.py")
)
DOCUMENTS = [
    "README.md",
    "reward_models/README.md",
    *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
]
BANNED = {
    "so many": r"\bso many\b(?! that)",
    "anew": r"\banew\b",
    "is no X": r"(?<!there )\b(?:is|are) no\b(?! (?:longer|more|better|worse|larger|smaller|faster|slower)\b)",
    "mend": r"\bmend(?:s|ed|ing)?\b",
    "lent": r"\blent\b",
    "stands": r"\bstands?\b(?! for\b)",
    "told": r"\btold\b",
    "tell": r"\btells?\b(?! apart\b)",
    "one's": r"\bone's\b",
    "whatever": r"\bwhatever\b",
}
RIGHT: set[str] = set()  # sentences in which such a word is the right one


def offences(text: str) -> list[str]:
    """`phrase: the words around it` for every banned phrase in the text."""
    text = " ".join(text.split())
    for sentence in RIGHT:
        text = text.replace(sentence, "")
    hits = ((name, hit) for name, pattern in BANNED.items() for hit in re.finditer(pattern, text, re.IGNORECASE))
    return [f"{name}: ...{text[max(hit.start() - 40, 0) : hit.end() + 40]}..." for name, hit in hits]


def texts_in(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string that somebody may read: all of three words or more, but for docstrings of private names.

    Of an f-string what it computes is `...`.
    """
    tree = ast.parse(source)
    hidden = {part for node in ast.walk(tree) if is_private(node) for part in docstring_of(node)}
    hidden |= {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        words = [part.value if isinstance(part, ast.Constant) else " ... " for part in parts]
        text = "".join(word for word in words if isinstance(word, str))
        if isinstance(node, ast.JoinedStr | ast.Constant) and node not in hidden and len(text.split()) > 2:
            yield node.lineno, text


def is_private(node: ast.AST) -> bool:
    return re.match(r"_[^_]", getattr(node, "name", None) or "") is not None


def docstring_of(node: ast.AST) -> list[ast.expr]:
    """The docstring of a class or function, if there is one."""
    body = getattr(node, "body", None)
    return [one.value for one in body[:1] if isinstance(one, ast.Expr)] if isinstance(body, list) else []


def prose(markdown: str) -> str:
    """A document without its code: blocks, and words in backticks."""
    return re.sub(r"`[^`\n]+`", "`", re.sub(r"^ *```.*?^ *```", "", markdown, flags=re.DOTALL | re.MULTILINE))


def test_the_help_of_every_command(capsys):
    said = {}
    for name in ("", *dispatcher.COMMANDS):
        with suppress(SystemExit):  # argparse's
            dispatcher.main([name, "--help"] if name else ["--help"])
        said[name] = capsys.readouterr().out
    assert [name for name, text in said.items() if "usage: " not in text] == []
    assert {name: found for name, text in said.items() if (found := offences(text))} == {}


def test_the_messages_and_docstrings_of_every_module():
    texts = [(path, *place) for path in PROGRAMS for place in texts_in((ROOT / path).read_text(encoding="utf-8"))]
    assert [f"{path}:{line}: {one}" for path, line, text in texts for one in offences(text)] == []


def test_every_document():
    texts = {path: prose((ROOT / path).read_text(encoding="utf-8")) for path in DOCUMENTS}
    assert {path: found for path, text in texts.items() if (found := offences(text))} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a prompt is the last so many turns", ["so many"]),
        ("lr: 'abc' is no\n number", ["is no X"]),
        ("There is no such file; it is no longer here, and the others are no better", []),
        (
            "random numbers begin anew. Mend this; whatever was lent is told",
            ["anew", "mend", "lent", "told", "whatever"],
        ),
        ("W stands for work, and stands here; this tells one's story", ["stands", "tell", "one's"]),
        ("recommended, silent, Amendment, standing, intelligible", []),
    ],
)
def test_what_counts_as_an_offence(text, found):
    assert [one.split(":")[0] for one in offences(text)] == found


def test_what_is_read_of_a_module():
    source = '''
"""About this module."""
REASONS = {"key": "constant of three"}
def act(x):
    """About this function."""
    logger.info("logged as %s", x)
    raise UserError(f"raised {x}" " in parts")
def _own():
    """Private and unread."""
    return ("two words", "made in private")
'''
    read = ["About this module.", "constant of three", "About this function.", "logged as %s", "raised  ...  in parts"]
    assert sorted(text for _, text in texts_in(source)) == sorted([*read, "made in private"])
