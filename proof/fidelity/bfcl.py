"""Our verdicts of `llm/BFCL-v0` against those of `bfcl_eval`: its `ast_checker` and its `multi_turn_checker`.

    python -m proof.fidelity.bfcl

The outputs: the oracle's ("right"); with a changed value, type or name, with a call too many or too few, in another
order, or for another entry ("wrong"); empty, without calls, or broken ("malformed"); names that do not exist, builtins,
code as a value, and values of odd types ("hostile"). The official verdict is what the package's runner does with calls
that a model made by function calling: `eval` of their text included, in a process of its own.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium as gym

from llm_envs.parsers import format_tool_call, parse_reply
from llm_envs.tasks.benchmarks.bfcl_data import CATEGORIES, Entry, entries, package_folder
from proof.fidelity.compare import Case, compare, write

__all__ = ["KNOWN", "cases", "result"]

EMPTY = (
    "no function fits, and the reply is empty or a broken call: the official scorer takes it for right, ours does not"
)
UNKNOWN = "any call will do, and it calls a function that does not exist: right for the official scorer, not for ours"
PYTHON = (
    "a call of a builtin or private name of Python beside right ones: evaluated or refused there, the end with 0 here"
)
KNOWN = {EMPTY, UNKNOWN, PYTHON, "the official scorer raises; ours is 0"}
Calls = list[tuple[str, dict[str, Any]]]
_CODE = ("__import__('os').getpid()", "().__class__", "9**9**9", "'; x = 1", "\ud800", "{0}", "a" * 2_000)
_ODD = (None, True, [], {}, -1, 10**30, 1.5, "", [[1]], {"a": {"b": 1}})
_NAMES = ("print", "len", "globals", "exit", "kill", "_load_scenario", "__init__", "no_such_function", "a.b.c")
_TEXTS = ("", " \n ", "Hello.", "<tool_call>", '<tool_call>{"name": 1}</tool_call>', "[f(", "<think>Hm.", "I cannot.")


def right_calls(env: Any, entry_id: str) -> list[list[Calls]]:
    """Return the oracle's calls: turn -> step -> calls."""
    env.reset(seed=0, options={"problem": {"id": entry_id}})
    turns: list[list[Calls]] = [[]]
    done = False
    while not done:
        action = env.unwrapped.oracle()
        calls = [(call.name, dict(call.arguments)) for call in parse_reply(action).tool_calls]
        _, _, done, _, _ = env.step(action)
        if calls:
            turns[-1].append(calls)
        elif not done:
            turns.append([])
    return turns


def wrong(rng: random.Random, others: Calls, calls: Calls) -> Calls:
    """Return calls with a mistake."""
    changed = [(name, dict(arguments)) for name, arguments in calls]
    place = rng.randrange(len(changed)) if changed else 0
    kind = rng.randrange(7)
    if not changed or kind == 0:
        return [*changed, *others[:1]]
    name, arguments = changed[place]
    if kind == 1:
        changed.pop(place)
    elif kind == 2:
        changed[place] = (f"{name}s", arguments)
    elif kind == 3:
        arguments["extra"] = 1
    elif kind == 4:
        changed.reverse()
    elif arguments:
        key = rng.choice(sorted(arguments))
        value = arguments[key]
        if kind == 5:
            del arguments[key]
        else:
            arguments[key] = str(value) if not isinstance(value, str) else rng.choice([f"{value}s", value.upper(), 5])
    return changed


def hostile(rng: random.Random, calls: Calls) -> Calls:
    """Return calls with names or values that do harm where they are evaluated."""
    changed = [(name, dict(arguments)) for name, arguments in calls]
    arguments = changed[rng.randrange(len(changed))][1] if changed else {}
    if not arguments or rng.random() < 0.3:
        return [*changed, (rng.choice(_NAMES), {"x": rng.choice(_CODE)})]
    for key in arguments:
        arguments[key] = rng.choice([*_CODE, *_ODD])
    return changed


def cases(n_of_each: int) -> Iterator[Case]:
    """Yield outputs for this many entries of each category: turn -> step -> the text of a reply."""
    rng = random.Random(0)
    for category in CATEGORIES:
        env: Any = gym.make("llm/BFCL-v0", difficulty=category)
        ids = rng.sample(list(entries(category)), min(n_of_each, CATEGORIES[category].n))
        others: Calls = [("no_such_function", {"x": 1})]
        for number, entry_id in enumerate(ids):
            turns, problem = right_calls(env, entry_id), (category, entry_id)
            yield Case("right", problem, _written(turns))
            for _ in range(2):
                yield Case("wrong", problem, _with_change(rng, turns, partial(wrong, rng, others)))
            yield Case("hostile", problem, _with_change(rng, turns, partial(hostile, rng)))
            texts = _written(turns)
            texts[rng.randrange(len(texts))] = [_TEXTS[number % len(_TEXTS)]]
            yield Case("malformed", problem, texts)
            others = [call for steps in turns for calls in steps for call in calls] or others


