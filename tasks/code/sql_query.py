"""`llm/SQLQuery-v0`: write the query that answers a question, for a database whose schema is shown."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from functools import lru_cache
from random import Random as Shuffler
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv, split_of
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.code.judging import without_fence
from llm_envs.tasks.code.sql_kinds import CANONICAL, Words, quoted
from llm_envs.tasks.code.sql_mutations import forgetting, mutations
from llm_envs.tasks.code.sql_nested import KINDS, LEVELS
from llm_envs.tasks.draws import pick
from llm_envs.tasks.sqlite_world import Database, check_world, generate_world

__all__ = ["SQLQueryEnv", "run", "tells_apart"]

_MOST_ROWS = 200
_KEPT = 4
"""Conditions that a reader keeps in mind."""


class SQLQueryEnv(SingleTurnEnv):
    """Write the query that answers a question, for a database whose schema is shown.

    ## Description
    The schema of a small SQLite database is shown with some rows of each table, and a question whose answer is rows in
    an order. The query is run on that database and on another one with the same schema and other rows, so that writing
    down the answer does not help. On the first database every query that is nearly right gives another result: one
    that leaves out a condition or the order of equal rows, has ">" in the place of ">=", or another aggregate. Teaches
    to translate a question into conditions, joins and groups.

    ## Observation
    The schema, three rows of each table, and the question with the columns and the order of the answer. After the reply
    "Correct.", "Incorrect." or the reason why it is malformed.

    ## Action
    One SELECT statement in the final answer, `<answer>SELECT name FROM shelves ORDER BY name</answer>`, perhaps in a
    fence of three backticks, with or without prose around it. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if it gives the right rows in the right order, on both databases. `malformed` (weight
    -0.1): 1 for a reply without an answer, with broken tags, or whose statement cannot be run or is not allowed.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". A query is in one split, whatever the rows.
    - `difficulty`: "easy" (default): one table; "medium": two or three tables joined; "hard": what is missing,
      subqueries, counts of groups, the best of each group; "expert": subqueries that depend on the row around, in
      each other.
    - `reset(options={"problem": {"world": ..., "kind": "top", "values": ["a", 3, "DESC", "Oslo"]}})`: a world as
      `tasks/sqlite_world.py` makes it, the kind of question (in `tasks/code/sql_nested.py`), and what it asks about.

    ## Version History
    - v0: first version.
    """

    # Names of columns and values change from world to world: of 700 problems a level no query was right for more than
    # three. The numbers of problems are those of the queries, from how many of 700 were alike.
    blocking = True  # a statement may take a quarter of a second
    slow_reset_reason = "the data are drawn until they tell the right query from its nearest wrong ones"
    difficulties = {
        "easy": Difficulty("one table", chance_rate=0.02, n_problems=20_000, settings={"sizes": (24, 20, 6)}),
        "medium": Difficulty(
            "two or three tables joined", chance_rate=0.02, n_problems=200_000, settings={"sizes": (14, 8, 38)}
        ),
        "hard": Difficulty(
            "what is missing, subqueries", chance_rate=0.02, n_problems=15_000, settings={"sizes": (14, 12, 38)}
        ),
        "expert": Difficulty(
            "subqueries in each other", chance_rate=0.02, n_problems=8_000, settings={"sizes": (20, 8, 34)}
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"world": dict, "kind": str, "values": list}
    instructions = "Write one SQLite query that answers the question. Answer with the query, and nothing else."
    answer_example = "SELECT name FROM shelves WHERE width > 40 ORDER BY name"
    plain_answer = staticmethod(without_fence)
    has_natural_form = False

    def __init__(self, split: str = "train", difficulty: str | None = None, render_mode: str | None = None) -> None:
        super().__init__(split, difficulty, render_mode)
        self._database = Database({"tables": []}, max_rows=_MOST_ROWS)

    def generate(self) -> dict[str, Any]:
        """Draw a world, and a question about it which tells the right query from those that are nearly right."""
        random, (n_left, n_right, n_links) = self.np_random.random, self.settings["sizes"]
        name = pick(random, LEVELS[self.difficulty])  # once: else the kinds that are told apart easily would be most
        while True:
            world = generate_world(
                self.np_random, n_left=n_left, n_right=n_right, n_links=n_links, n_values=_N_VALUES, n_groups=_N_GROUPS
            )
            words, is_loaded = Words(world), False
            for _ in range(_N_QUESTIONS):
                problem: dict[str, Any] = {"world": world, "kind": name, "values": KINDS[name].draw(random, words)}
                if split_of(self.split_key(problem)) != self.split:
                    continue  # before the data are looked at, which takes longer
                if tells_apart(words, name, problem["values"], is_loaded=is_loaded):
                    return problem
                is_loaded = True

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an unknown kind, a world that is not a database, and values that do not fit."""
        if problem["kind"] not in KINDS:
            raise InvalidActionError(f"its kind is none of {', '.join(KINDS)}")
        check_world(problem["world"])
        try:
            words = Words(problem["world"])
            KINDS[problem["kind"]].text(words, *problem["values"])
            rows = run(problem["world"], KINDS[problem["kind"]].sql(words, quoted, *problem["values"]))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InvalidActionError(f"its world or values do not fit its kind: {error!r}") from error
        if not rows:
            raise InvalidActionError("its answer has no rows")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the query: other rows do not make another problem."""
        return KINDS[problem["kind"]].sql(Words(problem["world"]), quoted, *problem["values"])

    def prompt(self) -> str:
        """Return the schema, some rows, and the question."""
        world = self.problem["world"]
        parts = [Database(world).schema()]
        for table in world["tables"]:
            rows = [" | ".join(map(str, row)) for row in table["rows"][:3]]
            parts.append(f"The first rows of {table['name']}:\n" + "\n".join(rows))
        question = KINDS[self.problem["kind"]].text(Words(world), *self.problem["values"])
        return "\n\n".join([*parts, question])

    def solution(self) -> str:
        """Return a query."""
        return KINDS[self.problem["kind"]].sql(Words(self.problem["world"]), quoted, *self.problem["values"])

    def shortcuts(self) -> Mapping[str, str]:
        """Return, at the expert level, the query of a reader that keeps the first 4 conditions of the question."""
        if self.difficulty != "expert":
            return {}
        return {f"reader({_KEPT})": self.write_answer(forgetting(self.solution(), _KEPT))}

    def is_correct(self, answer: str) -> bool:
        """Run the query on the database that is described and on another one."""
        right, world = self.solution(), self.problem["world"]
        for rows in (world, _shuffled(world)):
            self._database.load(rows)
            if self._database.query(answer).rows != self._database.query(right).rows:
                return False
        return True

    def close(self) -> None:
        """Close the database."""
        self._database.close()
        super().close()


_N_VALUES = 5
_N_GROUPS = 4
_N_QUESTIONS = 8
"""Questions that are tried about a world."""
_scratch = threading.local()


def run(world: Mapping[str, Any], query: str) -> list[tuple[Any, ...]]:
    """Return the rows that a query gives on a world."""
    database = Database(world, max_rows=_MOST_ROWS)
    try:
        return list(database.query(query).rows)
    finally:
        database.close()


def tells_apart(words: Words, kind: str, values: list[Any], *, is_loaded: bool = False) -> bool:
    """Whether the right query gives rows, and each that is nearly right others, or the same ones in another order.

    It is tried in a separate database whose tables have the same names in every world, with the values as parameters:
    then SQLite has compiled nearly all of the queries before.

    Args:
        words: The world.
        kind: The kind of question.
        values: The values in the question.
        is_loaded: Whether the world is that of the call before.
    """
    connection = _connection()
    if not is_loaded:
        connection.execute("BEGIN")
        for name, rows in (("a", words.a_rows), ("b", words.b_rows), ("k", words.k_rows)):
            connection.execute(f"DELETE FROM {name}")
            connection.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?{', ?' * (name == 'k')})", rows)
        connection.execute("COMMIT")
    parameters: dict[str, Any] = {}

    def named(value: Any) -> str:
        parameters[f"v{len(parameters)}"] = value
        return f":v{len(parameters) - 1}"

    query = KINDS[kind].sql(CANONICAL, named, *values)
    right = connection.execute(query, parameters).fetchall()
    if not right:
        return False
    nearly_right = _scratch.nearly_right.setdefault(query, list(mutations(query)))
    for place, wrong in enumerate(nearly_right):
        if connection.execute(wrong, parameters).fetchall() == right:
            nearly_right.insert(0, nearly_right.pop(place))  # it is tried first the next time, which is quicker
            return False
    return True


def _connection() -> sqlite3.Connection:
    """Return this thread's database for trying queries."""
    if not hasattr(_scratch, "connection"):
        connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=1_000)
        for name in "ab":
            connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, label TEXT, grp TEXT, number INTEGER)")
        connection.execute(
            "CREATE TABLE k (id INTEGER PRIMARY KEY, a_id INTEGER, b_id INTEGER, measure INTEGER, date TEXT)"
        )
        _scratch.connection, _scratch.nearly_right = connection, {}
    found: sqlite3.Connection = _scratch.connection
    return found


def _shuffled(world: Mapping[str, Any]) -> dict[str, Any]:
    """Return a world of the same schema and theme in which every column but the first has been shuffled."""
    tables = []
    for number, table in enumerate(world["tables"]):
        first, *columns = zip(*table["rows"], strict=True)
        moved = [
            [column[i] for i in _permutation(len(first), f"{number} {place}")] for place, column in enumerate(columns)
        ]
        tables.append({**table, "rows": list(zip(first, *moved, strict=True))})
    return {**world, "tables": tables}


@lru_cache(maxsize=1_024)
def _permutation(n: int, seed: str) -> tuple[int, ...]:
    places = list(range(n))
    Shuffler(seed).shuffle(places)
    return tuple(places)
