"""Other hidden states of an episode: problems that begin with the same observation as a given one.

They are found by changing single values of the problem and passing it to `reset`. If the observation stays the same,
the agent cannot know about the change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

__all__ = ["changed_problems"]

_Place = tuple[Any, ...]


def changed_problems(problem: str, others: Sequence[str], rng: Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield problems that differ from the given one by a single change, each with a note about it. Endless.

    A change replaces a value by that of another problem, swaps it with another value of the same list or object,
    increases or decreases a number a little, or puts a line of another text into a text of several lines.

    Args:
        problem: Canonical JSON.
        others: Other problems, which provide values.
        rng: Chooses the changes.
    """
    while True:
        changed = json.loads(problem)
        place = _some_place(changed, rng)
        parent = _at(changed, place[:-1])
        old = parent[place[-1]]
        new = _another_value(changed, place, json.loads(rng.choice(others)), rng)
        if new is None or new == old:
            continue
        siblings = [key for key in _keys(parent) if key != place[-1] and parent[key] == new]
        parent[place[-1]] = new
        if siblings and rng.random() < 0.7:  # swap the two values
            parent[rng.choice(siblings)] = old
        yield "/".join(map(str, place)), changed


def _another_value(problem: dict[str, Any], place: _Place, other: dict[str, Any], rng: Random) -> Any:
    """Return another possible value for a place, or None."""
    parent = _at(problem, place[:-1])
    value = parent[place[-1]]
    try:
        there = _at(other, place)
    except (KeyError, IndexError, TypeError):
        there = None
    choices = [there] if type(there) is type(value) else []
    if len(place) > 1:
        siblings = [parent[key] for key in _keys(parent) if type(parent[key]) is type(value)]
        choices += [rng.choice(siblings)]
        if isinstance(value, str) and "\n" in value:
            lines, spare = value.split("\n"), rng.choice(siblings).split("\n")
            if len(spare) == len(lines):
                line = rng.randrange(len(lines))
                choices += ["\n".join([*lines[:line], spare[line], *lines[line + 1 :]])] * 3
    if isinstance(value, int) and not isinstance(value, bool):
        choices += [value + rng.choice((-1, 1)) * max(1, abs(value) * rng.choice((0, 3, 10)) // 100)]
    if isinstance(value, bool):
        choices.append(not value)
    return rng.choice(choices) if choices else None


def _some_place(value: Any, rng: Random) -> _Place:
    """Return a random place inside a JSON value, each depth as likely as the next."""
    place: _Place = ()
    while keys := _keys(value):
        key = rng.choice(keys)
        place, value = (*place, key), value[key]
        if rng.random() < 0.3:
            break
    return place


def _keys(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value)
    return list(range(len(value))) if isinstance(value, list) else []


def _at(value: Any, place: _Place) -> Any:
    for key in place:
        value = value[key]
    return value
