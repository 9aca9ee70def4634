"""The questions of `llm/SQLQuery-v0`: what each asks, in English, and the query that answers it.

In a query each condition is in parentheses, so that `sql_mutations` finds it. Where SQLite would give the rows in the
wanted order without being asked, the question asks for another order.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from llm_envs.tasks.draws import Random, between, pick, sample
from llm_envs.tasks.sqlite_world import THEMES

__all__ = [
    "CANONICAL",
    "KINDS",
    "LEVELS",
    "RELATIONS",
    "Kind",
    "Literal",
    "Words",
    "a_link",
    "draw_bound",
    "draw_group",
    "draw_relation",
    "quoted",
]

_VERBS = {"shop": "ordered", "library": "borrowed", "school": "taken", "clinic": "received"}
"""A verb for the people of a theme and its things."""


class Words:
    """The names of a world's tables and columns; `a` are its people, `b` its things, `k` what links them."""

    def __init__(self, world: Mapping[str, Any]) -> None:
        theme = THEMES[world["theme"]]
        tables = {table["name"]: table for table in world["tables"]}
        self.a, self.b, self.k = theme.left.table, theme.right.table, theme.link
        self.a_noun, self.b_noun, self.k_noun = theme.left.noun, theme.right.noun, theme.link.removesuffix("s")
        _, self.a_label, self.a_group, self.a_number = (name for name, _ in tables[self.a]["columns"])
        _, self.b_label, self.b_group, self.b_number = (name for name, _ in tables[self.b]["columns"])
        self.measure = tables[self.k]["columns"][3][0]
        self.a_rows, self.b_rows, self.k_rows = (tables[name]["rows"] for name in (self.a, self.b, self.k))
        self.verb = _VERBS[world["theme"]]

    @property
    def a_key(self) -> str:
        """The column of links with the number of a person."""
        return f"{self.a_noun}_id"

    @property
    def b_key(self) -> str:
        """The column of links with the number of a thing."""
        return f"{self.b_noun}_id"

    @property
    def with_b(self) -> str:
        """The FROM of links and things."""
        return f"{self.k} k JOIN {self.b} b ON b.id = k.{self.b_key}"

    @property
    def joined(self) -> str:
        """The FROM of all tables."""
        return f"{self.k} k JOIN {self.a} a ON a.id = k.{self.a_key} JOIN {self.b} b ON b.id = k.{self.b_key}"

    def side(self, name: str) -> tuple[str, str, str, str, str]:
        """Return the table of people ("a") or things ("b"), its noun, and its columns of labels, groups and numbers."""
        if name == "a":
            return self.a, self.a_noun, self.a_label, self.a_group, self.a_number
        if name == "b":
            return self.b, self.b_noun, self.b_label, self.b_group, self.b_number
        raise ValueError(name)

    def rows(self, name: str) -> Sequence[Sequence[Any]]:
        """Return the rows of the people or things."""
        return self.a_rows if name == "a" else self.b_rows


class _Canonical(Words):
    """Names that are the same in every world, so that the queries of a kind are the same text."""

    def __init__(self) -> None:
        self.a, self.b, self.k, self.a_noun, self.b_noun, self.k_noun = "a", "b", "k", "a", "b", "k"
        self.a_label = self.b_label = "label"
        self.a_group = self.b_group = "grp"
        self.a_number = self.b_number = "number"
        self.measure = "measure"


CANONICAL = _Canonical()

Literal = Callable[[Any], str]
"""Writes a value into a query."""


class Kind(NamedTuple):
    """A kind of question."""

    draw: Callable[[Random, Words], list[Any]]
    """Draws what it asks about."""
    text: Callable[..., str]
    """(words, *values) to the question."""
    sql: Callable[..., str]
    """(words, literal, *values) to the query."""


def quoted(value: Any) -> str:
    """Write a value as it stands in SQL."""
    if isinstance(value, str):
        escaped = value.replace("'", "''")
        return f"'{escaped}'"
    if type(value) is not int:
        raise TypeError(value)
    return str(value)


RELATIONS = {">": "greater than", ">=": "at least", "<": "less than", "<=": "at most"}
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_ORDERS = {"DESC": "highest", "ASC": "lowest"}
_AGGREGATES = {"sum": "the total {}", "avg": "the average {}", "max": "the highest {}", "min": "the lowest {}"}


def draw_relation(random: Random) -> str:
    """Draw the sign of a comparison."""
    return pick(random, tuple(RELATIONS))


