"""Small SQLite databases that are made up, and running queries on them that a model wrote.

A world is plain JSON: `{"theme": ..., "tables": [{"name", "columns": [[name, type], ...], "rows": [[...], ...]}]}`. It
has two tables of things, a table that links them, and with `lookups` the groups of the things in tables of their own.

A `Database` runs one reading statement at a time:

1. Only SELECT (also WITH ... SELECT) is authorized; nothing writes, attaches, or changes a setting.
2. A statement may take `max_steps` steps of SQLite's virtual machine, which does not depend on the machine's speed, and
   `timeout_s` seconds as a second net. A value may have `MAX_VALUE_BYTES` bytes, so that no single step takes long.
3. What is not decided by the data (random, the present time, the time zone) is refused: episodes repeat.
"""

from __future__ import annotations

import math
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from llm_envs.errors import InvalidActionError

__all__ = ["THEMES", "Database", "Entity", "QueryResult", "Theme", "check_world", "format_table", "generate_world"]

MAX_VALUE_BYTES = 10_000
MAX_SQL_CHARACTERS = 4_000
_STEPS_BETWEEN_LOOKS = 1_000
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
_ALLOWED_PRAGMAS = frozenset({"table_info", "table_list", "table_xinfo", "foreign_key_list"})
_REFUSED_FUNCTIONS = frozenset(
    {"random", "randomblob", "current_date", "current_time", "current_timestamp", "load_extension", "changes",
     "total_changes", "last_insert_rowid", "fts3_tokenizer", "readfile", "writefile", "edit"}
)  # fmt: skip
_TIME_FUNCTIONS = {"date": 0, "time": 0, "datetime": 0, "julianday": 0, "unixepoch": 0, "strftime": 1}
"""With how many arguments each gives the present time."""
_FORMAT_FUNCTIONS = ("printf", "format")
_WIDE = re.compile(r"%[^%A-Za-z]*(?:\*|[0-9]{5})")
"""A conversion with a width that SQLite would write out in one step, for seconds, before it looks at any limit."""
_TIME_WORDS = frozenset({"now", "subsec", "subsecond", "localtime", "utc"})
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_SQL_CHARACTERS,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a query came to."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """The first `max_rows` of them."""
    is_cut: bool
    """Whether there are more."""


class Database:
    """A world as an SQLite database in memory, for reading. Costs nothing before its first query.

    Args:
        world: What is in it. Not changed.
        max_rows: Rows of a result; the others are left out.
        max_steps: Steps of SQLite's virtual machine that one statement may take.
        timeout_s: Seconds of processor time that one statement may take.
    """

    not_state = ("_connection", "_clock", "_steps", "_deadline")
    """Left out of `TextEnv.state_key`, since nothing here is written to."""

    def __init__(
        self, world: Mapping[str, Any], *, max_rows: int = 20, max_steps: int = 1_000_000, timeout_s: float = 0.25
    ) -> None:
        self.world = world
        self.max_rows, self.max_steps, self.timeout_s = max_rows, max_steps, timeout_s
        self._connection: sqlite3.Connection | None = None
        self._clock: sqlite3.Connection | None = None
        self._steps, self._deadline = 0, math.inf

    def query(self, sql: str) -> QueryResult:
        """Run one reading statement.

        Raises:
            InvalidActionError: If it cannot be run, is not allowed, or takes too long; the message says which.
        """
        if len(sql) > MAX_SQL_CHARACTERS:
            raise InvalidActionError(f"the statement has {len(sql)} characters; at most {MAX_SQL_CHARACTERS} are run")
        connection = self._open()
        self._steps, self._deadline = 0, time.thread_time() + self.timeout_s
        try:
            cursor = connection.execute(sql)
            if cursor.description is None:
                raise InvalidActionError("only reading is allowed: SELECT ...")
            rows = cursor.fetchmany(self.max_rows + 1)
            columns = tuple(column[0] for column in cursor.description)
            cursor.close()
        except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError, ValueError) as error:
            raise InvalidActionError(_explain(error, self.max_steps)) from error
        return QueryResult(columns, tuple(rows[: self.max_rows]), len(rows) > self.max_rows)

    def load(self, world: Mapping[str, Any]) -> None:
        """Put another world in the place of this one, in the same connection: much quicker than a new database."""
        before, self.world = self.world, world
        if self._connection is None:
            return
        connection = self._connection
        self._steps, self._deadline = 0, math.inf
        connection.set_authorizer(None)
        connection.execute("PRAGMA query_only = OFF")
        is_alike = [(table["name"], table["columns"]) for table in before["tables"]] == [
            (table["name"], table["columns"]) for table in world["tables"]
        ]
        connection.execute("BEGIN")
        for table in before["tables"]:
            connection.execute(f"{'DELETE FROM' if is_alike else 'DROP TABLE'} {table['name']}")
        self._fill(connection, with_tables=not is_alike)

    def schema(self) -> str:
        """Return the statements that make the tables, one a line."""
        return "\n".join(f"{_create(table)};" for table in self.world["tables"])

    def close(self) -> None:
        """Close the database; the next query opens it again. Harmless when repeated."""
        for connection in (self._connection, self._clock):
            if connection is not None:
                connection.close()
        self._connection = self._clock = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what it is made of: a connection belongs to its process."""
        return {**self.__dict__, "_connection": None, "_clock": None}

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            # An episode's steps may come from several threads, one after the other.
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._clock = sqlite3.connect(":memory:", check_same_thread=False)
            for name, n_before in _TIME_FUNCTIONS.items():
                connection.create_function(name, -1, partial(_time_of_data, self._clock, name, n_before))
            for name in _FORMAT_FUNCTIONS:
                connection.create_function(name, -1, partial(_bounded_format, self._clock))
            for category, limit in _LIMITS.items():
                connection.setlimit(category, limit)
            self._fill(connection)
            connection.set_progress_handler(self._is_over, _STEPS_BETWEEN_LOOKS)
            self._connection = connection
        return self._connection

    def _fill(self, connection: sqlite3.Connection, *, with_tables: bool = True) -> None:
        """Make the tables of the world, unless they are there, put its rows in, and allow reading only."""
        for table in self.world["tables"]:
            if with_tables:
                connection.execute(_create(table))
            marks = ", ".join("?" * len(table["columns"]))
            connection.executemany(f'INSERT INTO "{table["name"]}" VALUES ({marks})', table["rows"])
        if connection.in_transaction:
            connection.execute("COMMIT")
        connection.execute("PRAGMA query_only = ON")
        connection.set_authorizer(_authorize)

    def _is_over(self) -> bool:
        self._steps += _STEPS_BETWEEN_LOOKS
        return self._steps > self.max_steps or time.thread_time() > self._deadline


