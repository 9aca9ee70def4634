"""`llm/BFCL-v0`: call the right functions, in one turn or several, judged by the Berkeley leaderboard's checkers."""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from llm_envs.env import Difficulty, Outcome, TextEnv, ToolEnv
from llm_envs.errors import InvalidActionError
from llm_envs.parsers import ParsedReply, format_tool_call
from llm_envs.processes import Shared
from llm_envs.sandbox.scorer import BoundedScorer
from llm_envs.spaces import encodable
from llm_envs.tasks.benchmarks.bfcl_answers import arguments_of
from llm_envs.tasks.benchmarks.bfcl_data import CATEGORIES, Entry, entries, package_folder, tool_of
from llm_envs.tasks.draws import pick
from llm_envs.types import ToolCall, ToolResult

__all__ = ["BFCLEnv"]

_scorer = Shared(lambda: BoundedScorer(Path(__file__).with_name("bfcl_scorer.py")))
_TIMEOUT_S = 5.0
"""Seconds for one verdict or one step; usual are 0.001 to 0.05."""
_MOST_STEPS = 20
"""Replies with calls in one turn; the benchmark gives up after more."""
_MOST_TURNS = 7
_OUT_OF_REACH = {*dir(builtins), "kill", "remove", "unlink", "popen", "Popen", "run"}
"""Names of Python, and those that the benchmark's runner forbids."""
_LATE = "I have updated some more functions you can choose from. What about now?"