def draw_group(random: Random, rows: Sequence[Sequence[Any]]) -> str:
    """Draw one of the groups of the rows."""
    return str(pick(random, rows)[2])


def draw_bound(random: Random, rows: Sequence[Sequence[Any]]) -> int:
    """Draw a number of the rows that is neither the lowest nor the highest, unless there are no others."""
    numbers = sorted({row[3] for row in rows})
    return int(pick(random, numbers[1:-1] or numbers))


# One table.


def _draw_listed(random: Random, w: Words) -> list[Any]:
    side = pick(random, "ab")
    rows = w.rows(side)
    return [
        side,
        draw_group(random, rows),
        draw_relation(random),
        draw_bound(random, rows),
        pick(random, tuple(_ORDERS)),
    ]


def _say_listed(w: Words, side: str, group: str, relation: str, bound: int, order: str) -> str:
    _, noun, label, grouped, number = w.side(side)
    return (
        f"List the {label} and the {number} of every {noun} whose {grouped} is not {group} and whose {number} is "
        f"{RELATIONS[relation]} {bound}. Sort by {number}, the {_ORDERS[order]} first; sort rows with the same "
        f"{number} by {label}."
    )


def _sql_listed(w: Words, lit: Literal, side: str, group: str, relation: str, bound: int, order: str) -> str:
    table, _, label, grouped, number = w.side(side)
    return (
        f"SELECT {label}, {number} FROM {table} WHERE ({grouped} != {lit(group)}) AND ({number} {relation} "
        f"{lit(bound)}) "
        f"ORDER BY {number} {order}, {label}"
    )


def _draw_top(random: Random, w: Words) -> list[Any]:
    side = pick(random, "ab")
    return [side, between(random, 2, 4), pick(random, tuple(_ORDERS)), draw_group(random, w.rows(side))]


def _say_top(w: Words, side: str, n: int, order: str, group: str) -> str:
    table, _, label, grouped, number = w.side(side)
    return (
        f"Of the {table} whose {grouped} is {group}, list the {label} of the {n} with the {_ORDERS[order]} {number}, "
        f"the {_ORDERS[order]} first. Where the {number} is the same, the {label} that is earlier in the alphabet "
        f"comes "
        "first."
    )


def _sql_top(w: Words, lit: Literal, side: str, n: int, order: str, group: str) -> str:
    table, _, label, grouped, number = w.side(side)
    return (
        f"SELECT {label} FROM {table} WHERE ({grouped} = {lit(group)}) "
        f"ORDER BY {number} {order}, {label} LIMIT {lit(n)}"
    )


def _least(random: Random, counts: Mapping[Any, int]) -> int:
    """Draw one of the counts that is not the lowest, so that some are below it and one is just it."""
    numbers = sorted(set(counts.values()))
    return pick(random, numbers[1:] or [2])


def _draw_per_group(random: Random, w: Words) -> list[Any]:
    side, aggregate, relation = pick(random, "ab"), pick(random, (*_AGGREGATES, "count")), draw_relation(random)
    rows = w.rows(side)
    bound = draw_bound(random, rows)
    least = _least(random, Counter(row[2] for row in rows if _COMPARE[relation](row[3], bound)))
    return [side, aggregate, relation, bound, least]


def _say_per_group(w: Words, side: str, aggregate: str, relation: str, bound: int, least: int) -> str:
    table, _, _, grouped, number = w.side(side)
    what = "their number" if aggregate == "count" else _AGGREGATES[aggregate].format(number)
    return (
        f"Consider only the {table} whose {number} is {RELATIONS[relation]} {bound}. For each {grouped} with at least "
        f"{least} of them, give the {grouped} and {what}. Sort by {grouped} in reverse alphabetical order."
    )


def _sql_per_group(w: Words, lit: Literal, side: str, aggregate: str, relation: str, bound: int, least: int) -> str:
    table, _, _, grouped, number = w.side(side)
    what = "count(*)" if aggregate == "count" else f"{aggregate}({number})"
    return (
        f"SELECT {grouped}, {what} FROM {table} WHERE ({number} {relation} {lit(bound)}) GROUP BY {grouped} "
        f"HAVING (count(*) >= {lit(least)}) ORDER BY {grouped} DESC"
    )


# Tables joined.


