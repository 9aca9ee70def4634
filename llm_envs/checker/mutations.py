"""References with a small mistake: queries, programs, numbers and lists, each with the name of the change.

For `TextEnv.shortcuts`, and for the checker: a judge that runs an answer should tell most of these from the reference.
For some problems a mutant means the same as the reference, so a judge may accept it there.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

__all__ = ["mutants", "mutated_list", "mutated_number", "mutated_python", "mutated_sql"]

_COMPARISONS = {">=": ">", "<=": "<", ">": ">=", "<": "<="}


def mutants(text: str) -> list[tuple[str, str]]:
    """Return mutants of an answer, each with the name of its mistake; empty if the answer's kind is unknown."""
    text = text.strip()
    if re.match(r"(?i)(select|with)\b", text):
        return mutated_sql(text)
    if re.search(r"^\s*(def |return |for |while )", text, re.M):
        return mutated_python(text)
    if re.fullmatch(r"-?\d+", text):
        return mutated_number(text)
    return mutated_list(text) if re.fullmatch(r"\[?[\w'\"-]+(, [\w'\"-]+)+\]?", text) else []


def mutated_number(text: str) -> list[tuple[str, str]]:
    """Return another integer: 2n + 3; or 0 for -3, for which 2n + 3 is the same number."""
    if len(text) >= 1_000:
        return []
    number = int(text)
    return [("another number", str(2 * number + 3 if number != -3 else 0))]


def mutated_list(text: str) -> list[tuple[str, str]]:
    """Return a comma-separated list without its last item, and without its first."""
    head, tail = ("[", "]") if text.startswith("[") else ("", "")
    items = text.removeprefix("[").removesuffix("]").split(", ")
    if len(items) < 2:
        return []
    return [
        ("without the last item", f"{head}{', '.join(items[:-1])}{tail}"),
        ("without the first item", f"{head}{', '.join(items[1:])}{tail}"),
    ]


def mutated_sql(query: str) -> list[tuple[str, str]]:
    """Return mutants of a query, each with the name of its mistake."""
    found: list[tuple[str, str]] = []

    def add(name: str, mutant: str) -> None:
        if mutant.strip() != query.strip():
            found.append((name, mutant))

    order = _outer(query, r"\s+ORDER BY\s+(.+?)(?=\s+LIMIT\b|\s*;?\s*$)")
    if order is not None:
        start, end, terms = order.start(), order.end(), _terms(order[1])
        add("without ORDER BY", query[:start] + query[end:])
        for name, kept in (
            ("without the tie-break", terms[:-1]),
            ("sorted the other way", [_reversed(terms[0]), *terms[1:]]),
        ):
            if kept:
                add(name, f"{query[:start]} ORDER BY {', '.join(kept)}{query[end:]}")
    for symbol, other in _COMPARISONS.items():
        pattern = rf"(?<![<>=!]){re.escape(symbol)}(?![<>=])"
        add(f"{other} for {symbol}", re.sub(pattern, other, query, count=1))
    add("without DISTINCT", re.sub(r"(?i)\bDISTINCT\s+", "", query, count=1))
    add("without LIMIT", re.sub(r"(?i)\s+LIMIT\s+\d+", "", query, count=1))
    add(
        "without HAVING",
        re.sub(r"(?is)\s+HAVING\s+[^()]*?(\([^()]*\)[^()]*?)*(?=\s+ORDER BY|\)|$)", "", query, count=1),
    )
    add("without one condition", re.sub(r"(?i)\s+AND\s+[\w.]+\s*[<>=!]+\s*('[^']*'|[\w.]+)", "", query, count=1))
    add("OR for AND", re.sub(r"\bAND\b", "OR", query, count=1))
    for one, another in (("min", "max"), ("max", "min"), ("sum", "avg"), ("avg", "sum")):
        add(f"{another} for {one}", re.sub(rf"(?i)\b{one}\(", f"{another}(", query, count=1))
    return found


def _outer(query: str, pattern: str) -> re.Match[str] | None:
    """Return the last match outside any brackets."""
    outer = [
        found
        for found in re.finditer(pattern, query, re.IGNORECASE | re.DOTALL)
        if query.count("(", 0, found.start()) == query.count(")", 0, found.start())
    ]
    return outer[-1] if outer else None


def _terms(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    terms, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            terms.append(text[start:i].strip())
            start = i + 1
    return [*terms, text[start:].strip()]


def _reversed(term: str) -> str:
    bare = re.sub(r"(?i)\s+(ASC|DESC)$", "", term)
    return bare if re.search(r"(?i)\sDESC$", term) else f"{bare} DESC"


def mutated_python(source: str) -> list[tuple[str, str]]:
    """Return mutants of a program, each with the name of its mistake; none if it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = []
    for index, node in enumerate(ast.walk(tree)):
        for name, change in _changes(node):
            mutant = copy.deepcopy(tree)
            change(list(ast.walk(mutant))[index])
            text = ast.unparse(ast.fix_missing_locations(mutant))
            if text != ast.unparse(tree):
                found.append((name, text))
    return found


_OTHER_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Yield the possible changes of a node, by name."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER_OPERATORS:
        yield "another comparison", lambda n: n.ops.__setitem__(0, _OTHER_OPERATORS[type(n.ops[0])]())
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OTHER_OPERATORS:
        yield "another operator", lambda n: setattr(n, "op", _OTHER_OPERATORS[type(n.op)]())
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "another number", lambda n: setattr(n, "value", n.value + 1)
    if isinstance(node, ast.FunctionDef | ast.For | ast.While | ast.If):
        for place, statement in enumerate(node.body):
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.For | ast.While | ast.If):
                yield "without a statement", partial(_pass_at, place)


def _pass_at(place: int, node: Any) -> None:
    node.body[place] = ast.Pass()