class BFCLEnv(ToolEnv):
    """Call the right functions, in one turn or several, judged by the Berkeley leaderboard's own checkers.

    ## Description
    The Berkeley Function Calling Leaderboard, version 4 (Patil et al. 2025), from the package `bfcl-eval`, which has
    the data. A request comes with functions: one call is right, or several, or none. In several turns, calls change
    the state of simulated services (files, a car, trading, travel, messages), and the states and results after each
    turn must be those of the right calls. Prompts are those of the benchmark for models that call functions. It has no
    train split.

    ## Observation
    The functions are the episode's tools. First the user's request; in several turns the results of calls, and the
    user's next request.

    ## Action
    Calls of functions, side by side in one reply. Where none fits, words. In several turns, a reply without a call ends
    the turn.

    ## Reward
    `correct` (weight 1): 1 if the benchmark's checker finds the calls valid: for one turn by names, types and possible
    values; for several, by the states of the services and the results after each turn. Where no function fits, 1 for
    words without a call. Calls that exceed the limits of time and memory make the episode fail.

    ## Episode End
    With one turn, terminates after one reply. Otherwise terminates when the last turn ends, or when a turn has more
    than 20 replies with calls, or calls a builtin or private name of Python.

    ## Arguments
    - `split`: "test", the only one.
    - `difficulty`: the category. "simple_python" (default), "simple_java", "simple_javascript", "multiple", "parallel",
      "parallel_multiple", "irrelevance"; of users' requests "live_simple", "live_multiple", "live_parallel",
      "live_parallel_multiple", "live_irrelevance", "live_relevance"; in several turns "multi_turn_base",
      "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context". An expert level is missing: the levels
      are the benchmark's. Its categories "memory" and "web_search" need a network or a model, and are left out.
    - `reset(options={"problem": {"id": "simple_python_0"}})` plays an entry of the category.

    ## Version History
    - v0: first version.
    """

    difficulties = {
        name: Difficulty(category.description, category.chance_rate, category.n, disjoint_splits=False)
        for name, category in CATEGORIES.items()
    }
    default_difficulty = "simple_python"
    default_max_turns = 1
    splits = ("test",)
    divides_by_hash = False
    problem_fields = {"id": str}
    reward_weights = {"correct": 1.0}
    blocking = True  # the checkers and services are in a child process
    has_natural_form = False
    max_calls_per_turn = 64
    slow_reset_reason = "an entry of several turns has dozens of functions, and the tools are made anew"
    clause_reasons = {
        "is_not_won_by_meaningless_text": "the benchmark's checker judges the calls of several turns, not their texts",
        "needs_every_round": "the benchmark's checker compares states, which a repeated call may leave alike",
    }

    def __init__(self, split: str = "test", difficulty: str | None = None, render_mode: str | None = None) -> None:
        package_folder()
        name = self.default_difficulty if difficulty is None else difficulty
        self.has_turns = name.startswith("multi_turn")
        super().__init__(split, difficulty, (_MOST_STEPS + 1) * _MOST_TURNS if self.has_turns else 1, render_mode)
        self.blocking = True
        # Three entries and two, where the checker accepts no call at all.
        self.oracle_is_exact = name not in ("simple_java", "live_simple")  # type: ignore[misc]

    def make_tools(self) -> list[Any]:
        """Return no tools: every episode has its own functions."""
        return []

    def is_correct(self, answer: str) -> bool:
        """Not used: calls are judged, and not an answer."""
        raise InvalidActionError("this task takes calls, and not an answer")

    def problems(self, seed: int = 0) -> Iterator[dict[str, Any]]:
        """Yield each entry of the category, in order."""
        return ({"id": entry_id} for entry_id in _ids(self.difficulty))

    def generate(self) -> dict[str, Any]:
        """Draw an entry."""
        return {"id": pick(self.np_random.random, _ids(self.difficulty))}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse an id of another category."""
        if problem["id"] not in entries(self.difficulty):
            raise InvalidActionError(f"{self.difficulty} has no entry {problem['id']!r}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode with its own tools; see `TextEnv.reset`."""
        result = TextEnv.reset(self, seed=seed, options=options)
        system = [message["content"] for message in self._entry.turns[0] if message["role"] == "system"]
        self.system_prompt = "\n".join(system) or None
        self.tools = [tool_of(function, self.difficulty) for function in self._entry.functions]
        return result

    def begin(self) -> None:
        """Start with the first turn."""
        self._entry: Entry = entries(self.difficulty)[self.problem["id"]]
        self._turns: list[list[list[tuple[str, dict[str, Any]]]]] = [[]]
        """Turn -> step -> calls."""
        self._exceeded = False
        self._names = {function["name"].replace(".", "_"): function["name"] for function in self._entry.all_functions}

    def prompt(self) -> str:
        """Return the first request."""
        return _words(self._entry.turns[0])

    def play(self, action: str) -> Outcome:
        """Judge the calls of the only turn, or execute them, or go to the next turn."""
        reply = self.read(action)
        calls = [(self._names.get(call.name, call.name), dict(call.arguments)) for call in reply.tool_calls]
        if not self.has_turns:
            self.tool_results = ()
            is_right = self._is_right(reply, calls)
            return Outcome("Correct." if is_right else "Incorrect.", {"correct": float(is_right)}, True, is_right)
        if not calls:
            return self._next_turn()
        if any(map(self._is_hostile, calls)):
            return Outcome("Error: only the given functions may be called.", {"correct": 0.0}, True)
        self._turns[-1].append(calls[: self.max_calls_per_turn])
        outcome = self._play_calls(reply)
        if self._exceeded or len(self._turns[-1]) > _MOST_STEPS:
            return outcome._replace(terminated=True)
        return outcome

    def score(
        self, reply: ParsedReply, results: Sequence[ToolResult], *, correct: bool, malformed: bool
    ) -> dict[str, float]:
        """Return the components of a reply with calls: the last turn decides."""
        return {"correct": 0.0}

    def run_calls(self, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
        """Execute the calls of a step."""
        found = self._ask(None)
        if found is None:
            self._exceeded = True
        results = ["Error: over the limits of time or memory."] * len(calls) if found is None else found["results"]
        return tuple(
            ToolResult(encodable(call.name), call.arguments, encodable(result), found is not None)
            for call, result in zip(calls, results, strict=True)
        )

    def _is_hostile(self, call: tuple[str, Any]) -> bool:
        """Return whether a call reaches for Python rather than for a function: the benchmark's runner evaluates it."""
        name = call[0]
        return name not in self._names.values() and (name.startswith("_") or name in _OUT_OF_REACH)

    def _is_right(self, reply: ParsedReply, calls: list[tuple[str, dict[str, Any]]]) -> bool:
        """Judge the only turn."""
        if self.difficulty.endswith("irrelevance"):
            return bool(reply.content.strip()) and not calls and not reply.problems
        if not calls:
            return False
        if self.difficulty == "live_relevance":
            return all(name in self._names.values() for name, _ in calls)
        request = {
            "category": self.difficulty,
            "functions": self._entry.functions,
            "possible": self._entry.answers,
            "calls": [{name: arguments} for name, arguments in calls],
        }
        found = _scorer().ask(request, _TIMEOUT_S)
        return found is not None and found["valid"]

    def _next_turn(self) -> Outcome:
        """Show the next request; after the last turn, judge all."""
        self.tool_results = ()
        number = len(self._turns)
        if number == len(self._entry.turns):
            found = self._ask(self._entry.answers)
            is_right = found is not None and found["valid"] is True
            return Outcome("Correct." if is_right else "Incorrect.", {"correct": float(is_right)}, True, is_right)
        self._turns.append([])
        if late := self._entry.late_functions.get(number):
            documents = json.dumps([tool_of(function, self.difficulty)["function"] for function in late])
            return Outcome(f"{documents}\n{_LATE}", {"correct": 0.0})
        return Outcome(_words(self._entry.turns[number]), {"correct": 0.0})

    def _ask(self, right_calls: list[Any] | None) -> dict[str, Any] | None:
        request = {
            **self._entry.world,
            "category": self.difficulty,
            "turns": self._turns,
            "right_calls": right_calls,
        }
        return _scorer().ask(request, _TIMEOUT_S)

    def next_action(self) -> str:
        """Make the right calls; end the turn when they are made, and where none is right."""
        entry = self._entry
        if self.difficulty.endswith("irrelevance"):
            return "None of these functions can do that."
        if self.difficulty == "live_relevance":
            return format_tool_call(entry.functions[0]["name"].replace(".", "_"))
        if not self.has_turns:
            functions = {function["name"]: function for function in entry.functions}
            calls = [(name, possible) for answer in entry.answers for name, possible in answer.items()]
            return "\n".join(
                format_tool_call(name.replace(".", "_"), **arguments_of(functions[name], possible, self.difficulty))
                for name, possible in calls
            )
        turn = len(self._turns) - 1
        if self._turns[turn] or not entry.answers[turn]:
            return "Done."
        functions = {function["name"]: function for function in entry.all_functions}
        lines = []
        for name, positional, named in entry.answers[turn]:
            parameters = list(functions[name]["parameters"]["properties"]) if positional else []
            lines.append(format_tool_call(name, **dict(zip(parameters, positional, strict=False)), **named))
        return "\n".join(lines)


@lru_cache(maxsize=len(CATEGORIES))
def _ids(category: str) -> tuple[str, ...]:
    return tuple(entries(category))


def _words(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the messages of a turn as one observation; those before the last one with their roles."""
    said = [message for message in messages if message["role"] != "system"]
    if len(said) == 1:
        return said[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in said)
