"""Hard problems: integrals, remainders, logarithms, determinants, expansions, conditional chances."""

from __future__ import annotations

from fractions import Fraction
from math import comb, gcd, isqrt

from llm_envs.tasks.data.notation import Template, determinant, latex, matrix, polynomial, some
from llm_envs.tasks.draws import Random, between, pick, sample

__all__ = ["HARD"]


def _larger_root(random: Random) -> tuple[str, str]:
    while True:
        b, c = between(random, -9, 9), between(random, -20, 9)
        square = b * b - 4 * c
        if square > 0 and isqrt(square) ** 2 != square and all(square % (d * d) for d in range(2, 20)):
            root = f"\\frac{{{-b} + \\sqrt{{{square}}}}}{{2}}" if b else f"\\frac{{\\sqrt{{{square}}}}}{{2}}"
            return f"What is the larger solution of ${polynomial(1, b, c)} = 0$?", root


def _integral(random: Random) -> tuple[str, str]:
    a, b, c, low = between(random, 1, 6), some(random, -6, 6), some(random, -6, 6), between(random, -2, 1)
    high = low + between(random, 1, 3)

    def antiderivative(x: int) -> Fraction:
        return Fraction(a * x**3, 3) + Fraction(b * x * x, 2) + c * x

    value = latex(antiderivative(high) - antiderivative(low))
    return f"Compute $\\int_{{{low}}}^{{{high}}} ({polynomial(a, b, c)})\\,dx$.", value


def _remainder(random: Random) -> tuple[str, str]:
    base, exponent, modulus = between(random, 2, 12), between(random, 20, 200), between(random, 23, 99)
    question = f"What is the remainder of ${base}^{{{exponent}}}$ divided by ${modulus}$?"
    return question, str(pow(base, exponent, modulus))


def _squares_of_roots(random: Random) -> tuple[str, str]:
    p, q = some(random, -12, 12), some(random, -12, 12)
    question = f"Let $r$ and $s$ be the (perhaps complex) solutions of ${polynomial(1, p, q)} = 0$. "
    return f"{question}What is $r^2 + s^2$?", str(p * p - 2 * q)


def _divisors(random: Random) -> tuple[str, str]:
    powers = {p: between(random, 0, 4) for p in (2, 3, 5, 7)}
    number, count = 1, 1
    for p, power in powers.items():
        number *= p**power
        count *= power + 1
    return f"How many positive divisors does {number * 11} have?", str(2 * count)


def _logarithm(random: Random) -> tuple[str, str]:
    base, power, a, b = between(random, 2, 6), between(random, 2, 5), between(random, 2, 7), some(random, -20, 20)
    return f"Solve $\\log_{{{base}}}({polynomial(a, b)}) = {power}$ for $x$.", latex(Fraction(base**power - b, a))


def _geometric_series(random: Random) -> tuple[str, str]:
    first, below = between(random, 1, 20), between(random, 3, 11)
    ratio = Fraction(some(random, -(below - 1), below - 1), below)
    listed = ", ".join(f"${latex(first * ratio**i)}$" for i in range(3))
    question = f"A geometric series begins with the terms {listed}. What is the sum of all its infinitely many terms?"
    return question, latex(first / (1 - ratio))


def _line_and_parabola(random: Random) -> tuple[str, str]:
    r, s = sample(random, range(-6, 7), 2)
    slope, offset = some(random, -5, 5), between(random, -9, 9)
    parabola = polynomial(1, slope - r - s, offset + r * s)
    question = f"The line $y = {polynomial(slope, offset)}$ and the parabola $y = {parabola}$ enclose a region. "
    return f"{question}What is its area?", latex(Fraction(abs(r - s) ** 3, 6))


def _determinant(random: Random) -> tuple[str, str]:
    rows = [[between(random, -6, 9) for _ in range(3)] for _ in range(3)]
    return f"What is the determinant of ${matrix(rows)}$?", str(determinant(rows))


def _trace_of_square(random: Random) -> tuple[str, str]:
    rows = [[some(random, -6, 9) for _ in range(3)] for _ in range(3)]
    trace = sum(rows[i][j] * rows[j][i] for i in range(3) for j in range(3))
    return f"Let $A = {matrix(rows)}$. What is the trace of $A^2$?", str(trace)


def _modular_inverse(random: Random) -> tuple[str, str]:
    while True:
        modulus, a = between(random, 40, 250), between(random, 7, 39)
        if gcd(a, modulus) == 1 and pow(a, -1, modulus) != 1:
            question = f"Which number from 1 to {modulus - 1} gives the remainder 1 on division by {modulus}, if it is "
            return f"{question}multiplied by {a}?", str(pow(a, -1, modulus))


