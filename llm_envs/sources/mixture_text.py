"""Mixtures written as text, on the command line and in suite files: `ID`, `ID:WEIGHT`, and patterns of ids."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Sequence

from llm_envs.errors import InvalidConfigError
from llm_envs.objects import env_id
from llm_envs.sources.source import EnvChoice

__all__ = ["parse_mixture"]


def parse_mixture(texts: Sequence[str], exclude: Sequence[str] = ()) -> list[EnvChoice]:
    """Parse a mixture: `ID`, `ID:WEIGHT`, patterns of registered tasks' ids, and environments as `FILE.py:NAME`.

    A pattern leaves out the named benchmarks (`llm/GSM8K-v0`), unless it matches nothing else.

    An id may itself have a colon (`module:llm/Task-v0`): only a number counts as a weight. If a pattern matches a task
    that is also given by its id, the weight given with the id applies.

    Args:
        texts: The command's arguments.
        exclude: Ids and patterns of tasks to leave out.

    Raises:
        InvalidConfigError: If a weight is not above 0, an id is given twice, a pattern matches nothing, or nothing is
            left.
    """
    given = [_weighted(text) for text in texts]
    named = {name for name, _ in given if re.search(r"[*?\[]", name) is None}
    choices: dict[str, float] = {}
    for name, weight in given:
        for chosen in [name] if name in named else [found for found in _matching(name) if found not in named]:
            if chosen in choices:
                raise InvalidConfigError(f"{chosen} is given twice: give it once, with a weight.")
            choices[chosen] = weight
    left = dict(choices)
    for pattern in exclude:
        found = fnmatch.filter(choices, pattern)
        if not found:
            raise InvalidConfigError(f"--exclude {pattern}: it matches none of {', '.join(choices)}.")
        left = {chosen: weight for chosen, weight in left.items() if chosen not in found}
    if not left:
        raise InvalidConfigError(f"no task is left to play: --exclude {' '.join(exclude)} removes all {len(choices)}.")
    return [EnvChoice(chosen, weight) for chosen, weight in left.items()]


def _weighted(text: str) -> tuple[str, float]:
    head, colon, tail = text.rpartition(":")
    try:
        weight = float(tail) if colon else None
    except ValueError:
        weight = None
    if weight is None:
        return env_id(text), 1.0
    if not (weight > 0 and math.isfinite(weight)):
        raise InvalidConfigError(f"{text}: the weight must be a number above 0.")
    return env_id(head), weight


def _matching(pattern: str) -> list[str]:
    from llm_envs.registration import bridged_ids, task_ids, task_spec

    found = fnmatch.filter(task_ids(), pattern) or fnmatch.filter(bridged_ids(), pattern)
    if not found:
        raise InvalidConfigError(f"no task matches {pattern!r}; `llm-envs list` prints all tasks.")
    # These need data or packages of the user's, so a pattern takes them only if it matches nothing else.
    needy = re.compile(r"\.(benchmarks|repository)\.")
    return [task_id for task_id in found if needy.search(str(task_spec(task_id).entry_point)) is None] or found
