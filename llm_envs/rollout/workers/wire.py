"""Replies of worker processes: plain data, and exceptions as text.

Requests are pickles, since a worker runs the code of its host. A worker is trusted less: its replies are JSON, in which
an object names one of a few kinds (`_READERS`). They hold Python's own types, arrays of numbers, and the types of
`llm_envs.types`. An object of any other class arrives as a `Foreign`, so reading a reply never imports or runs anything
that the worker names.
"""

from __future__ import annotations

import base64
import builtins
import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from llm_envs import errors, types
from llm_envs.errors import EnvContractError, InvalidConfigError
from llm_envs.rollout.workers.frames import MAX_FRAME_BYTES

__all__ = [
    "MAX_TARGETS",
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

MAX_TARGETS = 256
"""Most environment factories that a worker keeps; at the limit it drops all of them before it adds one."""
_TEXT_CHARACTERS = 1_000_000
"""Longest text of an exception that is sent."""

MAX_DEPTH = 100
"""Deepest nesting of a reply. Reading takes up to six of Python's calls a level, of a thousand in all."""
_MAX_NAME = 200
_MAX_EQUAL_HASHES = 64
"""Most keys of a dict or set with the same hash. Many more would make it very slow, and do not occur by chance."""

_PLAIN: tuple[type, ...] = (str, int, float, complex, bytes, bytearray, list, tuple, dict, set, frozenset)
_NUMBERS = re.compile(r"[<>|][biufc]\d+")
"""Numpy's names of the types whose values are plain bytes: no pointers, and no text, whose bytes can be invalid."""
_CLASSES = {name: kind for name in types.__all__ if isinstance(kind := getattr(types, name), type)}
_RECORDS = {name: kind for name, kind in _CLASSES.items() if is_dataclass(kind)}
_ENUMS = {name: kind for name, kind in _CLASSES.items() if issubclass(kind, Enum)}


class Foreign:
    """An object of a class that only the worker knows: its repr, and its conversions by `float` and `bool`.

    `_read_foreign` makes it, as a subclass with the name of the original class.
    """

    __slots__ = ("number", "text", "truth")

    def __init__(self, text: str, number: float | None, truth: bool | None) -> None:
        self.text, self.number, self.truth = text, number, truth

    def __repr__(self) -> str:
        return self.text

    def __float__(self) -> float:
        if self.number is None:
            raise TypeError(f"{self.text:.80} is not a number")
        return self.number

    def __bool__(self) -> bool:
        if self.truth is None:
            raise ValueError(f"{self.text:.80} is neither true nor false")
        return self.truth


@functools.lru_cache(maxsize=256)
def _foreign_class(name: str) -> type[Foreign]:
    return type(name, (Foreign,), {"__slots__": ()})


class RemoteError(Exception):
    """An exception raised in a worker process. Its subclasses are named after the original classes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


def error_text(error: BaseException) -> str:
    """Return the exception's message, cut to a million characters; its `__str__` may itself raise."""
    try:
        return str(error)[:_TEXT_CHARACTERS]
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
    name = bases[0][1][:_MAX_NAME]
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
            factory = getattr(__import__("__main__"), name, None)
            if factory is not None:
                return replace(target, entry_point=factory)
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
    """Return the value as bytes of plain data; see the module docstring.

    Raises:
        EnvContractError: If it is nested too deeply, or too large for a frame.
    """
    text = json.dumps(_Writer().write(value, 0), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def load_plain(data: bytes) -> Any:
    """Return the value that `dump_plain` wrote; other bytes raise a `ValueError` or another exception."""
    return _read(json.loads(data.decode("utf-8", "surrogatepass")))


class _Writer:
    """Turns one value into JSON's types."""

    def __init__(self) -> None:
        # A value may hold another one many times. It is written as often, so this bounds the time, too.
        self._n_left = MAX_FRAME_BYTES

    def write(self, obj: Any, depth: int) -> Any:
        cls, self._n_left = type(obj), self._n_left - 1
        if depth > MAX_DEPTH or self._n_left < 0:
            raise EnvContractError(
                f"a result is nested deeper than {MAX_DEPTH} levels, or larger than {MAX_FRAME_BYTES} bytes: a worker "
                "process cannot return it."
            )
        if obj is None or cls in (bool, str, float):
            return obj
        if cls is np.ndarray or isinstance(obj, np.generic):
            if _NUMBERS.fullmatch(obj.dtype.str):
                kind = "array" if cls is np.ndarray else "scalar"
                return {kind: [obj.dtype.str, list(obj.shape), _base64(obj.tobytes())]}
            if cls is np.ndarray and obj.dtype.kind in "SU":
                return self.write(obj.tolist(), depth)
        if _ENUMS.get(cls.__name__) is cls:
            return {"enum": [cls.__name__, obj.value]}
        if _RECORDS.get(cls.__name__) is cls:
            values = {field.name: self.write(getattr(obj, field.name), depth + 1) for field in fields(obj)}
            return {"record": [cls.__name__, values]}
        for plain in _PLAIN:  # also subclasses, such as OrderedDict, IntEnum or a str with attributes
            if isinstance(obj, plain):
                return self._write_plain(obj if cls is plain else plain(_as_plain(obj, plain)), plain, depth)
        if isinstance(obj, Mapping):
            return self._write_plain(dict(obj), dict, depth)
        shown = (_tried(repr, obj) or f"<{cls.__name__}>")[:_TEXT_CHARACTERS]
        return {"foreign": [cls.__name__, shown, _tried(float, obj), _tried(bool, obj)]}

    def _write_plain(self, obj: Any, kind: type, depth: int) -> Any:
        if kind is str or kind is float:
            return obj
        if kind is int:
            return obj if -(2**63) <= obj < 2**63 else {"int": hex(obj)}
        if kind is complex:
            return {"complex": [obj.real, obj.imag]}
        if kind is bytes or kind is bytearray:
            return {kind.__name__: _base64(obj)}
        if kind is dict:
            return {"dict": [self._write_plain(list(part), list, depth) for part in (obj, obj.values())]}
        items = [self.write(item, depth + 1) for item in obj]
        return items if kind is list else {kind.__name__: items}


def _read(node: Any) -> Any:
    if isinstance(node, list):
        return [_read(item) for item in node]
    if isinstance(node, dict):
        ((kind, content),) = node.items()
        return _READERS[kind](content)
    return node


def _read_dict(content: Any) -> dict[Any, Any]:
    keys, values = _read(content)
    return dict(zip(_checked_keys(keys), values, strict=True))


def _read_array(content: Any) -> Any:
    name, shape, data = content
    if not _NUMBERS.fullmatch(name):
        raise ValueError(f"an array of {name:.40}")
    dtype = np.dtype(name)
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"the shape {shape!s:.40}")
    raw = bytearray(base64.b64decode(data, validate=True))
    if len(raw) != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{len(raw)} bytes for an array of {name} and the shape {shape!s:.40}")
    return np.frombuffer(raw, dtype).reshape(shape)


def _read_foreign(content: Any) -> Foreign:
    name, text, number, truth = content
    kinds = type(name), type(text), type(number), type(truth)
    if kinds[:2] != (str, str) or kinds[2] not in (float, type(None)) or kinds[3] not in (bool, type(None)):
        raise ValueError("something foreign with another form")
    return _foreign_class(name[:_MAX_NAME])(text, number, truth)


def _checked_keys(keys: list[Any]) -> list[Any]:
    hashes = sorted(map(hash, keys))
    if any(one == other for one, other in zip(hashes, hashes[_MAX_EQUAL_HASHES:], strict=False)):
        raise ValueError(f"more than {_MAX_EQUAL_HASHES} keys with the same hash")
    return keys


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "complex": lambda parts: complex(*parts),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "bytearray": lambda text: bytearray(base64.b64decode(text, validate=True)),
    "tuple": lambda items: tuple(_read(items)),
    "set": lambda items: set(_checked_keys(_read(items))),
    "frozenset": lambda items: frozenset(_checked_keys(_read(items))),
    "dict": _read_dict,
    "array": _read_array,
    "scalar": lambda content: _read_array(content)[()],
    "enum": lambda content: _ENUMS[content[0]](content[1]),
    "record": lambda content: _RECORDS[content[0]](**{name: _read(value) for name, value in content[1].items()}),
    "foreign": _read_foreign,
}
"""The kinds of a reply's objects. Each object has one key, its kind."""


def _base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()


def _as_plain(obj: Any, plain: type) -> Any:
    """Return a subclass's value for the plain type, bypassing methods that the subclass overrides."""
    if issubclass(plain, (str, bytes, int, float, complex, bytearray)):
        return {str: str.__str__, int: int.__int__, float: float.__float__}.get(plain, plain)(obj)
    return plain.copy(obj) if issubclass(plain, dict) else list(iter(obj))


def _tried(convert: Any, obj: Any) -> Any:
    try:
        return convert(obj)
    except Exception:
        return None
