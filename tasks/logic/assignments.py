"""Reading answers of the form "Ada: knight, Ben: knave": a value for each of some keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from llm_envs.errors import InvalidActionError
from llm_envs.tasks.algorithmic.lists import check_length, check_words

__all__ = ["read_assignment"]

_SIGN = r":|=>|=|->|[\u2192\u21d2\u2013\u2014|]|\s-\s|\b(?:is|gets?|has|takes?|uses?)\b"
_BETWEEN = re.compile(r"\s*(?:[,;\n]|(?<![0-9])\.\s|\band\b)\s*", re.IGNORECASE)
_PAIR = re.compile(rf"(.+?)\s*(?:{_SIGN}|\()\s*(.+)", re.IGNORECASE)
_NUMBER_PAIR = re.compile(rf"\(?([0-9]+)\)?\s*(?:{_SIGN}|[.)]|\s)\s*(.+)", re.IGNORECASE)
_MARKER = re.compile(r"^[ \t|]*(?:(?:[-*\u2022]|\(?[0-9]{1,2}[.)])[ \t]+)?", re.MULTILINE)
_NUMBER_MARKER = re.compile(r"^[ \t|]*(?:[-*\u2022][ \t]+)?", re.MULTILINE)
_DECORATION = re.compile("\\*\\*|[`\"'$\u201c\u201d\u2018\u2019]|^[ \t|:-]+$", re.MULTILINE)
_KEY_WORDS = re.compile(r"^(?:(?:so|thus|hence|therefore|region|exam|station|node|argument|number|person)\b[\s,]*)+")
_VALUE_WORDS = re.compile(
    r"^(?:(?:an?|the|in|on|at|of|colou?r(?:ed)?|channel|slot|argument|kind)\s+)+|\s+(?:slot|channel|colou?r|argument)$"
)
_GROUP = re.compile(r"\s*(?:the\s+)?([\w-]+?)(s?)\s*(?:are|is)?\s*[:=]\s*(.+)", re.IGNORECASE)
_HEAD = re.compile(r"[A-Za-z',:|\s-]*")


def read_assignment(answer: str, keys: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """Return the value that an answer gives to each key; upper and lower case are alike.

    Understood are also lists, tables, "Ada is a knight", groups ("knights: Ada, Cleo; knaves: Ben") and, if the keys
    are numbers, the values in order.

    Args:
        answer: Pairs such as "Ada: knight", between commas, semicolons, "and" or line breaks, in any order.
        keys: The keys; each must have one value.
        values: The values that are allowed.

    Raises:
        InvalidActionError: If a pair has another form, a key or value is unknown, or a key is missing or has two
            values.
    """
    check_length(answer)
    known_keys = {key.lower(): key for key in keys}
    known_values = {value.lower(): value for value in values}
    has_numbers = all(key.isdigit() for key in keys)
    text = (_NUMBER_MARKER if has_numbers else _MARKER).sub("", _DECORATION.sub("", answer))
    text = text.strip(" \n.,;{}[]()|")
    text = text if has_numbers else _without_head(text, keys, known_values)
    grouped = _read_groups(text, known_keys, known_values)
    if grouped is not None:
        return grouped
    parts = [part.strip(" |.") for part in _BETWEEN.split(text) if part.strip(" |.")]
    if has_numbers and len(parts) == len(keys) and all(part.lower() in known_values for part in parts):
        return {key: known_values[part.lower()] for key, part in zip(keys, parts, strict=True)}
    found: dict[str, str] = {}
    for part in parts or [""]:
        stripped = _KEY_WORDS.sub("", part.lower())
        match = (_NUMBER_PAIR if has_numbers else _PAIR).fullmatch(stripped)
        if match is None:
            raise InvalidActionError(f"{part[:40]!r} is not of the form {keys[0]}: {values[0]}")
        key, value = known_keys.get(match[1].strip()), _value(match[2], known_values)
        if key is None or value is None:
            raise InvalidActionError(f"{part[:40]!r} is not one of {', '.join(keys)} with one of {', '.join(values)}")
        if found.get(key, value) != value:
            raise InvalidActionError(f"{key} has two values")
        found[key] = value
    missing = [key for key in keys if key not in found]
    if missing:
        raise InvalidActionError(f"the answer has no value for {', '.join(missing)}")
    return found


def _value(text: str, known_values: Mapping[str, str]) -> str | None:
    """Return the value that "a knight" or, of two values, "not a knave" names; None if it names none."""
    text = text.strip(" .()|")
    positive = re.sub(r"^not\s+", "", text)
    value = known_values.get(_VALUE_WORDS.sub("", positive), known_values.get(positive))
    if value is None or positive == text:
        return value
    others = [other for other in known_values.values() if other != value]
    return others[0] if len(others) == 1 else None


def _without_head(text: str, keys: Sequence[str], known_values: Mapping[str, str]) -> str:
    """Return the text from its first key on, without words such as "So the kinds are:" before it."""
    names = "|".join(map(re.escape, keys))
    first = re.search(rf"(?<![\w-])(?:{names})(?![\w-])\s*(?:{_SIGN}|\()", text, re.IGNORECASE)
    if first is None or _HEAD.fullmatch(text[: first.start()]) is None:
        return text
    head = text[: first.start()].lower()
    words = set(re.findall(r"[\w-]+", head))
    check_words(head)
    is_plain = not words & {*known_values, *(f"{value}s" for value in known_values)}
    return text[first.start() :] if is_plain else text


def _read_groups(text: str, known_keys: Mapping[str, str], known_values: Mapping[str, str]) -> dict[str, str] | None:
    """Return the values if the text lists the keys of each value, "red: A, C; blue: B"; None if it does not."""
    found: dict[str, str] = {}
    for line in re.split(r"[;\n]|\.\s", text):
        match = _GROUP.fullmatch(line)
        value = None if match is None else known_values.get(f"{match[1]}{match[2]}".lower())
        if match is not None and value is None:
            value = known_values.get(match[1].lower())
        if match is None or value is None:
            return None
        for name in re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+|\s+", match[3].strip(" .()[]")):
            key = known_keys.get(name.lower())
            if key is None or key in found:
                return None
            found[key] = value
    return found if len(found) == len(known_keys) else None
