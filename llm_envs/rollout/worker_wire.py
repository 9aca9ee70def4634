"""What crosses between the collector and its worker processes: frames of plain data, and exceptions as their text.

A frame is eight bytes of length and a pickle. Requests go to the worker as they are. What comes back is data only:
Python's own types, numpy's, and those of `llm_envs.types`. An object of any other class arrives as a `Foreign`, so that
reading a reply imports nothing and runs nobody's code in the collector.
"""

from __future__ import annotations

import builtins
import functools
import io
import pickle
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llm_envs import errors, types

__all__ = [
    "HEADER",
    "MAX_FRAME_BYTES",
    "MOST_TARGETS",
    "Foreign",
    "RemoteError",
    "dump_plain",
    "error_bases",
    "error_text",
    "load_plain",
    "revive",
]

HEADER = struct.Struct("!Q")
MAX_FRAME_BYTES = 64 << 20
"""Longest frame from a worker: some hundred times the longest observation that a model could read."""
MOST_TARGETS = 256
"""Most things that make environments which a worker keeps; with one more it forgets the others."""
_TEXT_CHARACTERS = 1_000_000
"""Longest text of an exception that crosses."""

_PLAIN: tuple[type, ...] = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset, bytearray)
_NUMPY_NAMES = {"_reconstruct", "scalar", "ndarray", "dtype", "_frombuffer"}


class Foreign:
    """An object of a class that only the worker knows: its repr, and what `float` and `bool` make of it.

    Made by `foreign`, as a subclass of the name that the class has there.
    """

    __slots__ = ("number", "text", "truth")

    def __init__(self, text: str, number: float | None, truth: bool | None) -> None:
        self.text, self.number, self.truth = text, number, truth

    def __repr__(self) -> str:
        """Return the repr that the object has in the worker."""
        return self.text

    def __float__(self) -> float:
        """Return the object as a number."""
        if self.number is None:
            raise TypeError(f"{self.text:.80} is no number")
        return self.number

    def __bool__(self) -> bool:
        """Return whether the object is true."""
        if self.truth is None:
            raise ValueError(f"{self.text:.80} is neither true nor false")
        return self.truth


def foreign(name: str, text: str, number: float | None, truth: bool | None) -> Foreign:
    """Return what stands for an object of the class `name`."""
    return _foreign_class(name)(text, number, truth)


@functools.lru_cache(maxsize=256)
def _foreign_class(name: str) -> type[Foreign]:
    return type(name, (Foreign,), {"__slots__": ()})


class RemoteError(Exception):
    """An exception that was raised in a worker process. Its subclasses have the names of the classes there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        """Return the message, as the exception gave it."""
        return self.text


def error_text(error: BaseException) -> str:
    """Return the exception's message; its own code is as fallible as what raised it."""
    try:
        return str(error)
    except Exception as second:
        return f"(its message cannot be had: __str__ raised {type(second).__name__})"


def error_bases(kind: type[BaseException]) -> tuple[tuple[str, str], ...]:
    """Return module and name of an exception's class and of those that it inherits from, nearest first."""
    return tuple((base.__module__, base.__name__) for base in kind.__mro__ if issubclass(base, BaseException))


def revive(bases: Sequence[tuple[str, str]], text: str, trace: str) -> BaseException:
    """Return an exception of the class's name and message, and of its nearest base class that is Python's or ours.

    Args:
        bases: What `error_bases` returned there.
        text: The message.
        trace: The traceback there.
    """
    error: BaseException
    name = bases[0][1]
    known = next((found for base in bases if (found := _known_class(*base)) is not None), None)
    try:
        error = _error_class(name, known)(text)  # type: ignore[arg-type]  # typeshed: a class or None is hashable
    except Exception:  # a class that cannot be had in this way
        error = _error_class(name, None)(text)
    if trace:
        error.add_note(f"In the worker process:\n{trace}")
    return error


def _known_class(module: str, name: str) -> type[Exception] | None:
    known = getattr({"builtins": builtins, "llm_envs.errors": errors}.get(module), name, None)
    # Not KeyboardInterrupt and its like: they would end the run, not the episode.
    is_known = isinstance(known, type) and issubclass(known, Exception) and known is not Exception
    return known if is_known else None


@functools.lru_cache(maxsize=256)
def _error_class(name: str, known: type[Exception] | None) -> type[RemoteError]:
    return type(name, (RemoteError,) if known is None else (RemoteError, known), {})


def dump_plain(value: Any) -> bytes:
    """Return the value as data: see the module."""
    file = io.BytesIO()
    _PlainPickler(file, protocol=5).dump(value)
    return file.getvalue()


def load_plain(data: bytes | bytearray) -> Any:
    """Return what `dump_plain` made; anything else raises an `UnpicklingError` or another exception."""
    return _PlainUnpickler(io.BytesIO(data)).load()


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Say how an object that is not exactly of one of Python's own types is written."""
        cls = type(obj)
        if cls is np.ndarray or isinstance(obj, (np.generic, np.dtype)):
            return NotImplemented
        if cls.__module__ == types.__name__ and getattr(types, cls.__name__, None) is cls:
            return NotImplemented
        if _is_allowed(getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)):
            return NotImplemented
        for plain in _PLAIN:  # a subclass: OrderedDict, IntEnum, a text with attributes of its own
            if isinstance(obj, plain):
                return plain, (_as_plain(obj, plain),)
        if isinstance(obj, Mapping):
            return dict, (dict(obj),)
        return foreign, (cls.__name__, _repr(obj), _tried(float, obj), _tried(bool, obj))


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few classes that data is made of."""
        if not _is_allowed(module, name):
            raise pickle.UnpicklingError(f"{module}.{name} is no data")
        return super().find_class(module, name)


def _is_allowed(module: object, name: object) -> bool:
    if not isinstance(module, str) or not isinstance(name, str) or "." in name:
        return False
    if module == "builtins":
        return any(name == plain.__name__ for plain in _PLAIN)
    if module == types.__name__:
        return isinstance(getattr(types, name, None), type)
    if module == __name__:
        return name == foreign.__name__
    return module.partition(".")[0] == "numpy" and name in _NUMPY_NAMES


def _as_plain(obj: Any, plain: type) -> Any:
    """Return a subclass's value as the plain type, past what the subclass overrides."""
    if issubclass(plain, (str, bytes, int, float, complex, bytearray)):
        return {str: str.__str__, int: int.__int__, float: float.__float__}.get(plain, plain)(obj)
    return plain.copy(obj) if issubclass(plain, dict) else list(iter(obj))


def _repr(obj: Any) -> str:
    try:
        return repr(obj)[:_TEXT_CHARACTERS]
    except Exception:
        return f"<{type(obj).__name__}>"


def _tried(convert: Any, obj: Any) -> Any:
    try:
        return convert(obj)
    except Exception:
        return None