def _draw_totals(random: Random, w: Words) -> list[Any]:
    aggregate, relation = pick(random, ("sum", "max", "min", "count")), draw_relation(random)
    bound = draw_bound(random, w.k_rows)
    least = _least(random, Counter(row[1] for row in w.k_rows if _COMPARE[relation](row[3], bound)))
    return [aggregate, relation, bound, least, draw_group(random, w.a_rows)]


def _say_totals(w: Words, aggregate: str, relation: str, bound: int, least: int, group: str) -> str:
    return (
        f"Consider only the {w.k} whose {w.measure} is {RELATIONS[relation]} {bound}. For each {w.a_noun} whose "
        f"{w.a_group} is not {group} and who has at least {least} of these {w.k}, give the {w.a_label} and "
        f"{_of_links(w, aggregate)}. Sort by this value, the highest first; sort equal values by {w.a_label}."
    )


def _sql_totals(w: Words, lit: Literal, aggregate: str, relation: str, bound: int, least: int, group: str) -> str:
    what = "count(*)" if aggregate == "count" else f"{aggregate}(k.{w.measure})"
    return (
        f"SELECT a.{w.a_label}, {what} FROM {w.k} k JOIN {w.a} a ON a.id = k.{w.a_key} "
        f"WHERE (k.{w.measure} {relation} {lit(bound)}) AND (a.{w.a_group} != {lit(group)}) GROUP BY a.id "
        f"HAVING (count(*) >= {lit(least)}) ORDER BY 2 DESC, 1"
    )


def a_link(w: Words) -> str:
    """Return the noun of a link with its article."""
    return f"{'an' if w.k_noun[0] in 'aeiou' else 'a'} {w.k_noun}"


def _of_links(w: Words, aggregate: str) -> str:
    if aggregate == "count":
        return f"the number of these {w.k}"
    return f"{_AGGREGATES[aggregate].format(w.measure)} of these {w.k}"


def _say_linked(w: Words, group: str, relation: str, bound: int, order: str) -> str:
    way = "" if order == "ASC" else " in reverse alphabetical order"
    return (
        f"Which {w.b} have been {w.verb} by a {w.a_noun} whose {w.a_group} is {group}, in {a_link(w)} whose "
        f"{w.measure} is "
        f"{RELATIONS[relation]} {bound}? List the {w.b_label} of each of them once. Sort by {w.b_label}{way}."
    )


def _sql_linked(w: Words, lit: Literal, group: str, relation: str, bound: int, order: str) -> str:
    return (
        f"SELECT DISTINCT b.{w.b_label} FROM {w.joined} WHERE (a.{w.a_group} = {lit(group)}) "
        f"AND (k.{w.measure} {relation} {lit(bound)}) ORDER BY 1 {order}"
    )


def _draw_counted(random: Random, w: Words) -> list[Any]:
    aggregate = pick(random, (*_AGGREGATES, "count"))
    bounds = [draw_relation(random), draw_bound(random, w.k_rows), draw_relation(random), draw_bound(random, w.a_rows)]
    return [aggregate, *bounds]


def _say_counted(w: Words, aggregate: str, first: str, bound: int, second: str, limit: int) -> str:
    return (
        f"Consider only the {w.k} whose {w.measure} is {RELATIONS[first]} {bound}, of {w.a} whose {w.a_number} is "
        f"{RELATIONS[second]} {limit}. For each {w.b_group} of the {w.b} in these {w.k}, give the {w.b_group} and "
        f"{_of_links(w, aggregate)}. Sort by {w.b_group} in reverse alphabetical order."
    )


def _sql_counted(w: Words, lit: Literal, aggregate: str, first: str, bound: int, second: str, limit: int) -> str:
    what = "count(*)" if aggregate == "count" else f"{aggregate}(k.{w.measure})"
    return (
        f"SELECT b.{w.b_group}, {what} FROM {w.joined} WHERE (k.{w.measure} {first} {lit(bound)}) "
        f"AND (a.{w.a_number} {second} {lit(limit)}) GROUP BY b.{w.b_group} ORDER BY 1 DESC"
    )


# Missing things, subqueries.


def _draw_missing(random: Random, w: Words) -> list[Any]:
    return [
        draw_group(random, w.b_rows),
        pick(random, (">", ">=")),
        draw_bound(random, w.k_rows),
        draw_relation(random),
        draw_bound(random, w.a_rows),
    ]


def _say_missing(w: Words, group: str, first: str, bound: int, second: str, limit: int) -> str:
    return (
        f"List the {w.a_label} of every {w.a_noun} whose {w.a_number} is {RELATIONS[second]} {limit} and who has "
        f"never "
        f"{w.verb} a {w.b_noun} whose {w.b_group} is {group} in {a_link(w)} whose {w.measure} is "
        f"{RELATIONS[first]} {bound}. Sort by {w.a_label}."
    )


