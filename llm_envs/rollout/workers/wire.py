"""The messages between the collector and its worker processes: frames of plain data, and exceptions as text.

A frame is eight bytes of length and a pickle. Requests are ordinary pickles. Replies are restricted to data: Python's
own types, numpy's, and those of `llm_envs.types`. An object of any other class arrives as a `Foreign`, so reading a
reply never imports or runs an environment's code in the collector.
"""

from __future__ import annotations

import builtins
import functools
import io
import pickle
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from llm_envs import errors, types
from llm_envs.errors import InvalidConfigError

__all__ = [
    "HEADER",
    "MAX_FRAME_BYTES",
    "MOST_TARGETS",
    "Foreign",
    "RemoteError",
    "by_value",
    "dump_plain",
    "error_bases",
    "error_text",
    "load_plain",
    "pickled",
    "revive",
]

HEADER = struct.Struct("!Q")
MAX_FRAME_BYTES = 64 << 20
"""Longest frame from a worker: some hundred times the longest observation that a model could read."""
MOST_TARGETS = 256
"""Most environment factories that a worker keeps; at the limit it drops all of them before it adds one."""
_TEXT_CHARACTERS = 1_000_000
"""Longest text of an exception that is sent."""

_PLAIN: tuple[type, ...] = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset, bytearray)
_NUMPY_NAMES = {"_reconstruct", "scalar", "ndarray", "dtype", "_frombuffer"}


class Foreign:
    """An object of a class that only the worker knows: its repr, and its conversions by `float` and `bool`.

    `foreign` makes it, as a subclass with the name of the original class.
    """

    __slots__ = ("number", "text", "truth")

    def __init__(self, text: str, number: float | None, truth: bool | None) -> None:
        self.text, self.number, self.truth = text, number, truth

    def __repr__(self) -> str:
        """Return the object's repr in the worker."""
        return self.text

    def __float__(self) -> float:
        """Return the object as a number."""
        if self.number is None:
            raise TypeError(f"{self.text:.80} is not a number")
        return self.number

    def __bool__(self) -> bool:
        """Return whether the object is true."""
        if self.truth is None:
            raise ValueError(f"{self.text:.80} is neither true nor false")
        return self.truth


def foreign(name: str, text: str, number: float | None, truth: bool | None) -> Foreign:
    """Return the stand-in for an object of the class `name`."""
    return _foreign_class(name)(text, number, truth)


@functools.lru_cache(maxsize=256)
def _foreign_class(name: str) -> type[Foreign]:
    return type(name, (Foreign,), {"__slots__": ()})


class RemoteError(Exception):
    """An exception raised in a worker process. Its subclasses are named after the original classes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        """Return the exception's message."""
        return self.text


def error_text(error: BaseException) -> str:
    """Return the exception's message; its `__str__` may itself raise."""
    try:
        return str(error)
    except Exception as second:
        return f"(its message cannot be shown: __str__ raised {type(second).__name__})"


def error_bases(kind: type[BaseException]) -> tuple[tuple[str, str], ...]:
    """Return the module and name of an exception's class and of its base classes, nearest first."""
    return tuple((base.__module__, base.__name__) for base in kind.__mro__ if issubclass(base, BaseException))


def revive(bases: Sequence[tuple[str, str]], text: str, trace: str) -> BaseException:
    """Return an exception with the original name and message, under its nearest base class of Python's or ours.

    Args:
        bases: The result of `error_bases` in the worker.
        text: The message.
        trace: The traceback in the worker.
    """
    error: BaseException
    name = bases[0][1]
    known = next((found for base in bases if (found := _known_class(*base)) is not None), None)
    try:
        error = _error_class(name, known)(text)  # type: ignore[arg-type]  # typeshed: a class or None is hashable
    except Exception:  # a class that cannot be created or called like this
        error = _error_class(name, None)(text)
    if trace:
        error.add_note(f"In the worker process:\n{trace}")
    return error


def _known_class(module: str, name: str) -> type[Exception] | None:
    known = getattr({"builtins": builtins, "llm_envs.errors": errors}.get(module), name, None)
    # KeyboardInterrupt and the like are excluded: they would end the run, not the episode.
    is_known = isinstance(known, type) and issubclass(known, Exception) and known is not Exception
    return known if is_known else None


@functools.lru_cache(maxsize=256)
def _error_class(name: str, known: type[Exception] | None) -> type[RemoteError]:
    return type(name, (RemoteError,) if known is None else (RemoteError, known), {})


def by_value(target: Any) -> Any:
    """Replace the entry point of a spec from the main module by the class itself: a worker has another main module."""
    if isinstance(target, EnvSpec) and isinstance(target.entry_point, str):
        module, _, name = target.entry_point.partition(":")
        if module == "__main__":
            found = getattr(__import__("__main__"), name, None)
            if found is not None:
                return replace(target, entry_point=found)
    return target


def pickled(value: Any, target: Any) -> bytes:
    """Return the pickle of an environment's factory, or of its arguments.

    Raises:
        InvalidConfigError: If it cannot be pickled.
    """
    import cloudpickle  # type: ignore[import-untyped]  # Gymnasium brings it; pickles what is defined in a script or a notebook by value

    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise InvalidConfigError(
            f"{target!r:.200} cannot go to a worker process: {type(error).__name__}: {error}. Pass an id and arguments "
            "of JSON types, or a function that makes what cannot be pickled itself."
        ) from error
    return data


def dump_plain(value: Any) -> bytes:
    """Return the value as bytes of plain data; see the module docstring."""
    file = io.BytesIO()
    _PlainPickler(file, protocol=5).dump(value)
    return file.getvalue()


def load_plain(data: bytes | bytearray) -> Any:
    """Return the value that `dump_plain` wrote; other bytes raise an `UnpicklingError` or another exception."""
    return _PlainUnpickler(io.BytesIO(data)).load()


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Choose how to write an object whose type is not exactly one of Python's own."""
        cls = type(obj)
        if cls is np.ndarray or isinstance(obj, (np.generic, np.dtype)):
            return NotImplemented
        if getattr(types, cls.__name__, None) is cls:
            return NotImplemented
        if _is_allowed(getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)):
            return NotImplemented
        for plain in _PLAIN:  # a subclass, such as OrderedDict, IntEnum or a str with attributes
            if isinstance(obj, plain):
                return plain, (_as_plain(obj, plain),)
        if isinstance(obj, Mapping):
            return dict, (dict(obj),)
        return foreign, (cls.__name__, _repr(obj), _tried(float, obj), _tried(bool, obj))


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few classes allowed in plain data."""
        if not _is_allowed(module, name):
            raise pickle.UnpicklingError(f"{module}.{name} is not plain data")
        return super().find_class(module, name)


def _is_allowed(module: object, name: object) -> bool:
    # Pickle resolves dotted names, so one would reach through an allowed class to anything behind it.
    if not isinstance(module, str) or not isinstance(name, str) or "." in name:
        return False
    if module == "builtins":
        return any(name == plain.__name__ for plain in _PLAIN)
    if module.startswith(types.__name__ + "."):
        found = getattr(types, name, None)
        return isinstance(found, type) and found.__module__ == module
    if module == __name__:
        return name == foreign.__name__
    return module.partition(".")[0] == "numpy" and name in _NUMPY_NAMES


def _as_plain(obj: Any, plain: type) -> Any:
    """Return a subclass's value as the plain type, bypassing methods that the subclass overrides."""
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
