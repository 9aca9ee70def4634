"""Queries that are nearly right: a condition, an order or a DISTINCT left out, a sign or an aggregate exchanged.

They are made from the text of a query in which each condition is in parentheses behind WHERE, AND or HAVING. Each
differs in meaning from the query: there are data for which it gives another result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

__all__ = ["forgetting", "mutations"]

_SIGNS = {">": (">=", "<"), ">=": (">", "<="), "<": ("<=", ">"), "<=": ("<", ">="), "=": ("!=",), "!=": ("=",)}
_AGGREGATES = {"sum": ("avg", "max"), "avg": ("max", "min"), "max": ("min",), "min": ("max",)}
_NUMBER = re.compile(r"(?:\d+|:v\d+)(?=\))")
_START = re.compile(r"(?:WHERE|AND|HAVING) (?=\()")


@lru_cache(maxsize=4_096)
def mutations(query: str) -> tuple[str, ...]:
    """Return the nearly right queries."""
    return tuple(dict.fromkeys([*_order(query), *_conditions(query), *_calls(query)]))


def forgetting(query: str, n_kept: int) -> str:
    """Return the query without its conditions after the first ones."""
    for found in reversed(list(_START.finditer(query))[n_kept:]):
        query = f"{query[: found.end()]}(1){query[_closing(query, found.end()) + 1 :]}"
    return query


def _conditions(query: str) -> Iterator[str]:
    """Leave out each condition, exchange each of its signs, and make each of its numbers another by one."""
    for found in _START.finditer(query):
        start, end = found.end(), _closing(query, found.end()) + 1
        yield f"{query[:start]}(1){query[end:]}"
        sign = re.search(r" (>=|<=|!=|[<>=]) ", query[start:end])
        if sign is not None and "IN (" not in query[start : start + sign.start()]:
            for other in _SIGNS[sign[1]]:
                yield f"{query[: start + sign.start(1)]}{other}{query[start + sign.end(1) :]}"
            number = _NUMBER.match(query, start + sign.end())
            if number is not None:
                yield from (f"{query[: number.end()]} {step} 1{query[number.end() :]}" for step in "+-")
    for found in re.finditer(r" (NOT )?IN \(", query):
        yield f"{query[: found.start()]} {'' if found[1] else 'NOT '}IN ({query[found.end() :]}"


def _calls(query: str) -> Iterator[str]:
    """Exchange each aggregate, and leave out each DISTINCT."""
    for found in re.finditer(r"\b(sum|avg|max|min)\(", query):
        for other in _AGGREGATES[found[1]]:
            yield f"{query[: found.start()]}{other}({query[found.end() :]}"
    for found in re.finditer("DISTINCT ", query):
        yield query[: found.start()] + query[found.end() :]


def _order(query: str) -> Iterator[str]:
    """Leave out the order and each part of it, turn each part round, take another column, and change the limit."""
    before, _, tail = query.rpartition(" ORDER BY ")
    order, limited, limit = tail.partition(" LIMIT ")
    end = limited + limit
    parts, n_columns = order.split(", "), _n_columns(before)
    yield before + end
    for i, part in enumerate(parts):
        if len(parts) > 1:
            yield f"{before} ORDER BY {', '.join(parts[:i] + parts[i + 1 :])}{end}"
        name, space, way = part.partition(" ")
        turned = name if way == "DESC" else f"{name} DESC"
        others = [
            f"{number}{space}{way}" for number in range(1, n_columns + 1) if name.isdigit() and name != str(number)
        ]
        for other in (turned, *others):
            yield f"{before} ORDER BY {', '.join([*parts[:i], other, *parts[i + 1 :]])}{end}"
    if limited:
        yield f"{before} ORDER BY {order}"
        yield f"{before} ORDER BY {order} LIMIT {limit} + 1"
        yield f"{before} ORDER BY {order} LIMIT {limit} - 1"


def _n_columns(query: str) -> int:
    """Return how many columns the outermost SELECT has."""
    depth, outer = 0, ""
    for sign in query:
        depth += (sign == "(") - (sign == ")")
        outer += sign if depth == 0 else ""
    return outer.rpartition("SELECT ")[2].partition(" FROM ")[0].count(",") + 1


def _closing(text: str, start: int) -> int:
    """Return the place of the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    raise ValueError(text)
