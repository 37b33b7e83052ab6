"""What a reader of a call or a name must not have to guess: which argument gets which value, and what a thing is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import rlhf_dialog

ROOT = Path(rlhf_dialog.__file__).parents[1]
FOLDERS = ("rlhf_dialog", "benchmarks", "examples", "experiments", "scripts")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those of the functions in it."""
    rest = list(ast.iter_child_nodes(function))
    while rest:
        node = rest.pop()
        yield node
        if not isinstance(node, Function):
            rest += ast.iter_child_nodes(node)


def literals(nodes: list[ast.AST], kind: type[ast.AST]) -> set[str]:
    """The names that are bound once, to a literal of this kind, and not changed."""
    stores = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    changed = {node.value.id for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)}
    changed |= {
        node.target.id for node in nodes if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    bound: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                bound |= {one.id for one, value in pairs if isinstance(one, ast.Name) and is_literal(value, kind)}
    return {name for name in bound - changed if stores.count(name) == 1}


def is_literal(node: ast.AST, kind: type[ast.AST]) -> bool:
    if isinstance(node, ast.Dict):  # keys that are no names cannot be keywords; an empty one is filled later
        names = [isinstance(key, ast.Constant) and str(key.value).isidentifier() for key in node.keys]
        return kind is ast.Dict and bool(names) and all(names)
    return isinstance(node, kind)


def packed(source: str) -> list[int]:
    """The lines in which a call is given a literal tuple as `*`, or a literal dict as `**`, also by a name."""
    lines = set()
    tree = ast.parse(source)
    for function in [tree, *(node for node in ast.walk(tree) if isinstance(node, Function))]:
        nodes = list(own_nodes(function))
        tuples, dicts = literals(nodes, ast.Tuple), literals(nodes, ast.Dict)
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            stars = [one.value for one in call.args if isinstance(one, ast.Starred)]
            splats = [keyword.value for keyword in call.keywords if keyword.arg is None]
            lines |= {one.lineno for one in stars if is_packed(one, ast.Tuple, tuples)}
            lines |= {one.lineno for one in splats if is_packed(one, ast.Dict, dicts)}
    return sorted(lines)


def is_packed(node: ast.AST, kind: type[ast.AST], names: set[str]) -> bool:
    return is_literal(node, kind) or (isinstance(node, ast.Name) and node.id in names)


def test_no_call_is_packed():
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    files = [path for path in paths if "tests" not in path.parts]
    found = {str(path.relative_to(ROOT)): packed(path.read_text(encoding="utf-8")) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_what_counts_as_packed():
    assert packed("f(*(a, b))") == [1]
    assert packed("def g():\n    sizes = a, b\n    return f(*sizes, c)") == [3]
    assert packed("def g():\n    options = {'a': 1}\n    return f(**options)") == [3]
    assert packed("f(**{'a': 1})") == [1]
    assert packed("def g(*args, **kwargs):\n    return f(*args, **kwargs)") == []
    assert packed("def g():\n    options = {}\n    if a:\n        options['b'] = 1\n    return f(**options)") == []
    assert packed("f(*(x for x in y), *rows.values(), **settings.args, **{KEY: 1})") == []


SHORT_LIVED = {"found", "told", "own"}  # say that a thing was found, not what it is
LINES = 5


def vague(source: str) -> list[tuple[str, str]]:
    """Function and name, where one of SHORT_LIVED lives for more than LINES lines."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    long_lived = []
    for function in functions:
        nodes = list(ast.walk(function))
        for name in SHORT_LIVED:
            lines = [node.lineno for node in nodes if isinstance(node, ast.Name) and node.id == name]
            lines += [node.lineno for node in nodes if isinstance(node, ast.arg) and node.arg == name]
            if lines and max(lines) - min(lines) > LINES:
                long_lived.append((function.name, name))
    return long_lived


def test_names_say_what_a_thing_is():
    files = sorted((ROOT / "rlhf_dialog").rglob("*.py"))
    places = {str(path.relative_to(ROOT)): vague(path.read_text(encoding="utf-8")) for path in files}
    assert {path: names for path, names in places.items() if names} == {}


def test_which_names_are_vague():
    long = "def f():\n    found = 1\n" + "    x = 2\n" * 5 + "    return found"
    assert vague(long) == [("f", "found")]
    assert vague(long.replace("    x = 2\n", "", 1)) == []
    assert vague(long.replace("found", "replies")) == []
