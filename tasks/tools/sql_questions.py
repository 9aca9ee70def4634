"""The questions of `llm/SQLExplorer-v0`: each kind with its text, its query, and its answer from the rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from llm_envs.tasks.sqlite_world import THEMES

__all__ = ["KINDS", "LEVELS", "Kind", "Tables", "Words"]


class Words:
    """The names that a world gives its tables and columns."""

    def __init__(self, world: Mapping[str, Any]) -> None:
        theme = THEMES[world["theme"]]
        tables = {table["name"]: [name for name, _ in table["columns"]] for table in world["tables"]}
        self.left, self.right, self.link = theme.left, theme.right, theme.link
        _, self.left_label, self.left_group, self.left_number = tables[theme.left.table]
        _, self.right_label, self.right_group, self.right_number = tables[theme.right.table]
        # The words of people: left as a, right as b.
        self.a_label, self.b_label = theme.left.labels[0], theme.right.labels[0]
        self.a_group, self.b_group = theme.left.group_columns[0], theme.right.group_columns[0]
        self.a_number, self.b_number = theme.left.number_columns[0], theme.right.number_columns[0]
        self.measure, self.measure_word = tables[theme.link][3], theme.measures[0]
        self.has_lookups = theme.left.group_table in tables
        self.left_group_name = "g.name" if self.has_lookups else f"a.{self.left_group}"
        self.right_group_name = "h.name" if self.has_lookups else f"b.{self.right_group}"

    def joined(self) -> str:
        """Return the FROM of all tables: links as k, left as a, right as b, and their groups as g and h."""
        text = (
            f"{self.link} k JOIN {self.left.table} a ON a.id = k.{self.left.noun}_id "
            f"JOIN {self.right.table} b ON b.id = k.{self.right.noun}_id"
        )
        if self.has_lookups:
            text += (
                f" JOIN {self.left.group_table} g ON g.id = a.{self.left_group}"
                f" JOIN {self.right.group_table} h ON h.id = b.{self.right_group}"
            )
        return text

    def left_is(self, group: str) -> str:
        """Return the condition that the left thing is of a group."""
        return f"{self.left_group_name} = '{group}'"

    def right_is(self, group: str) -> str:
        """Return the condition that the right thing is of a group."""
        return f"{self.right_group_name} = '{group}'"


class Tables:
    """A world's rows, with the groups' names in the place of their numbers."""

    def __init__(self, world: Mapping[str, Any]) -> None:
        theme = THEMES[world["theme"]]
        rows = {table["name"]: table["rows"] for table in world["tables"]}
        self.left = _with_names(rows[theme.left.table], rows.get(theme.left.group_table))
        self.right = _with_names(rows[theme.right.table], rows.get(theme.right.group_table))
        self.links: list[list[Any]] = rows[theme.link]


def _with_names(rows: list[list[Any]], groups: list[list[Any]] | None) -> dict[int, tuple[str, str, int]]:
    if groups is None:
        return {number: (label, group, value) for number, label, group, value in rows}
    names = dict(groups)
    return {number: (label, names[group], value) for number, label, group, value in rows}


# Kinds of question. Each draws what it asks about, answers it from the rows (None: it has no single answer), and writes
# it as text and as a query.


class Kind(NamedTuple):
    """A kind of question."""

    draw: Callable[[Tables, Callable[[], float]], list[Any]]
    answer: Callable[..., int | str | None]
    text: Callable[..., str]
    sql: Callable[..., str]


def _of(rows: Mapping[int, tuple[str, str, int]], random: Callable[[], float], field: int) -> Any:
    """Return a field of a row that is drawn."""
    return rows[1 + int(random() * len(rows))][field]


def _largest(sums: Mapping[str, int]) -> str | None:
    """Return the name of the largest sum; None where two are the largest."""
    best = sorted(sums.items(), key=lambda item: -item[1])[:2]
    return best[0][0] if best and (len(best) == 1 or best[0][1] > best[1][1]) else None


def _number_of(tables: Tables, label: str) -> int | None:
    found = [value for name, _, value in tables.left.values() if name == label]
    return found[0] if len(found) == 1 else None


def _sum_of_group(tables: Tables, group: str) -> int | None:
    return sum(value for _, of, value in tables.right.values() if of == group) or None


def _highest_of_group(tables: Tables, group: str) -> str | None:
    return _largest({label: value for label, of, value in tables.left.values() if of == group})


def _sum_of_links(tables: Tables, group: str) -> int | None:
    return sum(measure for _, a, _, measure, _ in tables.links if tables.left[a][1] == group) or None


def _value_sum(tables: Tables, label: str) -> int | None:
    """Return the sum of the numbers of a person's things, each as often as it is linked."""
    return sum(tables.right[b][2] for _, a, b, _, _ in tables.links if tables.left[a][0] == label) or None


