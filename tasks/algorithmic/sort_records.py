"""`llm/SortRecords-v0`: combine tables of records and sort them by several keys."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.algorithmic.lists import check_words, read_items
from llm_envs.tasks.draws import Random, between, pick, sample, shuffled
from llm_envs.tasks.people import PEOPLE

__all__ = ["SortRecordsEnv", "select"]

_CODES = tuple(f"{letter}{number}" for letter in "BDFHKMPRTX" for number in range(2, 10))
_MORE_CODES = tuple(f"{letter}{number}" for letter in "BDFHKMPRTX" for number in range(10, 100))
"""Names for more records than a domain has."""
_DOMAINS: Mapping[str, tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]] = {
    "people": (
        PEOPLE,
        (
            ("age", (21, 29)),
            ("score", (1, 6)),
            ("city", ("Bonn", "Lima", "Oslo", "Rome", "Turin")),
            ("team", ("red", "blue", "green")),
        ),
    ),
    "parcels": (
        _CODES,
        (
            ("weight", (2, 9)),
            ("price", (11, 17)),
            ("zone", ("north", "south", "east", "west")),
            ("kind", ("box", "letter", "tube")),
        ),
    ),
    "books": (
        (
            *("Amber", "Atlas", "Birch", "Canyon", "Comet", "Delta", "Ember", "Fable", "Garnet", "Harbor", "Iris"),
            *("Jasper", "Lagoon", "Meadow", "Nectar", "Opal", "Prism", "Quartz", "Raven", "Sierra", "Tundra", "Umber"),
        ),
        (
            ("year", (1991, 1999)),
            ("pages", (110, 116)),
            ("genre", ("crime", "drama", "poetry", "travel")),
            ("shelf", ("top", "middle", "bottom")),
        ),
    ),
}
"""Names of records, and columns: a range of numbers or a choice of words. Both are small, so that there are ties."""
_SAME = "same "
"""Begins a key that is how many records have the same value in a column."""
_ABOVE = "above the average of"
_DIRECTIONS = ("ascending", "descending")
_OPERATIONS: Mapping[str, str] = {
    "first": "Take the records of table A.",
    "union": "Take the records that are in table A or in table B, each once.",
    "both": "Take the records that are in both tables.",
    "only first": "Take the records of table A that are not in table B.",
    "one": "Take the records that are in exactly one of the two tables.",
}
_FEWEST = 4
"""Records that must be left, so that a guessed order is rarely right."""


class SortRecordsEnv(SingleTurnEnv):
    """Combine tables, filter them, and list the records in the order of several keys.

    ## Description
    One table of records or two are given. The records of one, of their union, intersection or difference are to be
    listed by one key or several, each ascending or descending; records that are equal in all of them keep the order
    in which they stand (those of table A first). Teaches to apply a long specification exactly, ties included.

    ## Observation
    The tables and what to do. After the reply "Correct.", "Incorrect." or what was malformed.

    ## Action
    `<answer>Ada, Ben, Cleo</answer>`: the names in order, between commas, arrows, spaces or on lines. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the right names in the right order. `malformed` (weight -0.1): 1 for a reply without
    an answer, with broken tags, or whose answer has a name that is not in a table, or a name twice.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "starter": one table of 4 records, one key; "easy" (default): one of 6, one key with ties; "medium":
      two tables of 7, an operation and two keys; "hard": two tables of 10, an operation, a condition and three keys;
      "expert": two tables of 60, four keys, one of them how many records share a value, and a condition on the average
      of such records.
    - `reset(options={"problem": {"columns": ["age"], "a": [["Ada", 30], ["Ben", 25]], "b": [], "operation": "first",
      "condition": [], "keys": [["age", "ascending"]]}})` plays a given problem. Operations are "first", "union",
      "both", "only first" and "one"; a condition is `["age", "at least", 25]`, `["city", "is not", "Rome"]` or
      `["age", "above the average of", "city"]`; the key `["same city", "ascending"]` is how many of the records that
      are left have the same city.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often a random order of the right records is right: 1 of 4!, 1 of 6!, and on average
    # over their number 1.7% and 1.3%; how often the order by name is: 4%, 0.2%, 1.3%, 1.6%; and at the starter level
    # how often the likeliest order of the places is: 7%.
    difficulties = {
        "starter": Difficulty("one table of four", chance_rate=0.08, settings={"rows": 4, "keys": 1}),
        "easy": Difficulty("one table, one key", chance_rate=0.005, settings={"rows": 6, "keys": 1}),
        "medium": Difficulty("two tables, two keys", chance_rate=0.03, settings={"rows": 7, "keys": 2}),
        "hard": Difficulty("two tables, a condition, three keys", chance_rate=0.03, settings={"rows": 10, "keys": 3}),
        "expert": Difficulty(
            "two tables of 60, compared with averages, sorted by counts and three keys",
            chance_rate=0.001,
            settings={"rows": 60, "keys": 4, "tallies": True},
            expected_hard="Averages decide which 25 of some 60 records are kept, and each of these is placed by how "
            "many share a value, and by three more keys with many ties; at one wrong decision in 120, 49% of the lists "
            "are right.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "at the expert level 90 records are drawn, and sorted in several ways"
    problem_fields = {"columns": list, "a": list, "b": list, "operation": str, "condition": list, "keys": list}
    instructions = "The answer is the names of the records in the right order, without their other values."
    answer_example = "Ada, Ben, Cleo"

    def generate(self) -> dict[str, Any]:
        """Draw tables and what to do, until enough records are left and nothing that is asked for is needless."""
        random, n, n_keys = self.np_random.random, self.settings["rows"], self.settings["keys"]
        while True:
            names, columns = pick(random, tuple(_DOMAINS.values()))
            columns = tuple(sample(random, columns, max(2, n_keys) if n_keys != 2 else 3))
            one = n_keys == 1
            n_records = n if one else n + n // 2
            chosen = sample(random, names if n_records <= len(names) else _MORE_CODES, n_records)
            rows = [[name, *(_draw_value(random, values) for _, values in columns)] for name in chosen]
            first, second = rows[:n], [] if one else shuffled(random, rows[n // 2 :])
            keys = [[column, pick(random, _DIRECTIONS)] for column, _ in sample(random, columns, n_keys)]
            condition = _draw_condition(random, columns) if n_keys > 2 else []
            if self.settings.get("tallies"):
                words = [column for column, values in columns if isinstance(values[0], str)]
                numbers = [column for column, values in columns if isinstance(values[0], int)]
                keys = [[f"{_SAME}{pick(random, words)}", keys[0][1]], *keys[1:]]
                condition = [pick(random, numbers), _ABOVE, pick(random, words)]
            problem = {
                "columns": [column for column, _ in columns],
                "a": first,
                "b": [list(row) for row in second],
                "operation": "first" if one else pick(random, ("union", "both", "only first", "one")),
                "condition": condition,
                "keys": keys,
            }
            answer = select(problem)
            shorter = [problem | {"keys": []}, problem | {"keys": keys[:-1]}, problem | {"condition": []}]
            if self.settings.get("tallies"):
                shorter.append(problem | {"keys": keys[1:]})
            needless = [select(each) == answer for each in shorter if each != problem]
            if len(answer) >= _FEWEST and not any(needless):
                return problem

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse tables, operations, conditions or keys that have the wrong form."""
        columns, rows = problem["columns"], [*problem["a"], *problem["b"]]
        if not all(isinstance(row, list) and len(row) == len(columns) + 1 for row in rows):
            raise InvalidActionError("each record must be [name, value of each column]")
        if not all(isinstance(row[0], str) and re.fullmatch(r"\w+", row[0]) for row in rows):
            raise InvalidActionError("a record's name must be a single word")
        for i, column in enumerate(columns, 1):
            kinds = {type(row[i]) for row in rows}
            if not isinstance(column, str) or not (kinds <= {int} or kinds <= {str}):
                raise InvalidActionError("the values of a column must all be whole numbers or all texts")
        for table in (problem["a"], problem["b"]):
            if len({row[0].lower() for row in table}) < len(table):
                raise InvalidActionError("a name is twice in a table")
        same = {row[0].lower(): row for row in problem["a"]}
        if any(same.get(row[0].lower(), row) != row for row in problem["b"]):
            raise InvalidActionError("a record that is in both tables must be the same in both")
        if problem["operation"] not in _OPERATIONS:
            raise InvalidActionError(f"the operation must be one of {', '.join(_OPERATIONS)}")
        named = [*columns, *(f"{_SAME}{column}" for column in columns)]
        for key in problem["keys"]:
            if not isinstance(key, list) or len(key) != 2 or key[0] not in named or key[1] not in _DIRECTIONS:
                raise InvalidActionError('a key must be [column or "same column", "ascending" or "descending"]')
        condition = problem["condition"]
        hows = [*_CONDITIONS, _ABOVE]
        if condition and (len(condition) != 3 or condition[0] not in columns or condition[1] not in hows):
            raise InvalidActionError(f"a condition must be [column, one of {', '.join(hows)}, value]")
        if condition and condition[1] == _ABOVE:
            if condition[2] not in columns or any(type(row[columns.index(condition[0]) + 1]) is str for row in rows):
                raise InvalidActionError(f"{_ABOVE!r} needs a column of numbers and another column")
        elif condition and any(type(row[columns.index(condition[0]) + 1]) is not type(condition[2]) for row in rows):
            raise InvalidActionError("the condition's value must be of the column's type")
        if not select(problem):
            raise InvalidActionError("no record is left")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the tables and the operation: they are one problem, by whatever keys they are sorted."""
        return [sorted(map(repr, problem["a"])), sorted(map(repr, problem["b"])), problem["operation"]]

    def begin(self) -> None:
        """Select and sort."""
        self._answer = select(self.problem)
        self._known = {row[0].lower(): row[0] for row in [*self.problem["a"], *self.problem["b"]]}

    def prompt(self) -> str:
        """Return the tables and what to do."""
        problem, lines = self.problem, []
        for title, table in (("Table A", problem["a"]), ("Table B", problem["b"])):
            if table:
                lines.append(f"{title}: name, {', '.join(problem['columns'])}")
                lines += [", ".join(map(str, row)) for row in table]
        lines.append(_OPERATIONS[problem["operation"]])
        if problem["condition"]:
            column, how, value = problem["condition"]
            said = f"is above the average {column} of all those with the same {value}"
            said = said if how == _ABOVE else _CONDITIONS[how][0].format(value)
            lines.append(f"Keep only those whose {column} {said}.")
        orders = ", then by ".join(f"{_say_key(column)} ({direction})" for column, direction in problem["keys"])
        if orders:
            places = [problem["columns"].index(c) + 1 for c, _ in problem["keys"] if not c.startswith(_SAME)]
            has_words = any(isinstance([*problem["a"], *problem["b"]][0][place], str) for place in places)
            lines.append(f"Sort them by {orders}{'; words go by the alphabet' if has_words else ''}.")
        who = "Records that are equal in all of this" if orders else "They"
        end = ", first those of table A, then the others of table B" if problem["b"] else ""
        lines.append(f"{who} stay in the order in which they stand above{end}.")
        return "\n".join(lines)

    def solution(self) -> str:
        """Return the names."""
        return ", ".join(self._answer)

    def shortcuts(self) -> Mapping[str, str]:
        """Return the answer of a reader that keeps up to 90 records, each with what it thought of it when it read it.

        Averages and counts are those of the records that it had read by then.
        """
        names = select(self.problem, so_far=True) or [self.problem["a"][0][0]]
        return {"reader(90)": self.write_answer(", ".join(names))}

    def is_correct(self, answer: str) -> bool:
        """Compare the names in order."""
        for remark in re.findall(r"\(([^()]*)\)", answer):
            check_words(remark)
        items = [re.sub(r"\s*\([^()]*\)$", "", item) for item in read_items(answer)]
        names = [name.lower() for item in items for name in item.split()]
        unknown = next((name for name in names if name not in self._known), None)
        if unknown is not None or not names:
            raise InvalidActionError(f"{(unknown or '')[:40]!r} is not the name of a record")
        if len(set(names)) < len(names):
            raise InvalidActionError("the answer has a name twice")
        return [self._known[name] for name in names] == self._answer


_CONDITIONS: Mapping[str, tuple[str, Any]] = {
    "at least": ("is at least {}", lambda value, limit: value >= limit),
    "at most": ("is at most {}", lambda value, limit: value <= limit),
    "is": ("is {}", lambda value, limit: value == limit),
    "is not": ("is not {}", lambda value, limit: value != limit),
}


def select(problem: Mapping[str, Any], *, so_far: bool = False) -> list[str]:
    """Return the names of the records that are asked for, in order.

    Args:
        problem: The tables and what to do.
        so_far: Whether averages and counts of a record are those of the records up to it, not of all.
    """
    first, second, operation = problem["a"], problem["b"], problem["operation"]
    in_first, in_second = {row[0] for row in first}, {row[0] for row in second}
    others = [row for row in second if row[0] not in in_first]
    if operation == "first":
        rows = list(first)
    elif operation == "union":
        rows = [*first, *others]
    elif operation == "both":
        rows = [row for row in first if row[0] in in_second]
    else:
        rows = [row for row in first if row[0] not in in_second] + (others if operation == "one" else [])
    columns = problem["columns"]
    if problem["condition"]:
        column, how, value = problem["condition"]
        place = columns.index(column) + 1
        if how == _ABOVE:
            tallies = _tallies(rows, columns.index(value) + 1, place, so_far=so_far)
            rows = [row for row, (n, total) in zip(rows, tallies, strict=True) if row[place] * n > total]
        else:
            rows = [row for row in rows if _CONDITIONS[how][1](row[place], value)]
    order = list(range(len(rows)))
    for column, direction in reversed(problem["keys"]):
        place = columns.index(column.removeprefix(_SAME)) + 1
        if column.startswith(_SAME):
            values = [n for n, _ in _tallies(rows, place, None, so_far=so_far)]
        else:
            values = [row[place] for row in rows]
        order.sort(key=values.__getitem__, reverse=direction == "descending")
    return [rows[i][0] for i in order]


def _tallies(rows: Sequence[Sequence[Any]], place: int, of: int | None, *, so_far: bool) -> list[tuple[int, int]]:
    """Return for each row how many have the same value at a place, and the sum of their values at another."""
    counts, sums, found = Counter[Any](), Counter[Any](), []
    for row in rows:
        counts[row[place]] += 1
        sums[row[place]] += 0 if of is None else row[of]
        found.append((counts[row[place]], sums[row[place]]))
    return found if so_far else [(counts[row[place]], sums[row[place]]) for row in rows]


def _say_key(column: str) -> str:
    return f"how many of those kept have the same {column.removeprefix(_SAME)}" if column.startswith(_SAME) else column


def _draw_value(random: Random, values: Any) -> Any:
    return between(random, *values) if isinstance(values[0], int) else pick(random, values)


def _draw_condition(random: Random, columns: Any) -> list[Any]:
    column, values = pick(random, columns)
    if isinstance(values[0], int):
        return [column, pick(random, ("at least", "at most")), between(random, values[0] + 2, values[1] - 2)]
    return [column, "is not", pick(random, values)]