def format_table(result: QueryResult) -> str:
    """Return a result as text: a line of column names, one for each row, and a note where rows were left out."""
    lines = [" | ".join(result.columns)]
    lines += [" | ".join("NULL" if value is None else str(value) for value in row) for row in result.rows]
    if not result.rows:
        lines.append("(no rows)")
    if result.is_cut:
        lines.append(f"(only the first {len(result.rows)} rows are shown)")
    return "\n".join(lines)


def check_world(world: Any) -> None:
    """Raise `InvalidActionError` if a world cannot be made into a database."""
    try:
        connection = sqlite3.connect(":memory:")
        try:
            for table in world["tables"]:
                connection.execute(_create(table))
                if type(table["rows"]) is not list:
                    raise InvalidActionError("the rows of a table must be a list")
                marks = ", ".join("?" * len(table["columns"]))
                connection.executemany(f'INSERT INTO "{table["name"]}" VALUES ({marks})', table["rows"])
        finally:
            connection.close()
    except (sqlite3.Error, sqlite3.Warning, KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidActionError(f"its world cannot be made into a database: {error}") from error


def _create(table: Mapping[str, Any]) -> str:
    name, columns = table["name"], tuple(map(tuple, table["columns"]))
    if not all(type(word) is str for word in [name, *(word for column in columns for word in column)]):
        raise InvalidActionError("names of tables, of columns and of their types must be texts")
    return _create_statement(name, columns)


@lru_cache(maxsize=1_024)
def _create_statement(table: str, columns: tuple[tuple[str, ...], ...]) -> str:
    for name, kind in columns:
        if not name.isidentifier() or not set(kind) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ abcdefghijklmnopqrstuvwxyz_()"):
            raise InvalidActionError(f"{name!r} {kind!r} is no column")
    if not table.isidentifier():
        raise InvalidActionError(f"{table!r} is no name of a table")
    return f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns)})"


