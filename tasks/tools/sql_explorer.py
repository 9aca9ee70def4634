"""`llm/SQLExplorer-v0`: find an answer in a database whose tables nobody has described."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_tool_call
from llm_envs.rewards import read_integer, split_words
from llm_envs.tasks.sqlite_world import THEMES, Database, check_world, format_table, generate_world
from llm_envs.tools.toolset import Toolset, tool

__all__ = ["KINDS", "SQLExplorerEnv"]


class Explorer(Toolset):
    """A database that can be read."""

    def __init__(self) -> None:
        self.database = Database({"tables": []})

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Take the problem's database; it is made with the first query."""
        self.database.close()
        self.database = Database(problem["world"])

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    @tool
    def sql(self, query: str) -> str:
        """Run one SELECT statement on the SQLite database. At most 20 rows are shown.

        Args:
            query: The statement.
        """
        return format_table(self.database.query(query))


class SQLExplorerEnv(ToolEnv):
    """Find an answer in a database whose tables nobody has described.

    ## Description
    Each episode has its own SQLite database, in one of four themes, with names of columns that vary, and a
    question about it in everyday words. The agent reads the schema (`SELECT sql FROM sqlite_master`), looks at values,
    writes the query that answers the question, and answers. Teaches to look before querying: which tables there are,
    what a column is called here, how the tables hang together.

    ## Observation
    First the question. After a call of `sql(query)` the rows, at most 20, or "Error: ..." where the statement cannot be
    run, writes, or takes too long. After a malformed reply a readable error.

    ## Action
    A call of the tool `sql`, or the final answer: a whole number, `<answer>417</answer>`, or a name as it stands in the
    database (upper and lower case alike), `<answer>Norbert Quayle</answer>`.

    ## Reward
    `correct` (weight 1): 1 for the right answer. `malformed` (weight -0.1): 1 for a reply that is neither a call nor an
    answer, is broken, or answers a question for a number with something else.

    ## Episode End
    Terminates with the first answer of the right form. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): one table; "medium": two or three tables joined; "hard": joins over five tables,
      with groups in separate tables, two conditions, the largest of sums, and rows that are missing; "expert":
      second places among sums, and sums over those above the average.
    - `max_turns`: 8 by default.
    - `reset(options={"problem": {"world": ..., "kind": ..., "values": [...]}})`: a world as
      `tasks/sqlite_world.py` makes it, the kind of question, and what it asks about.

    ## Version History
    - v0: first version.
    """

    # The best constant answer to a kind of question is right in at most 2% (measured over 6,000 problems a level); who
    # has listed the people (20) or the things (12) and names one of them at random is right in 5% and 8%, and a third
    # of the questions are for names.
    difficulties = {
        "easy": Difficulty("one table", chance_rate=0.05, settings={"lookups": False}),
        "medium": Difficulty("two or three tables joined", chance_rate=0.05, settings={"lookups": False}),
        "hard": Difficulty("joins over five tables, two conditions", chance_rate=0.05, settings={"lookups": True}),
        "expert": Difficulty(
            "sums of sums, second places, and differences between groups", chance_rate=0.06, settings={"lookups": True}
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 8
    problem_fields = {"world": dict, "kind": str, "values": list}
    blocking = True  # a statement may take a quarter of a second
    instructions = (
        "Answer the question from the SQLite database, which you can read with the tool sql. Answer with a whole "
        "number, or with a name as it stands in the database, and nothing else. An answer that is a name is written "
        "<answer>Norbert Quayle</answer>."
    )
    answer_example = "417"

    def make_tools(self) -> Toolset:
        """Return the tool that reads."""
        return Explorer()

    def generate(self) -> dict[str, Any]:
        """Draw a world, and a question about it that has one answer."""
        rng = self.np_random
        world = generate_world(rng, lookups=self.settings["lookups"])
        tables = _Tables(world)
        names = _LEVELS[self.difficulty]
        while True:
            name = names[int(rng.random() * len(names))]
            kind = KINDS[name]
            values = kind.draw(tables, rng.random)
            answer = kind.answer(tables, *values)
            if answer is not None:
                problem = {"world": world, "kind": name, "values": values}
                self._drawn = problem, answer
                return problem

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an unknown kind, a world that is not a database, and a question without one answer."""
        if problem["kind"] not in KINDS:
            raise InvalidActionError(f"its kind is none of {', '.join(KINDS)}")
        check_world(problem["world"])
        try:
            KINDS[problem["kind"]].text(_Words(problem["world"]), *problem["values"])
            answer = KINDS[problem["kind"]].answer(_Tables(problem["world"]), *problem["values"])
        except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
            raise InvalidActionError(f"its world or values do not fit its kind: {error!r}") from error
        if answer is None:
            raise InvalidActionError("its question has no answer, or several")

    def begin(self) -> None:
        """Take the answer that the problem was drawn with, or find that of a given one."""
        drawn, answer = getattr(self, "_drawn", (None, 0))
        if drawn is not self.problem:
            found = KINDS[self.problem["kind"]].answer(_Tables(self.problem["world"]), *self.problem["values"])
            assert found is not None
            answer = found
        self._answer: int | str = answer

    def prompt(self) -> str:
        """Return the question."""
        words = _Words(self.problem["world"])
        return KINDS[self.problem["kind"]].text(words, *self.problem["values"])

    def is_correct(self, answer: str) -> bool:
        """Compare as whole numbers or as names."""
        if isinstance(self._answer, str):
            name = answer.strip("'\".` ").casefold()
            if name != self._answer.casefold() and _SENTENCE.search(name):
                raise InvalidActionError("the answer is a sentence; it must be the name")
            return name == self._answer.casefold()
        return read_integer(answer, units=[*split_words(self.prompt()), "years"]) == self._answer

    def next_action(self) -> str:
        """Read the schema, run the query, and answer with what it gave."""
        query = KINDS[self.problem["kind"]].sql(_Words(self.problem["world"]), *self.problem["values"])
        for result in self.tool_results:
            if result.success and result.arguments.get("query") == query:
                return self.write_answer(result.output.splitlines()[-1].partition(" | ")[0])
        if any(result.success and result.arguments.get("query") == _SCHEMA for result in self.tool_results):
            return format_tool_call("sql", query=query)
        return format_tool_call("sql", query=_SCHEMA)


_SENTENCE = re.compile(r"\b(?:is|was|are|were|has|have|had|let|will|run|query)\b")
_SCHEMA = "SELECT sql FROM sqlite_master WHERE type = 'table'"


class _Words:
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
        return f"g.name = '{group}'" if self.has_lookups else f"a.{self.left_group} = '{group}'"

    def right_is(self, group: str) -> str:
        """Return the condition that the right thing is of a group."""
        return f"h.name = '{group}'" if self.has_lookups else f"b.{self.right_group} = '{group}'"


class _Tables:
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

    draw: Callable[[_Tables, Callable[[], float]], list[Any]]
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


def _number_of(tables: _Tables, label: str) -> int | None:
    found = [value for name, _, value in tables.left.values() if name == label]
    return found[0] if len(found) == 1 else None


def _sum_of_group(tables: _Tables, group: str) -> int | None:
    return sum(value for _, of, value in tables.right.values() if of == group) or None


def _highest_of_group(tables: _Tables, group: str) -> str | None:
    return _largest({label: value for label, of, value in tables.left.values() if of == group})


def _sum_of_links(tables: _Tables, group: str) -> int | None:
    return sum(measure for _, a, _, measure, _ in tables.links if tables.left[a][1] == group) or None


def _value_sum(tables: _Tables, label: str) -> int | None:
    """Return the sum of the numbers of a person's things, each as often as it is linked."""
    return sum(tables.right[b][2] for _, a, b, _, _ in tables.links if tables.left[a][0] == label) or None


def _top_of_right(tables: _Tables, group: str) -> str | None:
    sums: Counter[str] = Counter()
    for _, a, b, measure, _ in tables.links:
        if tables.left[a][1] == group:
            sums[tables.right[b][0]] += measure
    return _largest(sums)


def _sum_of_both(tables: _Tables, left: str, right: str, limit: int) -> int | None:
    return (
        sum(
            measure
            for _, a, b, measure, _ in tables.links
            if tables.left[a][1] == left and tables.right[b][1] == right and tables.left[a][2] > limit
        )
        or None
    )


def _top_of_left(tables: _Tables, group: str, month: str) -> str | None:
    sums: Counter[str] = Counter()
    for _, a, b, measure, date in tables.links:
        if tables.right[b][1] == group and date[5:7] >= month:
            sums[tables.left[a][0]] += measure
    return _largest(sums) if len(sums) > 2 else None


def _sum_without(tables: _Tables, group: str) -> int | None:
    """Return the sum of the numbers of the people that have no link to a thing of the group."""
    linked = {a for _, a, b, _, _ in tables.links if tables.right[b][1] == group}
    return sum(value for number, (_, _, value) in tables.left.items() if number not in linked) or None


def _sums_of_left(tables: _Tables, group: str) -> Counter[int]:
    """Return by left thing the sum of the measures of its links to things of a group."""
    sums: Counter[int] = Counter()
    for _, a, b, measure, _ in tables.links:
        if tables.right[b][1] == group:
            sums[a] += measure
    return sums


def _second_sum(tables: _Tables, group: str) -> int | None:
    """Return the number of the left thing with the second largest sum."""
    best = _sums_of_left(tables, group).most_common(3)
    values = [value for _, value in best]
    return tables.left[best[1][0]][2] if len(values) == 3 and values[0] > values[1] > values[2] else None


def _above_average(tables: _Tables, group: str) -> int | None:
    """Return the sum of the sums that are above the average of those that there are."""
    sums = _sums_of_left(tables, group).values()
    return sum(value for value in sums if value * len(sums) > sum(sums)) if len(sums) > 3 else None


def _without_top(tables: _Tables, group: str) -> str | None:
    """Return the left thing with the largest sum of all measures, of those without a link to the group."""
    linked = _sums_of_left(tables, group)
    sums: Counter[str] = Counter()
    for _, a, _, measure, _ in tables.links:
        if a not in linked:
            sums[tables.left[a][0]] += measure
    return _largest(sums) if len(sums) > 2 else None


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
}
_LEVELS: dict[str, Sequence[str]] = {
    "easy": ("number", "group_sum", "group_highest"),
    "medium": ("link_sum", "value_sum", "right_top"),
    "hard": ("both_sum", "left_top", "without_sum"),
    "expert": ("second_sum", "above_average", "without_top"),
}
