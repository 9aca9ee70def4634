"""`llm/SQLQuery-v0`: write the query that answers a question, for a database whose schema is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random as Shuffler
from typing import Any, NamedTuple

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.code.judging import without_fence
from llm_envs.tasks.draws import Random, between, pick
from llm_envs.tasks.sqlite_world import THEMES, Database, check_world, generate_world

__all__ = ["KINDS", "SQLQueryEnv"]


class SQLQueryEnv(SingleTurnEnv):
    """Write the query that answers a question, for a database whose schema is shown.

    ## Description
    The schema of a small SQLite database is shown with some rows of each table, and a question is asked whose answer
    are rows in an order. The query is run on that database and on two others with the same schema and other rows, so
    that writing down the answer is no way. Teaches to translate a question into conditions, joins and groups.

    ## Observation
    The schema, three rows of each table, and the question with the columns and the order of the answer. After the reply
    "Correct.", "Incorrect." or what was malformed.

    ## Action
    One SELECT statement in the final answer, `<answer>SELECT ...</answer>`, perhaps in a fence of three backticks.
    Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if it gives the right rows in the right order, on all three databases. `malformed` (weight
    -0.1): 1 for a reply without an answer, with broken tags, or whose statement cannot be run or is not allowed.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". A query is in one split, whatever the rows.
    - `difficulty`: "easy" (default): one table; "medium": two or three tables joined; "hard": what is missing,
      subqueries, counts of groups.
    - `reset(options={"problem": {"world": ..., "kind": "of_group", "values": ["Oslo"]}})`: a world as
      `tasks/sqlite_world.py` makes it, the kind of question, and what it asks about.

    ## Version History
    - v0: first version.
    """

    # Names of columns and values change from world to world: the best fixed query is right in 3.3% at most (of 120).
    difficulties = {
        "easy": Difficulty("one table", chance_rate=0.05, settings={"n": 12}),
        "medium": Difficulty("two or three tables joined", chance_rate=0.05, settings={"n": 12}),
        "hard": Difficulty("what is missing, subqueries", chance_rate=0.05, settings={"n": 14}),
    }
    default_difficulty = "easy"
    problem_fields = {"world": dict, "kind": str, "values": list}
    instructions = (
        "Write one SQLite query that answers the question. Reply with it alone as <answer>SELECT ...</answer>."
    )

    def generate(self) -> dict[str, Any]:
        """Draw a world, and a question about it whose answer has some rows."""
        random, n = self.np_random.random, self.settings["n"]
        world = generate_world(self.np_random, n_left=n, n_right=n - 2, n_links=4 * n)
        words = _Words(world)
        while True:
            name = pick(random, _LEVELS[self.difficulty])
            values = KINDS[name].draw(random, words)
            if _run(world, KINDS[name].sql(words, *values)):
                return {"world": world, "kind": name, "values": values}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an unknown kind, a world that is no database, and values that do not fit."""
        if problem["kind"] not in KINDS:
            raise InvalidActionError(f"its kind is none of {', '.join(KINDS)}")
        check_world(problem["world"])
        try:
            words = _Words(problem["world"])
            KINDS[problem["kind"]].text(words, *problem["values"])
            rows = _run(problem["world"], KINDS[problem["kind"]].sql(words, *problem["values"]))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InvalidActionError(f"its world or values do not fit its kind: {error!r}") from error
        if not rows:
            raise InvalidActionError("its answer has no rows")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the query: other rows do not make another problem."""
        return KINDS[problem["kind"]].sql(_Words(problem["world"]), *problem["values"])

    def prompt(self) -> str:
        """Return the schema, some rows, and the question."""
        world = self.problem["world"]
        parts = [Database(world).schema()]
        for table in world["tables"]:
            rows = [" | ".join(map(str, row)) for row in table["rows"][:3]]
            parts.append(f"The first rows of {table['name']}:\n" + "\n".join(rows))
        question = KINDS[self.problem["kind"]].text(_Words(world), *self.problem["values"])
        return "\n\n".join([*parts, question])

    def solution(self) -> str:
        """Return a query."""
        return KINDS[self.problem["kind"]].sql(_Words(self.problem["world"]), *self.problem["values"])

    def is_correct(self, answer: str) -> bool:
        """Run the query on the database that is described and on two others."""
        query, right = without_fence(answer), self.solution()
        worlds = [self.problem["world"], *(_shuffled(self.problem["world"], seed) for seed in (1, 2))]
        return all(_run(world, query) == _run(world, right) for world in worlds)


def _run(world: Mapping[str, Any], query: str) -> list[tuple[Any, ...]]:
    database = Database(world, max_rows=200)
    try:
        return list(database.query(query).rows)
    finally:
        database.close()


def _shuffled(world: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return a world of the same schema and theme in which every column but the first has been shuffled."""
    shuffler = Shuffler(seed)
    tables = []
    for table in world["tables"]:
        columns = [list(column) for column in zip(*table["rows"], strict=True)]
        for column in columns[1:]:
            shuffler.shuffle(column)
        tables.append({**table, "rows": [list(row) for row in zip(*columns, strict=True)]})
    return {**world, "tables": tables}


