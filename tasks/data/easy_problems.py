"""Easy problems: fractions, equations, percentages, divisors, means, areas."""

from __future__ import annotations

from fractions import Fraction
from math import gcd

from llm_envs.tasks.data.notation import Template, latex, polynomial, some
from llm_envs.tasks.draws import Random, between, pick, sample

__all__ = ["EASY"]


def _sum_of_fractions(random: Random) -> tuple[str, str]:
    b, d = sorted(sample(random, range(2, 13), 2))
    a, c = between(random, 1, b - 1), between(random, 1, d - 1)
    return f"Compute $\\frac{{{a}}}{{{b}}} + \\frac{{{c}}}{{{d}}}$.", latex(Fraction(a, b) + Fraction(c, d))


def _linear_equation(random: Random) -> tuple[str, str]:
    a, b, c = between(random, 2, 12), some(random, -20, 20), between(random, -30, 30)
    return f"Solve ${polynomial(a, b)} = {c}$ for $x$.", latex(Fraction(c - b, a))


def _percentage(random: Random) -> tuple[str, str]:
    percent, whole = 5 * between(random, 1, 19), between(random, 3, 60) * 20
    return f"What is ${percent}\\%$ of ${whole}$?", str(percent * whole // 100)


def _common_divisor(random: Random) -> tuple[str, str]:
    factor, (a, b) = between(random, 6, 30), sorted(sample(random, range(2, 15), 2))
    return (
        f"What is the greatest common divisor of {factor * a} and {factor * b}?",
        str(gcd(factor * a, factor * b)),
    )


def _common_multiple(random: Random) -> tuple[str, str]:
    factor, (a, b) = between(random, 2, 9), sample(random, range(2, 12), 2)
    low, high = sorted((factor * a, factor * b))
    return f"What is the least common multiple of {low} and {high}?", str(low * high // gcd(low, high))


def _value_of_polynomial(random: Random) -> tuple[str, str]:
    a, b, c, x = between(random, 2, 6), some(random, -9, 9), some(random, -9, 9), some(random, -6, 6)
    return f"Let $f(x) = {polynomial(a, b, c)}$. What is $f({x})$?", str(a * x * x + b * x + c)


def _hypotenuse(random: Random) -> tuple[str, str]:
    m = between(random, 2, 7)
    n = between(random, 1, m - 1)
    factor = between(random, 1, 4)
    a, b, c = factor * (m * m - n * n), factor * 2 * m * n, factor * (m * m + n * n)
    return f"The legs of a right triangle are {a} and {b} long. How long is the hypotenuse?", str(c)


def _mean(random: Random) -> tuple[str, str]:
    numbers = [between(random, 1, 60) for _ in range(between(random, 3, 6))]
    return f"What is the mean of {', '.join(map(str, numbers))}?", latex(Fraction(sum(numbers), len(numbers)))


def _difference_of_products(random: Random) -> tuple[str, str]:
    a, b, c, d = (between(random, 6, 29) for _ in range(4))
    return f"Compute ${a} \\cdot {b} - {c} \\cdot {d}$.", str(a * b - c * d)


def _brackets(random: Random) -> tuple[str, str]:
    a, b, c, d = between(random, 20, 99), between(random, 3, 12), between(random, 2, 30), between(random, 31, 60)
    return f"Compute ${a} - {b} \\cdot ({c} - {d})$.", str(a - b * (c - d))


def _quotient_of_fractions(random: Random) -> tuple[str, str]:
    (a, b), (c, d) = sample(random, range(2, 15), 2), sample(random, range(2, 15), 2)
    value = latex(Fraction(a, b) / Fraction(c, d))
    return f"Divide the fraction $\\frac{{{a}}}{{{b}}}$ by the fraction $\\frac{{{c}}}{{{d}}}$.", value


def _fraction_of_number(random: Random) -> tuple[str, str]:
    below = between(random, 4, 15)
    above, part = between(random, 2, below - 1), between(random, 6, 40)
    return f"What is $\\frac{{{above}}}{{{below}}}$ of {part * below}?", str(above * part)


def _rectangle(random: Random) -> tuple[str, str]:
    a, b = sample(random, range(4, 40), 2)
    return f"A rectangle has the perimeter {2 * (a + b)}, and one of its sides is {a} long. What is its area?", str(
        a * b
    )


def _price(random: Random) -> tuple[str, str]:
    n, m = sample(random, range(3, 20), 2)
    price = between(random, 12, 95)
    return f"{n} pens of one kind cost {n * price} cents. How many cents do {m} of them cost?", str(m * price)


def _third_angle(random: Random) -> tuple[str, str]:
    a, b = between(random, 15, 95), between(random, 15, 80)
    question = f"Two angles of a triangle have {a} and {b} degrees. How many degrees does the third one have?"
    return question, str(180 - a - b)


def _next_number(random: Random) -> tuple[str, str]:
    start, step, growth = between(random, -20, 30), between(random, -9, 12), some(random, 2, 9)
    listed = [start + step * i + growth * i * (i - 1) // 2 for i in range(6)]
    question = f"The differences of neighbours in a sequence grow evenly: {', '.join(map(str, listed[:5]))}, ... "
    return f"{question}What is the next number?", str(listed[5])


def _rise_and_fall(random: Random) -> tuple[str, str]:
    rise, fall, price = 10 * between(random, 1, 9), 10 * between(random, 1, 8), 100 * between(random, 2, 60)
    value = price * (100 + rise) * (100 - fall) // 10_000
    question = f"A price of {price} rises by {rise} percent, and the new price falls by {fall} percent. "
    return f"{question}What is the price then?", str(value)


def _speed(random: Random) -> tuple[str, str]:
    minutes, speed = 5 * between(random, 2, 40), 12 * between(random, 3, 12)
    question = f"A car goes {minutes * speed // 60} km in {minutes} minutes at an even speed. "
    return f"{question}How many km does it go in an hour?", str(speed)


def _median(random: Random) -> tuple[str, str]:
    numbers = sample(random, range(1, 90), pick(random, (5, 7, 9)))
    return f"What is the median of {', '.join(map(str, numbers))}?", str(sorted(numbers)[len(numbers) // 2])


def _both_sides(random: Random) -> tuple[str, str]:
    a, c = sample(random, range(2, 15), 2)
    b, d = some(random, -20, 20), some(random, -20, 20)
    return f"Solve ${polynomial(a, b)} = {polynomial(c, d)}$ for $x$.", latex(Fraction(d - b, a - c))


def _proportion(random: Random) -> tuple[str, str]:
    a, b, c = between(random, 3, 20), between(random, 3, 20), between(random, 3, 20)
    question = f"{a} cups of flour make {b} cakes. How many cups of flour do {c} such cakes need?"
    return question, latex(Fraction(a * c, b))


def _digit_sum(random: Random) -> tuple[str, str]:
    a, b = between(random, 23, 98), between(random, 23, 98)
    return f"What is the sum of the digits of the product of {a} and {b}?", str(sum(map(int, str(a * b))))


def _box(random: Random) -> tuple[str, str]:
    a, b, c = (between(random, 3, 15) for _ in range(3))
    question = f"A box is {a} cm long and {b} cm wide, and its volume is {a * b * c} cubic centimetres. "
    return f"{question}What is its surface, in square centimetres?", str(2 * (a * b + a * c + b * c))


def _multiples(random: Random) -> tuple[str, str]:
    low, step = between(random, 20, 150), between(random, 3, 13)
    high = low + between(random, 60, 300)
    question = f"How many multiples of {step} are there from {low} to {high}, both included?"
    return question, str(high // step - (low - 1) // step)


EASY: tuple[Template, ...] = (
    _sum_of_fractions,
    _linear_equation,
    _percentage,
    _common_divisor,
    _common_multiple,
    _value_of_polynomial,
    _hypotenuse,
    _mean,
    _difference_of_products,
    _brackets,
    _quotient_of_fractions,
    _fraction_of_number,
    _rectangle,
    _price,
    _third_angle,
    _next_number,
    _rise_and_fall,
    _speed,
    _median,
    _both_sides,
    _proportion,
    _digit_sum,
    _box,
    _multiples,
)
