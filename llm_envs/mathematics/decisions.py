r"""Decide whether two mathematical answers are equal: words, numbers and lists here, formulas by whoever is asked.

No process is started here: `decide` is given the function that compares two formulas.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from llm_envs.errors import InvalidActionError
from llm_envs.mathematics.answer_text import (
    Unreadable,
    clean,
    has_dots,
    has_letters,
    listed_words,
    numbered_words,
    prose_in,
    same_text,
    take_off_unit,
    words_of,
)
from llm_envs.mathematics.arithmetic import Number, evaluate
from llm_envs.mathematics.lists import (
    based_number,
    interval_of,
    is_interval,
    is_set,
    list_items,
    split_assignment,
    without_element,
)
from llm_envs.mathematics.notation import last_side, sides
from llm_envs.mathematics.worker import decimals_of

__all__ = ["Ask", "Decision", "Verdict", "bare_number", "decide", "plain_value"]

Verdict = Literal["equal", "different", "undecided"]
Decision = tuple[Verdict, str]
Ask = Callable[[str, str], Decision]
"""Has math-verify compare an answer with its target."""

_SEVERAL_NUMBERS = re.compile(r"(?<![\^_.\d])\d[\d.]*\s+(?:[A-Za-z]\s+)?\d|\d'")
_SUBSCRIPT = re.compile(r"_(?:\w|\{[\w,]*\})|\([+-]?\d+(?:,\s*[+-]?\d+)*\)|\^\s*(?:\{\s*-\s*1\s*\}|-1)")
_Y, _OF_X = re.compile(r"y\s*="), re.compile(r"\A[a-zA-Z]\(x\)\s*=")
_POINT_ZERO = re.compile(r"\.0+\Z")
_EMPTY = "\\emptyset"
_DIGIT = re.compile(r"\d")
_DECIMAL = re.compile(r"[-+]?\d*\.\d+")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_FRACTION = re.compile(r"\\frac\{(\d+)\}\{(\d+)\}")
_TIMES = re.compile(r"\\(?:cdot|times)(?![A-Za-z])")
_REMAINDER = re.compile(r"\A(?:[^=\d]*\\equiv\s*)?(\d+)\s*\\pmod\s*\{?\s*1000\s*\}?\Z")
_QUOTIENT = re.compile(r"\\frac(?![A-Za-z])|/")
_CLOSED_AT_INFINITY = re.compile(r"\\infty\s*\]|\[\s*-\s*\\infty")


def decide(ask: Ask, answer: str, target: str) -> Decision:
    """Compare two texts as they were given."""
    for name, text in (("target", target), ("answer", answer)):
        if not isinstance(text, str):
            return "undecided", f"the {name} is of type {type(text).__name__}, not text"
    if same_text(answer, target):
        return "equal", ""
    texts = []
    for name, text in (("target", target), ("answer", answer)):
        read = clean(text)
        if isinstance(read, Unreadable):
            return "undecided", f"the {name} {read.why}"
        if not read.strip("{}() "):
            return "undecided", f"the {name} is empty"
        texts.append(read)
    target, answer = texts
    if same_text(answer, target):
        return "equal", ""
    if has_dots(answer) and not has_dots(target):
        return "undecided", "the answer is left unfinished, with dots"
    exact, sign, rounded = answer.partition("\\approx")
    if sign and exact.strip() and sign not in target:
        if not _may_be_near(exact, rounded):
            return "different", "the rounded value is another one"
        answer = exact.strip()
    return _compare_words(answer, target) or _compare_formulas(ask, answer, target)


def _may_be_near(exact: str, rounded: str) -> bool:
    """Return whether an exact value may round to another, by up to a tenth; True unless both are plain numbers."""
    rounded, unit = take_off_unit(rounded)
    texts = last_side(exact), _hundredth(rounded) if unit == "%" else rounded
    left, right = map(_worked_out, texts)
    return left is None or right is None or abs(Fraction(left) - Fraction(right)) <= abs(Fraction(left)) / 10


def _worked_out(text: str) -> Number | None:
    return plain_value(_TIMES.sub("*", _FRACTION.sub(r"(\1)/(\2)", text)).strip())


def _compare_words(answer: str, target: str) -> Decision | None:
    """Compare words as text, not as the products of variables that they would be in a formula."""
    left, right = words_of(answer), words_of(target)
    if left is right is None:
        if (listed := listed_words(answer)) is not None and listed == listed_words(target):
            return "equal", ""
        left, right = numbered_words(answer), numbered_words(target)
        if left is None or right is None:
            return None
        return ("equal", "") if left == right else ("different", "other words")
    if left is not None and right is not None:
        return ("equal", "") if left == right else ("different", "other words")
    if left is not None and not has_letters(target):
        return "different", "the answer is words, the target is not"
    if right is not None and not has_letters(answer):
        return "different", "the target is words, the answer is not"
    return None


def _compare_formulas(ask: Ask, answer: str, target: str) -> Decision:
    answer, target = without_element(answer), without_element(target)
    if _Y.match(target):
        answer = _OF_X.sub("y=", answer)
    numbers = based_number(answer), based_number(target)
    if numbers != (None, None):
        return ("equal", "") if numbers[0] == numbers[1] else ("different", "the bases or digits differ")
    ends = last_side(answer).strip(), last_side(target).strip()
    if _EMPTY in ends:
        return ("equal", "") if ends[0] == ends[1] else ("different", "one is the empty set")
    answer_too, target_too = interval_of(answer), interval_of(target)
    if answer_too is not None and target_too is not None:
        if answer_too[0] != target_too[0]:
            return "different", "other variables"
        answer, target = answer_too[1], target_too[1]
    elif answer_too is not None and is_interval(target):
        answer = answer_too[1]
    elif target_too is not None and is_interval(answer):
        target = target_too[1]
    if _CLOSED_AT_INFINITY.search(answer) and not _CLOSED_AT_INFINITY.search(target):
        return "different", "the answer is closed at infinity"
    answers, targets = list_items(answer), list_items(target)
    if len(answers) == len(targets) == 1 and is_set(answer) == is_set(target):
        if (
            all(map(is_interval, (answer, target)))
            and "\\cup" not in answer + target
            and _ends(answer) != _ends(target)
        ):
            return "different", "other brackets"  # math-verify reads [3,2] and (3,2) as the empty set
        return _compare_values(ask, answers[0], targets[0])
    if len(answers) == 1 and is_interval(answers[0]) and len(targets) > 1 and not is_interval(targets[0]):
        return _compare_tuple(ask, answers[0], targets, is_set(target))
    if len(targets) == 1 and is_interval(targets[0]) and len(answers) > 1 and not is_interval(answers[0]):
        return _compare_tuple(ask, targets[0], answers, is_set(answer))
    if not any(sign in answer + target for sign in ("\\pm", "\\mp", "\\cup")) and not _may_match(answers, targets):
        return "different", f"the answer lists {len(answers)} values"
    return _compare_lists(ask, answers, targets)


def _ends(text: str) -> str:
    return text.strip()[0] + text.strip()[-1]


def _may_match(answers: list[str], targets: list[str]) -> bool:
    """Return whether lists may have the same values: a value is repeated only as often as in the target."""
    if len(set(targets)) < len(targets) == len(answers):
        return Counter(answers) == Counter(targets)
    return len(answers) in (len(targets), len(set(targets)))


def _compare_tuple(ask: Ask, whole: str, items: list[str], items_are_set: bool) -> Decision:
    """Compare a pair, a tuple or an interval with a list: (1,2) with "1,2" or "x=1, y=2", in that order."""
    if items_are_set:
        return "different", "one is a set, the other a pair or an interval"
    named = sorted((split_assignment(item) for item in items), key=lambda pair: pair[0].lstrip("\\"))
    if all(name for name, _ in named):
        items = [value for _, value in named]
    if whole[0] + whole[-1] != "()":
        return "different", "one is a list"
    return ask(f"({','.join(items)})", whole)


def _compare_lists(ask: Ask, answers: list[str], targets: list[str]) -> Decision:
    """Compare lists and sets in any order; of several variables, the value of each."""
    values: list[list[str]] = []
    variables: list[list[str]] = []
    units: list[list[str]] = []
    for items in (answers, targets):
        pairs = [split_assignment(item) for item in items]
        names = {name for name, _ in pairs if name}
        if len(names) > 1:
            if len(names) < len(pairs):
                return "undecided", "several values of several variables"
            pairs.sort()
        measured = [take_off_unit(value) for _, value in pairs]
        for value, _ in measured:
            if (word := prose_in(value)) is not None:
                return "undecided", f"there are words in it: {word[:40]!r}"
            for part in _claims(value, ""):
                if ask(part, last_side(value))[0] != "equal":
                    return "different", f"it also contains {part[:40]!r}"
        values.append([last_side(value) for value, _ in measured])
        variables.append(sorted(names))
        units.append(sorted({unit for _, unit in measured if unit}))
    if variables[0] and variables[1] and variables[0] != variables[1]:
        return "different", "other variables"
    if units[0] and units[1] and units[0] != units[1]:
        return "different", f"other units: {', '.join(units[0])} and {', '.join(units[1])}"
    if len(variables[0]) > 1 or len(variables[1]) > 1:
        left, right = (f"({','.join(each)})" for each in values)
    else:
        left, right = (f"\\{{{','.join(each)}\\}}" for each in values)
    return ask(left, right)


def _compare_values(ask: Ask, answer: str, target: str) -> Decision:
    """Compare one value with another: units, percent signs, numbers, then formulas."""
    (answer, unit), (target, other) = take_off_unit(answer), take_off_unit(target)
    if unit and other and unit != other:
        if "%" not in (unit, other):
            return "different", f"other units: {unit} and {other}"
        return "different", "only one of them is a percentage"
    for name, text in (("target", target), ("answer", answer)):
        if (word := prose_in(text)) is not None:
            return "undecided", f"the {name} has words in it: {word[:40]!r}"
    if answer.count(":") != target.count(":"):
        return "different", "only one of them is a ratio, or of other parts"
    if unit.startswith("deg") and not other and _QUOTIENT.search(target):
        return "different", "the answer is an angle, the target a fraction"
    if unit == "%" != other:
        return _compare_amounts(ask, _hundredth(answer), target)
    decided = _compare_amounts(ask, answer, target)
    if decided[0] == "different" and other == "%" != unit:
        return _compare_amounts(ask, answer, _hundredth(target))
    return decided


def _hundredth(text: str) -> str:
    value = last_side(text)
    if _DECIMAL.fullmatch(value.strip()):
        return format(Decimal(value.strip()).scaleb(-2), "f")
    return f"({value})/100" if plain_value(value) is not None else f"\\frac{{{value}}}{{100}}"


def _compare_amounts(ask: Ask, answer: str, target: str) -> Decision:
    left, right = plain_value(target), plain_value(answer)
    if left is not None and right is not None:
        return ("equal" if _are_close(left, right, decimals_of(target, answer)) else "different"), ""
    if _SEVERAL_NUMBERS.search(answer) and not _SEVERAL_NUMBERS.search(target):
        return "different", "the answer has several numbers"
    for part in _claims(answer, target):
        verdict, reason = ask(part, last_side(target))
        if verdict != "equal":
            return "different", reason or f"the answer also contains {part[:40]!r}"
    return ask(answer if "=" in target else last_side(answer), target)


def plain_value(text: str) -> Number | None:
    """Return the value of plain arithmetic, or None for anything else."""
    try:
        return evaluate(text)
    except InvalidActionError:
        return None


def _are_close(left: Number, right: Number, decimals: int | None) -> bool:
    if left == right:
        return True
    if decimals is None:
        return False
    first, second = Fraction(left), Fraction(right)
    rounding = Fraction(1, 2 * 10**decimals)
    return abs(first - second) <= min(min(max(abs(first), abs(second)), Fraction(1)) / 1_000_000, rounding)


def _claims(answer: str, target: str) -> list[str]:
    """Return the parts of "3 = 4 = 5" before the last that have to be equal to it: each part with a number in it.

    The name of a quantity is none: `f(3)`, `f^{-1}(2)`, and what has several variables, as "100m + n".
    """
    parts = sides(answer)
    first = 1 if "=" in target else 0
    return [part for part in parts[first:-1] if _DIGIT.search(_SUBSCRIPT.sub("", part)) and not _is_named(part)]


def _is_named(part: str) -> bool:
    return len(set(filter(str.isalpha, _COMMAND.sub("", part)))) > 1


def bare_number(answer: str) -> str:
    r"""Return the number of an answer in digits, without a unit and the name of what it is: "55" of `m+n = 55^\circ`.

    Percent does not count as a unit. A text that is not one number comes back in another form, or empty.
    """
    text = clean(answer)
    if isinstance(text, Unreadable) or has_dots(text):
        return ""
    number, unit = take_off_unit(text)
    number = _REMAINDER.sub(r"\1", number)
    last = last_side(number).strip()
    last = _POINT_ZERO.sub("", last.removeprefix("(").removesuffix(")").removeprefix("+"))
    if unit == "%" or any(_worked_out(part) != plain_value(last) for part in _claims(number, "")):
        return ""
    return last
