"""Inputs that tell a function from its neighbours: the same lines with one number greater or smaller by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

__all__ = ["off_by_one", "outcomes", "results", "telling"]

T = TypeVar("T")
_NUMBER = re.compile(r"(?<![\w.])\d+")


def off_by_one(line: str) -> list[str]:
    """Return the line with each of its numbers greater by one, and smaller by one."""
    return [
        f"{line[: found.start()]}{int(found[0]) + step}{line[found.end() :]}"
        for found in _NUMBER.finditer(line)
        for step in (-1, 1)
    ]


def outcomes(lines: Sequence[str], inputs: Iterable[Any]) -> list[str]:
    """Return what a function of one argument gives for each input, as a `repr`, or the name of its error.

    Args:
        lines: Of a function that this package has written, `def` first. They are run here, not in a sandbox.
        inputs: Arguments. The function does not change them.
    """
    text = "\n".join(lines)
    function, numbers = _compiled(_NUMBER.sub("{}", text)), list(map(int, _NUMBER.findall(text)))
    return results(lambda value: function(value, *numbers), inputs)


def results(function: Callable[[Any], Any], inputs: Iterable[Any]) -> list[str]:
    """Return what a function gives for each input, as a `repr`, or the name of its error."""
    found = []
    for value in inputs:
        try:
            found.append(repr(function(value)))
        except Exception as error:
            found.append(type(error).__name__)
    return found


@lru_cache(maxsize=20_000)
def _compiled(text: str) -> Callable[..., Any]:
    """Return the function with its numbers as further arguments: functions that differ in them are compiled once."""
    names = [f"n{i}_" for i in range(text.count("{}"))]
    code = text.format(*names).replace("):", f", {', '.join(names)}):" if names else "):", 1)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    compiled: Callable[..., Any] = next(value for name, value in namespace.items() if name != "__builtins__")
    return compiled


def telling(
    right: Callable[[Sequence[T]], list[str]],
    others: Iterable[Callable[[Sequence[T]], list[str]]],
    given: Sequence[T],
    draw_probes: Callable[[], Sequence[T]],
) -> list[T] | None:
    """Return inputs that tell the right function from every other that the given inputs do not tell it from.

    None if no probe tells it from one of them. That one may be the same function or differ on rare inputs only: a
    problem with such a neighbour is drawn again.

    Args:
        right: Returns what the right function gives for inputs.
        others: The same for other functions.
        given: Inputs that need not be returned.
        draw_probes: Returns inputs to choose from; called if the given ones do not suffice.
    """
    found: list[T] = []
    expected = right(given)
    probes: Sequence[T] = ()
    known: list[str] = []
    for other in others:
        if other(given) != expected or other(found) != right(found):
            continue
        if not known:
            probes = draw_probes()
            known = right(probes)
        first = next((probe for probe, a, b in zip(probes, known, other(probes), strict=True) if a != b), None)
        if first is None:
            return None
        found.append(first)
    return found
