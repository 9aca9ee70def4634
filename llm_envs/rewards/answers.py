"""Scores of a text against what it should be: `(text, target) -> float`, for tasks and for `lift`.

Each is 0 for an empty text and 1 at most. Texts are hostile: they are cut to `MAX_CHARACTERS` where time would grow
with them, and nothing that is written is executed here.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.rewards.words import normal, split_words

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
    "regex_match",
    "repeated_share",
    "schema_match",
]

MAX_DIGITS = 400
"""Digits that a whole number in an answer may have."""
MAX_CHARACTERS = 100_000
"""Longer texts match nothing."""
MAX_WORDS = 100
"""Words that a text may have in which words are looked for: a list of everything would have them all."""

_INTEGER = re.compile(rf"[-+]?(?:[0-9]{{1,{MAX_DIGITS}}}|[0-9]{{1,3}}(?:,[0-9]{{3}}){{1,130}})(?:\.0{{1,20}})?")
_NUMBER = re.compile(
    rf"[-+]?(?:[0-9]{{1,{MAX_DIGITS}}}|[0-9]{{1,3}}(?:,[0-9]{{3}}){{1,130}}|(?=\.[0-9]))(?:\.[0-9]{{1,{MAX_DIGITS}}})?"
    r"(?:[eE][-+]?[0-9]{1,3})?"
)


def exact_match(answer: str, target: str) -> float:
    """Return 1.0 if the two texts are the same but for white space around and runs of it inside, else 0.0."""
    return float(answer == target or answer.split() == target.split())


def parse_integer(text: str) -> int | None:
    """Read a whole number: an optional sign, digits (with or without thousands separators), perhaps `.0`; else None.

    Only ASCII digits count, at most `MAX_DIGITS` of them.
    """
    if text.isdigit() and text.isascii() and len(text) <= 18:
        return int(text)
    text = text.strip()
    if _INTEGER.fullmatch(text) is None:
        return None
    return int(text.partition(".")[0].replace(",", ""))


def parse_number(text: str) -> Fraction | None:
    """Read one number exactly: a sign, digits (with or without thousands separators), decimals, an exponent; else None.

    Nothing else may stand in the text: "5 km", "1/2" and "3 or 4" are no numbers.
    """
    text = text.strip()
    if len(text) > 3 * MAX_DIGITS or _NUMBER.fullmatch(text) is None:
        return None
    return Fraction(text.replace(",", ""))


def numeric_match(answer: str, target: float | str, *, rel_tol: float = 0.0, abs_tol: float = 0.0) -> float:
    """Return 1.0 if the answer is one number with |answer − target| ≤ max(abs_tol, rel_tol |target|), else 0.0.

    The comparison is exact: "0.1" is 0.1 as it is written, and a target that is a float is the shortest number that is
    written so.

    Raises:
        InvalidConfigError: If the target is no number.
    """
    wanted = parse_number(str(target))
    if wanted is None:
        raise InvalidConfigError(f"numeric_match: the target is {target!r}; it must be a number.")
    value = parse_number(answer)
    if value is None:
        return 0.0
    tolerance = max(Fraction(str(abs_tol)), Fraction(str(rel_tol)) * abs(wanted))
    return float(abs(value - wanted) <= tolerance)


_OPERATORS = {
    "a sum": r"(?<=[\w)}\]])\s*(?:\+|-|\u2212|\\pm|\\sum)|\\sum",
    "a product": r"(?<!\*)\*(?!\*)|\u00d7|\u00b7|\\(?:times|cdot|prod|ast|star)\b",
    "a power": r"\^|\*\*",
    "a root": r"√|sqrt",
    "a quotient": r"(?<=[\w)}\]])\s*(?:/|÷|\\div\b)|\\[dtc]?frac",
    "a function": r"\\?(?:log|ln|exp|sin|cos|tan|arc\w+|int|lim|binom|mod|bmod|gcd|max|min)(?![A-Za-z])",
    "a factorial": r"!",
}
_SCIENTIFIC = re.compile(r"(?:\\times|\\cdot|\u00d7|\*)\s*10\s*(?:\^|\*\*)\s*(?:\{\s*[-+]?\d+\s*\}|[-+]?\d+)")
_FRACTION = re.compile(
    r"\\[dtc]?frac\{\s*(\d{1,30})\s*\}\{\s*(\d{1,30})\s*\}|(?<![\d.])(\d{1,30})\s*/\s*(\d{1,30})(?![\d.])"
)


def math_match(answer: str, target: str, *, final_form: bool = True, timeout_s: float = 2.0) -> float:
    r"""Return 1.0 if two mathematical answers are equal (`llm_envs.mathematics.math_equal`), else 0.0.

    Equality is that of values, so "37*24" equals "888": an answer that repeats its question would be right. With
    `final_form` an answer may only have the operations that the target has: sums, products, powers, roots, quotients,
    functions, factorials. A fraction in lowest terms and a number in scientific notation are no operations.

    Args:
        answer: What is judged.
        target: What is right.
        final_form: Whether an answer that still leaves something to be worked out is wrong.
        timeout_s: Limit of the comparison; what is not decided by then is not equal.

    Raises:
        MissingExtraError: If math-verify is needed and not installed.
    """
    from llm_envs.mathematics import math_equal

    if final_form and not _operations(answer) <= _operations(target):
        return 0.0
    return float(math_equal(answer, target, timeout_s=timeout_s))


def _operations(text: str) -> set[str]:
    text = _FRACTION.sub(_lowest_terms, _SCIENTIFIC.sub("", text[:MAX_CHARACTERS]))
    return {name for name, pattern in _OPERATORS.items() if re.search(pattern, text)}


def _lowest_terms(match: re.Match[str]) -> str:
    above, below = (int(group) for group in match.groups() if group is not None)
    is_lowest = below > 1 and Fraction(above, below).denominator == below
    return "1" if is_lowest else match.group()


def regex_match(text: str, pattern: str | re.Pattern[str]) -> float:
    """Return 1.0 if the pattern matches the whole text, white space around it aside, else 0.0.

    A pattern with nested repetition can take a time that grows exponentially with the text: write none.
    """
    if not text.strip() or len(text) > MAX_CHARACTERS:
        return 0.0
    return float(re.fullmatch(pattern, text.strip()) is not None)


def schema_match(text: str, schema: Mapping[str, Any]) -> float:
    """Return 1.0 if the text is one JSON document that the JSON Schema allows, else 0.0.

    Strict JSON: no NaN, no key twice in one object. Nothing is converted, and no reference to another document fetched.

    Raises:
        MissingExtraError: If `jsonschema` is not installed.
        InvalidConfigError: If it is no valid JSON Schema.
    """
    validator = _validator(json.dumps(schema, sort_keys=True))
    if not text.strip() or len(text) > MAX_CHARACTERS:
        return 0.0
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
        return float(validator.is_valid(value))
    except (ValueError, RecursionError):
        return 0.0


@functools.lru_cache(maxsize=64)
def _validator(schema_json: str) -> Any:
    try:
        import jsonschema  # type: ignore[import-untyped]  # it ships no types
        from referencing import Registry
    except ImportError as error:
        raise MissingExtraError("a JSON Schema needs jsonschema: pip install 'llm-envs[tools]'.") from error
    schema = json.loads(schema_json)
    validator_class = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator_class.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise InvalidConfigError(f"this is no JSON Schema: {error.message[:200]}.") from error
    return validator_class(schema, registry=Registry())


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice in one object")
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Words
# ----------------------------------------------------------------------------------------------------------------------


def keyword_share(text: str, keywords: Sequence[str], *, max_words: int = MAX_WORDS) -> float:
    """Return the share of the keywords that stand in the text as whole words, however often; 0 over `max_words`."""
    if not keywords:
        raise InvalidConfigError("keyword_share: keywords is empty; give at least one.")
    words = split_words(text[:MAX_CHARACTERS])
    if len(words) > max_words:
        return 0.0
    return sum(_stands_in(keyword, words) for keyword in keywords) / len(keywords)


def contains_all(text: str, parts: str | Sequence[str], *, max_words: int = MAX_WORDS) -> float:
    """Return 1.0 if every part stands in the text as whole words, and the text has at most `max_words`, else 0.0."""
    return float(keyword_share(text, [parts] if isinstance(parts, str) else parts, max_words=max_words) == 1.0)


def has_any(text: str, parts: str | Sequence[str]) -> float:
    """Return 1.0 if any of the parts stands in the text as whole words, else 0.0. For what is forbidden."""
    listed = [parts] if isinstance(parts, str) else parts
    words = split_words(text)
    return float(any(_stands_in(part, words) for part in listed))


def _stands_in(part: str, words: Sequence[str]) -> bool:
    wanted = split_words(part)
    if not wanted:
        raise InvalidConfigError(f"{normal(part)!r} has no word in it.")
    if len(wanted) == 1:
        return wanted[0] in words
    return any(list(words[i : i + len(wanted)]) == wanted for i in range(len(words) - len(wanted) + 1))


def repeated_share(text: str, n: int = 3) -> float:
    """Return the share of the text's n-grams of words that were written before: 1 − distinct / all; 0 without any."""
    words = split_words(text)
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
