"""Medium problems: roots, intervals, derivatives, series, lines, chances."""

from __future__ import annotations

from fractions import Fraction
from math import comb

from llm_envs.tasks.data.notation import Template, latex, polynomial, some
from llm_envs.tasks.draws import Random, between, pick, sample, shuffled

__all__ = ["MEDIUM"]


def _quadratic_roots(random: Random) -> tuple[str, str]:
    r, s = sample(random, range(-9, 10), 2)
    a = pick(random, (1, 1, 2, 3))
    low, high = sorted((r, s))
    return f"Find all solutions of ${polynomial(a, -a * (r + s), a * r * s)} = 0$.", f"\\{{{low}, {high}\\}}"


def _inequality(random: Random) -> tuple[str, str]:
    a, b, c = some(random, -9, 9), some(random, -20, 20), between(random, -30, 30)
    bound = latex(Fraction(c - b, a))
    solution = f"(-\\infty, {bound})" if a > 0 else f"({bound}, \\infty)"
    return f"For which real $x$ is ${polynomial(a, b)} < {c}$? Give an interval.", solution


def _derivative(random: Random) -> tuple[str, str]:
    a, b, c, d = between(random, 2, 7), some(random, -9, 9), some(random, -9, 9), some(random, -9, 9)
    return f"Let $f(x) = {polynomial(a, b, c, d)}$. What is $f'(x)$?", polynomial(3 * a, 2 * b, c)


def _pair_of_equations(random: Random) -> tuple[str, str]:
    x, y = between(random, -9, 9), between(random, -9, 9)
    a, b, c, d = (some(random, -6, 6) for _ in range(4))
    if a * d == b * c:
        d += 2 if d == -1 else 1  # not 0, either
    lines = [f"{polynomial(p, 0)} {'-' if q < 0 else '+'} {abs(q)}y = {p * x + q * y}" for p, q in ((a, b), (c, d))]
    return f"Solve ${lines[0]}$ and ${lines[1]}$. Give the ordered pair $(x, y)$.", f"({x}, {y})"


def _arithmetic_series(random: Random) -> tuple[str, str]:
    first, step, n = between(random, -10, 20), some(random, -5, 9), between(random, 12, 60)
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
    return f"{question}What is the probability that both are red?", latex(both)


def _committees(random: Random) -> tuple[str, str]:
    n, k = between(random, 7, 14), between(random, 2, 4)
    return f"In how many ways can {k} of {n} people be chosen, if the order does not matter?", str(comb(n, k))


def _slope(random: Random) -> tuple[str, str]:
    (x, u), y, v = sample(random, range(-9, 10), 2), between(random, -12, 12), between(random, -12, 12)
    return f"What is the slope of the line through $({x}, {y})$ and $({u}, {v})$?", latex(Fraction(v - y, u - x))


def _midpoint(random: Random) -> tuple[str, str]:
    x, y, u, v = (between(random, -20, 20) for _ in range(4))
    middle = f"({latex(Fraction(x + u, 2))}, {latex(Fraction(y + v, 2))})"
    return f"What is the midpoint of the segment from $({x}, {y})$ to $({u}, {v})$? Give an ordered pair.", middle


def _vertex(random: Random) -> tuple[str, str]:
    a, h, k = pick(random, (-3, -2, -1, 2, 3)), some(random, -8, 8), some(random, -20, 20)
    question = (
        f"Where is the vertex of the parabola $y = {polynomial(a, -2 * a * h, a * h * h + k)}$? Give an ordered pair."
    )
    return question, f"({h}, {k})"


def _discriminant(random: Random) -> tuple[str, str]:
    a, b, c = between(random, 2, 9), some(random, -15, 15), some(random, -9, 9)
    return f"What is the discriminant of ${polynomial(a, b, c)}$?", str(b * b - 4 * a * c)


def _geometric_sequence(random: Random) -> tuple[str, str]:
    first, ratio, n = between(random, 2, 9), pick(random, (-3, -2, 2, 3)), between(random, 6, 9)
    listed = ", ".join(str(first * ratio**i) for i in range(3))
    return f"What is term number {n} of the geometric sequence {listed}, ...?", str(first * ratio ** (n - 1))


