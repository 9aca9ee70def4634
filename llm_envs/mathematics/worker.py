"""The script with which math-verify compares formulas for `llm_envs.mathematics.equality`, in a bounded child.

It imports nothing of this package; `processes/child.py` runs it. Input is never executed: an audit hook refuses to
compile text, to start a process, to open a socket and to write a file, whatever sympy tries to do with a string.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
import time
from functools import partial
from typing import Any

MAX_MEMORY = 1 << 30
"""Address space of a child, bytes, with sympy itself (about 300 MB of it)."""
MAX_DEPTH = 2_000
"""Python's recursion limit in a child: latex2sympy descends once for each level of nesting."""
FLOAT_DIGITS = 6
"""Decimals to which math-verify rounds where a decimal number is compared."""

_WARM_UP = (
    ("\\frac{1}{2}", "0.5"),
    ("x^2-1", "(x-1)(x+1)"),
    ("\\{1,2\\}", "2,1"),
    ("x^2<9", "-3<x<3"),
    ("x^2=9", "x=3"),
    ("\\sin^2 x+\\cos^2 x", "1"),
    ("\\int_0^1 x dx", "\\sum_{n=1}^{3} n"),
    ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\lim_{x\\to 5} x"),
    ("[0,1)\\cup(2,3)", "e^{i\\pi}+\\log_2 8+5!"),
)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_DECIMALS = re.compile(r"\.([0-9]+)")


def read_number(text: str, *unused: Any, **unused_too: Any) -> Any:
    """Replace sympy's `parse_expr`, which passes text to `eval`: read a number, refuse everything else."""
    sympy: Any = importlib.import_module("sympy")
    text = text.strip()
    if _WHOLE.fullmatch(text):
        return sympy.Integer(int(text))
    if _DECIMAL.fullmatch(text):
        return sympy.Float(text)
    raise ValueError("only numbers are read from text")


def replace_eval() -> None:
    """Keep sympy from evaluating text: `sympy.Number("5")`, which reads every number, goes through `eval`."""
    sympy_parser: Any = importlib.import_module("sympy.parsing.sympy_parser")
    sympy_parser.parse_expr = read_number
    sympy_parser.eval_expr = read_number


def answer(request: dict[str, str]) -> dict[str, Any]:
    """Compare two expressions in LaTeX.

    Returns:
        `equal`, None if one of them cannot be read; `reason`, why; and `seconds` of processor time.
    """
    started = time.process_time()
    try:
        equal, reason = compare(request["answer"], request["target"])
    except Exception as error:
        equal, reason = None, type(error).__name__
    return {"equal": equal, "reason": reason, "seconds": time.process_time() - started}


def compare(answer: str, target: str) -> tuple[bool | None, str]:
    """Return whether the two are equal, or None and the reason."""
    from math_verify import verify

    right = read(target)
    given = None if right is None else read(answer)
    if given is None:
        return None, f"the {'target' if right is None else 'answer'} cannot be read"
    is_equal = bool(verify([right], [given], float_rounding=FLOAT_DIGITS, timeout_seconds=None))
    return is_equal and not is_rounded_away(right, given, decimals_of(target, answer)), ""


def read(text: str) -> Any:
    """Return the sympy object for a text in LaTeX, or None."""
    from math_verify import LatexExtractionConfig, parse

    config = [LatexExtractionConfig(boxed_match_priority=-1)]
    found = parse(f"${text}$", config, fallback_mode="no_fallback", extraction_mode="first_match", parsing_timeout=None)
    return found[0] if len(found) == 1 else None


def decimals_of(*texts: str) -> int | None:
    """Return to how many decimals numbers in some texts are rounded; None without a decimal. Short ones are exact."""
    found = [max(map(len, decimals)) for decimals in map(_DECIMALS.findall, texts) if decimals]
    return min((n for n in found if n >= FLOAT_DIGITS), default=max(found, default=None))


def is_rounded_away(target: Any, answer: Any, decimals: int | None) -> bool:
    """Return whether numbers are equal only because both round to the same decimals: 0.0000001 is not 0."""
    try:
        lefts, rights = numbers_in(target), numbers_in(answer)
        return len(lefts) == len(rights) and any(map(partial(is_too_far, decimals), lefts, rights))
    except Exception:  # not numbers after all: verify has compared them in another way
        return False


def numbers_in(expression: Any) -> list[complex]:
    """Return a number, or the numbers of a tuple, a set or an interval in their order."""
    if expression.is_number:
        return [complex(expression.evalf(20))] if expression.is_finite is not False else []
    if type(expression).__name__ not in ("FiniteSet", "Interval", "Tuple", "Union"):
        return []
    found = [number for part in expression.args if not part.is_Boolean for number in numbers_in(part)]
    return sorted(found, key=lambda number: (number.real, number.imag))


def is_too_far(decimals: int | None, left: complex, right: complex) -> bool:
    """Return whether two numbers, or their hundredths, differ by more than the rounding to some decimals."""
    difference = min(abs(left - right), abs(left - right * 100), abs(left * 100 - right))
    rounding = math.inf if decimals is None else 0.5 * 10.0**-decimals + 1e-13
    return difference > min(1e-6 * min(1.0, max(abs(left), abs(right))), rounding)


def load() -> None:
    """Load what comparisons load on demand: parts of sympy hand their own constants to `eval` as they are loaded."""
    importlib.import_module("sympy.physics.units")
    importlib.import_module("sympy.solvers.inequalities")

    for target, answer in _WARM_UP:
        compare(answer, target)
    replace_eval()
    sys.setrecursionlimit(MAX_DEPTH)