def _top_of_right(tables: Tables, group: str) -> str | None:
    sums: Counter[str] = Counter()
    for _, a, b, measure, _ in tables.links:
        if tables.left[a][1] == group:
            sums[tables.right[b][0]] += measure
    return _largest(sums)


def _sum_of_both(tables: Tables, left: str, right: str, limit: int) -> int | None:
    return (
        sum(
            measure
            for _, a, b, measure, _ in tables.links
            if tables.left[a][1] == left and tables.right[b][1] == right and tables.left[a][2] > limit
        )
        or None
    )


def _top_of_left(tables: Tables, group: str, month: str) -> str | None:
    sums: Counter[str] = Counter()
    for _, a, b, measure, date in tables.links:
        if tables.right[b][1] == group and date[5:7] >= month:
            sums[tables.left[a][0]] += measure
    return _largest(sums) if len(sums) > 2 else None


def _sum_without(tables: Tables, group: str) -> int | None:
    """Return the sum of the numbers of the people that have no link to a thing of the group."""
    linked = {a for _, a, b, _, _ in tables.links if tables.right[b][1] == group}
    return sum(value for number, (_, _, value) in tables.left.items() if number not in linked) or None


def _sums_of_left(tables: Tables, group: str) -> Counter[int]:
    """Return by left thing the sum of the measures of its links to things of a group."""
    sums: Counter[int] = Counter()
    for _, a, b, measure, _ in tables.links:
        if tables.right[b][1] == group:
            sums[a] += measure
    return sums


def _second_sum(tables: Tables, group: str) -> int | None:
    """Return the number of the left thing with the second largest sum."""
    best = _sums_of_left(tables, group).most_common(3)
    values = [value for _, value in best]
    return tables.left[best[1][0]][2] if len(values) == 3 and values[0] > values[1] > values[2] else None


def _above_average(tables: Tables, group: str) -> int | None:
    """Return the sum of the sums that are above the average of those that there are."""
    sums = _sums_of_left(tables, group).values()
    return sum(value for value in sums if value * len(sums) > sum(sums)) if len(sums) > 3 else None


def _without_top(tables: Tables, group: str) -> str | None:
    """Return the left thing with the largest sum of all measures, of those without a link to the group."""
    linked = _sums_of_left(tables, group)
    sums: Counter[str] = Counter()
    for _, a, _, measure, _ in tables.links:
        if a not in linked:
            sums[tables.left[a][0]] += measure
    return _largest(sums) if len(sums) > 2 else None


def _above_own_average(tables: Tables, group: str) -> int | None:
    """Return the sum of the measures, with things of a group, above the average of all links of the same left thing."""
    measures: defaultdict[int, list[int]] = defaultdict(list)
    for _, a, _, measure, _ in tables.links:
        measures[a].append(measure)
    return (
        sum(
            measure
            for _, a, b, measure, _ in tables.links
            if tables.right[b][1] == group and measure * len(measures[a]) > sum(measures[a])
        )
        or None
    )


def _sum_of_first(tables: Tables, group: str) -> int | None:
    """Return the sum of the measures of each left thing's first link, of those with a thing of a group."""
    first = {a: (b, measure) for _, a, b, measure, _ in sorted(tables.links, key=lambda k: (k[4], k[0]), reverse=True)}
    return sum(measure for b, measure in first.values() if tables.right[b][1] == group) or None


def _sum_of_leaders(tables: Tables, group: str) -> int | None:
    """Return the sum of the numbers of those of a group that have the largest sum for each of the right groups."""
    sums: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for _, a, b, measure, _ in tables.links:
        if tables.left[a][1] == group:
            sums[tables.right[b][1]][a] += measure
    best = [counts.most_common(2) for counts in sums.values()]
    if len(best) < 2 or any(len(each) == 2 and each[0][1] == each[1][1] for each in best):
        return None
    return sum(tables.left[each[0][0]][2] for each in best)