def _two_remainders(random: Random) -> tuple[str, str]:
    while True:
        m, n = sample(random, range(11, 40), 2)
        if gcd(m, n) == 1:
            x = between(random, max(m, n), m * n - 1)
            question = f"What is the smallest positive whole number with the remainders {x % m} on division by {m} and "
            return f"{question}{x % n} on division by {n}?", str(x)


def _trailing_zeros(random: Random) -> tuple[str, str]:
    n, left, zeros = between(random, 200, 3_000), 0, 0
    left = n
    while left := left // 5:
        zeros += left
    return f"How many zeros does ${n}!$ end in?", str(zeros)


def _coefficient(random: Random) -> tuple[str, str]:
    a, b, n = between(random, 2, 4), some(random, -4, 4), between(random, 5, 8)
    k = between(random, 2, n - 1)
    question = f"What is the coefficient of $x^{k}$ in the expansion of $({polynomial(a, b)})^{n}$?"
    return question, str(comb(n, k) * a**k * b ** (n - k))


def _bayes(random: Random) -> tuple[str, str]:
    share, first, second = between(random, 2, 20), 5 * between(random, 11, 19), between(random, 2, 12)
    right, wrong = Fraction(share * first, 10_000), Fraction((100 - share) * second, 10_000)
    question = (
        f"{share} percent of the parts are faulty. A test reports {first} percent of the faulty parts, and {second} "
        "percent of the others. What is the probability that a part that is reported is faulty?"
    )
    return question, latex(right / (right + wrong))


def _tangent(random: Random) -> tuple[str, str]:
    a, b, c, d, x = between(random, 1, 4), *(some(random, -9, 9) for _ in range(3)), some(random, -3, 3)
    value, slope = a * x**3 + b * x * x + c * x + d, 3 * a * x * x + 2 * b * x + c
    question = f"Where does the tangent of $y = {polynomial(a, b, c, d)}$ at $x = {x}$ meet the $y$-axis? Give its $y$."
    return question, str(value - slope * x)


def _recurrence(random: Random) -> tuple[str, str]:
    first, p, q, n = between(random, 1, 9), pick(random, (-3, -2, 2, 3)), some(random, -9, 9), between(random, 6, 9)
    value = first
    for _ in range(n - 1):
        value = p * value + q
    sign = "-" if q < 0 else "+"
    question = f"Let $a_1 = {first}$ and $a_{{n+1}} = {p} a_n {sign} {abs(q)}$. What is $a_{{{n}}}$?"
    return question, str(value)


def _paths(random: Random) -> tuple[str, str]:
    x, y = between(random, 5, 9), between(random, 5, 9)
    u, v = between(random, 1, x - 1), between(random, 1, y - 1)
    question = (
        f"In each step one may go one unit to the right or one up. How many ways lead from $(0, 0)$ to $({x}, {y})$ "
    )
    return f"{question}through $({u}, {v})$?", str(comb(u + v, u) * comb(x - u + y - v, x - u))


def _cubes_of_roots(random: Random) -> tuple[str, str]:
    p, q = some(random, -9, 9), some(random, -9, 9)
    question = f"Let $r$ and $s$ be the (perhaps complex) solutions of ${polynomial(1, p, q)} = 0$. "
    return f"{question}What is $r^3 + s^3$?", str(-(p**3) + 3 * p * q)


def _triangle(random: Random) -> tuple[str, str]:
    while True:
        a, b, c, d, e, f = (between(random, -9, 9) for _ in range(6))
        double = abs((c - a) * (f - b) - (e - a) * (d - b))
        if double:
            question = f"What is the area of the triangle with the corners $({a}, {b})$, $({c}, {d})$ and $({e}, {f})$?"
            return question, latex(Fraction(double, 2))


def _expected_gain(random: Random) -> tuple[str, str]:
    faces, prize, loss = between(random, 5, 20), between(random, 5, 40), between(random, 2, 9)
    least = between(random, 3, faces - 1)
    winning = faces - least + 1
    question = (
        f"A fair die has the faces 1 to {faces}. Who rolls at least {least} wins {prize} coins, and who does not loses "
        f"{loss}. What is the expected gain, in coins?"
    )
    return question, latex(Fraction(winning * prize - (least - 1) * loss, faces))


HARD: tuple[Template, ...] = (
    _larger_root,
    _integral,
    _remainder,
    _squares_of_roots,
    _divisors,
    _logarithm,
    _geometric_series,
    _line_and_parabola,
    _determinant,
    _trace_of_square,
    _modular_inverse,
    _two_remainders,
    _trailing_zeros,
    _coefficient,
    _bayes,
    _tangent,
    _recurrence,
    _paths,
    _cubes_of_roots,
    _triangle,
    _expected_gain,
)
