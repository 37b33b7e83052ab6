"""The user's code behind a reward, an estimator or a loss: a hash of each source file, which a resumed run compares.

Comments, docstrings, formatting and the version of Python do not count. Neither do the files of this package, of Python and of
installed packages, unless the reward itself is in such a package.
"""

import ast
import functools
import hashlib
import inspect
import linecache
import logging
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from rlhf_dialog.rewards.base import free_name
from rlhf_dialog.user_code import LIBRARIES

logger = logging.getLogger(__name__)
INSTALLED = {"site-packages", "dist-packages"}  # in the paths of packages, also of another user or environment
FORM = ("ctx", "kind", "type_ignores", "type_comment")  # fields of a syntax tree that do nothing


def code_of(makers: Iterable[Any], named: Iterable[Path] = ()) -> dict[str, str]:
    """A hash of each source file behind these classes and functions, and of what these files import, by the file's name.

    `named`: the files that the YAML names, where a function may be defined or imported. A function also has a hash of its own,
    as does what was typed in a notebook. A warning names what has no source.
    """
    users = [one for one in dict.fromkeys(map(_unwrap, makers)) if _package(one) != _package(code_of)]
    packages = {_package(one) for one in users} - {*sys.stdlib_module_names, "__main__"}
    hashes: dict[str, str] = {}
    files = [path.resolve() for path in named]
    for one in users:
        trees = {name: tree for name in _names_of_files(one, packages) if (tree := _parse(name)) is not None}
        if not trees:
            what = "its source cannot be read, so a resume does not notice when it has changed"
            logger.warning("%s: %s", one.__name__, what)
        functions = [node for tree in trees.values() for node in ast.walk(tree) if _is_function(node, one)]
        typed = [tree for name, tree in trees.items() if not Path(name).is_file()]
        if nodes := functions or typed:
            hashes[free_name(one.__name__, hashes)] = _hash(nodes)
        files += [Path(name).resolve() for name in trees if Path(name).is_file()]
    for path, tree in _with_imports(files, packages).items():
        hashes[free_name(_label(path), hashes)] = _hash([tree])
    return hashes


def changed_code(now: dict[str, str], then: dict[str, str]) -> list[str]:
    """The names that only one of the two has, or has with another hash."""
    return sorted(name for name in {*now, *then} if now.get(name) != then.get(name))


def _unwrap(maker: Any) -> Any:
    """The class or function inside of decorators, `functools.partial` and methods; of another object, its class."""
    while isinstance(maker, functools.partial):
        maker = maker.func
    maker = inspect.unwrap(getattr(maker, "__func__", maker))
    return maker if isinstance(maker, type) or inspect.isfunction(maker) else type(maker)


def _package(maker: Any) -> str:
    return str(maker.__module__).partition(".")[0]


def _counts(path: Path, package: str, packages: Collection[str]) -> bool:
    """Whether a file is the user's: of no library, or of a package that holds a reward."""
    real = path.resolve()
    is_library = INSTALLED & {*real.parts} or any(real.is_relative_to(library) for library in LIBRARIES)
    return not is_library or package in packages


def _names_of_files(maker: Any, packages: Collection[str]) -> list[str]:
    """The user's files that hold the function, or the class with its bases and methods."""
    if inspect.isfunction(maker):
        return [maker.__code__.co_filename]
    names = []
    for cls in maker.__mro__:
        members = [getattr(value, "fget", getattr(value, "__func__", value)) for value in vars(cls).values()]
        functions = [_unwrap(value) for value in members if callable(value)]
        places = [value.__code__.co_filename for value in functions if inspect.isfunction(value)]
        places.append(getattr(sys.modules.get(cls.__module__), "__file__", None) or "")
        names += [name for name in places if name and _counts(Path(name), _package(cls), packages)]
    return list(dict.fromkeys(names))


def _parse(name: str) -> ast.Module | None:
    """The syntax tree of a file, or of a cell of a notebook; None without one."""
    linecache.checkcache(name)
    try:
        return ast.parse("".join(linecache.getlines(name))) if linecache.getlines(name) else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _is_function(node: ast.AST, maker: Any) -> bool:
    """Whether the node is the definition of the function `maker`."""
    if not (inspect.isfunction(maker) and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
        return False
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return first == maker.__code__.co_firstlineno


def _with_imports(files: Iterable[Path], packages: Collection[str]) -> dict[Path, ast.Module]:
    """The syntax trees of the files, and of the user's files that they import, directly or not."""
    trees: dict[Path, ast.Module] = {}
    todo = list(files)
    while todo:
        path = todo.pop(0)
        if path not in trees and (tree := _parse(str(path))) is not None:
            trees[path] = tree
            for name, folder in _imported_names(tree, path):
                found = _find_modules(name, folder)
                todo += [one for one in found if folder or _counts(one, name.partition(".")[0], packages)]
    return trees


def _imported_names(tree: ast.Module, path: Path) -> Iterator[tuple[str, Path | None]]:
    """The names that a file imports anywhere, with the folder that a relative import begins in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folder = path.parents[node.level - 1] if node.level else None
            yield from ((f"{node.module or ''}.{alias.name}".strip("."), folder) for alias in node.names)


def _find_modules(name: str, folder: Path | None) -> Iterator[Path]:
    """The files of `a`, `a.b` and `a.b.c` for the name a.b.c; nothing is imported."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        loaded = None if folder else getattr(sys.modules.get(".".join(parts[:i])), "__file__", None)
        stems = [Path(base, *parts[:i]) for base in ([folder] if folder else sys.path)]
        tried = [one for stem in stems for one in (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))]
        places = [Path(loaded)] if loaded else tried
        yield from (one.resolve() for one in [place for place in places if place.is_file()][:1])


def _label(path: Path) -> str:
    """The path from its top-level package, or its name: the same wherever the code lies, and however the run is started."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return path.relative_to(folder).as_posix()


def _hash(trees: Iterable[ast.AST]) -> str:
    return hashlib.sha256(repr([_essential(tree) for tree in trees]).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _essential(node: Any) -> Any:
    """A syntax tree as nested lists, without what does nothing and what differs between versions of Python."""
    if isinstance(node, list):
        return [_essential(one) for one in node if not _is_text(one)]
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(key, value) for key, value in ast.iter_fields(node) if key not in FORM and value not in (None, [])]
    return [type(node).__name__, *([key, _essential(value)] for key, value in fields)]


def _is_text(node: Any) -> bool:
    """Whether the node is a statement of a text alone, as a docstring is."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