def _has(w: Words, lit: Literal, group: str, condition: str = "") -> str:
    return f"SELECT k.{w.a_key} FROM {w.with_b} WHERE (b.{w.b_group} = {lit(group)}){condition}"


def _sql_missing(w: Words, lit: Literal, group: str, first: str, bound: int, second: str, limit: int) -> str:
    inner = _has(w, lit, group, f" AND (k.{w.measure} {first} {lit(bound)})")
    return (
        f"SELECT a.{w.a_label} FROM {w.a} a WHERE (a.{w.a_number} {second} {lit(limit)}) AND (a.id NOT IN ({inner})) "
        "ORDER BY 1"
    )


def _say_above_own(w: Words, side: str, relation: str, group: str) -> str:
    table, noun, label, grouped, number = w.side(side)
    return (
        f"List the {grouped} and the {label} of every {noun} whose {number} is {RELATIONS[relation]} the average "
        f"{number} of all {table} "
        f"with the same {grouped}. Leave out those whose {grouped} is {group}. Sort by {grouped}, then by {label}."
    )


def _sql_above_own(w: Words, lit: Literal, side: str, relation: str, group: str) -> str:
    table, _, label, grouped, number = w.side(side)
    return (
        f"SELECT x.{grouped}, x.{label} FROM {table} x WHERE (x.{number} {relation} (SELECT avg(y.{number}) FROM "
        f"{table} y "
        f"WHERE (y.{grouped} = x.{grouped}))) AND (x.{grouped} != {lit(group)}) ORDER BY 1, 2"
    )


def _draw_above_own(random: Random, w: Words) -> list[Any]:
    side = pick(random, "ab")
    return [side, draw_relation(random), draw_group(random, w.rows(side))]


def _say_spread(w: Words, relation: str, bound: int, least: int) -> str:
    return (
        f"Consider only the {w.k} whose {w.measure} is {RELATIONS[relation]} {bound}. Count for each {w.b_noun} the "
        f"different values of {w.a_group} among the {w.a} of these {w.k}. List the {w.b_label} and this count where "
        f"it is "
        f"at least {least}. Sort by the count, the highest first; sort equal counts by {w.b_label}."
    )


def _sql_spread(w: Words, lit: Literal, relation: str, bound: int, least: int) -> str:
    count = f"count(DISTINCT a.{w.a_group})"
    return (
        f"SELECT b.{w.b_label}, {count} FROM {w.joined} WHERE (k.{w.measure} {relation} {lit(bound)}) GROUP BY b.id "
        f"HAVING ({count} >= {lit(least)}) ORDER BY 2 DESC, 1"
    )


def _say_monthly(w: Words, group: str, relation: str, bound: int) -> str:
    return (
        f"Consider only the {w.k} of a {w.b_noun} whose {w.b_group} is {group}, by {w.a} whose {w.a_number} is "
        f"{RELATIONS[relation]} {bound}. For each month with any of them give the month (as YYYY-MM, from date) and "
        f"the "
        f"total {w.measure}. Sort by month, the latest first."
    )


def _sql_monthly(w: Words, lit: Literal, group: str, relation: str, bound: int) -> str:
    return (
        f"SELECT substr(k.date, 1, 7), sum(k.{w.measure}) FROM {w.joined} WHERE (b.{w.b_group} = {lit(group)}) "
        f"AND (a.{w.a_number} {relation} {lit(bound)}) GROUP BY 1 ORDER BY 1 DESC"
    )


# Several subqueries.


def _say_best(w: Words, relation: str, bound: int) -> str:
    return (
        f"Consider only the {w.k} whose {w.measure} is {RELATIONS[relation]} {bound}. For each {w.b_group} give "
        f"the {w.b_noun} with the most of these {w.k} (each of them, if several have the most): list the {w.b_group}, "
        f"the "
        f"{w.b_label} and the number of these {w.k}. Sort by {w.b_group} in reverse alphabetical order, then by "
        f"{w.b_label}."
    )