class _Words:
    """The names that a world gives its tables and columns, and what is in its columns."""

    def __init__(self, world: Mapping[str, Any]) -> None:
        theme = THEMES[world["theme"]]
        tables = {table["name"]: table for table in world["tables"]}
        self.a, self.b, self.k = theme.left.table, theme.right.table, theme.link
        """The tables: left, right, and what links them."""
        self.a_noun, self.b_noun = theme.left.noun, theme.right.noun
        _, self.a_label, self.a_group, self.a_number = (name for name, _ in tables[self.a]["columns"])
        _, self.b_label, self.b_group, self.b_number = (name for name, _ in tables[self.b]["columns"])
        self.measure = tables[self.k]["columns"][3][0]
        self.a_rows, self.b_rows, self.k_rows = (tables[name]["rows"] for name in (self.a, self.b, self.k))

    @property
    def joined(self) -> str:
        """The FROM of all tables: links as k, left as a, right as b."""
        return f"{self.k} k JOIN {self.a} a ON a.id = k.{self.a_noun}_id JOIN {self.b} b ON b.id = k.{self.b_noun}_id"


class Kind(NamedTuple):
    """A kind of question: what it asks about, in words, and as a query."""

    draw: Callable[[Random, _Words], list[Any]]
    text: Callable[..., str]
    sql: Callable[..., str]


def _a_group(random: Random, w: _Words) -> list[Any]:
    return [pick(random, w.a_rows)[2]]


def _b_group(random: Random, w: _Words) -> list[Any]:
    return [pick(random, w.b_rows)[2]]


