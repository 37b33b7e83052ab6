"""Where a function and its tests are in a tree, now or after they were moved."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = ("rlhf_dialog", "benchmarks", "examples")  # where functions of the package may have been moved
OUTSIDE = "<module>"
FILES_OF_TESTS = 6


@dataclass(frozen=True)
class Place:
    """A line of a file, counted from 1."""

    file: str
    line: int


def functions_of_lines(source: str) -> dict[int, str]:
    """Line -> the qualified name of the innermost function or class around it; lines outside of all are left out."""
    names: dict[int, str] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{prefix}.{child.name}".lstrip(".")
                names.update(dict.fromkeys(range(child.lineno, (child.end_lineno or child.lineno) + 1), inner))
            walk(child, inner)

    walk(ast.parse(source), "")
    return names


def sources(tree: Path) -> list[str]:
    """Every Python file of the package and of the folders beside it, as paths from the tree."""
    return sorted(path.relative_to(tree).as_posix() for one in SOURCES for path in (tree / one).rglob("*.py"))


def same_lines(source: str, function: str | None, old: str) -> list[int]:
    """The lines of that function (None: of any) with the text of the old line, whatever their indentation."""
    names = functions_of_lines(source) if function is not None else {}
    lines = enumerate(source.splitlines(), start=1)
    equal = [line for line, text in lines if text.strip() == old.strip()]
    return [line for line in equal if function is None or names.get(line, OUTSIDE) == function]


def place_now(tree: Path, change: dict) -> Place | None:
    """The line now: in its function at the old place, in a function of that name elsewhere, or the only line of that text."""
    name = Path(change["file"]).name
    others = sorted(sources(tree), key=lambda path: (path != change["file"], Path(path).name != name, path))
    for file in others:
        hits = same_lines((tree / file).read_text(encoding="utf-8"), change["function"], change["old"])
        if len(hits) > change["nth"] and (change["function"] != OUTSIDE or Path(file).name == name):
            return Place(file, hits[change["nth"]])
    anywhere = [Place(file, line) for file in others for line in _any_lines(tree / file, change["old"])]
    return anywhere[0] if len(anywhere) == 1 else None


def _any_lines(path: Path, old: str) -> list[int]:
    text = path.read_text(encoding="utf-8")
    return same_lines(text, None, old) if old.strip() in text else []


def files_of_tests(tree: Path, file: str, seconds: dict[str, float]) -> list[str]:
    """The file that mirrors the module, then those that import it: the fastest first, whole runs last."""
    every = sorted(path.relative_to(tree).as_posix() for path in (tree / "tests").rglob("test_*.py"))
    mirrors = list(_mirrors(file, every))[:1]
    pattern = _import_of(file)
    importing = [path for path in every if pattern.search((tree / path).read_text(encoding="utf-8"))]

    def cost(path: str) -> tuple[bool, float]:
        return "/whole_runs/" in path, seconds.get(path, (tree / path).stat().st_size / 2000)

    return [*mirrors, *sorted(set(importing) - set(mirrors), key=cost)][:FILES_OF_TESTS]


def _mirrors(file: str, every: list[str]) -> Iterator[str]:
    """The mirror at the same place below tests/, else files of that name, those with more folders in common first."""
    folder, name = Path(file).parent, f"test_{Path(file).name}"
    inside = folder.relative_to("rlhf_dialog") if folder.parts[0] == "rlhf_dialog" else folder
    exact = (Path("tests") / inside / name).as_posix()
    named = [path for path in every if Path(path).name == name and path != exact]
    yield from [path for path in every if path == exact]
    yield from sorted(named, key=lambda path: -len(set(Path(path).parts) & set(folder.parts)))


def _import_of(file: str) -> re.Pattern[str]:
    """Finds `package.module` and `from package import module`; of a package's own file the package alone."""
    parts = Path(file).with_suffix("").parts
    if parts[-1] == "__init__":
        return re.compile(rf"(?:from|import) {re.escape('.'.join(parts[:-1]))}(?= |$)", re.MULTILINE)
    package, module = re.escape(".".join(parts[:-1])), re.escape(parts[-1])
    listed = rf"from {package} import (?:\([^)]*|[^\n(]*)\b{module}\b"
    return re.compile(rf"\b{package}\.{module}\b|{listed}")
