"""Values of the published answers of mathematics, drawn for the forms of `math_forms.py`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from fractions import Fraction

__all__ = ["DRAWN", "QUESTIONS", "Values"]

Values = dict[str, str]
"""The published answer, "target", and what its forms are made of."""


def _latex(value: Fraction | int) -> str:
    value = Fraction(value)
    sign = "-" if value < 0 else ""
    return str(value) if value.denominator == 1 else f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _integer(rng: random.Random) -> Values:
    a, b = rng.randint(3, 40), rng.randint(3, 12)
    n = a * b
    return {
        "target": str(n),
        **{"n": str(n), "up": str(n + 1), "down": str(n - 1), "a": str(a), "b": str(b), "rest": str(n - a)},
        **{"twice": str(2 * n), "digits": f"{n}"[::-1] if f"{n}"[::-1] != f"{n}" else f"{n}1", "more": str(n + a)},
    }


def _negative(rng: random.Random) -> Values:
    n = rng.randint(2, 400)
    return {"target": f"-{n}", "n": str(n), "up": str(n + 1)}


def _large(rng: random.Random) -> Values:
    a, b, c = rng.randint(1, 99), rng.randint(100, 999), rng.randint(100, 999)
    return {"target": f"{a}{b}{c}", "a": str(a), "b": str(b), "c": str(c), "up": str(c + 1)}


def _power_of_ten(rng: random.Random) -> Values:
    n = rng.randint(4, 8)
    return {"target": str(10**n), "k": str(n), "up": str(n + 1)}


def _fraction(rng: random.Random) -> Values:
    value = Fraction(rng.randint(1, 40), rng.choice((3, 7, 9, 11, 13, 21)))
    while value.denominator == 1 or value == Fraction(1, 2):
        value = Fraction(rng.randint(1, 40), rng.choice((3, 7, 9, 11, 13, 21)))
    p, q = value.numerator, value.denominator
    return {
        "target": _latex(value),
        **{"p": str(p), "q": str(q), "pp": str(2 * p), "qq": str(2 * q), "up": str(p + 1), "next": str(q + 1)},
        **{"round": f"{p / q:.8f}", "short": f"{p / q:.2f}", "off": f"{p / q + 2e-7:.8f}", "left": _latex(value - 1)},
        **{"plain": f"{p}{q}" if p < 10 and q < 10 else f"{{{p}}}{{{q}}}"},
    }


def _negative_fraction(rng: random.Random) -> Values:
    drawn = _fraction(rng)
    return drawn | {"target": f"-{drawn['target']}"}


def _mixed(rng: random.Random) -> Values:
    w, q = rng.randint(1, 9), rng.randint(3, 9)
    r = next(r for r in range(q - 1, 0, -1) if math.gcd(r, q) == 1)
    return {"target": _latex(w + Fraction(r, q)), "w": str(w), "r": str(r), "q": str(q), "wrong": str(w + 1)}


def _repeating(rng: random.Random) -> Values:
    n = rng.choice((1, 2, 4, 5, 7, 8))
    return {"target": _latex(Fraction(n, 9)), "n": str(n), "wrong": str(n + 1)}


def _terminating(rng: random.Random) -> Values:
    n = rng.choice((1, 3, 7, 9, 11, 13, 17, 19))
    value = Fraction(n, 20)
    return {
        "target": _latex(value),
        **{"d": f"{n / 20:.2f}", "bare": f"{n / 20:.2f}".removeprefix("0"), "percent": str(5 * n)},
        **{"tenth": f"{n / 200:.3f}", "n": str(n), "wrong": f"{n / 20 + 0.01:.2f}"},
    }


def _decimal(rng: random.Random) -> Values:
    n = rng.randint(11, 999) * 2 + 1
    return {
        "target": f"{n / 1000:.3f}",
        **{"d": f"{n / 1000:.3f}", "bare": f"{n / 1000:.3f}".removeprefix("0"), "n": str(n)},
        **{"wrong": f"{(n + 1) / 1000:.3f}", "ten": f"{n / 100:.2f}", "percent": f"{n / 10:.1f}"},
    }


def _money(rng: random.Random) -> Values:
    n, cents = rng.randint(2, 90), rng.randint(1, 9)
    return {"target": f"\\${n}.{cents}0", "d": f"{n}.{cents}0", "s": f"{n}.{cents}", "wrong": f"{n}.0{cents}"}


def _percent(rng: random.Random) -> Values:
    n = rng.randint(2, 98)
    return {"target": f"{n}\\%", "n": str(n), "d": f"{n / 100:.2f}", "up": str(n + 1), "small": f"{n / 10000:.4f}"}


def _angle(rng: random.Random) -> Values:
    n = rng.randint(2, 178)
    return {"target": f"{n}^\\circ", "n": str(n), "up": str(n + 1), "other": str(180 - n if n != 90 else 45)}


def _root(rng: random.Random) -> Values:
    a, b = rng.randint(2, 12), rng.choice((2, 3, 5, 6, 7, 10, 11, 13))
    return {
        "target": f"{a}\\sqrt{{{b}}}",
        **{"a": str(a), "b": str(b), "square": str(a * a * b), "up": str(a + 1), "next": str(b + 1)},
        **{"short": f"{a * b**0.5:.2f}", "product": str(a * b)},
    }


def _pi(rng: random.Random) -> Values:
    a = rng.randint(2, 500)
    return {"target": f"{a}\\pi", "a": str(a), "up": str(a + 1), "short": f"{a * math.pi:.2f}"}


def _complex(rng: random.Random) -> Values:
    a, b = rng.sample(range(2, 30), 2)
    return {"target": f"{a} + {b} i" if rng.random() < 0.5 else f"{a}+{b}i", "a": str(a), "b": str(b), "up": str(b + 1)}


def _polynomial(rng: random.Random) -> Values:
    a, b, c = rng.sample(range(2, 20), 3)
    return {"target": f"{a}x^2 + {b}x - {c}", "a": str(a), "b": str(b), "c": str(c), "up": str(b + 1)}


def _two(rng: random.Random) -> Values:
    a, b = sorted(rng.sample(range(-15, 25), 2))
    while a + b in (a, b) or -a in (a, b) or a == -b:
        a, b = sorted(rng.sample(range(-15, 25), 2))
    return {"a": str(a), "b": str(b), "up": str(b + 1), "minus": str(-a), "sum": str(a + b), "c": str(b + 7)}


def _set(rng: random.Random) -> Values:
    return (drawn := _two(rng)) | {"target": f"\\{{{drawn['a']}, {drawn['b']}\\}}"}


def _pair(rng: random.Random) -> Values:
    return (drawn := _two(rng)) | {"target": f"({drawn['a']}, {drawn['b']})"}


def _ray(rng: random.Random) -> Values:
    return (drawn := _two(rng)) | {"target": f"({drawn['a']}, \\infty)"}


def _interval(rng: random.Random) -> Values:
    return (drawn := _two(rng)) | {"target": f"[{drawn['a']}, {drawn['b']})"}


def _union(rng: random.Random) -> Values:
    return (drawn := _two(rng)) | {"target": f"(-\\infty, {drawn['a']}) \\cup ({drawn['b']}, \\infty)"}


def _empty(rng: random.Random) -> Values:
    return {"target": rng.choice(("\\{\\}", "\\emptyset"))}


def _word(rng: random.Random) -> Values:
    right, wrong = rng.choice((("even", "odd"), ("Evelyn", "Briana"), ("ellipse", "circle"), ("odd", "even")))
    return {"target": f"\\text{{{right}}}", "w": right, "big": right.capitalize(), "other": wrong}


def _letter(rng: random.Random) -> Values:
    right, wrong = rng.sample("ABCDE", 2)
    return {"target": f"\\text{{({right})}}", "w": right, "other": wrong}


def _base(rng: random.Random) -> Values:
    n, k = "".join(rng.choice("1234") for _ in range(4)), rng.randint(5, 8)
    return {"target": f"{n}_{k}", "n": n, "k": str(k), "up": str(k + 1), "other": f"{n[1:]}{n[0]}1"}


def _matrix(rng: random.Random) -> Values:
    a, b, c, d = rng.sample(range(-9, 20), 4)
    return {
        "target": f"\\begin{{pmatrix}} {a} & {b} \\\\ {c} & {d} \\end{{pmatrix}}",
        **{"a": str(a), "b": str(b), "c": str(c), "d": str(d)},
    }


def _ratio(rng: random.Random) -> Values:
    a, b = rng.choice(((2, 3), (5, 2), (4, 7), (9, 5), (1, 6)))
    return {"target": f"{a}:{b}", "a": str(a), "b": str(b)}


def _date(rng: random.Random) -> Values:
    month, n = rng.choice(("June", "March", "October")), rng.randint(4, 19)
    return {"target": f"\\text{{{month} {n}}}", "w": month, "n": str(n), "up": str(n + 1)}


def _time(rng: random.Random) -> Values:
    n, m = rng.randint(1, 9), rng.randint(13, 58)
    return {"target": f"\\text{{{n}:{m} p.m.}}", "n": str(n), "m": str(m), "up": str(n + 1)}


def _polar(rng: random.Random) -> Values:
    a, b = rng.randint(2, 9), rng.choice((2, 3, 4, 6))
    return {"target": f"\\left( {a}, \\frac{{\\pi}}{{{b}}} \\right)", "a": str(a), "b": str(b)}


def _logarithm(rng: random.Random) -> Values:
    a, b = rng.sample((3, 5, 6, 7, 11, 13), 2)
    return {"target": f"\\log_2 {a}", "a": str(a), "b": str(b)}


def _letters(rng: random.Random) -> Values:
    a, b, c = sorted(rng.sample("ABCDE", 3))
    return {"target": f"\\text{{{a}, {b}}}", "a": a, "b": b, "c": c}


def _inequality(rng: random.Random) -> Values:
    return (drawn := _two(rng)) | {"target": f"{drawn['a']} < x < {drawn['b']}"}


def _line(rng: random.Random) -> Values:
    a, b = rng.sample(range(2, 15), 2)
    return {"target": f"y = {a}x + {b}", "a": str(a), "b": str(b)}


DRAWN: Mapping[str, Callable[[random.Random], Values]] = {
    "a whole number": _integer, "a negative number": _negative, "a large number": _large,
    "a power of ten": _power_of_ten, "a fraction": _fraction,
    "a negative fraction": _negative_fraction, "a mixed number": _mixed, "ninths": _repeating,
    "twentieths": _terminating, "a decimal": _decimal, "money": _money, "percent": _percent, "an angle": _angle,
    "a root": _root, "a multiple of pi": _pi, "a complex number": _complex, "a polynomial": _polynomial,
    "a set": _set, "a pair": _pair, "a ray": _ray, "an interval": _interval, "a union": _union,
    "the empty set": _empty, "a word": _word, "a choice": _letter, "a number in a base": _base, "a matrix": _matrix,
    "a ratio": _ratio, "a date": _date, "a time": _time, "polar coordinates": _polar, "a line": _line,
    "a logarithm": _logarithm, "letters": _letters, "an inequality": _inequality,
    "a percentage that is asked for": _integer,
    "an angle that is asked for": _fraction,
}  # fmt: skip
"""How the values of each kind of answer are drawn."""
QUESTIONS: Mapping[str, str] = {
    "a percentage that is asked for": "What percent of the balls are red?",
    "an angle that is asked for": "How large is the angle, in degrees?",
}
"""Of the kinds whose question matters."""