def _authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
    if action in _ALLOWED:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in _REFUSED_FUNCTIONS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _ALLOWED_PRAGMAS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_UPDATE and first == "sqlite_master":
        return (
            sqlite3.SQLITE_OK
        )  # `pragma_table_info(...)` declares its columns so; `query_only` lets nothing be written
    return sqlite3.SQLITE_DENY


def _time_of_data(clock: sqlite3.Connection, name: str, n_before: int, *arguments: Any) -> Any:
    """Do what SQLite's own function of that name does, in a connection that has it, but for the present time."""
    words = {argument.strip().lower() for argument in arguments if isinstance(argument, str)}
    if len(arguments) <= n_before or words & _TIME_WORDS:
        raise ValueError
    return clock.execute(f"SELECT {name}({', '.join('?' * len(arguments))})", arguments).fetchone()[0]


def _bounded_format(clock: sqlite3.Connection, *arguments: Any) -> Any:
    """Do what SQLite's own `printf` does, but for very wide conversions."""
    if arguments and isinstance(arguments[0], str) and _WIDE.search(arguments[0]):
        raise ValueError
    return clock.execute(f"SELECT printf({', '.join('?' * len(arguments))})", arguments).fetchone()[0]


def _explain(error: Exception, max_steps: int) -> str:
    text = str(error)
    if text == "interrupted":
        return f"the statement was stopped: it takes more than {max_steps} steps or too much time"
    if "not authorized" in text or "prohibited" in text:
        return f"{text}: only SELECT is allowed, without functions of time and chance"
    if "user-defined function" in text:
        return (
            "a function of time was called with a wrong argument, or asks for the present time, which is not told; or "
            "a format has a width of five digits or *"
        )
    return text


# What the worlds are about.


@dataclass(frozen=True, slots=True)
class Entity:
    """A table of things, each with a label, a group and a number."""

    table: str
    """Its name, the plural of the things."""
    noun: str
    labels: tuple[str, ...]
    """What the column of labels may be called. Here as below the first is what people say."""
    is_person: bool
    group_columns: tuple[str, ...]
    """What the column of groups may be called."""
    group_table: str
    """Where the groups have a table of their own."""
    groups: tuple[str, ...]
    number_columns: tuple[str, ...]
    numbers: tuple[int, int]
    """Lowest and highest."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Two entities and what links them."""

    name: str
    left: Entity
    right: Entity
    link: str
    """Name of the table, a plural."""
    measures: tuple[str, ...]
    """What the column of the link's number may be called."""
    range: tuple[int, int]


_TOWNS = ("Alderby", "Brookfield", "Castleton", "Dunmore", "Eastmoor", "Fairhaven")

