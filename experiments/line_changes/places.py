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


def same_lines(source: str, function: str, old: str) -> list[int]:
    """The lines of that function with the text of the old line, whatever their indentation."""
    return [line for line, name in lines_of_text(source, old) if name == function]


def lines_of_text(source: str, old: str) -> list[tuple[int, str]]:
    """Every line with the text of the old one, and the function around it."""
    if old.strip() not in source:
        return []
    names = functions_of_lines(source)
    lines = enumerate(source.splitlines(), start=1)
    return [(line, names.get(line, OUTSIDE)) for line, text in lines if text.strip() == old.strip()]


def place_now(tree: Path, change: dict) -> Place | None:
    """The line now: in its function at the old place, in a file of the old name, or where nothing else can be meant.

    Nothing else can be meant by the only function of that name with such a line, by the only one in a class that has
    another name now, and by the only line of that text: in files of the old name, then in all.
    """
    found = {file: lines_of_text((tree / file).read_text(encoding="utf-8"), change["old"]) for file in sources(tree)}
    for file in sorted(found, key=lambda file: _distance(file, change["file"])):
        lines = [line for line, name in found[file] if name == change["function"]]
        if Path(file).name == Path(change["file"]).name and len(lines) > change["nth"]:
            return Place(file, lines[change["nth"]])
    places = [(Place(file, line), name) for file, hits in found.items() for line, name in hits]
    at_home = [(place, name) for place, name in places if Path(place.file).name == Path(change["file"]).name]
    last = change["function"].rpartition(".")[2]
    for meant in (
        [place for place, name in places if name == change["function"]],
        [place for place, name in at_home if name.rpartition(".")[2] == last],
        [place for place, name in places if name.rpartition(".")[2] == last],
        [place for place, _ in at_home],
        [place for place, _ in places],
    ):
        if len(meant) == 1:
            return meant[0]
    return None


def _distance(file: str, old_file: str) -> tuple[bool, int, str]:
    """The old file itself comes first, then those that share most folders with it."""
    return file != old_file, -len(set(Path(file).parts) & set(Path(old_file).parts)), file


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
