"""The part of `code_judging.py` that runs inside both sandboxes: values as data, and calls from one to the other.

The interpreter with the tests asks (`start`, `resume`); the interpreter with a model's program answers (`serve`). Only
texts pass between them: Python literals of plain values. An object of the program's own classes stays where it is; the
tests get a `Handle`, which passes calls and attributes on, and is equal only to itself. So nothing that the program
returns can make a comparison of the tests true that is not. Fractions, decimals, dates, and NumPy's numbers and arrays
are plain values too: they are taken to parts, and made again in the other interpreter. This file imports nothing of the
package.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import itertools
import queue
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

MOST_ITEMS = 100_000
"""Items of an iterator that are passed on."""
ATOMS: tuple[Any, ...] = (int, str, bytes)
VIEWS = tuple(type(view) for view in (dict[Any, Any]().keys(), dict[Any, Any]().values(), dict[Any, Any]().items()))
SERIES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "iter": iter}
PARTS: dict[str, Callable[[Any], list[Any]]] = {
    "fractions.Fraction": lambda value: [value.numerator, value.denominator],
    "decimal.Decimal": lambda value: [str(value)],
    "datetime.timedelta": lambda value: [value.days, value.seconds, value.microseconds],
    "datetime.datetime": lambda value: [*value.timetuple()[:6], value.microsecond],
    "datetime.date": lambda value: [*value.timetuple()[:3]],
    "datetime.time": lambda value: [value.hour, value.minute, value.second, value.microsecond],
    "collections.deque": lambda value: [list(value)],
    "builtins.bytearray": lambda value: [bytes(value)],
}
"""Types of the standard library, and the arguments that make an equal value; of times those without a zone."""
NUMBERS = re.compile(r"[<>|=]?[biufc][0-9]{1,2}")
"""NumPy's types of numbers."""
sys.set_int_max_str_digits(0)
random.seed(0)
objects: list[Any] = []
"""In the program's interpreter: objects that the tests have handles of."""


class Text(str):
    """A text that a sandbox shows as it is, without quotes: our process reads it, and parses nothing."""

    __repr__ = str.__str__


def encode(value: Any) -> Any:
    """Return a value as nested literals; what is not plain becomes a handle."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Handle):
        return ("object", object.__getattribute__(value, "_number"))
    for atom in ATOMS:
        if isinstance(value, atom):
            return atom(value)
    if isinstance(value, float):
        return ("float", repr(float(value)))
    if isinstance(value, complex):
        return ("complex", repr(value.real), repr(value.imag))
    if isinstance(value, range):
        return ("range", value.start, value.stop, value.step)
    if isinstance(value, dict):
        return ("dict", [(encode(key), encode(item)) for key, item in dict.items(value)])
    for name, kind in SERIES.items():
        if name != "iter" and isinstance(value, kind):
            return (name, [encode(item) for item in kind.__iter__(value)])
    if isinstance(value, (Iterator, *VIEWS)):
        items: Any = value
        return ("iter", [encode(item) for item in itertools.islice(items, MOST_ITEMS)])
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__]
    for name, parts in PARTS.items():
        if name in names and getattr(value, "tzinfo", None) is None:
            return ("made", name, [encode(part) for part in parts(value)])
    if not {"numpy.generic", "numpy.ndarray"}.isdisjoint(names) and NUMBERS.fullmatch(value.dtype.str):
        widest = {"f": "f8", "c": "c16"}.get(value.dtype.kind, value.dtype)
        return ("numpy", value.dtype.str, encode(value.astype(widest).tolist()))
    objects.append(value)
    return ("object", len(objects) - 1)


def decode(literal: Any, known: Callable[[int], Any]) -> Any:
    """Return the value; `known` gives the object of a handle's number."""
    if not isinstance(literal, tuple):
        return literal
    kind, *parts = literal
    if kind == "object":
        return known(parts[0])
    if kind == "float":
        return float(parts[0])
    if kind == "complex":
        return complex(float(parts[0]), float(parts[1]))
    if kind == "range":
        return range(*parts)
    if kind == "dict":
        return {decode(key, known): decode(item, known) for key, item in parts[0]}
    if kind == "made":
        name, made_of = parts
        module, _, made = name.rpartition(".") if name in PARTS else ("", "", "")
        return getattr(importlib.import_module(module), made)(*(decode(part, known) for part in made_of))
    if kind == "numpy":
        numpy: Any = importlib.import_module("numpy")
        name, number = parts
        if NUMBERS.fullmatch(name) is None:
            raise TypeError(f"{name} is not a type of numbers")
        return numpy.array(decode(number, known), name)[()]
    return SERIES[kind](decode(item, known) for item in parts[0])


# With the program.


def serve(namespace: dict[str, Any], text: str) -> str:
    """Carry out what the tests ask, and return the result: `(True, value)`, or `(False, name of the exception)`."""
    try:

        def known(handle: int | str) -> Any:
            return namespace[handle] if isinstance(handle, str) else objects[handle]

        what, target, *rest = decode(ast.literal_eval(text), known)
        target = namespace[target] if isinstance(target, str) else target
        if what == "call":
            result = target(*rest[0], **rest[1])
        elif what == "get":
            result = getattr(target, rest[0])
        else:
            setattr(target, rest[0], rest[1])
            result = None
        return Text(repr((True, encode(result))))
    except Exception as error:
        return Text(repr((False, type(error).__name__)))


# With the tests.

asked: queue.SimpleQueue[str] = queue.SimpleQueue()
told: queue.SimpleQueue[str] = queue.SimpleQueue()


class Handle:
    """Something of the program: a function by its name, or an object by its number."""

    def __init__(self, number: int | str) -> None:
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in the program's interpreter."""
        return ask("call", self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        """Read an attribute there."""
        return ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute there."""
        ask("set", self, name, value)


def ask(what: str, handle: Handle, *rest: Any) -> Any:
    """Wait for the program's answer, and return its value or raise its exception."""
    number = object.__getattribute__(handle, "_number")
    target = number if isinstance(number, str) else ("object", number)
    asked.put(repr(("tuple", [what, target, *map(encode, rest)])))
    is_value, result = ast.literal_eval(told.get())
    if is_value:
        return decode(result, Handle)
    kind = getattr(builtins, result, RuntimeError)
    raise (kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError)(result)


def start(setup: str, names: list[str], tests: str) -> str:
    """Begin the tests, in a thread, and return the first question or the end: see `resume`."""
    namespace: dict[str, Any] = {}

    def run() -> None:
        try:
            exec(compile(setup, "<setup>", "exec", dont_inherit=True), namespace)
            namespace.update((name, Handle(name)) for name in names)
            exec(compile(tests, "<tests>", "exec", dont_inherit=True), namespace)
            asked.put("passed")
        except BaseException as error:
            asked.put(f"failed: {type(error).__name__}")

    threading.Thread(target=run, daemon=True).start()
    return Text(asked.get())


def resume(answer: str) -> str:
    """Give the answer to the last question; return the next, or "passed", or "failed: " with an exception's name."""
    told.put(answer)
    return Text(asked.get())
