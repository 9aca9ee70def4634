"""Reading answers of the form "Ada: knight, Ben: knave": a value for each of some keys."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_envs.errors import InvalidActionError

__all__ = ["read_assignment"]

_BETWEEN = re.compile(r"\s*[,;\n]\s*")
_PAIR = re.compile(r"(.+?)\s*(?::|=|->|\bis\b)\s*(?:an?\s+)?(.+)")


def read_assignment(answer: str, keys: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """Return the value that an answer gives to each key; upper and lower case are alike.

    Args:
        answer: Pairs such as "Ada: knight", between commas, semicolons or line breaks, in any order.
        keys: What must be there, each once.
        values: What is allowed.

    Raises:
        InvalidActionError: If a pair has another form, a key or value is unknown, or a key is missing or there twice.
    """
    known_keys = {key.lower(): key for key in keys}
    known_values = {value.lower(): value for value in values}
    found: dict[str, str] = {}
    for part in _BETWEEN.split(answer.strip(" \n.,;")):
        match = _PAIR.fullmatch(part)
        if match is None:
            raise InvalidActionError(f"{part[:40]!r} is not of the form {keys[0]}: {values[0]}")
        key, value = known_keys.get(match[1].lower()), known_values.get(match[2].lower())
        if key is None or value is None:
            raise InvalidActionError(f"{part[:40]!r} is not one of {', '.join(keys)} with one of {', '.join(values)}")
        if key in found:
            raise InvalidActionError(f"{key} is there twice")
        found[key] = value
    missing = [key for key in keys if key not in found]
    if missing:
        raise InvalidActionError(f"the answer says nothing of {', '.join(missing)}")
    return found