def _sector(random: Random) -> tuple[str, str]:
    angle, radius = 30 * between(random, 1, 11), 6 * between(random, 1, 9)
    question = f"A sector of a circle of radius {radius} has an angle of {angle} degrees. What is its area?"
    return question, f"{angle * radius * radius // 360}\\pi"


def _two_dice(random: Random) -> tuple[str, str]:
    first, second = sample(random, range(4, 13), 2)
    least = between(random, 4, first + second - 2)
    rolls = [(a, b) for a in range(1, first + 1) for b in range(1, second + 1)]
    chance = Fraction(sum(a + b >= least for a, b in rolls), len(rolls))
    question = f"A fair die has the faces 1 to {first}, another one the faces 1 to {second}. Both are rolled. "
    return f"{question}What is the probability that their sum is at least {least}?", latex(chance)


def _letters(random: Random) -> tuple[str, str]:
    counts = [between(random, 1, 4) for _ in range(between(random, 2, 4))]
    ways, letters = 1, ""
    for count, letter in zip(counts, sample(random, "ABCDEFGH", len(counts)), strict=True):
        ways *= comb(len(letters) + count, count)
        letters += letter * count
    word = "".join(shuffled(random, letters))
    return f"In how many different ways can the letters of {word} be arranged?", str(ways)


def _polynomial_remainder(random: Random) -> tuple[str, str]:
    a, b, c, d, r = between(random, 1, 5), *(some(random, -9, 9) for _ in range(3)), some(random, -4, 4)
    question = f"What is the remainder of ${polynomial(a, b, c, d)}$ on division by ${polynomial(1, -r)}$?"
    return question, str(a * r**3 + b * r * r + c * r + d)


def _composition(random: Random) -> tuple[str, str]:
    a, b, c, d, x = (
        between(random, 2, 5),
        some(random, -9, 9),
        between(random, 2, 5),
        some(random, -9, 9),
        some(random, -4, 4),
    )
    inner = c * x + d
    question = f"Let $f(x) = {polynomial(a, 0, b)}$ and $g(x) = {polynomial(c, d)}$. What is $f(g({x}))$?"
    return question, str(a * inner * inner + b)


def _inverse(random: Random) -> tuple[str, str]:
    a, b, c, y = between(random, 2, 9), some(random, -12, 12), between(random, 2, 9), between(random, -9, 9)
    question = f"Let $f(x) = \\frac{{{polynomial(a, b)}}}{{{c}}}$. For which $x$ is $f(x) = {y}$?"
    return question, latex(Fraction(c * y - b, a))


def _sum_of_multiples(random: Random) -> tuple[str, str]:
    step, most = between(random, 3, 15), between(random, 100, 400)
    n = most // step
    return f"What is the sum of all positive multiples of {step} up to {most}?", str(step * n * (n + 1) // 2)


def _second_derivative(random: Random) -> tuple[str, str]:
    a, b, c, d, x = between(random, 2, 7), *(some(random, -9, 9) for _ in range(3)), some(random, -5, 5)
    question = f"Let $f(x) = {polynomial(a, b, c, d)}$. What is $f''({x})$?"
    return question, str(6 * a * x + 2 * b)


def _mixture(random: Random) -> tuple[str, str]:
    a, b = 10 * between(random, 2, 40), 10 * between(random, 2, 40)
    p, q = sample(random, range(5, 95, 5), 2)
    question = f"{a} g of a solution with {p} percent salt are mixed with {b} g of one with {q} percent. "
    return f"{question}How many grams of salt are in the mixture?", latex(Fraction(a * p + b * q, 100))


def _work(random: Random) -> tuple[str, str]:
    a, b = sample(random, range(3, 25), 2)
    question = f"One pump empties a tank in {a} hours, another one in {b} hours. How many hours do both take together?"
    return question, latex(Fraction(a * b, a + b))


MEDIUM: tuple[Template, ...] = (
    _quadratic_roots,
    _inequality,
    _derivative,
    _pair_of_equations,
    _arithmetic_series,
    _circle,
    _probability,
    _committees,
    _slope,
    _midpoint,
    _vertex,
    _discriminant,
    _geometric_sequence,
    _sector,
    _two_dice,
    _letters,
    _polynomial_remainder,
    _composition,
    _inverse,
    _sum_of_multiples,
    _second_derivative,
    _mixture,
    _work,
)