THEMES: dict[str, Theme] = {
    theme.name: theme
    for theme in (
        Theme(
            "shop",
            Entity("customers", "customer", ("name", "full_name"), True, ("city", "town", "lives_in"), "places",
                   _TOWNS, ("age", "years_old"), (18, 80)),
            Entity("products", "product", ("title", "label"), False, ("category", "department"), "departments",
                   ("garden", "kitchen", "office", "sports", "toys"), ("price", "unit_price"), (5, 95)),
            "orders", ("quantity", "units"), (1, 30),
        ),
        Theme(
            "library",
            Entity("members", "member", ("name", "reader"), True, ("district", "branch"), "branches",
                   ("Harbour", "Hillside", "Market", "Old Town", "Station"), ("age", "age_years"), (8, 90)),
            Entity("books", "book", ("title", "book_title"), False, ("genre", "shelf"), "genres",
                   ("biography", "crime", "history", "poetry", "travel"), ("pages", "length"), (60, 900)),
            "loans", ("days", "days_out"), (1, 60),
        ),
        Theme(
            "school",
            Entity("students", "student", ("name", "student_name"), True, ("house", "form"), "houses",
                   ("Ash", "Birch", "Cedar", "Maple", "Oak"), ("height", "height_cm"), (120, 199)),
            Entity("courses", "course", ("title", "course_name"), False, ("subject", "field"), "subjects",
                   ("art", "biology", "chemistry", "music", "physics"), ("hours", "lessons"), (10, 120)),
            "enrolments", ("points", "score"), (1, 100),
        ),
        Theme(
            "clinic",
            Entity("patients", "patient", ("name", "patient_name"), True, ("insurer", "insured_with"), "insurers",
                   ("Aegis", "Civic", "Meridian", "Northern", "Unity"), ("age", "age_years"), (18, 99)),
            Entity("treatments", "treatment", ("title", "kind"), False, ("ward", "unit"), "wards",
                   ("cardiology", "dental", "general", "neurology", "surgery"), ("fee", "price"), (15, 480)),
            "visits", ("minutes", "duration"), (5, 90),
        ),
    )
}  # fmt: skip

_FIRST_NAMES = ("Ada", "Ben", "Clara", "David", "Elena", "Felix", "Grace", "Hugo", "Ines", "Jonas", "Kira", "Leo",
                "Mara", "Nils", "Olga", "Paul", "Rosa", "Sven", "Tara", "Viktor")  # fmt: skip
_LAST_NAMES = ("Abel", "Brandt", "Costa", "Dahl", "Ekman", "Fischer", "Grant", "Holm", "Ivanov", "Jensen", "Keller",
               "Lund", "Moreau", "Novak", "Okafor", "Petrov", "Quinn", "Rossi", "Silva", "Weber")  # fmt: skip
_ADJECTIVES = ("Amber", "Blue", "Crystal", "Dusty", "Emerald", "Frosty", "Golden", "Hidden", "Ivory", "Jade", "Lunar",
               "Misty", "Noble", "Pale", "Quiet", "Rapid", "Silver", "Tiny", "Violet", "Wild")  # fmt: skip
_NOUNS = ("Anchor", "Bridge", "Comet", "Drum", "Echo", "Falcon", "Grove", "Harbor", "Island", "Jewel", "Kite",
          "Lantern", "Meadow", "Needle", "Orchid", "Pebble", "Quarry", "River", "Signal", "Tower")  # fmt: skip