def _sql_best(w: Words, lit: Literal, relation: str, bound: int) -> str:
    condition = f"(k.{w.measure} {relation} {lit(bound)})"
    totals = (
        f"SELECT b.{w.b_group} AS kind, b.{w.b_label} AS thing, count(*) AS n FROM {w.with_b} "
        f"WHERE {condition} GROUP BY b.id"
    )
    return (
        f"WITH t AS ({totals}) SELECT kind, thing, n FROM t WHERE (n = (SELECT max(u.n) FROM t u "
        "WHERE (u.kind = t.kind))) ORDER BY kind DESC, thing"
    )


def _draw_but_not(random: Random, w: Words) -> list[Any]:
    groups = sample(random, sorted({row[2] for row in w.b_rows}), 2)
    return [*groups, draw_relation(random), draw_bound(random, w.k_rows)]


def _say_but_not(w: Words, group: str, other: str, relation: str, bound: int) -> str:
    return (
        f"List the {w.a_label} of every {w.a_noun} who has {w.verb} a {w.b_noun} whose {w.b_group} is {group} in "
        f"{a_link(w)} whose {w.measure} is {RELATIONS[relation]} {bound}, but has never {w.verb} a {w.b_noun} whose "
        f"{w.b_group} is "
        f"{other}. Sort by {w.a_label} in reverse alphabetical order."
    )


def _sql_but_not(w: Words, lit: Literal, group: str, other: str, relation: str, bound: int) -> str:
    inner = _has(w, lit, group, f" AND (k.{w.measure} {relation} {lit(bound)})")
    return (
        f"SELECT a.{w.a_label} FROM {w.a} a WHERE (a.id IN ({inner})) AND (a.id NOT IN ({_has(w, lit, other)})) "
        "ORDER BY 1 DESC"
    )


def _say_of_month(w: Words, relation: str, bound: int) -> str:
    return (
        f"Consider only the {w.k} whose {w.measure} is {RELATIONS[relation]} {bound}. For each month (as YYYY-MM, "
        f"from date) give the {w.b_group} of {w.b} with the most of these {w.k} (each of them, if several have the "
        f"most): "
        f"list the month, the {w.b_group} and the number of these {w.k}. Sort by month, the latest first, then by "
        f"{w.b_group} in reverse alphabetical order."
    )


def _sql_of_month(w: Words, lit: Literal, relation: str, bound: int) -> str:
    counts = (
        f"SELECT substr(k.date, 1, 7) AS month, b.{w.b_group} AS kind, count(*) AS n FROM {w.with_b} "
        f"WHERE (k.{w.measure} {relation} {lit(bound)}) GROUP BY 1, 2"
    )
    return (
        f"WITH t AS ({counts}) SELECT month, kind, n FROM t WHERE (n = (SELECT max(u.n) FROM t u "
        "WHERE (u.month = t.month))) ORDER BY month DESC, kind DESC"
    )


KINDS: dict[str, Kind] = {
    "listed": Kind(_draw_listed, _say_listed, _sql_listed),
    "top": Kind(_draw_top, _say_top, _sql_top),
    "per_group": Kind(_draw_per_group, _say_per_group, _sql_per_group),
    "totals": Kind(_draw_totals, _say_totals, _sql_totals),
    "linked": Kind(
        lambda random, w: [
            draw_group(random, w.a_rows),
            draw_relation(random),
            draw_bound(random, w.k_rows),
            pick(random, tuple(_ORDERS)),
        ],
        _say_linked,
        _sql_linked,
    ),
    "counted": Kind(_draw_counted, _say_counted, _sql_counted),
    "missing": Kind(_draw_missing, _say_missing, _sql_missing),
    "above_own": Kind(_draw_above_own, _say_above_own, _sql_above_own),
    "spread": Kind(
        lambda random, w: [draw_relation(random), draw_bound(random, w.k_rows), between(random, 2, 3)],
        _say_spread,
        _sql_spread,
    ),
    "monthly": Kind(
        lambda random, w: [draw_group(random, w.b_rows), draw_relation(random), draw_bound(random, w.a_rows)],
        _say_monthly,
        _sql_monthly,
    ),
    "best": Kind(lambda random, w: [draw_relation(random), draw_bound(random, w.k_rows)], _say_best, _sql_best),
    "but_not": Kind(_draw_but_not, _say_but_not, _sql_but_not),
    "of_month": Kind(
        lambda random, w: [draw_relation(random), draw_bound(random, w.k_rows)], _say_of_month, _sql_of_month
    ),
}
LEVELS = {
    "easy": ("listed", "top", "per_group"),
    "medium": ("totals", "linked", "counted"),
    "hard": ("missing", "above_own", "spread", "monthly", "best", "but_not", "of_month"),
}
