"""Changes of one line that a test ought to notice: which lines of a source have one, and the line after it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
}
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
OTHER_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
KEYWORDS_THAT_ONLY_CHECK = {"strict"}  # of zip: False differs only where another fault is


@dataclass(frozen=True)
class LineChange:
    """One line of a file before and after; `line` counts from 1."""

    line: int
    operator: str
    old: str
    new: str


def changes(source: str) -> list[LineChange]:
    """Every change of one line that leaves the source valid and does not leave it the same program."""
    tree, lines = ast.parse(source), source.splitlines()
    before = ast.dump(tree)
    found = [change for node in _live_nodes(tree) for change in _Line(lines).of(node)]
    return [change for change in dict.fromkeys(found) if _is_another_program(lines, change, before)]


def with_line(lines: list[str], line: int, new: str) -> str:
    """The source whose line of that number, counted from 1, is the new one."""
    return "\n".join([*lines[: line - 1], new, *lines[line:]]) + "\n"


def _is_another_program(lines: list[str], change: LineChange, before: str) -> bool:
    try:
        return ast.dump(ast.parse(with_line(lines, change.line, change.new))) != before
    except SyntaxError:
        return False


def _live_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below this one but annotations, decorators, f-strings and what only a type checker reads."""
    skipped: list[ast.AST | None] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    skipped += getattr(node, "decorator_list", [])
    for child in ast.iter_child_nodes(node):
        checks = isinstance(child, ast.keyword) and child.arg in KEYWORDS_THAT_ONLY_CHECK
        types = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        if checks or types or isinstance(child, ast.JoinedStr) or any(child is one for one in skipped):
            continue
        yield child
        yield from _live_nodes(child)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


class _Line:
    """The changes of one node: texts are cut by the columns of the syntax tree, which count bytes."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def of(self, node: ast.AST) -> Iterator[LineChange]:
        if isinstance(node, ast.Compare):
            yield from self._comparisons(node)
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            if not any(_is_text(side) or isinstance(side, ast.List | ast.Tuple) for side in (node.left, node.right)):
                yield from self._between(node.left, node.right, *ARITHMETIC[type(node.op)], "arithmetic")
        elif isinstance(node, ast.BoolOp):
            words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self._between(left, right, *words, "and/or")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield from self._instead_of(node, self._text(node.operand), "not or minus removed")
        elif isinstance(node, ast.Constant):
            yield from self._constants(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OTHER_FUNCTIONS:
            yield from self._instead_of(node.func, OTHER_FUNCTIONS[node.func.id], "another function")
        else:
            yield from self._statements(node)

    def _comparisons(self, node: ast.Compare) -> Iterator[LineChange]:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            sign, others = COMPARISONS[type(operator)]
            for other in others:
                yield from self._between(left, right, sign, other, "comparison")

    def _constants(self, node: ast.Constant) -> Iterator[LineChange]:
        if isinstance(node.value, bool):
            yield from self._instead_of(node, str(not node.value), "true/false")
        elif isinstance(node.value, int | float):
            yield from self._instead_of(node, repr(node.value + 1), "constant + 1")

    def _statements(self, node: ast.AST) -> Iterator[LineChange]:
        if isinstance(node, ast.If | ast.IfExp | ast.While) and isinstance(
            node.test, ast.Name | ast.Attribute | ast.Call
        ):
            yield from self._instead_of(node.test, f"not {self._text(node.test)}", "condition negated")
        elif isinstance(node, ast.Return) and node.value is not None:
            yield from self._instead_of(node, "return None", "return value dropped")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from self._instead_of(node, "pass", "call dropped")
        elif isinstance(node, ast.Raise):
            yield from self._instead_of(node, "pass", "raise dropped")
        elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
            old, new = ARITHMETIC[type(node.op)]
            yield from self._between(node.target, node.value, f"{old}=", f"{new}=", "arithmetic")
        elif isinstance(node, ast.Break | ast.Continue):
            other = "continue" if isinstance(node, ast.Break) else "break"
            yield from self._instead_of(node, other, "break/continue")

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str, operator: str) -> Iterator[LineChange]:
        if left.end_lineno == right.lineno:
            yield from self._replaced(right.lineno, left.end_col_offset, right.col_offset, (old, new), operator)

    def _instead_of(self, node: ast.expr | ast.stmt, new: str, operator: str) -> Iterator[LineChange]:
        if node.lineno == node.end_lineno:
            text = self._text(node)
            yield from self._replaced(node.lineno, node.col_offset, node.end_col_offset, (text, new), operator)

    def _replaced(
        self, line: int, start: int | None, end: int | None, texts: tuple[str, str], operator: str
    ) -> Iterator[LineChange]:
        old_line = self.lines[line - 1].encode()
        inside = old_line[start:end].decode()
        if texts[0] in inside:
            new_line = old_line[:start] + inside.replace(*texts, 1).encode() + old_line[end or len(old_line) :]
            yield LineChange(line, operator, old_line.decode(), new_line.decode())

    def _text(self, node: ast.expr | ast.stmt) -> str:
        if node.lineno != node.end_lineno:
            return ""
        return self.lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()
