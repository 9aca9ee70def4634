"""Scores of a text against a target: `(text, target) -> float`, for tasks and for `lift`.

Each is 0 for an empty text and at most 1. Texts may be hostile: they are limited to `MAX_CHARACTERS` where the time
grows with their length, and nothing in them is executed.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any

from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.parsers import without_unit
from llm_envs.parsers.json_calls import strict_json
from llm_envs.rewards.words import normal, split_words
from llm_envs.tools.schema import json_validator

__all__ = [
    "MAX_DIGITS",
    "MAX_WORDS",
    "contains_all",
    "exact_match",
    "has_any",
    "keyword_share",
    "math_match",
    "numeric_match",
    "parse_integer",
    "parse_number",
    "read_integer",
    "regex_match",
    "repeated_share",
    "schema_match",
]

MAX_DIGITS = 400
"""Most digits of a whole number in an answer."""
MAX_CHARACTERS = 100_000
"""Longer texts match nothing."""
MAX_WORDS = 100
"""Most words of a text in which keywords are searched: a list of all words would contain every keyword."""

_INTEGER = re.compile(rf"[-+]?(?:[0-9]{{1,{MAX_DIGITS}}}|[0-9]{{1,3}}(?:,[0-9]{{3}}){{1,130}})(?:\.0{{1,20}})?")
_NUMBER = re.compile(
    rf"[-+]?(?:[0-9]{{1,{MAX_DIGITS}}}|[0-9]{{1,3}}(?:,[0-9]{{3}}){{1,130}}|(?=\.[0-9]))(?:\.[0-9]{{1,{MAX_DIGITS}}})?"
    r"(?:[eE][-+]?[0-9]{1,3})?"
)


def exact_match(answer: str, target: str) -> float:
    """Return 1.0 if the two texts are equal up to white space, else 0.0."""
    return float(answer == target or answer.split() == target.split())


def parse_integer(text: str) -> int | None:
    """Read a whole number, or return None: an optional sign, digits (perhaps with thousands separators), perhaps `.0`.

    Only ASCII digits count, at most `MAX_DIGITS` of them.
    """
    if text.isdigit() and text.isascii() and len(text) <= 18:
        return int(text)
    text = text.strip()
    if _INTEGER.fullmatch(text) is None:
        return None
    return int(text.partition(".")[0].replace(",", ""))


def read_integer(text: str, *, units: Collection[str] = ()) -> int:
    """Read the whole number of an answer, for a task.

    Args:
        text: The answer, without decoration; see `llm_envs.parsers.plain_answer`.
        units: Words that may follow the number, in lower case ("57 apples"). A currency sign may stand before it.

    Raises:
        InvalidActionError: If it is not one whole number.
    """
    number = parse_integer(text)
    if number is None:
        number = parse_integer(without_unit(text, units))
    if number is None:
        raise InvalidActionError(f"the answer {text[:40]!r} is not a whole number")
    return number


def parse_number(text: str) -> Fraction | None:
    """Read one number exactly, or return None: a sign, digits (perhaps with thousands separators), decimals, exponent.

    The text must have nothing else: "5 km", "1/2" and "3 or 4" give None.
    """
    text = text.strip()
    if len(text) > 3 * MAX_DIGITS or _NUMBER.fullmatch(text) is None:
        return None
    return Fraction(text.replace(",", ""))


def numeric_match(answer: str, target: float | str, *, rel_tol: float = 0.0, abs_tol: float = 0.0) -> float:
    """Return 1.0 if the answer is one number with |answer − target| ≤ max(abs_tol, rel_tol |target|), else 0.0.

    The comparison is exact: "0.1" means exactly 0.1, and a float target means the shortest decimal that denotes it.

    Raises:
        InvalidConfigError: If the target is not a number.
    """
    wanted = parse_number(str(target))
    if wanted is None:
        raise InvalidConfigError(f"numeric_match: the target is {target!r}; it must be a number.")
    value = parse_number(answer)
    if value is None:
        return 0.0
    tolerance = max(Fraction(str(abs_tol)), Fraction(str(rel_tol)) * abs(wanted))
    return float(abs(value - wanted) <= tolerance)


_DEGREE_SIGN = re.compile(r"\^\s*\\circ")
_RELATION = re.compile(r"\\(?:[lg](?:t|eq?|eqslant)|neq?|in|cup|cap|land|quad|mid)(?![A-Za-z])|[<>]=?")
_BRACKETED = r"[(\[](?:[^()\[\]A-Za-z,\\]|\\(?:frac|sqrt)(?![A-Za-z]))+[)\]]"
_OPERATORS = {
    "a sum": r"(?<=[\w)}\]])\s*(?:\+|-|\u2212|\\pm|\\sum)|\\sum",
    "a product": r"(?<!\*)\*(?!\*)|\\(?:times|cdotp?|bullet|prod|ast|star)(?![A-Za-z])"
    rf"|(?<=[\d)}}%\]])\s*{_BRACKETED}|{_BRACKETED}\s*(?=\d|\{{1\}}|\\(?:frac|sqrt))"
    r"|(?<=\d)\s*\u2218\s*(?=\d)|(?<![\w}\])^])\{[\d.]+\}\s*\{[\d.]+\}|\\sqrt\{\d+\}\s*\\sqrt",
    "a power": r"\^|\*\*",
    "a root": r"√|sqrt",
    "a quotient": r"(?<=[\w)}\]])\s*(?:/|÷|\\div(?![A-Za-z]))|\\[dtc]?frac|(?<=\d)\s*:\s*(?=\d)|\\over(?![A-Za-z])",
    "a function": r"\\?(?:log|ln|exp|sin|cos|tan|arc\w+|int|lim|[dt]?binom|choose|mod|bmod|gcd|lcm|max|min|det|Gamma)"
    r"(?![A-Za-z])|\\operatorname|matrix\}",
    "an absolute value": r"\|[^|]+\||\\[lr]?[vV]ert",
    "rounding": r"\\[lr](?:floor|ceil)",
    "a factorial": r"!",
}
_INDEX = re.compile(r"_(?:\w|\{\w+\})|(?<=sqrt)\s*\[\w+\]")
_SCIENTIFIC = re.compile(r"(?:\\times|\\cdot|\*)\s*10\s*(?:\^|\*\*)\s*(?:\{\s*[-+]?\d+\s*\}|[-+]?\d+)")
_PLAIN_POWER = re.compile(r"(?<![\w.}\)])(\d{1,30})\s*\^\s*(?:\d|\{\s*\d{1,3}\s*\})(?![\w({])")
_PART_OF_LETTER = re.compile(
    r"\\frac\{\s*(\d{0,30})\s*(?:[A-Za-z]|\\pi)\s*\}\{\s*(\d{1,30})\s*\}"
    r"|(?<![\w.}/])(\d{0,30})(?:[A-Za-z]|\\pi)\s*/\s*(\d{1,30})(?![\w.({])"
)
_FRACTION = re.compile(
    r"\\frac\{\s*(-?\s*\d{1,30})\s*\}\{\s*(-?\s*\d{1,30})\s*\}|(?<![\d.])(\d{1,30})\s*/\s*(\d{1,30})(?![\d.])"
)


def math_match(
    answer: str, target: str, *, final_form: bool = True, lowest_terms: bool = True, timeout_s: float = 2.0
) -> float:
    r"""Return 1.0 if two mathematical answers are equal (`llm_envs.mathematics.math_equal`), else 0.0.

    Values are compared, so "37*24" equals "888", and an answer that repeats its question would be right. With
    `final_form` an answer may contain only the kinds of operations that the target contains: sums, products, powers,
    roots, quotients, functions, absolute values, rounding, factorials. A fraction in lowest terms and a number in
    scientific notation do not count as operations.

    Args:
        answer: The answer to judge.
        target: The right answer.
        final_form: Reject an answer that is not fully evaluated.
        lowest_terms: Reject `\frac{6}{8}` and `10^4`, too, unless the target has a quotient or a power.
        timeout_s: Time limit; on a timeout the answers count as different.

    Raises:
        MissingExtraError: If math-verify is needed and not installed.
    """
    from llm_envs.mathematics.equality import math_equal

    if final_form and not _operations(answer, target, lowest_terms) <= _operations(target, target, True):
        return 0.0
    return float(math_equal(answer, target, timeout_s=timeout_s))


def _operations(text: str, target: str, lowest_terms: bool) -> set[str]:
    from llm_envs.mathematics.answer_text import clean, take_off_unit
    from llm_envs.mathematics.lists import list_items
    from llm_envs.mathematics.notation import last_side

    text = text[:MAX_CHARACTERS]
    read = clean(text)
    text = read if isinstance(read, str) else text  # which equals only the same text
    text = text if "=" in target else last_side(text)  # the sides before it must have the same value
    found: set[str] = set()
    for part in list_items(_DEGREE_SIGN.sub("", _RELATION.sub(",", text))):
        item, _ = take_off_unit(_INDEX.sub("", part))  # 90^\circ and 5 cm^2 have no power
        item = _PART_OF_LETTER.sub(_part_of_letter, item)  # x/2 is one half of x
        item = _FRACTION.sub(_lowest_terms if lowest_terms else _proper, _SCIENTIFIC.sub("", item))
        item = item if lowest_terms else _PLAIN_POWER.sub("1", item)
        found |= {name for name, pattern in _OPERATORS.items() if re.search(pattern, item)}
    return found


def _part_of_letter(match: re.Match[str]) -> str:
    above, below = int(match[1] or match[3] or 1), int(match[2] or match[4])
    return "{1}" if below and Fraction(above, below).denominator == below > 1 else match.group()


def _parts(match: re.Match[str]) -> tuple[int, int]:
    above, below = (abs(int(group.replace(" ", ""))) for group in match.groups() if group is not None)
    return above, below


def _lowest_terms(match: re.Match[str]) -> str:
    above, below = _parts(match)
    is_lowest = below > 1 and Fraction(above, below).denominator == below
    return "{1}" if is_lowest else match.group()


def _proper(match: re.Match[str]) -> str:
    above, below = _parts(match)
    return "{1}" if below and above % below else match.group()


def regex_match(text: str, pattern: str | re.Pattern[str]) -> float:
    """Return 1.0 if the pattern matches the full text, ignoring white space around it, else 0.0.

    Avoid nested repetition in the pattern: its time can grow exponentially with the text.
    """
    if not text.strip() or len(text) > MAX_CHARACTERS:
        return 0.0
    return float(re.fullmatch(pattern, text.strip()) is not None)


def schema_match(text: str, schema: Mapping[str, Any]) -> float:
    """Return 1.0 if the text is one JSON document that is valid under the JSON Schema, else 0.0.

    Strict JSON: no NaN, no duplicate keys, at most 32 levels. Nothing is converted, and references to other documents
    are not fetched.

    Raises:
        MissingExtraError: If `jsonschema` is not installed.
        InvalidConfigError: If the schema is not a valid JSON Schema.
    """
    validator = _validator(json.dumps(schema, sort_keys=True))
    if not text.strip() or len(text) > MAX_CHARACTERS:
        return 0.0
    try:
        return float(validator.is_valid(strict_json(text)))
    except (ValueError, RecursionError):
        return 0.0


@functools.lru_cache(maxsize=64)
def _validator(schema_json: str) -> Any:
    return json_validator(json.loads(schema_json), "schema_match")


# ----------------------------------------------------------------------------------------------------------------------
# Words
# ----------------------------------------------------------------------------------------------------------------------


def keyword_share(text: str, keywords: Sequence[str], *, max_words: int = MAX_WORDS) -> float:
    """Return the share of the keywords that the text contains as whole words; 0 if it has over `max_words` words."""
    if not keywords:
        raise InvalidConfigError("keyword_share: keywords is empty; give at least one.")
    words = split_words(text[:MAX_CHARACTERS])
    if len(words) > max_words:
        return 0.0
    return sum(_has_words(keyword, words) for keyword in keywords) / len(keywords)


def contains_all(text: str, parts: str | Sequence[str], *, max_words: int = MAX_WORDS) -> float:
    """Return 1.0 if the text contains every part as whole words and has at most `max_words` words, else 0.0."""
    return float(keyword_share(text, [parts] if isinstance(parts, str) else parts, max_words=max_words) == 1.0)


def has_any(text: str, parts: str | Sequence[str]) -> float:
    """Return 1.0 if the text contains any of the parts as whole words, else 0.0. For forbidden words."""
    listed = [parts] if isinstance(parts, str) else parts
    words = split_words(text)
    return float(any(_has_words(part, words) for part in listed))


def _has_words(part: str, words: Sequence[str]) -> bool:
    wanted = split_words(part)
    if not wanted:
        raise InvalidConfigError(f"{normal(part)!r} contains no word.")
    if len(wanted) == 1:
        return wanted[0] in words
    return any(list(words[i : i + len(wanted)]) == wanted for i in range(len(words) - len(wanted) + 1))


def repeated_share(text: str, n: int = 3) -> float:
    """Return the share of word n-grams that are repetitions: 1 − distinct / all; 0 without any n-gram."""
    words = split_words(text)
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
