"""`repr` with a budget: values that a sandbox hands out are hostile.

Sixty nested two-element lists that share their items are small in memory and 2**60 items long when written out; so is
an integer of a million digits slow to write. Everything here stops when the budget of characters is spent.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable
from typing import Any

__all__ = ["render"]

MAX_DEPTH = 60
"""Deeper nesting is written as "...": no Python code needs more to be understood, and recursion here is bounded."""
MAX_INTEGER_BITS = 14_000
"""Larger integers are described by their size. About 4,200 digits, the limit of Python's own conversion."""

_PLAIN = (float, complex, range, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, type(...))


class _BudgetSpent(Exception):
    """The text is as long as it may be."""


class _Writer:
    def __init__(self, most: int) -> None:
        self.parts: list[str] = []
        self.left = most

    def put(self, text: str) -> None:
        self.parts.append(text)
        self.left -= len(text)
        if self.left < 0:
            raise _BudgetSpent


def render(value: Any, most: int) -> str:
    """Return about what `repr(value)` would be, in time and space that grow with `most` only.

    Args:
        value: Anything that came out of a sandbox.
        most: Characters; a text that would be longer is cut shortly after that.
    """
    writer = _Writer(most)
    with contextlib.suppress(_BudgetSpent):
        _write(writer, value, 0)
    return "".join(writer.parts)


def _write(writer: _Writer, value: Any, depth: int) -> None:
    if value is None or isinstance(value, bool):
        writer.put(repr(value))
    elif isinstance(value, int):
        many = value.bit_length() > MAX_INTEGER_BITS
        writer.put(f"<an integer of {value.bit_length()} bits>" if many else repr(value))
    elif isinstance(value, str | bytes | bytearray):
        # One character more than fits, so that the caller sees that it does not.
        writer.put(repr(value[: max(writer.left, 0) + 1]))
    elif isinstance(value, _PLAIN):
        writer.put(repr(value))
    elif depth >= MAX_DEPTH:
        writer.put("...")
    elif isinstance(value, list):
        _write_items(writer, "[", value, "]", depth)
    elif isinstance(value, tuple):
        _write_items(writer, "(", value, ",)" if len(value) == 1 else ")", depth)
    elif isinstance(value, set | frozenset):
        name = "frozenset" if isinstance(value, frozenset) else "set"
        if not value:
            writer.put(f"{name}()")
        elif name == "set":
            _write_items(writer, "{", value, "}", depth)
        else:
            _write_items(writer, "frozenset({", value, "})", depth)
    elif isinstance(value, dict):
        writer.put("{")
        _write_pairs(writer, ((key, item, ": ") for key, item in value.items()), depth)
        writer.put("}")
    else:
        _write_object(writer, value, depth)


def _write_items(writer: _Writer, opening: str, items: Iterable[Any], closing: str, depth: int) -> None:
    writer.put(opening)
    for index, item in enumerate(items):
        if index:
            writer.put(", ")
        _write(writer, item, depth + 1)
    writer.put(closing)


def _write_pairs(writer: _Writer, pairs: Iterable[tuple[Any, Any, str]], depth: int) -> None:
    for index, (key, item, between) in enumerate(pairs):
        if index:
            writer.put(", ")
        if between == "=":
            writer.put(str(key))
        else:
            _write(writer, key, depth + 1)
        writer.put(between)
        _write(writer, item, depth + 1)


def _write_object(writer: _Writer, value: Any, depth: int) -> None:
    """Write an instance of a class that the code defined, or of a type that is not known here."""
    attributes = getattr(value, "attributes", None)
    name = getattr(value, "name", type(value).__name__)
    if isinstance(attributes, dict) and isinstance(name, str):
        writer.put(f"{name[:100]}(")
        _write_pairs(writer, ((key, item, "=") for key, item in attributes.items()), depth)
        writer.put(")")
    elif isinstance(name, str) and name != type(value).__name__:
        writer.put(f"<{name[:100]}>")
    else:
        writer.put(f"<a {type(value).__name__}>")
