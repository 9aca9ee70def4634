r"""Compare two mathematical answers: plain arithmetic here, everything else by math-verify in a bounded worker.

1. A model's text is never executed. Plain numbers and arithmetic go to `llm_envs.mathematics.arithmetic`. math-verify
   reads everything else as LaTeX, in a process in which sympy's use of `eval` is replaced
   (`llm_envs/mathematics/worker.py`).
2. Every check ends. Inputs are limited in length and nesting, and a worker that exceeds `timeout_s` or its memory is
   replaced. Such a check is "undecided", which is not equal.
3. Any number of threads may check at once. Each check uses one worker, and waits if all are busy. One process loads
   sympy, which takes a second, or many on a busy machine. The workers are its children, forked in milliseconds.

Values are compared, so an answer that only restates the question ("37*24", "\sum_{n=1}^{100} n") equals its value. If
that would be cheating in a task, the task must ask for a number and compare numbers.
"""

from __future__ import annotations

import atexit
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from llm_envs.errors import InvalidActionError, InvalidConfigError, SandboxError
from llm_envs.mathematics.answer_text import (
    Unreadable,
    clean,
    has_dots,
    has_letters,
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
from llm_envs.mathematics.loader import Loader as _Loader
from llm_envs.mathematics.loader import Worker as _Worker
from llm_envs.mathematics.notation import last_side, sides
from llm_envs.mathematics.worker import decimals_of
from llm_envs.processes import Shared, forget_after_fork, processors

__all__ = [
    "MathChecker",
    "MathComparison",
    "Verdict",
    "bare_number",
    "compare_math",
    "math_equal",
    "prepare_comparison",
]

Verdict = Literal["equal", "different", "undecided"]


@dataclass(frozen=True)
class MathComparison:
    """The result of comparing an answer with its target. True in a condition if, and only if, they are equal."""

    verdict: Verdict
    reason: str
    """Why it is undecided, or different without a comparison; otherwise empty."""
    seconds: float
    """Wall-clock time, including any wait for a worker."""

    def __bool__(self) -> bool:
        """Return whether the answer equals the target."""
        return self.verdict == "equal"


class MathChecker:
    """Worker processes in which math-verify compares answers. Most callers need only `compare_math`.

    Args:
        n_workers: Largest number of comparisons at one time.

    Raises:
        InvalidConfigError: If `n_workers` is less than 1.
    """

    def __init__(self, n_workers: int = 2) -> None:
        if isinstance(n_workers, bool) or not isinstance(n_workers, int) or n_workers < 1:
            raise InvalidConfigError(f"n_workers is {n_workers!r}; it must be a whole number from 1.")
        self.n_workers = n_workers
        self.n_loaded = 0
        """How often sympy was loaded: more than once only if its process was killed, or this one was forked."""
        self._is_closed = False
        self.forget()
        forget_after_fork(self)

    def forget(self) -> None:
        """Start over in a forked child, leaving the parent's processes to the parent."""
        for connection in (*getattr(self, "_idle", ()), getattr(self, "_loader", None)):
            if connection is not None:
                connection.forget()
        self._free = threading.BoundedSemaphore(self.n_workers)
        self._lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._loader: _Loader | None = None

    def start(self) -> None:
        """Start loading sympy, without waiting for it."""
        self._started_loader()

    def compare(self, answer: str, target: str, *, timeout_s: float = 2.0) -> MathComparison:
        """Compare an answer with its target; see `compare_math`."""
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf:
            raise InvalidConfigError(f"timeout_s is {timeout_s!r}; it must be a number of seconds above 0.")
        started = time.perf_counter()
        left_s = timeout_s

        def ask(answer: str, target: str) -> tuple[Verdict, str]:
            nonlocal left_s
            verdict, reason, seconds = self._ask(answer, target, left_s)
            left_s = max(left_s - seconds, 0.01)
            return verdict, reason

        verdict, reason = _decide(ask, answer, target)
        return MathComparison(verdict, reason, time.perf_counter() - started)

    def close(self) -> None:
        """End the workers. May be called again."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            loader, self._loader = self._loader, None
        for worker in idle:
            worker.close()
        if loader is not None:
            loader.close()

    def __enter__(self) -> MathChecker:
        """Return the checker."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End the workers."""
        self.close()

    def _ask(self, answer: str, target: str, timeout_s: float) -> tuple[Verdict, str, float]:
        """Return the verdict, the reason, and the seconds of processor time."""
        with self._free:
            worker = self._take()
            try:
                equal, reason, seconds = worker.ask(answer, target, timeout_s)
            except BaseException:  # interrupted: the worker's result is no longer needed
                worker.close()
                raise
            with self._lock:
                if worker.is_alive and not self._is_closed:
                    self._idle.append(worker)
                else:
                    worker.close()
        if equal is not None:
            return ("equal" if equal else "different"), "", seconds
        return "undecided", reason, seconds

    def _take(self) -> _Worker:
        with self._lock:
            self._check_open()
            while self._idle:
                worker = self._idle.pop()
                if worker.is_there():
                    return worker
                worker.close()
        with self._start_lock:
            try:
                return self._started_loader().connect()
            except OSError:  # it was killed: by the system, when memory ran out
                self._drop_loader()
                return self._started_loader().connect()
            except SandboxError:
                self._drop_loader()
                raise

    def _started_loader(self) -> _Loader:
        with self._lock:
            self._check_open()
            if self._loader is None:
                self._loader = _Loader()
                self.n_loaded += 1
            return self._loader

    def _drop_loader(self) -> None:
        with self._lock:
            loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidConfigError("the MathChecker is closed; make a new one.")


def compare_math(answer: str, target: str, *, timeout_s: float = 2.0) -> MathComparison:
    r"""Compare a model's answer with the right one, by value.

    - The same text is always equal, except for spaces.
    - Numbers must be exactly equal. A decimal also equals a number that rounds to it, if it is off by at most one
      millionth (of the larger one if that is below 1). "1e3" and "1,000" are 1000. "x=5" equals "5".
    - An answer of several candidates ("3 or 5", "3 5", "3 = 5") does not equal one of them. Lists ("3,5", "x=3 or
      x=5", `\{3,5\}`) are equal in any order; a pair is equal to a list in the same order, and never to a set.
    - Texts of only words ("no", "cat", "north pole") are compared as text, ignoring case: never as products of
      variables. So "ab" is not "ba"; "a b" and "a*b" are formulas.
    - A unit behind a number counts only if both have one: "5 km" equals "5", and neither "5 cm" nor "5000 m".
      "10 grams" is "10 g"; quantities are not converted.
    - A percentage equals its hundredth: "50%" is "0.5". The answer "50" equals the target "50%", too; "50%" does not
      equal the target "50". A degree sign is a unit, except behind a fraction.
    - "x>3" equals `(3,\infty)`.

    Args:
        answer: Only the final answer, in LaTeX or as plain arithmetic. `$...$` or one `\boxed{...}` around it is
            removed.
        target: The right answer, in the same form.
        timeout_s: Longest processor time of the comparison, in seconds. The first comparison of a process waits until
            sympy is loaded.

    Returns:
        The comparison. In a condition it is true only if the two are equal. It is "undecided" if a text cannot be read
        or the comparison takes too long.

    Raises:
        InvalidConfigError: If `timeout_s` is not above 0.
        MissingExtraError: If math-verify is needed and not installed.
        SandboxError: If its process does not start, or has no processor for `timeout_s` in thirty times as long.
    """
    return shared_checker().compare(answer, target, timeout_s=timeout_s)


def prepare_comparison(target: str) -> None:
    """Start loading sympy, unless the target is a plain number. Call this before the answer arrives."""
    if _plain_value(target) is None:
        shared_checker().start()


def math_equal(answer: str, target: str, *, timeout_s: float = 2.0) -> bool:
    """Return whether an answer equals its target; False if that cannot be decided. See `compare_math`."""
    return bool(compare_math(answer, target, timeout_s=timeout_s))


def bare_number(answer: str) -> str:
    r"""Return the number of an answer in digits, without a unit and the name of what it is: "55" of `m+n = 55^\circ`.

    Percent does not count as a unit. A text that is not one number comes back in another form, or empty.
    """
    text = clean(answer)
    if isinstance(text, Unreadable) or has_dots(text):
        return ""
    number, unit = take_off_unit(text)
    last = last_side(number).strip()
    if unit == "%" or any(_plain_value(part) != _plain_value(last) for part in _claims(number, "")):
        return ""
    return last


# ----------------------------------------------------------------------------------------------------------------------
# Decisions
# ----------------------------------------------------------------------------------------------------------------------

_Decision = tuple[Verdict, str]
_Ask = Callable[[str, str], _Decision]
"""Has math-verify compare an answer with its target."""

_SEVERAL_NUMBERS = re.compile(r"(?<![\^_.\d])\d[\d.]*\s+\d")
_SUBSCRIPT = re.compile(r"_(?:\w|\{\w*\})|\([+-]?\d+\)|\^\s*(?:\{\s*-\s*1\s*\}|-1)")
_Y, _OF_X = re.compile(r"y\s*="), re.compile(r"\A[a-zA-Z]\(x\)\s*=")
_EMPTY = "\\emptyset"
_DIGIT = re.compile(r"\d")
_DECIMAL = re.compile(r"[-+]?\d*\.\d+")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_QUOTIENT = re.compile(r"\\frac(?![A-Za-z])|/")
_CLOSED_AT_INFINITY = re.compile(r"\\infty\s*\]|\[\s*-\s*\\infty")


def _decide(ask: _Ask, answer: str, target: str) -> _Decision:
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
    return _compare_words(answer, target) or _compare_formulas(ask, answer, target)


def _compare_words(answer: str, target: str) -> _Decision | None:
    """Compare words as text, not as the products of variables that they would be in a formula."""
    left, right = words_of(answer), words_of(target)
    if left is right is None:
        left, right = numbered_words(answer), numbered_words(target)
        return ("equal", "") if left is not None and left == right else None
    if left is not None and right is not None:
        return ("equal", "") if left == right else ("different", "other words")
    if left is not None and not has_letters(target):
        return "different", "the answer is words, the target is not"
    if right is not None and not has_letters(answer):
        return "different", "the target is words, the answer is not"
    return None


def _compare_formulas(ask: _Ask, answer: str, target: str) -> _Decision:
    answer, target = without_element(answer), without_element(target)
    if _Y.match(target):
        answer = _OF_X.sub("y=", answer)
    numbers = based_number(answer), based_number(target)
    if numbers != (None, None):
        return ("equal", "") if numbers[0] == numbers[1] else ("different", "the bases or digits differ")
    ends = last_side(answer).strip(), last_side(target).strip()
    if _EMPTY in ends:
        return ("equal", "") if ends[0] == ends[1] else ("different", "one is the empty set")
    if is_interval(target) != is_interval(answer):
        answer_too, target_too = interval_of(answer), interval_of(target)
        if answer_too is not None and target_too is None:
            answer = answer_too
        elif target_too is not None and answer_too is None:
            target = target_too
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


def _compare_tuple(ask: _Ask, whole: str, items: list[str], items_are_set: bool) -> _Decision:
    """Compare a pair, a tuple or an interval with a list: (1,2) with "1,2" or "x=1, y=2", in that order."""
    if items_are_set:
        return "different", "one is a set, the other a pair or an interval"
    named = sorted((split_assignment(item) for item in items), key=lambda pair: pair[0].lstrip("\\"))
    if all(name for name, _ in named):
        items = [value for _, value in named]
    if whole[0] + whole[-1] != "()":
        return "different", "one is a list"
    return ask(f"({','.join(items)})", whole)


def _compare_lists(ask: _Ask, answers: list[str], targets: list[str]) -> _Decision:
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
                    return "different", f"it also says {part[:40]!r}"
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


def _compare_values(ask: _Ask, answer: str, target: str) -> _Decision:
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
    return f"({value})/100" if _plain_value(value) is not None else f"\\frac{{{value}}}{{100}}"


def _compare_amounts(ask: _Ask, answer: str, target: str) -> _Decision:
    left, right = _plain_value(target), _plain_value(answer)
    if left is not None and right is not None:
        return ("equal" if _are_close(left, right, decimals_of(target, answer)) else "different"), ""
    if _SEVERAL_NUMBERS.search(answer) and not _SEVERAL_NUMBERS.search(target):
        return "different", "the answer has several numbers"
    for part in _claims(answer, target):
        verdict, reason = ask(part, last_side(target))
        if verdict != "equal":
            return "different", reason or f"the answer also says {part[:40]!r}"
    return ask(answer if "=" in target else last_side(answer), target)


def _plain_value(text: str) -> Number | None:
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


def _make_shared() -> MathChecker:
    checker = MathChecker(processors())
    atexit.register(checker.close)
    return checker


shared_checker = Shared(_make_shared)
"""Returns the `MathChecker` of this process."""
