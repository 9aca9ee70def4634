"""Expert problems: towers of powers, long recurrences, counting with conditions, large determinants."""

from __future__ import annotations

from fractions import Fraction
from math import comb, gcd, lcm

from llm_envs.tasks.data.notation import Template, determinant, latex, matrix, polynomial, some
from llm_envs.tasks.draws import Random, between, sample

__all__ = ["EXPERT"]


def _tower(random: Random) -> tuple[str, str]:
    base, middle, top = between(random, 2, 19), between(random, 3, 13), between(random, 20, 99)
    modulus = between(random, 101, 999)
    question = f"What is the remainder of ${base}^{{\\left({middle}^{{{top}}}\\right)}}$ on division by ${modulus}$?"
    return question, str(pow(base, middle**top, modulus))


def _bounded_sums(random: Random) -> tuple[str, str]:
    n, most = between(random, 4, 6), between(random, 5, 12)
    total = between(random, n * most // 3, n * most // 2)
    ways = sum(
        (-1) ** j * comb(n, j) * comb(total - j * (most + 1) + n - 1, n - 1) for j in range(total // (most + 1) + 1)
    )
    question = f"In how many ways can {n} children share {total} identical apples, if none gets more than {most}?"
    return question, str(ways)


def _divisors_without(random: Random) -> tuple[str, str]:
    powers = {p: between(random, 1, 4) for p in sample(random, (2, 3, 5, 7, 11), 4)}
    number, total = 1, 1
    for p, power in powers.items():
        number *= p**power
        total *= p**power if p == min(powers) else (p ** (power + 1) - 1) // (p - 1)
    question = (
        f"What is the sum of those positive divisors of {number} whose quotients {number}/d are not divisible by "
    )
    return f"{question}{min(powers)}?", str(total)


def _sieve(random: Random) -> tuple[str, str]:
    a, b, c = sample(random, range(4, 20), 3)
    most = between(random, 1_000, 9_000)
    count = sum((n % a == 0 or n % b == 0) and n % c != 0 for n in range(1, most + 1))
    question = f"How many whole numbers from 1 to {most} are divisible by {a} or by {b}, but not by {c}?"
    return question, str(count)


def _long_recurrence(random: Random) -> tuple[str, str]:
    p, q, n, modulus = (
        between(random, 1, 9),
        between(random, 1, 9),
        between(random, 300, 2_000),
        between(random, 11, 97),
    )
    first, second = between(random, 1, 9), between(random, 1, 9)
    a, b = first, second
    for _ in range(n - 1):
        a, b = b, (p * b + q * a) % modulus
    question = f"Let $a_1 = {first}$, $a_2 = {second}$ and $a_{{n+2}} = {p} a_{{n+1}} + {q} a_n$. "
    return f"{question}What is the remainder of $a_{{{n}}}$ on division by ${modulus}$?", str(a % modulus)


def _three_remainders(random: Random) -> tuple[str, str]:
    while True:
        moduli = sample(random, range(11, 40), 3)
        if lcm(*moduli) == moduli[0] * moduli[1] * moduli[2]:
            x = between(random, 2_000, lcm(*moduli) - 1)
            said = " and ".join(f"{x % m} on division by {m}" for m in moduli)
            return f"What is the smallest positive whole number with the remainders {said}?", str(x)


def _four_dice(random: Random) -> tuple[str, str]:
    n, faces = between(random, 4, 6), between(random, 4, 10)
    total = between(random, n + 3, n * (faces + 1) // 2)
    ways = [1]
    for _ in range(n):
        ways = [sum(ways[max(0, i - faces + 1) : i + 1]) for i in range(len(ways) + faces - 1)]
    question = (
        f"{n} fair dice with the faces 1 to {faces} are rolled. What is the probability that their sum is {total}?"
    )
    return question, latex(Fraction(ways[total - n], faces**n))


def _large_determinant(random: Random) -> tuple[str, str]:
    rows = [[between(random, -5, 7) for _ in range(4)] for _ in range(4)]
    return f"What is the determinant of ${matrix(rows)}$?", str(determinant(rows))


def _ruin(random: Random) -> tuple[str, str]:
    a, b = sample(random, range(1, 6), 2)
    goal = between(random, 4, 8)
    start = between(random, 2, goal - 1)
    ratio = Fraction(b, a)
    question = (
        f"A player has {start} coins, and in each round wins one with probability ${latex(Fraction(a, a + b))}$, else "
        f"loses one. What is the probability of having {goal} coins before having none?"
    )
    return question, latex((1 - ratio**start) / (1 - ratio**goal))


def _order(random: Random) -> tuple[str, str]:
    while True:
        modulus, a = between(random, 101, 499), between(random, 2, 30)
        if gcd(a, modulus) == 1:
            order, power = 1, a % modulus
            while power != 1:
                order, power = order + 1, power * a % modulus
            if order > 9:
                question = f"What is the smallest positive $n$ for which ${a}^n$ has the remainder 1 on division by "
                return f"{question}${modulus}$?", str(order)


def _three_equations(random: Random) -> tuple[str, str]:
    while True:
        rows = [[some(random, -7, 7) for _ in range(3)] for _ in range(3)]
        if determinant(rows):
            x, y, z = (between(random, -9, 9) for _ in range(3))
            said = ", ".join(f"${_sum_of(row)} = {row[0] * x + row[1] * y + row[2] * z}$" for row in rows)
            return f"Solve {said}. Give the ordered triple $(x, y, z)$.", f"({x}, {y}, {z})"


def _sum_of(row: list[int]) -> str:
    text = polynomial(row[0], 0)
    for a, name in zip(row[1:], "yz", strict=True):
        text += f" {'-' if a < 0 else '+'} {'' if abs(a) == 1 else abs(a)}{name}"
    return text


def _paths_around(random: Random) -> tuple[str, str]:
    x, y = between(random, 7, 11), between(random, 7, 11)
    u, v = between(random, 2, x - 2), between(random, 2, y - 2)
    ways = comb(x + y, x) - comb(u + v, u) * comb(x - u + y - v, x - u)
    question = (
        f"In each step one may go one unit to the right or one up. How many ways lead from $(0, 0)$ to $({x}, {y})$ "
    )
    return f"{question}without $({u}, {v})$?", str(ways)


def _sum_of_floors(random: Random) -> tuple[str, str]:
    a, b, n = between(random, 3, 30), between(random, 31, 60), between(random, 60, 200)
    question = (
        f"For each $k$ from 1 to {n}, ${a}k$ is divided by ${b}$ and rounded down. What is the sum of the results?"
    )
    return question, str(sum(a * k // b for k in range(1, n + 1)))


EXPERT: tuple[Template, ...] = (
    _tower,
    _bounded_sums,
    _divisors_without,
    _sieve,
    _long_recurrence,
    _three_remainders,
    _four_dice,
    _large_determinant,
    _ruin,
    _order,
    _three_equations,
    _paths_around,
    _sum_of_floors,
)
