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
DOCUMENTS = ["README.md", "reward_models/README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
SPEAKING = ("debug", "info", "warning", "error", "exception", "critical")  # of a logger
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
    """Line and text of every string that a user or a caller reads.

    These are public docstrings, what is raised or logged, the arguments `description` and `help`, what is written to the
    terminal, and the constants of a module (usage texts, hints, reasons).
    """
    tree = ast.parse(source)
    yield from ((getattr(node, "lineno", 1), ast.get_docstring(node) or "") for node in documented(tree))
    for node in ast.walk(tree):
        spoken = isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and is_spoken(node))
        if spoken or (node in tree.body and isinstance(node, ast.Assign | ast.AnnAssign)):
            yield node.lineno, strings(node)
        elif isinstance(node, ast.keyword) and node.arg in ("description", "help"):
            yield node.value.lineno, strings(node.value)


def documented(node: ast.AST) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The module and its public classes and functions, at any depth."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if getattr(node, "name", "").startswith("_") and not getattr(node, "name", "").startswith("__"):
            return
        yield node
    for child in ast.iter_child_nodes(node):
        yield from documented(child)


def is_spoken(call: ast.Call) -> bool:
    """Whether a call makes an error, logs, or writes to the terminal."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    of_logger = isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") in ("logger", "warnings")
    return (
        name.endswith(("Error", "Stopped", "print"))
        or name in ("write", "_say")
        or (of_logger and name in (*SPEAKING, "warn"))
    )


def strings(node: ast.AST) -> str:
    """The string constants below the node, joined; what an f-string computes is left out."""
    parts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return " ... ".join(parts)


def prose(markdown: str) -> str:
    """A document without its code: blocks, and words in backticks."""
    return re.sub(r"`[^`\n]+`", "`", re.sub(r"^ *```.*?^ *```", "", markdown, flags=re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("name", ["", *dispatcher.COMMANDS])
def test_the_help_of_every_command(name, capsys):
    with suppress(SystemExit):  # argparse's
        dispatcher.main([name, "--help"] if name else ["--help"])
    text = capsys.readouterr().out
    assert "usage: " in text
    assert offences(text) == []


@pytest.mark.parametrize("path", PROGRAMS)
def test_the_messages_and_docstrings_of_every_module(path):
    source = (ROOT / path).read_text(encoding="utf-8")
    assert [f"{path}:{line}: {one}" for line, text in texts_in(source) for one in offences(text)] == []


@pytest.mark.parametrize("path", DOCUMENTS)
def test_every_document(path):
    assert offences(prose((ROOT / path).read_text(encoding="utf-8"))) == []


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
"""Module."""
REASONS = {"key": "constant"}
def act(x):
    """Public."""
    logger.info("logged %s", x)
    parser.add_argument("--x", help="helped")
    Field(3, description="described")
    if x: raise UserError(f"raised {x}" "here")
    return make("unread")
def _own():
    """Private."""
    return ValueError("made")
'''
    read = " ".join(text for _, text in texts_in(source))
    assert set(re.findall(r"\w+", read)) >= {
        "Module",
        "constant",
        "Public",
        "logged",
        "helped",
        "described",
        "raised",
        "made",
    }
    assert not {"unread", "Private"} & set(re.findall(r"\w+", read))
