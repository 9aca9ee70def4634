"""The user's functions: their arguments, their names, and the meaning of their results.

Every function that gives a reward passes here, whether a trainer, a task, an agent or a stored run uses it. A result is
a number, named numbers, or None for "unscored". Any other result is a `TypeError` (`read_score`). During a rollout or a
training, a function that raises, or that returns anything else, leaves its episode unscored, with the reason.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError, TimeLimitError
from llm_envs.problems import as_number

__all__ = ["ENDS_RUN", "check_function", "gives_one_number", "name_of", "named_functions", "read_score"]

ENDS_RUN = (InvalidConfigError, TimeLimitError)
"""Errors of a function that every episode would meet: they are raised everywhere."""
_FROM_TRL = {"completions", "completion_ids", "prompts"}
"""Parameters by which a function of TRL's form is recognised."""


def named_functions(functions: Any, kind: str) -> dict[str, Any]:
    """Return one function of a trajectory, or several, by name; `kind` is their name in errors.

    Raises:
        InvalidConfigError: If two have the same name, or `check_function` refuses one.
    """
    if isinstance(functions, Mapping):
        named = dict(functions)
    else:
        named = {}
        for function in [functions] if callable(functions) else functions:
            if (name := name_of(function)) in named:
                raise InvalidConfigError(f"two {kind}s are called {name!r}: pass a mapping of names to them.")
            named[name] = function
    for name, function in named.items():
        check_function(function, f"the {kind} {name!r}", ("trajectory",))
    return named


def check_function(function: Any, what: str, takes: Sequence[str], *, may_wait: bool = False) -> None:
    """Check that a function can be called as it will be.

    Args:
        function: The function.
        what: Its kind and name, for the error.
        takes: The names of its arguments, which are passed by position.
        may_wait: Whether it may be asynchronous.

    Raises:
        InvalidConfigError: If it is not callable, takes other arguments, has the form of TRL's reward functions, or is
            asynchronous where that is not possible.
    """
    called = f"({', '.join(takes)})"
    if not callable(function):
        raise InvalidConfigError(f"{what} is {function!r:.80}; it must be callable, as {called} -> reward.")
    if inspect.iscoroutinefunction(function) and not may_wait:
        raise InvalidConfigError(f"{what} is asynchronous; here a function must return its result directly.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have none
        return
    if _FROM_TRL & signature.parameters.keys():
        adapter = "wrap it: trl_reward(function), of llm_envs.rewards"
        does = (
            adapter if takes == ("trajectory",) else f"write it as {called}, or pass a trainer rewards=trl_reward(...)"
        )
        raise InvalidConfigError(f"{what} takes {signature}, the form of TRL's reward functions: {does}.")
    try:
        signature.bind(*takes)
    except TypeError as error:
        raise InvalidConfigError(f"{what} takes {signature}, but it is called with {called}.") from error


def name_of(function: Any) -> str:
    """Return the name of a function's part: its `__name__`, also inside a partial, or a lambda's file and line."""
    while (name := getattr(function, "__name__", None)) is None and isinstance(function, functools.partial):
        function = function.func
    if name == "<lambda>":
        code = inspect.unwrap(function).__code__
        return f"{Path(code.co_filename).name.strip('<>')}:{code.co_firstlineno}"
    return str(name) if name is not None else type(function).__name__


def gives_one_number(function: Callable[..., Any]) -> bool:
    """Return whether a function declares that it returns one number, so that its only part has its name."""
    try:
        declared = inspect.signature(function).return_annotation
    except (TypeError, ValueError):
        return False
    return declared in (float, int, bool, "float", "int", "bool")


def read_score(score: Any, name: str) -> dict[str, float] | None:
    """Return the parts of a score by name; a number is one part, called `name`. None means unscored.

    Raises:
        TypeError: If a part is not a finite number. The message has the part and what it must be.
    """
    if score is None:
        return None
    parts = score if isinstance(score, Mapping) else {name: score}
    read = {}
    for part, value in parts.items():
        try:
            read[str(part)] = as_number(value)
        except TypeError as error:
            raise TypeError(f"it gave {part} as {value!r:.80}; {error}") from error
    return read