def _with_change(rng: random.Random, turns: list[list[Calls]], change: Callable[[Calls], Calls]) -> list[list[str]]:
    """Change the calls of one turn."""
    chosen = rng.randrange(len(turns))
    changed = [
        [change([call for calls in steps for call in calls])] if number == chosen else steps
        for number, steps in enumerate(turns)
    ]
    return _written(changed)


def _written(turns: list[list[Calls]]) -> list[list[str]]:
    return [
        ["\n".join(format_tool_call(name, **arguments) for name, arguments in calls) for calls in steps if calls]
        for steps in turns
    ]


def play(env: Any, entry_id: str, turns: list[list[str]]) -> bool:
    """Return our verdict."""
    env.reset(seed=0, options={"problem": {"id": entry_id}})
    one_turn = env.unwrapped.max_turns == 1
    for steps in turns:
        replies = (steps or ["I cannot."])[:1] if one_turn else [*steps, "That is all."]
        for reply in replies:
            _, reward, terminated, _, _ = env.step(reply)
            if terminated:
                return bool(reward == 1)
            if not one_turn and not parse_reply(reply).tool_calls:
                break
    return False


class Official:
    """The package's checkers, with the package's way from a model's calls to a verdict."""

    def __init__(self) -> None:
        # The table of models imports the client libraries of all of them; the checker only asks it about ".".
        table: Any = ModuleType("bfcl_eval.constants.model_config")
        table.MODEL_CONFIG_MAPPING = defaultdict(lambda: SimpleNamespace(underscore_to_dot=True))
        sys.modules[table.__name__] = table
        from bfcl_eval.constants.enums import Language
        from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

        self.languages = {"simple_java": Language.JAVA, "simple_javascript": Language.JAVASCRIPT}
        self.python, self.ast_checker = Language.PYTHON, ast_checker
        self.multi_turn_checker, self.utils = multi_turn_checker, multi_turn_utils
        self.n = 0
        data = package_folder() / "data"
        self.rows = {
            row["id"]: row
            for category in CATEGORIES
            for row in map(json.loads, (data / f"BFCL_v4_{category}.json").read_text().splitlines())
        }
        self.keys = {
            row["id"]: row["ground_truth"]
            for category in CATEGORIES
            if (data / "possible_answer" / f"BFCL_v4_{category}.json").is_file()
            for row in map(json.loads, (data / "possible_answer" / f"BFCL_v4_{category}.json").read_text().splitlines())
        }

    def verdict(self, category: str, entry_id: str, turns: list[list[str]]) -> bool:
        """Judge replies. A reply without a call, or with one that cannot be read, is "no call" to the package."""
        decoded = [[calls for reply in steps if (calls := _calls_of(reply))] for steps in turns]
        if category.startswith("multi_turn"):
            return self._multi_turn(category, entry_id, decoded)
        calls = decoded[0][0] if decoded[0] else []
        if "relevance" in category:
            return bool(calls) != category.endswith("irrelevance")
        functions, key = self.rows[entry_id]["function"], self.keys[entry_id]
        output = [{name: arguments} for name, arguments in calls]
        language = self.languages.get(category, self.python)
        return bool(self.ast_checker(functions, output, key, language, category, "model")["valid"])

    def _multi_turn(self, category: str, entry_id: str, turns: list[list[Calls]]) -> bool:
        key = self.keys[entry_id]
        if len(turns) != len(key):
            return False
        texts = [
            [
                [f"{name}({','.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in calls]
                for calls in steps
            ]
            for steps in turns
        ]
        self.n += 1  # the package keeps the services of each model name for ever
        valid = self.multi_turn_checker(texts, key, self.rows[entry_id], category, f"model{self.n}")["valid"]
        for name in [name for name in vars(self.utils) if name.startswith(f"model{self.n}_")]:
            delattr(self.utils, name)
        return bool(valid)


def _calls_of(reply: str) -> Calls:
    return [(call.name, dict(call.arguments)) for call in parse_reply(reply).tool_calls]


def result(n_of_each: int) -> dict[str, Any]:
    """Compare the verdicts on this many entries of each category, five outputs for each."""
    official = Official()
    envs = {category: gym.make("llm/BFCL-v0", difficulty=category) for category in CATEGORIES}

    def ours(case: Case) -> bool:
        category, entry_id = case.problem
        return play(envs[category], entry_id, case.output)

    def reason(case: Case, mine: bool, theirs: bool) -> str:
        category, entry_id = case.problem
        reply = (case.output[0] or ["I cannot."])[0]
        if category.endswith("irrelevance") and theirs and not parse_reply(reply).tool_calls:
            return EMPTY
        known = _names(entries(category)[entry_id])
        if category == "live_relevance" and theirs and any(name not in known for name, _ in _calls_of(reply)):
            return UNKNOWN
        called = {name for steps in case.output for reply in steps for name, _ in _calls_of(reply)}
        if category.startswith("multi_turn") and theirs and called & set(_NAMES[:-2]):
            return PYTHON
        return "unexplained"

    return compare(cases(n_of_each), ours, lambda case: official.verdict(*case.problem, case.output), reason)


def _names(entry: Entry) -> set[str]:
    return {function["name"].replace(".", "_") for function in entry.functions}


if __name__ == "__main__":
    write("bfcl", "bfcl-eval", result(60))
