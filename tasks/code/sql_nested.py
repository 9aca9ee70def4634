"""The questions of `llm/SQLQuery-v0` at its expert level, whose queries have subqueries that depend on the row around.

See `sql_kinds` for how a question is made.
"""

from __future__ import annotations

from typing import Any

from llm_envs.tasks.code.sql_kinds import KINDS as FLAT_KINDS
from llm_envs.tasks.code.sql_kinds import LEVELS as FLAT_LEVELS
from llm_envs.tasks.code.sql_kinds import RELATIONS, Kind, Literal, Words, a_link, draw_bound, draw_group, draw_relation
from llm_envs.tasks.draws import Random

__all__ = ["KINDS", "LEVELS"]


def _draw(random: Random, w: Words) -> list[Any]:
    return [draw_group(random, w.b_rows), draw_relation(random), draw_bound(random, w.k_rows)]


def _say_rising(w: Words, group: str, relation: str, bound: int) -> str:
    return (
        f"Consider only the {w.k} with a {w.measure} that is {RELATIONS[relation]} {bound}, of a {w.b_noun} whose "
        f"{w.b_group} is not {group}. In which months was their number greater than in the month before it that has "
        "any of them? List the month (as YYYY-MM, from date) and the number. Sort by month, the latest first."
    )


def _sql_rising(w: Words, lit: Literal, group: str, relation: str, bound: int) -> str:
    months = (
        f"SELECT substr(k.date, 1, 7) AS month, count(*) AS n FROM {w.with_b} WHERE (b.{w.b_group} != {lit(group)}) "
        f"AND (k.{w.measure} {relation} {lit(bound)}) GROUP BY 1"
    )
    return (
        f"WITH t AS ({months}) SELECT month, n FROM t WHERE (n > (SELECT u.n FROM t u "
        "WHERE (u.month = (SELECT max(v.month) FROM t v WHERE (v.month < t.month))))) ORDER BY month DESC"
    )


def _say_above_peers(w: Words, group: str, relation: str, bound: int) -> str:
    return (
        f"Consider only the {w.k} whose {w.measure} is {RELATIONS[relation]} {bound}. The total of a {w.a_noun} is "
        f"the sum of the {w.measure} of these that are theirs. List every {w.a_noun} whose total is greater than the "
        f"average total of those with the same {w.a_group} who have one, and who has never {w.verb} a {w.b_noun} whose "
        f"{w.b_group} is {group}, in any of the {w.k}: give the {w.a_group}, the {w.a_label} and the total. Sort by "
        f"{w.a_group} in reverse alphabetical order, then by {w.a_label}."
    )


def _sql_above_peers(w: Words, lit: Literal, group: str, relation: str, bound: int) -> str:
    totals = (
        f"SELECT a.id AS id, a.{w.a_group} AS kind, a.{w.a_label} AS who, sum(k.{w.measure}) AS n FROM {w.k} k "
        f"JOIN {w.a} a ON a.id = k.{w.a_key} WHERE (k.{w.measure} {relation} {lit(bound)}) GROUP BY a.id"
    )
    having = f"SELECT k.{w.a_key} FROM {w.with_b} WHERE (b.{w.b_group} = {lit(group)})"
    return (
        f"WITH t AS ({totals}) SELECT kind, who, n FROM t WHERE (n > (SELECT avg(u.n) FROM t u WHERE (u.kind = "
        f"t.kind))) AND (id NOT IN ({having})) ORDER BY kind DESC, who"
    )


def _draw_own_highest(random: Random, w: Words) -> list[Any]:
    return [draw_group(random, w.b_rows), draw_relation(random)]


def _say_own_highest(w: Words, group: str, relation: str) -> str:
    return (
        f"Leave out the {w.k} of a {w.b_noun} whose {w.b_group} is {group}. Of the others, take the one with the "
        f"highest {w.measure} of each {w.a_noun} (each of them, if several have it). Keep those whose {w.measure} is "
        f"{RELATIONS[relation]} the average {w.measure} of all {w.k} of the same {w.b_noun}. List the {w.a_label} and "
        f"the {w.measure}. Sort by {w.a_label} in reverse alphabetical order."
    )


def _sql_own_highest(w: Words, lit: Literal, group: str, relation: str) -> str:
    highest = (
        f"SELECT max(l.{w.measure}) FROM {w.k} l JOIN {w.b} c ON c.id = l.{w.b_key} WHERE (c.{w.b_group} != "
        f"{lit(group)}) AND (l.{w.a_key} = k.{w.a_key})"
    )
    average = f"SELECT avg(m.{w.measure}) FROM {w.k} m WHERE (m.{w.b_key} = k.{w.b_key})"
    return (
        f"SELECT a.{w.a_label}, k.{w.measure} FROM {w.joined} WHERE (b.{w.b_group} != {lit(group)}) AND "
        f"(k.{w.measure} = ({highest})) AND (k.{w.measure} {relation} ({average})) ORDER BY 1 DESC"
    )


def _say_every_group(w: Words, group: str, relation: str, bound: int) -> str:
    return (
        f"Leave out the {w.b} whose {w.b_group} is {group}. Which {w.a} have {w.verb} at least one of the other {w.b} "
        f"of every other {w.b_group}, each time in {a_link(w)} whose {w.measure} is {RELATIONS[relation]} {bound}? "
        f"List the {w.a_label} and the {w.a_number} of each. Sort by {w.a_number}, the lowest first, then by "
        f"{w.a_label}."
    )


def _sql_every_group(w: Words, lit: Literal, group: str, relation: str, bound: int) -> str:
    having = (
        f"SELECT c.{w.b_group} FROM {w.k} k JOIN {w.b} c ON c.id = k.{w.b_key} WHERE (k.{w.a_key} = a.id) "
        f"AND (k.{w.measure} {relation} {lit(bound)})"
    )
    lacking = f"SELECT b.id FROM {w.b} b WHERE (b.{w.b_group} != {lit(group)}) AND (b.{w.b_group} NOT IN ({having}))"
    return f"SELECT a.{w.a_label}, a.{w.a_number} FROM {w.a} a WHERE (NOT EXISTS ({lacking})) ORDER BY 2, 1"


KINDS: dict[str, Kind] = {
    **FLAT_KINDS,
    "rising": Kind(_draw, _say_rising, _sql_rising),
    "above_peers": Kind(_draw, _say_above_peers, _sql_above_peers),
    "own_highest": Kind(_draw_own_highest, _say_own_highest, _sql_own_highest),
    "every_group": Kind(_draw, _say_every_group, _sql_every_group),
}
LEVELS = {**FLAT_LEVELS, "expert": ("rising", "above_peers", "own_highest", "every_group")}
