"""Small mistakes in real functions, each a change of one place in the text of a file.

The rest of the file, its comments and its layout stay. Whether a mistake matters is for the project's tests to say.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["FUNCTIONS", "Mutation", "apply", "functions", "mutations"]

_COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
_OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"), ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"), ast.Pow: ("**", "*"),
}  # fmt: skip
_CALLS = dict(
    pair
    for a, b in (
        ("min", "max"), ("any", "all"), ("startswith", "endswith"), ("lstrip", "rstrip"), ("lower", "upper"),
        ("find", "rfind"), ("split", "rsplit"), ("floor", "ceil"), ("keys", "values"), ("append", "extend"),
        ("union", "intersection"), ("bisect_left", "bisect_right"), ("takewhile", "dropwhile"),
    )
    for pair in ((a, b), (b, a))
)  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutation:
    """A change of one place."""

    path: str
    function: str
    """Qualified name of the outermost function or method that it is in."""
    kind: str
    start: int
    """Of the old text, in characters from the file's beginning."""
    old: str
    new: str

    @property
    def key(self) -> str:
        """A name that no other mutation of the project has."""
        return f"{self.path}:{self.function}:{self.kind}:{self.start}"


def apply(text: str, *made: Mutation) -> str:
    """Return a file with mutations, which must not overlap.

    Raises:
        ValueError: If the text at a place is another one.
    """
    for mutation in sorted(made, key=lambda mutation: -mutation.start):
        end = mutation.start + len(mutation.old)
        if text[mutation.start : end] != mutation.old:
            raise ValueError(f"{mutation.key}: the text there is {text[mutation.start : end]!r:.80}")
        text = text[: mutation.start] + mutation.new + text[end:]
    return text


def functions(text: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions of a file, and the methods of its classes, by qualified name."""
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, FUNCTIONS):
                found[prefix + node.name] = node
            elif isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")

    visit(ast.parse(text).body, "")
    return found


def mutations(path: str, text: str) -> list[Mutation]:
    """Return the mutations of a file's functions in the order of their places. Some may not compile."""
    if "\r" in text:
        return []  # positions in the syntax tree count other line ends
    source, found = _Source(text), list[Mutation]()
    for name, function in functions(text).items():
        for kind, start, end, new in _of_function(function, source):
            mutation = Mutation(path, name, kind, start, text[start:end], new)
            if mutation.old != new:
                found.append(mutation)
    return sorted(found, key=lambda mutation: (mutation.start, mutation.kind))


class _Source:
    """Places in a text: the syntax tree counts lines, and bytes in a line."""

    def __init__(self, text: str) -> None:
        self.text, self._lines, self._starts = text, text.split("\n"), [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def place(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.place(node.lineno, node.col_offset), self.place(node.end_lineno, node.end_col_offset)

    def lines(self, node: ast.stmt) -> tuple[int, int] | None:
        """Return the span of a statement's lines; None if something else is in them."""
        start, end = self.span(node)
        first = self.text.rfind("\n", 0, start) + 1
        last = self.text.find("\n", end) + 1
        if self.text[first:start].strip() or not last or self.text[end:last].partition("#")[0].strip():
            return None
        return first, last


_Change = tuple[str, int, int, str]
"""Kind, start, end, new text."""


def _of_function(function: ast.FunctionDef | ast.AsyncFunctionDef, source: _Source) -> Iterator[_Change]:
    for statement in function.body:
        for node in ast.walk(statement):
            yield from _of_node(node, source)
    for node in ast.walk(function):
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            yield from _dropped(body, source) if isinstance(body, list) and len(body) > 1 else ()


def _of_node(node: ast.AST, source: _Source) -> Iterator[_Change]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            yield from _between("comparison", left, right, _COMPARISONS.get(type(operator)), source)
        case ast.BinOp(left=left, op=operator, right=right):
            if not _is_text(left):
                yield from _between("operator", left, right, _OPERATORS.get(type(operator)), source)
        case ast.AugAssign(target=left, op=operator, value=right):
            yield from _between("operator", left, right, _OPERATORS.get(type(operator)), source)
        case ast.BoolOp(op=operator, values=[left, right, *_]):
            pair = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
            yield from _between("condition", left, right, pair, source)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            start, end = source.span(test)
            yield "condition", start, end, f"not ({source.text[start:end]})"
        case ast.Constant(value=bool() as value):
            yield "constant", *source.span(node), str(not value)
        case ast.Constant(value=int() as value):
            yield "bound", *source.span(node), str(value + 1)
        case ast.Call(func=called, args=given, keywords=named):
            yield from _of_call(called, given, named, source)


def _of_call(called: ast.expr, given: list[ast.expr], named: list[ast.keyword], source: _Source) -> Iterator[_Change]:
    start, end = source.span(called)
    name = source.text[start:end].rpartition(".")[2]
    if name in _CALLS:
        yield "call", end - len(name), end, _CALLS[name]
    if len(given) >= 2 and not any(isinstance(each, ast.Starred) for each in given[:2]):
        (first, first_end), (second, second_end) = map(source.span, given[:2])
        text = source.text
        swapped = text[second:second_end] + text[first_end:second] + text[first:first_end]
        yield "argument", first, second_end, swapped
    if named and given and named[-1].arg is not None:
        yield "argument", source.span(given[-1])[1], source.span(named[-1])[1], _without_last(given, named, source)


def _without_last(given: list[ast.expr], named: list[ast.keyword], source: _Source) -> str:
    """Return the text of the arguments behind the last positional one, without the last of them."""
    if len(named) == 1:
        return ""
    return source.text[source.span(given[-1])[1] : source.span(named[-2])[1]]


def _between(
    kind: str, left: ast.AST, right: ast.AST, pair: tuple[str, str] | None, source: _Source
) -> Iterator[_Change]:
    """Replace the operator between two operands."""
    if pair is None:
        return
    begin, until = source.span(left)[1], source.span(right)[0]
    pattern = r"\s+".join(map(re.escape, pair[0].split()))
    found = list(re.finditer(rf"\b{pattern}\b" if pair[0].isalpha() or " " in pair[0] else pattern,
                             source.text[begin:until]))  # fmt: skip
    if len(found) == 1 and "#" not in source.text[begin:until]:
        yield kind, begin + found[0].start(), begin + found[0].end(), pair[1]


def _dropped(body: list[ast.stmt], source: _Source) -> Iterator[_Change]:
    for statement in body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_droppable = (
            isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.Delete | ast.If) and not is_text
        )
        if is_droppable and (span := source.lines(statement)) is not None:
            yield "dropped", *span, ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