def _sum_of_more_groups(tables: Tables, label: str) -> int | None:
    """Return the sum of the numbers of left things that are linked to more right groups than a given one."""
    groups: defaultdict[int, set[str]] = defaultdict(set)
    for _, a, b, _, _ in tables.links:
        groups[a].add(tables.right[b][1])
    given = [len(groups[a]) for a in groups if tables.left[a][0] == label]
    return sum(tables.left[a][2] for a in groups if len(groups[a]) > given[0]) or None if given else None


def _top_above_peers(tables: Tables, group: str) -> str | None:
    """Return, of the left things whose sum is above their group's average, that with the highest number."""
    sums = _sums_of_left(tables, group)
    peers: defaultdict[str, list[int]] = defaultdict(list)
    for a, total in sums.items():
        peers[tables.left[a][1]].append(total)
    above = [a for a, total in sums.items() if total * len(peers[tables.left[a][1]]) > sum(peers[tables.left[a][1]])]
    return _largest({tables.left[a][0]: tables.left[a][2] for a in above}) if len(above) > 2 else None


KINDS: dict[str, Kind] = {
    "number": Kind(
        lambda t, r: [_of(t.left, r, 0)],
        _number_of,
        lambda w, label: f"What is the {w.a_number} of the {w.left.noun} {label}?",
        lambda w, label: f"SELECT {w.left_number} FROM {w.left.table} WHERE {w.left_label} = '{label}'",
    ),
    "group_sum": Kind(
        lambda t, r: [_of(t.right, r, 1)],
        _sum_of_group,
        lambda w, group: f"What is the sum of {w.b_number} over all {w.right.table} whose {w.b_group} is {group}?",
        lambda w, group: f"SELECT SUM({w.right_number}) FROM {w.right.table} WHERE {w.right_group} = '{group}'",
    ),
    "group_highest": Kind(
        lambda t, r: [_of(t.left, r, 1)],
        _highest_of_group,
        lambda w, group: (
            f"Among the {w.left.table} whose {w.a_group} is {group}, which has the highest "
            f"{w.a_number}? Answer with the {w.a_label}."
        ),
        lambda w, group: (
            f"SELECT {w.left_label} FROM {w.left.table} WHERE {w.left_group} = '{group}' "
            f"ORDER BY {w.left_number} DESC LIMIT 1"
        ),
    ),
    "link_sum": Kind(
        lambda t, r: [_of(t.left, r, 1)],
        _sum_of_links,
        lambda w, group: (
            f"What is the sum of {w.measure_word} over all {w.link} of {w.left.table} whose {w.a_group} is {group}?"
        ),
        lambda w, group: f"SELECT SUM(k.{w.measure}) FROM {w.joined()} WHERE {w.left_is(group)}",
    ),
    "value_sum": Kind(
        lambda t, r: [_of(t.left, r, 0)],
        _value_sum,
        lambda w, label: (
            f"Take all {w.link} of the {w.left.noun} {label}. What is the sum of {w.b_number} of their "
            f"{w.right.table}? (A {w.right.noun} counts once for each of the {w.link}.)"
        ),
        lambda w, label: f"SELECT SUM(b.{w.right_number}) FROM {w.joined()} WHERE a.{w.left_label} = '{label}'",
    ),
    "right_top": Kind(
        lambda t, r: [_of(t.left, r, 1)],
        _top_of_right,
        lambda w, group: (
            f"Which {w.right.noun} has the largest total {w.measure_word} in the {w.link} of {w.left.table} whose "
            f"{w.a_group} is {group}? Answer with its {w.b_label}."
        ),
        lambda w, group: (
            f"SELECT b.{w.right_label} FROM {w.joined()} WHERE {w.left_is(group)} "
            f"GROUP BY b.id ORDER BY SUM(k.{w.measure}) DESC LIMIT 1"
        ),
    ),
    "both_sum": Kind(
        lambda t, r: [_of(t.left, r, 1), _of(t.right, r, 1), _of(t.left, r, 2)],
        _sum_of_both,
        lambda w, left, right, limit: (
            f"What is the sum of {w.measure_word} over all {w.link} in which the {w.left.noun}'s "
            f"{w.a_group} is {left}, the {w.left.noun}'s {w.a_number} is above {limit}, and the "
            f"{w.right.noun}'s {w.b_group} is {right}?"
        ),
        lambda w, left, right, limit: (
            f"SELECT SUM(k.{w.measure}) FROM {w.joined()} WHERE {w.left_is(left)} AND {w.right_is(right)} "
            f"AND a.{w.left_number} > {limit}"
        ),
    ),
    "left_top": Kind(
        lambda t, r: [_of(t.right, r, 1), f"{2 + int(r() * 4):02d}"],
        _top_of_left,
        lambda w, group, month: (
            f"Look at the {w.link} dated 2025-{month}-01 or later with a {w.right.noun} whose {w.b_group} is "
            f"{group}. Which {w.left.noun} has the largest total {w.measure_word} in them? Answer with the "
            f"{w.a_label}."
        ),
        lambda w, group, month: (
            f"SELECT a.{w.left_label} FROM {w.joined()} WHERE {w.right_is(group)} AND k.date >= '2025-{month}-01' "
            f"GROUP BY a.id ORDER BY SUM(k.{w.measure}) DESC LIMIT 1"
        ),
    ),
    "without_sum": Kind(
        lambda t, r: [_of(t.right, r, 1)],
        _sum_without,
        lambda w, group: (
            f"What is the sum of {w.a_number} over all {w.left.table} that have none of the {w.link} with a "
            f"{w.right.noun} whose {w.b_group} is {group}?"
        ),
        lambda w, group: (
            f"SELECT SUM({w.left_number}) FROM {w.left.table} WHERE id NOT IN "
            f"(SELECT a.id FROM {w.joined()} WHERE {w.right_is(group)})"
        ),
    ),
    "second_sum": Kind(
        lambda t, r: [_of(t.right, r, 1)],
        _second_sum,
        lambda w, group: (
            f"For each of the {w.left.table}, add up the {w.measure_word} of its {w.link} with a {w.right.noun} whose "
            f"{w.b_group} is {group}. What is the {w.a_number} of the {w.left.noun} with the second largest sum?"
        ),
        lambda w, group: (
            f"SELECT a.{w.left_number} FROM {w.joined()} WHERE {w.right_is(group)} "
            f"GROUP BY a.id ORDER BY SUM(k.{w.measure}) DESC LIMIT 1 OFFSET 1"
        ),
    ),
    "above_average": Kind(
        lambda t, r: [_of(t.right, r, 1)],
        _above_average,
        lambda w, group: (
            f"For each of the {w.left.table} that have {w.link} with a {w.right.noun} whose {w.b_group} is {group}, "
            f"add up the {w.measure_word} of these {w.link}. What is the sum of those totals above the average of "
            "these totals?"
        ),
        lambda w, group: (
            f"WITH s AS (SELECT SUM(k.{w.measure}) AS total FROM {w.joined()} WHERE {w.right_is(group)} GROUP BY a.id) "
            "SELECT SUM(total) FROM s WHERE total > (SELECT AVG(total) FROM s)"
        ),
    ),
    "without_top": Kind(
        lambda t, r: [_of(t.right, r, 1)],
        _without_top,
        lambda w, group: (
            f"Among the {w.left.table} that have none of their {w.link} with a {w.right.noun} whose {w.b_group} is "
            f"{group}, which has the largest total {w.measure_word} over all its {w.link}? Answer with the {w.a_label}."
        ),
        lambda w, group: (
            f"SELECT x.{w.left_label} FROM {w.left.table} x JOIN {w.link} y ON x.id = y.{w.left.noun}_id WHERE x.id "
            f"NOT IN (SELECT a.id FROM {w.joined()} WHERE {w.right_is(group)}) GROUP BY x.id "
            f"ORDER BY SUM(y.{w.measure}) DESC LIMIT 1"
        ),
    ),
    "above_own_average": Kind(
        lambda t, r: [_of(t.right, r, 1)],
        _above_own_average,
        lambda w, group: (
            f"Look at the {w.link} with a {w.right.noun} whose {w.b_group} is {group}. Add up the {w.measure_word} of "
            f"those in which it is above the average {w.measure_word} of all {w.link} of the same {w.left.noun}, "
            f"whatever the {w.right.noun}. Give the sum."
        ),
        lambda w, group: (
            f"SELECT SUM(k.{w.measure}) FROM {w.joined()} WHERE {w.right_is(group)} AND k.{w.measure} > "
            f"(SELECT AVG(y.{w.measure}) FROM {w.link} y WHERE y.{w.left.noun}_id = k.{w.left.noun}_id)"
        ),
    ),
    "first_sum": Kind(
        lambda t, r: [_of(t.right, r, 1)],
        _sum_of_first,
        lambda w, group: (
            f"Of each of the {w.left.table} take the first of its {w.link}: the one with the earliest date, and of "
            f"several on that date the one with the smallest id. Add up the {w.measure_word} of those of them "
            f"that are with a {w.right.noun} whose {w.b_group} is {group}. Give the sum."
        ),
        lambda w, group: (
            f"SELECT SUM(k.{w.measure}) FROM {w.joined()} WHERE {w.right_is(group)} AND NOT EXISTS (SELECT 1 FROM "
            f"{w.link} y WHERE y.{w.left.noun}_id = k.{w.left.noun}_id AND (y.date < k.date OR y.date = k.date AND "
            "y.id < k.id))"
        ),
    ),
    "leaders_sum": Kind(
        lambda t, r: [_of(t.left, r, 1)],
        _sum_of_leaders,
        lambda w, group: (
            f"Look only at {w.left.table} whose {w.a_group} is {group}. For each {w.b_group} of {w.right.table}, find "
            f"which of them has the largest total {w.measure_word} in its {w.link} with {w.right.table} of that "
            f"{w.b_group}. Add up the {w.a_number} of those found, each as often as it was found. Give the sum."
        ),
        lambda w, group: (
            f"WITH s AS (SELECT a.{w.left_number} AS n, {w.right_group_name} AS r, SUM(k.{w.measure}) AS total FROM "
            f"{w.joined()} WHERE {w.left_is(group)} GROUP BY a.id, {w.right_group_name}) "
            "SELECT SUM(n) FROM s WHERE total = (SELECT MAX(z.total) FROM s z WHERE z.r = s.r)"
        ),
    ),
    "more_groups": Kind(
        lambda t, r: [_of(t.left, r, 0)],
        _sum_of_more_groups,
        lambda w, label: (
            f"Count for each of the {w.left.table} in how many different {w.b_group} groups the {w.right.table} of its "
            f"{w.link} are. Add up the {w.a_number} of all {w.left.table} that have more of them than "
            f"{label}. Give the sum."
        ),
        lambda w, label: (
            f"WITH s AS (SELECT a.{w.left_label} AS name, a.{w.left_number} AS n, COUNT(DISTINCT {w.right_group_name}) "
            f"AS c FROM {w.joined()} GROUP BY a.id) SELECT SUM(n) FROM s WHERE c > "
            f"(SELECT c FROM s WHERE name = '{label}')"
        ),
    ),
    "above_peers": Kind(
        lambda t, r: [_of(t.right, r, 1)],
        _top_above_peers,
        lambda w, group: (
            f"For each of the {w.left.table} that have {w.link} with a {w.right.noun} whose {w.b_group} is {group}, "
            f"add up the {w.measure_word} of these {w.link}. Take those whose total is above the average of the totals "
            f"of all that have the same {w.a_group}. Which of them has the highest {w.a_number}? Answer with the "
            f"{w.a_label}."
        ),
        lambda w, group: (
            f"WITH s AS (SELECT a.{w.left_label} AS name, a.{w.left_number} AS n, {w.left_group_name} AS l, "
            f"SUM(k.{w.measure}) AS total FROM {w.joined()} WHERE {w.right_is(group)} GROUP BY a.id) "
            "SELECT name FROM s WHERE total > (SELECT AVG(z.total) FROM s z WHERE z.l = s.l) ORDER BY n DESC LIMIT 1"
        ),
    ),
}
LEVELS: dict[str, Sequence[str]] = {
    "easy": ("number", "group_sum", "group_highest"),
    "medium": ("link_sum", "value_sum", "right_top"),
    "hard": ("both_sum", "left_top", "without_sum", "second_sum", "above_average", "without_top"),
    "expert": ("above_own_average", "first_sum", "leaders_sum", "more_groups", "above_peers"),
}
