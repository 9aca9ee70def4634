"""Repairs by comparison: what a player answers who compares the words of a description with the signs of its function.

The player counts numbers, in digits or words, signs and names in both. It replaces one that only the code has with one
that only the text has. It reads no comparison, runs nothing and follows no call. Tasks that show a wrong function
beside its description draw again what such a player mends.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from functools import lru_cache
from typing import NamedTuple

__all__ = ["NUMBER_WORDS", "compared_repairs", "digits_for_words", "shown_code"]

NUMBER_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
"""Words for the numbers from 2 to 12."""

_COMMON = ("0", "1", "10")
"""Numbers of code that are seldom those of its description."""
_ASIDE = re.compile(r"\([^)]*\)")
_NUMBER = re.compile(r"(?<![\w.])-?\d+")
_DIGITS = {word: str(number) for number, word in enumerate(NUMBER_WORDS, 2)}
_NUMBERED = re.compile(r"(?:^ *\d+: ?.*(?:\n|$)){2,}", re.MULTILINE)
_FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"^def .*\n(?:[ \t]+.*(?:\n|$)|\n)+", re.MULTILINE)
_SIGNS: tuple[tuple[str, Mapping[str, str]], ...] = (
    (
        r"(?<![<>=!])[<>]=?(?!=)",
        {"greater than": ">", "at least": ">=", "less than": "<", "at most": "<=", "largest": ">", "smallest": "<"},
    ),
    (r"[!=]=", {"does not leave": "!=", "does not have": "!=", "leaves": "==", "has": "=="}),
    (r"(?<= )[-+](?= )", {"plus": "+", "minus": "-"}),
    (r"[-+]=(?= )", {"add": "+=", "subtract": "-="}),
    (r"\b(?:min|max)\b", {"smaller": "min", "larger": "max"}),
    (r"//|%", {"quotient": "//", "remainder": "%"}),
    (r"\b(?:and|or)\b", {"and": "and", "or": "or"}),
)
"""Signs of the code, and the words that stand for them."""


class _Sign(NamedTuple):
    line: int
    start: int
    end: int
    text: str


def compared_repairs(
    text: str, lines: Sequence[str], names: Mapping[str, str] | None = None, own: str = ""
) -> dict[str, list[str]]:
    """Return the lines after a repair, by the name of how the player compares; only ways that find something.

    Args:
        text: The description.
        lines: The code.
        names: Words of descriptions that stand for names in the code, if the player compares these too.
        own: The name of the function, which its own description may have and its code has not.
    """
    plain = digits_for_words(_ASIDE.sub("", text))
    groups = [(_NUMBER.findall(plain), _find(_NUMBER, lines))]
    for pattern, words in _SIGNS if names is None else (*_SIGNS, (r"\b[a-z]+_[a-z]+\b", names)):
        said = [words[word] for word in _words(tuple(words)).findall(plain)]
        groups.append(([sign for sign in said if sign != own], _find(re.compile(pattern), lines)))
    numbers, signs = list(_exchanges(*groups[0])), [edit for group in groups[1:] for edit in _exchanges(*group)]
    in_order = [edit for group in groups for edit in _in_order(*group)]
    found = {
        "the number nearest to one of the text": sorted(numbers, key=_distance)[:1] or signs[:1],
        "the first sign that the text lacks": signs[:1] or numbers[:1],
        "the last number that the text lacks": numbers[-1:] or signs[-1:],
        "the last sign that the text lacks": signs[-1:],
        "the first that differs in order": in_order[:1],
        "the last that differs in order": in_order[-1:],
        "the first two that differ in order": in_order[:2],
        "the last two that differ in order": in_order[-2:],
    }
    return {name: _edited(lines, edits) for name, edits in found.items() if edits}


def digits_for_words(text: str) -> str:
    """Write the words for the numbers from 2 to 12 as digits."""
    return re.sub(r"\b[a-z]+\b", lambda found: _DIGITS.get(found[0], found[0]), text)


def shown_code(shown: str) -> tuple[str, list[str]]:
    """Return the text before the Python code of an observation, and its lines: numbered, fenced or a function.

    Numbers of lines are not part of them. Returns no lines without such code.
    """
    for pattern in (_NUMBERED, _FENCED, _FUNCTION):
        if found := pattern.search(shown):
            code = found[pattern.groups]
            code = re.sub(r"^ *\d+: ?", "", code, flags=re.MULTILINE) if pattern is _NUMBERED else code
            with suppress(SyntaxError, ValueError):
                ast.parse(code)
                return shown[: found.start()], code.splitlines()
    return shown, []


Edit = tuple[_Sign, str]


@lru_cache(maxsize=200)
def _words(words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(words)})\b")


def _find(pattern: re.Pattern[str], lines: Sequence[str]) -> list[_Sign]:
    return [_Sign(i, *found.span(), found[0]) for i, line in enumerate(lines) for found in pattern.finditer(line)]


def _exchanges(said: Sequence[str], signs: Sequence[_Sign]) -> Iterator[Edit]:
    """Yield signs that only the code has, each with those that only the text has."""
    lacking = Counter(said) - Counter(sign.text for sign in signs)
    left = Counter(said)
    for sign in signs:
        if left[sign.text] > 0:
            left[sign.text] -= 1
        else:
            yield from ((sign, other) for other in lacking)


def _in_order(said: Sequence[str], signs: Sequence[_Sign]) -> Iterator[Edit]:
    """Yield the places in which the text and the code differ, one after the other."""
    if len(said) == len(signs):
        yield from ((sign, other) for sign, other in zip(signs, said, strict=True) if sign.text != other)
        return
    matcher = SequenceMatcher(None, [sign.text for sign in signs], list(said), autojunk=False)
    for kind, start, end, first, last in matcher.get_opcodes():
        if kind == "replace" and end - start == last - first:
            yield from zip(signs[start:end], said[first:last], strict=True)


def _distance(edit: Edit) -> tuple[bool, int]:
    sign, other = edit
    return sign.text in _COMMON, abs(int(sign.text) - int(other))


def _edited(lines: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    new = list(lines)
    for sign, other in sorted(edits, reverse=True):
        new[sign.line] = new[sign.line][: sign.start] + other + new[sign.line][sign.end :]
    return new
