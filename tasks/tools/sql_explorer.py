"""`llm/SQLExplorer-v0`: find an answer in a database whose tables nobody has described."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from llm_envs.env import Difficulty, ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import format_tool_call
from llm_envs.rewards import read_integer, split_words
from llm_envs.tasks.sqlite_world import Database, check_world, format_table, generate_world
from llm_envs.tasks.tools.sql_questions import KINDS, LEVELS, Tables, Words
from llm_envs.tools.toolset import Toolset, tool

__all__ = ["SQLExplorerEnv"]


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
      with groups in separate tables, two conditions, the largest and second largest of sums, and rows that are
      missing; "expert": questions that need a query for each row or group (its own average, its first, its leader), in
      a database of 240 links, which no reader of 20 rows a call sees whole.
    - `max_turns`: 8 by default.
    - `reset(options={"problem": {"world": ..., "kind": ..., "values": [...]}})`: a world as
      `tasks/sqlite_world.py` makes it, the kind of question, and what it asks about.

    ## Version History
    - v0: first version.
    """

    # The best constant answer to a kind of question is right in at most 2% (measured over 6,000 problems a level); who
    # has listed the people (20) or the things (12) and names one of them at random is right in 5% and 8%, and at
    # most a third of the questions are for names.
    difficulties = {
        "easy": Difficulty("one table", chance_rate=0.05, settings={"lookups": False}),
        "medium": Difficulty("two or three tables joined", chance_rate=0.05, settings={"lookups": False}),
        "hard": Difficulty(
            "joins over five tables, sums of sums, second places", chance_rate=0.06, settings={"lookups": True}
        ),
        "expert": Difficulty(
            "comparisons with each row's or group's own average, first or leader",
            chance_rate=0.06,
            settings={"lookups": True, "n_left": 40, "n_right": 24, "n_links": 240},
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 8
    problem_fields = {"world": dict, "kind": str, "values": list}
    slow_reset_reason = "at the expert level 240 links are drawn, and questions until one has a single answer"
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
        world = generate_world(rng, **self.settings)
        tables = Tables(world)
        names = LEVELS[self.difficulty]
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
            KINDS[problem["kind"]].text(Words(problem["world"]), *problem["values"])
            answer = KINDS[problem["kind"]].answer(Tables(problem["world"]), *problem["values"])
        except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
            raise InvalidActionError(f"its world or values do not fit its kind: {error!r}") from error
        if answer is None:
            raise InvalidActionError("its question has no answer, or several")

    def begin(self) -> None:
        """Take the answer that the problem was drawn with, or find that of a given one."""
        drawn, answer = getattr(self, "_drawn", (None, 0))
        if drawn is not self.problem:
            found = KINDS[self.problem["kind"]].answer(Tables(self.problem["world"]), *self.problem["values"])
            assert found is not None
            answer = found
        self._answer: int | str = answer

    def prompt(self) -> str:
        """Return the question."""
        words = Words(self.problem["world"])
        return KINDS[self.problem["kind"]].text(words, *self.problem["values"])

    def shortcuts(self) -> Mapping[str, str]:
        """Return the answer of a reader that knows all people and things, but only 120 of the rows that link them.

        It lists the tables, 20 rows a call, and adds up by itself.
        """
        tables = Tables(self.problem["world"])
        tables.links = tables.links[:_KEPT]
        answer = KINDS[self.problem["kind"]].answer(tables, *self.problem["values"])
        return {f"reader({_KEPT})": self.write_answer(str(answer or 0))}

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
        query = KINDS[self.problem["kind"]].sql(Words(self.problem["world"]), *self.problem["values"])
        for result in self.tool_results:
            if result.success and result.arguments.get("query") == query:
                return self.write_answer(result.output.splitlines()[-1].partition(" | ")[0])
        if any(result.success and result.arguments.get("query") == _SCHEMA for result in self.tool_results):
            return format_tool_call("sql", query=query)
        return format_tool_call("sql", query=_SCHEMA)


_SENTENCE = re.compile(r"\b(?:is|was|are|were|has|have|had|let|will|run|query)\b")
_SCHEMA = "SELECT sql FROM sqlite_master WHERE type = 'table'"
_KEPT = 120
"""Rows that the reader of `shortcuts` keeps: what six calls show."""
