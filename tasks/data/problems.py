"""Problems of mathematics with exact answers in LaTeX, made from templates: the default of `llm/DatasetMath-v0`.

No answer can be had by repeating an expression of its question: either the question has none of that value, or what it
has is not worked out, which `llm_envs.rewards.math_match` refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import comb, gcd, isqrt
from random import Random as Generator

from llm_envs.tasks.draws import Random, between, pick, sample

__all__ = ["PER_TEMPLATE", "TEMPLATES", "make_problems"]

PER_TEMPLATE = 200
"""Problems drawn from each template; those that come out the same are one."""

Template = Callable[[Random], tuple[str, str]]
"""Returns a question and its answer."""


@lru_cache(maxsize=4)
def make_problems(difficulty: str) -> tuple[tuple[str, str], ...]:
    """Return the questions of a level with their answers, the same ones each time."""
    problems: dict[str, str] = {}
    for number, template in enumerate(TEMPLATES[difficulty]):
        random = Generator(f"{difficulty} {number}").random
        for _ in range(PER_TEMPLATE):
            question, answer = template(random)
            problems.setdefault(question, answer)
    return tuple(problems.items())


def _latex(value: Fraction | int) -> str:
    value = Fraction(value)
    if value.denominator == 1:
        return str(value.numerator)
    return f"{'-' if value < 0 else ''}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _polynomial(*coefficients: int) -> str:
    """Write a polynomial in x, the highest power first."""
    text = ""
    for place, a in enumerate(coefficients):
        power = len(coefficients) - 1 - place
        if a:
            size = "" if abs(a) == 1 and power else str(abs(a))
            text += f" {'-' if a < 0 else '+'} {size}{('', 'x')[power > 0]}{f'^{power}' if power > 1 else ''}"
    return (f"-{text[3:]}" if text[:2] == " -" else text[3:]) or "0"


def _some(random: Random, low: int, high: int) -> int:
    """Draw a whole number that is not 0."""
    return between(random, low, high) or high


# Easy.


def _sum_of_fractions(random: Random) -> tuple[str, str]:
    b, d = sample(random, range(2, 13), 2)
    a, c = between(random, 1, b - 1), between(random, 1, d - 1)
    return f"Compute $\\frac{{{a}}}{{{b}}} + \\frac{{{c}}}{{{d}}}$.", _latex(Fraction(a, b) + Fraction(c, d))


def _linear_equation(random: Random) -> tuple[str, str]:
    a, b, c = between(random, 2, 12), _some(random, -20, 20), between(random, -30, 30)
    return f"Solve ${_polynomial(a, b)} = {c}$ for $x$.", _latex(Fraction(c - b, a))


def _percentage(random: Random) -> tuple[str, str]:
    percent, whole = 5 * between(random, 1, 19), between(random, 3, 60) * 20
    return f"What is ${percent}\\%$ of ${whole}$?", str(percent * whole // 100)


def _common_divisor(random: Random) -> tuple[str, str]:
    factor, (a, b) = between(random, 6, 30), sample(random, range(2, 15), 2)
    return (
        f"What is the greatest common divisor of {factor * a} and {factor * b}?",
        str(gcd(factor * a, factor * b)),
    )


def _common_multiple(random: Random) -> tuple[str, str]:
    a, b = sample(random, range(6, 40), 2)
    return f"What is the least common multiple of {a} and {b}?", str(a * b // gcd(a, b))


def _value_of_polynomial(random: Random) -> tuple[str, str]:
    a, b, c, x = between(random, 2, 6), _some(random, -9, 9), _some(random, -9, 9), _some(random, -6, 6)
    return f"Let $f(x) = {_polynomial(a, b, c)}$. What is $f({x})$?", str(a * x * x + b * x + c)


def _hypotenuse(random: Random) -> tuple[str, str]:
    m = between(random, 2, 7)
    n = between(random, 1, m - 1)
    factor = between(random, 1, 4)
    a, b, c = factor * (m * m - n * n), factor * 2 * m * n, factor * (m * m + n * n)
    return f"The legs of a right triangle are {a} and {b} long. How long is the hypotenuse?", str(c)


def _mean(random: Random) -> tuple[str, str]:
    numbers = [between(random, 1, 60) for _ in range(between(random, 3, 6))]
    return f"What is the mean of {', '.join(map(str, numbers))}?", _latex(Fraction(sum(numbers), len(numbers)))


# Medium.


def _quadratic_roots(random: Random) -> tuple[str, str]:
    r, s = sample(random, range(-9, 10), 2)
    a = pick(random, (1, 1, 2, 3))
    low, high = sorted((r, s))
    return f"Find all solutions of ${_polynomial(a, -a * (r + s), a * r * s)} = 0$.", f"\\{{{low}, {high}\\}}"


def _inequality(random: Random) -> tuple[str, str]:
    a, b, c = _some(random, -9, 9), _some(random, -20, 20), between(random, -30, 30)
    bound = _latex(Fraction(c - b, a))
    solution = f"(-\\infty, {bound})" if a > 0 else f"({bound}, \\infty)"
    return f"For which real $x$ is ${_polynomial(a, b)} < {c}$? Give an interval.", solution


def _derivative(random: Random) -> tuple[str, str]:
    a, b, c, d = between(random, 2, 7), _some(random, -9, 9), _some(random, -9, 9), _some(random, -9, 9)
    return f"Let $f(x) = {_polynomial(a, b, c, d)}$. What is $f'(x)$?", _polynomial(3 * a, 2 * b, c)


def _pair_of_equations(random: Random) -> tuple[str, str]:
    x, y = between(random, -9, 9), between(random, -9, 9)
    a, b, c, d = (_some(random, -6, 6) for _ in range(4))
    if a * d == b * c:
        d += 2 if d == -1 else 1  # not 0, either
    lines = [f"{_polynomial(p, 0)} {'-' if q < 0 else '+'} {abs(q)}y = {p * x + q * y}" for p, q in ((a, b), (c, d))]
    return f"Solve ${lines[0]}$ and ${lines[1]}$. Give the ordered pair $(x, y)$.", f"({x}, {y})"


def _arithmetic_series(random: Random) -> tuple[str, str]:
    first, step, n = between(random, -10, 20), _some(random, -5, 9), between(random, 12, 60)
    listed = ", ".join(str(first + i * step) for i in range(3))
    total = n * (2 * first + (n - 1) * step) // 2
    return f"What is the sum of the first {n} terms of the arithmetic sequence {listed}, ...?", str(total)


def _circle(random: Random) -> tuple[str, str]:
    radius = between(random, 3, 30)
    if random() < 0.5:
        return f"What is the area of a circle of diameter {2 * radius}?", f"{radius * radius}\\pi"
    return f"A circle has the area ${radius * radius}\\pi$. What is its circumference?", f"{2 * radius}\\pi"


def _probability(random: Random) -> tuple[str, str]:
    red, blue = between(random, 3, 9), between(random, 3, 9)
    both = Fraction(comb(red, 2), comb(red + blue, 2))
    question = f"A bag has {red} red and {blue} blue balls. Two are drawn without putting back. "
    return f"{question}What is the probability that both are red?", _latex(both)


def _committees(random: Random) -> tuple[str, str]:
    n, k = between(random, 7, 14), between(random, 2, 4)
    return f"In how many ways can {k} of {n} people be chosen, if the order does not matter?", str(comb(n, k))


# Hard.


def _larger_root(random: Random) -> tuple[str, str]:
    while True:
        b, c = between(random, -9, 9), between(random, -20, 9)
        square = b * b - 4 * c
        if square > 0 and isqrt(square) ** 2 != square and all(square % (d * d) for d in range(2, 20)):
            root = f"\\frac{{{-b} + \\sqrt{{{square}}}}}{{2}}" if b else f"\\frac{{\\sqrt{{{square}}}}}{{2}}"
            return f"What is the larger solution of ${_polynomial(1, b, c)} = 0$?", root


def _integral(random: Random) -> tuple[str, str]:
    a, b, c, low = between(random, 1, 6), _some(random, -6, 6), _some(random, -6, 6), between(random, -2, 1)
    high = low + between(random, 1, 3)

    def antiderivative(x: int) -> Fraction:
        return Fraction(a * x**3, 3) + Fraction(b * x * x, 2) + c * x

    value = _latex(antiderivative(high) - antiderivative(low))
    return f"Compute $\\int_{{{low}}}^{{{high}}} ({_polynomial(a, b, c)})\\,dx$.", value


def _remainder(random: Random) -> tuple[str, str]:
    base, exponent, modulus = between(random, 2, 12), between(random, 20, 200), between(random, 23, 99)
    question = f"What is the remainder of ${base}^{{{exponent}}}$ divided by ${modulus}$?"
    return question, str(pow(base, exponent, modulus))


def _squares_of_roots(random: Random) -> tuple[str, str]:
    p, q = _some(random, -12, 12), _some(random, -12, 12)
    question = f"Let $r$ and $s$ be the (perhaps complex) solutions of ${_polynomial(1, p, q)} = 0$. "
    return f"{question}What is $r^2 + s^2$?", str(p * p - 2 * q)


def _divisors(random: Random) -> tuple[str, str]:
    powers = {p: between(random, 0, 4) for p in (2, 3, 5, 7)}
    number, count = 1, 1
    for p, power in powers.items():
        number *= p**power
        count *= power + 1
    return f"How many positive divisors does {number * 11} have?", str(2 * count)


def _logarithm(random: Random) -> tuple[str, str]:
    base, power, a, b = between(random, 2, 6), between(random, 2, 5), between(random, 2, 7), _some(random, -20, 20)
    return f"Solve $\\log_{{{base}}}({_polynomial(a, b)}) = {power}$ for $x$.", _latex(Fraction(base**power - b, a))


def _geometric_series(random: Random) -> tuple[str, str]:
    first, below = between(random, 1, 20), between(random, 3, 11)
    ratio = Fraction(_some(random, -(below - 1), below - 1), below)
    listed = ", ".join(f"${_latex(first * ratio**i)}$" for i in range(3))
    question = f"A geometric series begins with the terms {listed}. What is the sum of all its infinitely many terms?"
    return question, _latex(first / (1 - ratio))


def _line_and_parabola(random: Random) -> tuple[str, str]:
    r, s = sample(random, range(-6, 7), 2)
    slope, offset = _some(random, -5, 5), between(random, -9, 9)
    parabola = _polynomial(1, slope - r - s, offset + r * s)
    question = f"The line $y = {_polynomial(slope, offset)}$ and the parabola $y = {parabola}$ enclose a region. "
    return f"{question}What is its area?", _latex(Fraction(abs(r - s) ** 3, 6))


TEMPLATES: Mapping[str, tuple[Template, ...]] = {
    "easy": (
        _sum_of_fractions,
        _linear_equation,
        _percentage,
        _common_divisor,
        _common_multiple,
        _value_of_polynomial,
        _hypotenuse,
        _mean,
    ),
    "medium": (
        _quadratic_roots,
        _inequality,
        _derivative,
        _pair_of_equations,
        _arithmetic_series,
        _circle,
        _probability,
        _committees,
    ),
    "hard": (
        _larger_root,
        _integral,
        _remainder,
        _squares_of_roots,
        _divisors,
        _logarithm,
        _geometric_series,
        _line_and_parabola,
    ),
}
"""The templates of each level."""
