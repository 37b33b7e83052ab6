"""Ceilings: numbers of the tree that may only fall. A change that must raise one says so in its message.

python tests/test_ceilings.py            # each number and its ceiling
python tests/test_ceilings.py --list of  # what is counted, for the numbers that count names
python tests/test_ceilings.py --lower    # lowers the ceilings below to today's numbers
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = {
    "lines of the package": 51420,
    "lines of the pipeline": 33925,
    "lines of tests": 67270,
    "words of documents": 33450,
    "functions with more than six parameters": 0,
    "class names used twice": 0,
    "variables whose name says nothing": 0,
    "functions named by a participle or preposition": 0,
    "functions with of in their name": 50,
}
WINGS = ("task_oriented", "feedback")  # the pipeline is the package without them
MANY_PARAMETERS = {  # formulas, the signature of transformers, keys of the YAML
    *("policy_loss", "value_loss", "packed_attention"),
    *("NLPReward", "RewardModel", "RemoteReward", "GoalOriented", "LMUser"),
}
SAY_NOTHING = set(
    re.findall(r"\w+", "found one own some known said wanted given heard told others rest at of shown paid drawn")
)
VERBS = set(re.findall(r"\w+", "embed need feed seed read set put cut split reset"))
PREPOSITIONS = set(
    re.findall(
        r"\w+",
        "of at in on by for from to with within without behind beside above below before after between among under over "
        "into onto out off up down near through against alone",
    )
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def pipeline_files() -> list[Path]:
    package = ROOT / "rlhf_dialog"
    return [path for path in python_files("rlhf_dialog") if path.relative_to(package).parts[0] not in WINGS]


def document_files() -> list[Path]:
    docs = ROOT / "docs"
    return [ROOT / "README.md", *sorted(docs.rglob("*.md"))]


def all_lines(paths: list[Path]) -> list[str]:
    return [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


@cache
def trees() -> dict[str, ast.AST]:
    """The parsed modules of the package, by their path in it."""
    package = ROOT / "rlhf_dialog"
    return {
        path.relative_to(package).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in python_files("rlhf_dialog")
    }


@cache
def owners(node: ast.AST, owner: str = "") -> list[tuple[str, ast.AST]]:
    """Every class and function below the node, with the dotted name of what it lies in."""
    definitions: list[tuple[str, ast.AST]] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            definitions += [(owner, child), *owners(child, f"{owner}.{child.name}".strip("."))]
        elif not isinstance(child, ast.expr):
            definitions += owners(child, owner)
    return definitions


def functions(tree: ast.AST) -> Iterator[tuple[str, Function]]:
    return ((owner, node) for owner, node in owners(tree) if isinstance(node, Function))


def all_arguments(node: Function | ast.Lambda) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def many_parameters(tree: ast.AST) -> list[str]:
    """Functions with more than six parameters beside self."""
    counted = []
    for owner, node in functions(tree):
        names = [argument.arg for argument in all_arguments(node)]
        is_allowed = node.name in MANY_PARAMETERS or owner in MANY_PARAMETERS
        if len(names) - (names[:1] in (["self"], ["cls"])) > 6 and not is_allowed:
            counted.append(f"{owner}.{node.name}".strip("."))
    return counted


def public_classes(tree: ast.AST) -> list[str]:
    return [node.name for _, node in owners(tree) if isinstance(node, ast.ClassDef) and node.name[0] != "_"]


@cache
def inside(scope: ast.AST) -> list[ast.AST]:
    """The names and parameters of a scope, and the scopes and classes in it, without what lies in these."""
    nodes = []
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (ast.Name, ast.arg, ast.ClassDef, *SCOPES)):
            nodes.append(child)
        if not isinstance(child, (*SCOPES, ast.ClassDef)):
            nodes += inside(child)
    return nodes


@cache
def bound_names(scope: ast.AST) -> set[str]:
    """Parameters and variables that the scope binds itself."""
    arguments = all_arguments(scope) if isinstance(scope, Function | ast.Lambda) else []
    stored = {node.id for node in inside(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {argument.arg for argument in arguments}


def uses(scope: ast.AST, name: str) -> Iterator[int]:
    """The lines on which the scope, or one in it that does not bind the name itself, uses the name."""
    for node in inside(scope):
        if (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.arg) and node.arg == name):
            yield node.lineno
        elif isinstance(node, SCOPES) and name not in bound_names(node):
            yield from uses(node, name)


def scopes(node: ast.AST) -> Iterator[ast.AST]:
    """All functions, lambdas and comprehensions below a module, class or scope."""
    for child in inside(node):
        if isinstance(child, (*SCOPES, ast.ClassDef)):
            yield child
            yield from scopes(child)


def says_nothing(tree: ast.AST) -> list[str]:
    """Variables and parameters of SAY_NOTHING that live for more than three lines, and fields of these names."""
    counted = []
    for scope in scopes(tree):
        for name in bound_names(scope) & SAY_NOTHING:
            lines = list(uses(scope, name))
            if max(lines) - min(lines) > 3:
                counted.append(f"{getattr(scope, 'name', 'expression')}:{min(lines)} {name}")
    for owner in (node for _, node in owners(tree) if isinstance(node, ast.ClassDef)):
        targets = [node.target for node in owner.body if isinstance(node, ast.AnnAssign)]
        fields = {target.id for target in targets if isinstance(target, ast.Name)}
        counted += [f"{owner.name}.{name}" for name in sorted(fields & SAY_NOTHING)]
    return sorted(counted)


def is_property(node: Function) -> bool:
    return any(re.search(r"property|\.setter$", ast.unparse(decorator)) for decorator in node.decorator_list)


def no_verb(tree: ast.AST) -> list[str]:
    """Functions whose whole name is a participle in -ed or a preposition; properties and dunders apart."""
    counted = []
    for owner, node in functions(tree):
        word = node.name.strip("_")
        is_participle = word.endswith("ed") and "_" not in word and word not in VERBS
        if (is_participle or word in PREPOSITIONS) and not node.name.startswith("__") and not is_property(node):
            counted.append(f"{owner}.{node.name}".strip("."))
    return counted


def with_of(tree: ast.AST) -> list[str]:
    return [f"{owner}.{node.name}".strip(".") for owner, node in functions(tree) if "of" in node.name.split("_")]


def in_package(count: Callable[[ast.AST], list[str]]) -> list[str]:
    """`file name` of all that `count` names in the modules of the package."""
    return [f"{path} {name}" for path, tree in trees().items() for name in count(tree)]


def classes_used_twice() -> list[str]:
    places = defaultdict(list)
    for place, name in (row.split(" ") for row in in_package(public_classes)):
        places[name].append(place)
    return [f"{name}: {' '.join(files)}" for name, files in sorted(places.items()) if len(files) > 1]


COUNTS: dict[str, Callable[[], list[str]]] = {  # what is counted, a text for each
    "lines of the package": lambda: all_lines(python_files("rlhf_dialog")),
    "lines of the pipeline": lambda: all_lines(pipeline_files()),
    "lines of tests": lambda: all_lines(python_files("tests")),
    "words of documents": lambda: " ".join(all_lines(document_files())).split(),
    "functions with more than six parameters": lambda: in_package(many_parameters),
    "class names used twice": classes_used_twice,
    "variables whose name says nothing": lambda: in_package(says_nothing),
    "functions named by a participle or preposition": lambda: in_package(no_verb),
    "functions with of in their name": lambda: in_package(with_of),
}


def describe(name: str, counted: list[str]) -> str:
    """The number beside its ceiling; of lines, how many are not blank."""
    blank = f", {sum(1 for line in counted if line.strip()):,} of them not blank" if name.startswith("lines") else ""
    return f"{name}: {len(counted):,}, ceiling {CEILINGS[name]:,}{blank}"


@pytest.mark.parametrize("name", COUNTS)
def test_no_number_is_above_its_ceiling(name):
    counted = COUNTS[name]()
    names = "" if name.startswith(("lines", "words")) else "".join(f"\n  {text}" for text in counted)
    assert len(counted) <= CEILINGS[name], describe(name, counted) + names


EXAMPLE = """
class Plan:
    found: int

    @property
    def joined(self): ...

    def measured(self, a, b, c, d, e, f): ...

    def size_of(self, a, b, c, d, e, f, g): ...

def within(one):
    x = [rest for rest in one]


    return x, [rest for rest in x], one

def read(said):


    return said

class RewardModel:
    def __init__(self, a, b, c, d, e, f, g): ...

class _Plan: ...
"""


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (many_parameters, ["Plan.size_of"]),
        (public_classes, ["Plan", "RewardModel"]),
        (says_nothing, ["Plan.found", "within:12 one"]),
        (no_verb, ["Plan.measured", "within"]),
        (with_of, ["Plan.size_of"]),
    ],
)
def test_what_is_counted(count, names):
    assert count(ast.parse(EXAMPLE)) == names


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--list"]:
        sought = " ".join(arguments[1:])
        print(*(text for name, count in COUNTS.items() if sought in name for text in count()), sep="\n")
        return
    text = Path(__file__).read_text(encoding="utf-8")
    for name, count in COUNTS.items():
        counted = count()
        print(describe(name, counted))
        if len(counted) < CEILINGS[name]:
            text = text.replace(f'    "{name}": {CEILINGS[name]},\n', f'    "{name}": {len(counted)},\n')
    if arguments == ["--lower"]:
        Path(__file__).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
