"""The state of an environment as a digest, for `TextEnv.state_key`."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

__all__ = ["digest", "generators", "plain_state"]


def digest(value: object, *, owner: object = None) -> str:
    """Return 16 hexadecimal digits of a value: equal for equal values, in every process.

    Args:
        value: The value.
        owner: The object whose state it is. The value may refer to it, as the bound method of a tool does; the owner's
            other attributes are not state.

    Raises:
        TypeError: If the value contains an object whose content cannot be read, such as a socket or a process.
    """
    return blake2b(repr(plain_state(value, owner=owner)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def plain_state(value: object, *, owner: object = None) -> Any:
    """Return a value as nested tuples of numbers and texts: mappings and sets are sorted, objects are their attributes.

    Left out are NumPy's generators, since they are chance, and attributes that an object names in `not_state`. An
    object that was met before is its number, and so is the owner.

    Raises:
        TypeError: As `digest`.
    """
    return _plain(value, {id(owner): (0, owner)})


def generators(value: object) -> list[np.random.Generator]:
    """Return NumPy's generators inside a value, in a fixed order.

    Raises:
        TypeError: As `digest`.
    """
    met: dict[int, tuple[int, Any]] = {}
    _plain(value, met)
    return [part for _, part in met.values() if isinstance(part, np.random.Generator)]


def _plain(value: Any, met: dict[int, tuple[int, Any]]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, (type, ModuleType, BuiltinFunctionType)):
        return value.__name__
    if id(value) in met:
        return ("met", met[id(value)][0])
    met[id(value)] = (len(met), value)  # the value is kept, so that its id stays its own
    if isinstance(value, np.random.Generator):
        return "chance"
    if isinstance(value, Mapping):
        return ("mapping", *sorted(((_plain(k, met), _plain(v, met)) for k, v in value.items()), key=repr))
    if isinstance(value, Set):
        return ("set", *sorted((_plain(item, met) for item in value), key=repr))
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item, met) for item in value)
    if isinstance(value, np.dtype):
        return str(value)
    if isinstance(value, np.ndarray | np.generic):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, sqlite3.Connection):
        return tuple(value.iterdump())
    return (type(value).__qualname__, *((name, _plain(part, met)) for name, part in _parts(value)))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object is made of."""
    if isinstance(value, Enum):
        yield value.name, None
    elif isinstance(value, random.Random):
        yield "state", value.getstate()
    elif isinstance(value, MethodType):
        yield value.__func__.__qualname__, value.__self__
    elif isinstance(value, FunctionType):
        yield value.__qualname__, tuple(cell.cell_contents for cell in value.__closure__ or ())
    elif is_dataclass(value):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))
    elif hasattr(value, "__dict__"):
        yield from sorted(item for item in vars(value).items() if item[0] not in getattr(value, "not_state", ()))
    elif slots := [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]:
        yield from ((name, getattr(value, name)) for name in slots if hasattr(value, name))
    else:
        raise TypeError(f"the content of a {type(value).__name__} cannot be read")
