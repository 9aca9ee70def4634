"""The problems of a task and the outcomes of its turns, as data: levels, splits, given problems, `Outcome`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from llm_envs.errors import EnvContractError, InvalidConfigError

__all__ = [
    "SPLITS",
    "Difficulty",
    "Outcome",
    "as_flag",
    "as_number",
    "canonical_json",
    "check_at_least",
    "check_choice",
    "checked_problem",
    "is_number",
    "part_not_json",
    "split_of",
]

SPLITS = ("train", "test")
_TEST_ONE_IN = 5

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class Difficulty:
    """One level of a task."""

    description: str
    """A short description of the problems."""
    chance_rate: float
    """Upper bound on the success rate of a policy that only guesses."""
    n_problems: int | None = None
    """Number of different problems; None if practically endless."""
    disjoint_splits: bool = True
    """False if both splits draw from all problems: there are too few to divide, or they all begin with the same
    observation, so that knowing the split would reveal something hidden."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Parameters for the task's `generate`, available as `self.settings`."""
    max_return: float | None = None
    """The return of a perfect episode of this level; None means the class's `max_return`."""
    min_return: float | None = None
    """The lowest return of an episode of this level; None means the class's `min_return`."""
    expected_hard: str | None = None
    """Why a frontier model is expected to fail about half of the episodes: an estimate, in one sentence. None if such a
    model is expected to solve the level, or if nobody has estimated it."""


class Outcome(NamedTuple):
    """The result of one turn, returned by `TextEnv.play`."""

    observation: str
    """The text that the agent reads next."""
    components: dict[str, float]
    """A fresh dict with exactly the keys of `reward_weights`."""
    terminated: bool = False
    is_success: bool = False
    """Whether the task is solved. Used only when the episode ends."""
    messages: list[dict[str, Any]] | None = None
    """The observation as messages, if it is not a single user message. A fresh list."""


def as_number(value: Any) -> float:
    """Return a finite number of any numeric type as a float; a text that shows one is not a number.

    Raises:
        TypeError: If it is not one. The message has what it must be.
    """
    if isinstance(value, str | bytes | bytearray):
        raise TypeError("it must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    except Exception as error:  # an object of an environment may raise anything when it is converted
        raise TypeError("it must be a number") from error
    if not math.isfinite(number):
        raise TypeError("it must be finite")
    return number


def is_number(value: Any) -> bool:
    """Return whether a value of JSON is a number that a float can hold. An integer may have hundreds of digits."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def as_flag(value: Any) -> bool:
    """Return a truth value of any type whose values are 0 and 1: Python's, NumPy's, a number.

    Raises:
        TypeError: If it is anything else, such as a text. The message has what it must be.
    """
    try:
        if value in (0, 1):
            return bool(value)
    except Exception as error:  # an array, or an object of an environment
        raise TypeError("it must be a bool") from error
    raise TypeError("it must be a bool")


def canonical_json(value: Any) -> str:
    """Return the canonical JSON text of a problem or split key: sorted keys, no spaces, ASCII.

    Raises:
        EnvContractError: If a part is not JSON. The message names the part and its type.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError) as error:
        raise EnvContractError(
            f"generate or split_key gave what is not JSON: {part_not_json(value)}. Convert numpy's values with "
            f"int(...), float(...) or .tolist() ({error})."
        ) from error


def part_not_json(value: Any, path: str = "") -> str:
    """Return the place and the type of the first part that is not JSON."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in parts:
        try:
            _encode(part)
        except RecursionError:
            return f"{path}[{key!r}] is nested too deeply"
        except (TypeError, ValueError):
            return part_not_json(part, f"{path}[{key!r}]")
    return f"{path or 'it'} is {value!r:.80}, of type {type(value).__name__}"


def split_of(key: Any) -> str:
    """Return the split of a `split_key`, by a hash of its canonical JSON: "test" for one in five, else "train".

    Raises:
        EnvContractError: If the key is not JSON.
    """
    digest = blake2b(canonical_json(key).encode(), digest_size=8).digest()
    return "train" if int.from_bytes(digest, "big") % _TEST_ONE_IN else "test"


def checked_problem(problem: Any, fields: Mapping[str, type], name: str) -> dict[str, Any]:
    """Return a copy of a given problem, checked to have exactly these keys, with values of these types.

    Args:
        problem: The problem.
        fields: Key -> type: str, int, float, bool, list or dict.
        name: Name of the task in the error.

    Raises:
        InvalidConfigError: If a key is missing or unknown, a value has another type, or is not JSON.
    """
    if not isinstance(problem, Mapping) or problem.keys() != fields.keys():
        given = sorted(map(str, problem)) if isinstance(problem, Mapping) else type(problem).__name__
        raise InvalidConfigError(f"{name}: the problem has {given}; it must have the keys {sorted(fields)}.")
    try:
        copied: dict[str, Any] = json.loads(_encode(dict(problem)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfigError(f"{name}: the problem is not made of JSON types: {error}") from error
    for key, expected in fields.items():
        if type(copied[key]) is not expected:
            raise InvalidConfigError(
                f"{name}: {key!r} of the problem is {copied[key]!r}; it must be of type {expected.__name__}."
            )
    return copied


def check_choice(where: str, what: str, value: object, known: Any) -> None:
    """Check that a value is one of the known ones.

    Raises:
        InvalidConfigError: If it is not. The message has `where`, `what` it is, and the known values.
    """
    if not any(value is choice or value == choice for choice in known):
        raise InvalidConfigError(f"{where} has no {what} {value!r}; known are {', '.join(map(repr, known))}.")


def check_at_least(where: str, what: str, value: object, least: int) -> None:
    """Check that a value is an integer of at least `least`.

    Raises:
        InvalidConfigError: If it is not. The message has `where`, `what` it is, and the value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidConfigError(f"{where}: {what} is {value!r}; it must be an integer of at least {least}.")
