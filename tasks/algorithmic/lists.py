"""Reading lists from answers: "A, B and C", "[A, B, C]", "A -> B -> C", numbered or marked lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_envs.errors import InvalidActionError
from llm_envs.parsers import is_doubtful

__all__ = ["MAX_CHARACTERS", "check_length", "check_words", "in_brackets", "read_items", "without_markers"]

MAX_CHARACTERS = 20_000
"""Longest answer that is read: patterns take longer than linear time on some hostile texts."""

_NUMBERED = re.compile(r"\(?([0-9]{1,3})(?:\)|[.:](?=\s)|[.:]\))\s*(\S.*)", re.DOTALL)
_MARKED = re.compile(r"[-*+\u2022]\s+(\S.*)", re.DOTALL)
_QUOTES = re.compile("\\*\\*|[`\"'\u201c\u201d\u2018\u2019]")
_LEAD_IN = re.compile(r"^[A-Za-z ]+\b(?:is|are)\b:?\s+")
"""The order of the names is: ..."""
_BRACKETS = (("[", "]"), ("(", ")"), ("{", "}"), ("<", ">"))
_SEPARATORS = re.compile(
    r"\s*(?:[,;|\n]|->|=>|[>\u2192\u21d2]|\\(?:to|rightarrow|Rightarrow)(?![A-Za-z]))\s*"
    r"|\s+(?:and|then)\s+",
    re.IGNORECASE,
)


def check_length(answer: str) -> None:
    """Raise `InvalidActionError` if an answer is longer than any right one."""
    if len(answer) > MAX_CHARACTERS:
        raise InvalidActionError(f"the answer has {len(answer)} characters; at most {MAX_CHARACTERS} are read")


def check_words(words: str) -> None:
    """Raise `InvalidActionError` if the words around an answer deny or doubt it."""
    if is_doubtful(words):
        raise InvalidActionError(f"the words {words.strip()[:60]!r} deny or doubt the answer")


def read_items(answer: str) -> list[str]:
    """Return the items of a list, without list markers, brackets, quotation marks and a final full stop.

    Items stand on lines, perhaps below a line that ends with a colon, or between commas, semicolons, arrows, or the
    words "and" and "then". Without any of these, they stand between spaces.
    """
    check_length(answer)
    text = _QUOTES.sub("", answer).strip()
    if (lead_in := _LEAD_IN.match(text)) is not None:
        check_words(lead_in[0])
        text = text[lead_in.end() :]
    text = in_brackets(text.rstrip(".;,").rstrip())
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        check_words(lines[0])
        lines = lines[1:]
    lines = without_markers(lines)
    items = [item for line in lines for item in _SEPARATORS.split(line.strip(" ,;|")) if item]
    items = [re.sub(r"(?:and|then)\s+", "", item, count=1) if i else item for i, item in enumerate(items)]
    return items[0].split() if len(items) == 1 else items


def without_markers(parts: Sequence[str]) -> list[str]:
    """Return the parts without the markers "1. ", "2. ", ... or "- ", if all of several parts have one."""
    if len(parts) > 1:
        numbered = [_NUMBERED.fullmatch(part) for part in parts]
        if all(match is not None and int(match[1]) == i for i, match in enumerate(numbered, 1)):
            return [match[2] for match in numbered if match is not None]
        marked = [_MARKED.fullmatch(part) for part in parts]
        if all(marked):
            return [match[1] for match in marked if match is not None]
    return list(parts)


def in_brackets(text: str) -> str:
    """Return the inside of a text in one pair of brackets; any other text unchanged."""
    for opening, closing in _BRACKETS:
        inside = text[1:-1]
        if text[:1] == opening and text[-1:] == closing and opening not in inside and closing not in inside:
            return inside.strip()
    return text