def _middle(rows: Sequence[Sequence[Any]]) -> int:
    return int(sorted(row[3] for row in rows)[len(rows) // 2])


def _quoted(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"


KINDS: dict[str, Kind] = {
    "of_group": Kind(
        _a_group,
        lambda w, group: f"Give the {w.a_label} of all {w.a} whose {w.a_group} is {group}, sorted by {w.a_label}.",
        lambda w, group: f"SELECT {w.a_label} FROM {w.a} WHERE {w.a_group} = {_quoted(group)} ORDER BY {w.a_label}",
    ),
    "over": Kind(
        lambda random, w: [_middle(w.b_rows) + between(random, -3, 3)],
        lambda w, bound: (
            f"Give {w.b_label} and {w.b_number} of all {w.b} whose {w.b_number} is greater than {bound}, the greatest "
            f"{w.b_number} first, and equal ones sorted by {w.b_label}."
        ),
        lambda w, bound: (
            f"SELECT {w.b_label}, {w.b_number} FROM {w.b} WHERE {w.b_number} > {bound} "
            f"ORDER BY {w.b_number} DESC, {w.b_label}"
        ),
    ),
    "per_group": Kind(
        lambda random, w: [between(random, 0, 2)],
        lambda w, which: (
            f"Give every {w.a_group} that occurs among the {w.a}, with "
            f"{('how many ' + w.a + ' it has', 'the greatest ' + w.a_number, 'the sum of ' + w.a_number)[which]}, "
            f"sorted by {w.a_group}."
        ),
        lambda w, which: (
            f"SELECT {w.a_group}, {('count(*)', f'max({w.a_number})', f'sum({w.a_number})')[which]} FROM {w.a} "
            f"GROUP BY {w.a_group} ORDER BY {w.a_group}"
        ),
    ),
    "totals": Kind(
        lambda random, w: [between(random, 3, 5)],
        lambda w, least: (
            f"Of all {w.a} with at least {least} {w.k}, give the {w.a_label} and the sum of {w.measure} over their "
            f"{w.k}, the greatest sum first, and equal ones sorted by {w.a_label}."
        ),
        lambda w, least: (
            f"SELECT a.{w.a_label}, sum(k.{w.measure}) FROM {w.k} k JOIN {w.a} a ON a.id = k.{w.a_noun}_id "
            f"GROUP BY a.id HAVING count(*) >= {least} ORDER BY 2 DESC, 1"
        ),
    ),
    "linked": Kind(
        _a_group,
        lambda w, group: (
            f"Give the {w.b_label} of all {w.b} that occur in {w.k} of {w.a} whose {w.a_group} is {group}, each once, "
            f"sorted by {w.b_label}."
        ),
        lambda w, group: (
            f"SELECT DISTINCT b.{w.b_label} FROM {w.joined} WHERE a.{w.a_group} = {_quoted(group)} ORDER BY 1"
        ),
    ),
    "counted": Kind(
        lambda random, w: [_middle(w.k_rows) + between(random, -2, 2)],
        lambda w, bound: (
            f"For every {w.b_group} of the {w.b} give how many {w.k} with a {w.measure} greater than {bound} it has, "
            f"leaving out those without any, sorted by {w.b_group}."
        ),
        lambda w, bound: (
            f"SELECT b.{w.b_group}, count(*) FROM {w.joined} WHERE k.{w.measure} > {bound} GROUP BY 1 ORDER BY 1"
        ),
    ),
    "missing": Kind(
        _b_group,
        lambda w, group: (
            f"Give the {w.a_label} of all {w.a} that have none of the {w.k} with a {w.b_noun} whose {w.b_group} is "
            f"{group}, sorted by {w.a_label}."
        ),
        lambda w, group: (
            f"SELECT {w.a_label} FROM {w.a} WHERE id NOT IN (SELECT k.{w.a_noun}_id FROM {w.k} k JOIN {w.b} b "
            f"ON b.id = k.{w.b_noun}_id WHERE b.{w.b_group} = {_quoted(group)}) ORDER BY 1"
        ),
    ),
    "above_own": Kind(
        lambda random, w: [],
        lambda w: (
            f"Give {w.a_group} and {w.a_label} of all {w.a} whose {w.a_number} is greater than the average "
            f"{w.a_number} of the {w.a} with the same {w.a_group}, sorted by {w.a_group}, then by {w.a_label}."
        ),
        lambda w: (
            f"SELECT x.{w.a_group}, x.{w.a_label} FROM {w.a} x WHERE x.{w.a_number} > (SELECT avg(y.{w.a_number}) "
            f"FROM {w.a} y WHERE y.{w.a_group} = x.{w.a_group}) ORDER BY 1, 2"
        ),
    ),
    "spread": Kind(
        lambda random, w: [between(random, 2, 3)],
        lambda w, least: (
            f"Give the {w.b_label} of all {w.b} whose {w.k} are of {w.a} with at least {least} different values of "
            f"{w.a_group}, and that number of values, sorted by {w.b_label}."
        ),
        lambda w, least: (
            f"SELECT b.{w.b_label}, count(DISTINCT a.{w.a_group}) FROM {w.joined} GROUP BY b.id "
            f"HAVING count(DISTINCT a.{w.a_group}) >= {least} ORDER BY 1"
        ),
    ),
    "monthly": Kind(
        _b_group,
        lambda w, group: (
            f"For each month (as YYYY-MM, from date) give the sum of {w.measure} over the {w.k} with a {w.b_noun} "
            f"whose {w.b_group} is {group}, leaving out months without any, sorted by month."
        ),
        lambda w, group: (
            f"SELECT substr(k.date, 1, 7), sum(k.{w.measure}) FROM {w.joined} WHERE b.{w.b_group} = {_quoted(group)} "
            "GROUP BY 1 ORDER BY 1"
        ),
    ),
}
_LEVELS = {
    "easy": ("of_group", "over", "per_group"),
    "medium": ("totals", "linked", "counted"),
    "hard": ("missing", "above_own", "spread", "monthly"),
}