def generate_world(
    rng: np.random.Generator,
    *,
    n_left: int = 20,
    n_right: int = 12,
    n_links: int = 60,
    lookups: bool = False,
    n_values: int | None = None,
    n_groups: int | None = None,
) -> dict[str, Any]:
    """Draw a world: its theme, the names of its columns, and what is in its tables.

    Args:
        rng: What is drawn from.
        n_left: People, at most 400.
        n_right: Things, at most 400.
        n_links: Rows of the table that links them.
        lookups: Whether the groups of both have tables of their own, so that a row has only the number of its group.
        n_values: How many numbers that follow one another a column has, so that many rows are alike; None for all.
        n_groups: How many of its groups an entity has; None for all.
    """
    theme = list(THEMES.values())[int(rng.random() * len(THEMES))]
    tables: list[dict[str, Any]] = []
    for entity, n_rows in ((theme.left, n_left), (theme.right, n_right)):
        tables += _entity_tables(rng, entity, n_rows, lookups, n_values, n_groups)
    random = _stream(rng, 5 * n_links + 1 + (n_values is not None))
    low, high = _narrowed(random, *theme.range, n_values)
    columns = [
        ["id", "INTEGER PRIMARY KEY"],
        [f"{theme.left.noun}_id", f"INTEGER REFERENCES {theme.left.table}(id)"],
        [f"{theme.right.noun}_id", f"INTEGER REFERENCES {theme.right.table}(id)"],
        [_choose(random, theme.measures), "INTEGER"],
        ["date", "TEXT"],
    ]
    rows = [
        [
            number,
            1 + int(random() * n_left),
            1 + int(random() * n_right),
            low + int(random() * (high - low + 1)),
            f"2025-{1 + int(random() * 6):02d}-{1 + int(random() * 28):02d}",
        ]
        for number in range(1, n_links + 1)
    ]
    tables.append({"name": theme.link, "columns": columns, "rows": rows})
    return {"theme": theme.name, "tables": tables}


def _entity_tables(
    rng: np.random.Generator,
    entity: Entity,
    n_rows: int,
    lookups: bool,
    n_values: int | None,
    n_groups: int | None,
) -> list[dict[str, Any]]:
    random = _stream(rng, 2 * n_rows + 3 + (n_values is not None) + (n_groups is not None))
    group = _choose(random, entity.group_columns)
    columns = [
        ["id", "INTEGER PRIMARY KEY"],
        [_choose(random, entity.labels), "TEXT"],
        [f"{group}_id", f"INTEGER REFERENCES {entity.group_table}(id)"] if lookups else [group, "TEXT"],
        [_choose(random, entity.number_columns), "INTEGER"],
    ]
    firsts, seconds = (_FIRST_NAMES, _LAST_NAMES) if entity.is_person else (_ADJECTIVES, _NOUNS)
    low, high = _narrowed(random, *entity.numbers, n_values)
    groups = entity.groups
    if n_groups is not None:
        first = int(random() * len(groups))
        groups = (groups + groups)[first : first + n_groups]
    rows: list[list[Any]] = []
    for number, place in enumerate(_distinct(rng, n_rows, len(firsts) * len(seconds)), start=1):
        index = int(random() * len(groups))
        label = f"{firsts[place // len(seconds)]} {seconds[place % len(seconds)]}"
        rows.append([number, label, index + 1 if lookups else groups[index], low + int(random() * (high - low))])
    tables: list[dict[str, Any]] = [{"name": entity.table, "columns": columns, "rows": rows}]
    if lookups:
        listed = [[index, name] for index, name in enumerate(groups, start=1)]
        columns = [["id", "INTEGER PRIMARY KEY"], ["name", "TEXT"]]
        tables.insert(0, {"name": entity.group_table, "columns": columns, "rows": listed})
    return tables


def _narrowed(random: Callable[[], float], low: int, high: int, n_values: int | None) -> tuple[int, int]:
    """Return a range of so many numbers inside a range; the range itself if None."""
    if n_values is None:
        return low, high
    start = low + int(random() * (high - low - n_values))
    return start, start + n_values


def _choose(random: Callable[[], float], choices: Sequence[str]) -> str:
    return choices[int(random() * len(choices))]


def _stream(rng: np.random.Generator, n: int) -> Callable[[], float]:
    """Return what gives `n` numbers in [0, 1), drawn at once, which is five times as fast."""
    return iter(rng.random(n).tolist()).__next__


def _distinct(rng: np.random.Generator, count: int, n: int) -> list[int]:
    """Draw `count` different numbers below n."""
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn.update((int(number * n), None) for number in rng.random(count - len(drawn)).tolist())
    return list(drawn)
