"""The tasks of tasks/data: mathematics from data sets."""

import json
import random
import re
import sys
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import factorial, gcd, lcm, prod

import gymnasium as gym
import pytest

from llm_envs.env import split_of
from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.parsers import format_answer
from llm_envs.tasks.data.dataset_math import final_answer
from llm_envs.tasks.data.problems import TEMPLATES, make_problems

ROWS = [{"question": f"What is {n}+{n}?", "answer": f"Twice {n}.\n#### {2 * n:,}"} for n in range(400, 600)]


def make(**kwargs):
    return gym.make("llm/DatasetMath-v0", **kwargs)


@pytest.mark.parametrize(
    ("right", "answer", "paid"),
    [
        (r"\frac{3}{4}", "3/4", 1),
        (r"\frac{3}{4}", "0.75", 1),
        (r"\frac{3}{4}", r"x = \frac{3}{4}", 1),
        (r"\frac{3}{4}", "6/8", 0),  # not in lowest terms
        (r"\frac{3}{4}", "1/2+1/4", 0),  # not worked out
        (r"\{-3, 2\}", "x=2 or x=-3", 1),
        (r"\{-3, 2\}", "2, -3", 1),
        (r"\{-3, 2\}", "2", 0),
        (r"(1, -5)", "(1,-5)", 1),
        (r"(1, -5)", "(-5, 1)", 0),
        ("18x^2 + 12x - 7", "12x-7+18x^2", 1),
        ("18x^2 + 12x - 7", "18x^2 + 12x", 0),
        ("42\\pi", r"42 \pi", 1),
        ("42\\pi", "131.9", 0),
        (r"\frac{5 + \sqrt{65}}{2}", r"\frac{\sqrt{65}+5}{2}", 1),
        ("6", "1 or 2 or 3 or 4 or 5 or 6", 0),
        ("6", "all numbers", 0),
        ("0", r"\text{not } 0", -0.1),
        (r"\text{no}", "no", 1),
        ("6", "6" + " " * 10 + "x" * 600, 0),
    ],
)
def test_answers_are_compared_by_value(right, answer, paid):
    env = make()
    env.reset(options={"problem": {"question": "How many?", "answer": right}})
    assert env.step(format_answer(answer))[1] == pytest.approx(paid)


def test_a_reply_without_an_answer_is_malformed():
    env = make()
    env.reset(seed=0)
    assert env.step("42")[1] == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so 3 + 4 is 7\n#### 7", "7"),
        ("#### 1 no, #### 2", "2"),
        (r"hence $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (" 12 ", "12"),
    ],
)
def test_the_final_answer_of_a_worked_one(text, answer):
    assert final_answer(text) == answer


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text("\n".join(json.dumps({"q": row["question"], "a": row["answer"]}) for row in ROWS))
    questions = {}
    for split in ("train", "test"):
        env = make(data=str(path), question="q", answer="a", split=split)
        questions[split] = {env.reset(seed=seed)[0] for seed in range(300)}
        assert all(split_of(question) == split for question in questions[split])
        for seed in range(5):
            env.reset(seed=seed)
            assert (
                env.unwrapped.solution() == f"{2 * int(re.search(r'[0-9]+', env.unwrapped.problem['question'])[0]):,}"
            )
            assert env.step(env.unwrapped.oracle())[1] == 1
    assert not questions["train"] & questions["test"]
    assert env.unwrapped.n_problems == 200
    assert env.unwrapped.chance_rate == 1 / len(env.unwrapped._rows)
    everything = make(data=str(path), question="q", answer="a", divide=False).unwrapped
    assert len(everything._rows) == 200
    path.write_text(json.dumps({"q": "What is 1+1?", "a": 2}))  # another file of the same name is read anew
    assert make(data=str(path), question="q", answer="a", divide=False).reset()[0] == "What is 1+1?"


def test_rows_and_data_sets_of_ones_own(tmp_path):
    assert make(data=ROWS).reset(seed=1)[0] == make(data=ROWS).reset(seed=1)[0]
    datasets = pytest.importorskip("datasets")
    stored = datasets.Dataset.from_list(ROWS)
    assert make(data=stored).reset(seed=1)[0] == make(data=ROWS).reset(seed=1)[0]
    datasets.DatasetDict({"validation": stored}).save_to_disk(tmp_path / "set")
    env = make(data=str(tmp_path / "set"), data_split="validation")
    assert env.reset(seed=1)[0] == make(data=ROWS).reset(seed=1)[0]
    assert env.step(env.unwrapped.oracle())[1] == 1


@pytest.mark.parametrize(
    ("kwargs", "complaint"),
    [
        ({"data": "no_such_file.jsonl"}, "no_such_file"),
        ({"data": ROWS, "question": "q"}, "has no field 'q'"),
        ({"data": ROWS, "difficulty": "easy"}, "is of the default data"),
        ({"data": [{"question": "Why?", "answer": "#### "}]}, "answer of 0 characters"),
        ({"data": [{"question": "Why?", "answer": None}]}, "must be texts"),
        ({"data": ROWS[:1], "split": "test" if split_of(ROWS[0]["question"]) == "train" else "train"}, "divide=False"),
    ],
)
def test_data_that_cannot_be_used_are_refused(kwargs, complaint):
    with pytest.raises(InvalidConfigError, match=complaint):
        make(**kwargs)


def test_missing_extras_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"llm-envs\[train\]"):
        make(data="some/name")
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(MissingExtraError, match=r"llm-envs\[tools\]"):
        make()


# The default data. Each question is solved again, in another way than its template does it.


def problems(level, words):
    """Return the problems of a level whose question has the words, with the numbers of the question."""
    found = [(q, a) for q, a in make_problems(level) if words in q]
    assert found
    return [([int(n) for n in re.findall(r"-?\d+", q)], q, a) for q, a in found]


def value(answer):
    match = re.fullmatch(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", answer)
    return Fraction(int(f"{match[1]}{match[2]}"), int(match[3])) if match else Fraction(answer)


def at(text, x):
    """Return the value of a polynomial as it is written."""
    total = Fraction(0)
    for sign, size, power in re.findall(r"([-+]?) ?(\d*)(x\^\d|x|)(?= |$)", text):
        if size or power:
            exponent = 0 if not power else int(power[2:] or 1)
            total += (-1 if sign == "-" else 1) * int(size or 1) * Fraction(x) ** exponent
    return total


def test_polynomials_are_read_by_this_test():
    assert at("3x^2 - x + 4", 2) == 14
    assert at("-x^3 + 2x", 3) == -21
    assert at("7", 3) == 7


def test_easy_problems():
    for (a, b, c, d), _, answer in problems("easy", r"Compute $\frac"):
        assert value(answer) * b * d == a * d + c * b
    for _, question, answer in problems("easy", "Solve"):
        left, right = re.search(r"\$(.*) = (.*)\$ for", question).groups()
        assert at(left, value(answer)) == at(right, value(answer))
    for (percent, whole), _, answer in problems("easy", r"\%"):
        assert Fraction(percent * whole, 100) == int(answer)
    for (a, b), _, answer in problems("easy", "greatest common divisor"):
        assert int(answer) == max(n for n in range(1, min(a, b) + 1) if a % n == b % n == 0)
    for (a, b), _, answer in problems("easy", "least common multiple"):
        assert int(answer) == next(n for n in range(a, a * b + 1, a) if n % b == 0)
    for (*_, x), question, answer in problems("easy", "Let $f(x)"):
        assert at(re.search(r"= (.*)\$\. What", question)[1], x) == int(answer)
    for (a, b), _, answer in problems("easy", "hypotenuse"):
        assert a * a + b * b == int(answer) ** 2
    for numbers, _, answer in problems("easy", "the mean"):
        assert value(answer) * len(numbers) == sum(numbers)


def test_more_easy_problems():
    for (a, b, c, d), _, answer in problems("easy", r"\cdot"):
        assert int(answer) in (a * b - c * d, a - b * (c - d))
    for (a, b, c, d), _, answer in problems("easy", "Divide the fraction"):
        assert value(answer) * b * c == a * d
    for (a, b, n), _, answer in problems("easy", "}$ of "):
        assert int(answer) * b == a * n
    for (perimeter, side), _, answer in problems("easy", "rectangle"):
        assert Fraction(int(answer), side) + side == Fraction(perimeter, 2)
    for (n, cents, m), _, answer in problems("easy", "pens"):
        assert int(answer) * n == cents * m
    for (a, b), _, answer in problems("easy", "angles"):
        assert a + b + int(answer) == 180 and int(answer) > 0
    for numbers, _, answer in problems("easy", "next number"):
        steps = [b - a for a, b in pairwise([*numbers, int(answer)])]
        assert len({b - a for a, b in pairwise(steps)}) == 1
    for (price, rise, fall), _, answer in problems("easy", "A price"):
        assert Fraction(int(answer), price) == (1 + Fraction(rise, 100)) * (1 - Fraction(fall, 100))
    for (km, minutes), _, answer in problems("easy", "A car"):
        assert Fraction(km, minutes) == Fraction(int(answer), 60)
    for numbers, _, answer in problems("easy", "median"):
        assert sum(n < int(answer) for n in numbers) == sum(n > int(answer) for n in numbers) == len(numbers) // 2
    for (cups, cakes, others), _, answer in problems("easy", "flour"):
        assert value(answer) * cakes == cups * others
    for (a, b), _, answer in problems("easy", "digits of the product"):
        assert (a * b - int(answer)) % 9 == 0 < int(answer) <= 36
    for (a, b, volume), _, answer in problems("easy", "A box"):
        assert int(answer) == 2 * a * b + 2 * (a + b) * Fraction(volume, a * b)
    for (step, low, high), _, answer in problems("easy", "multiples"):
        assert int(answer) == sum(n % step == 0 for n in range(low, high + 1))


def test_medium_problems():
    for _, question, answer in problems("medium", "all solutions"):
        polynomial = re.search(r"\$(.*) = 0", question)[1]
        roots = [n for n in range(-30, 31) if at(polynomial, n) == 0]
        assert answer == f"\\{{{', '.join(map(str, roots))}\\}}"
        assert len(roots) == 2
    for _, question, answer in problems("medium", "Give an interval"):
        left, right = re.search(r"\$x\$ is \$(.*) < (.*)\$", question).groups()
        low, high = answer[1:-1].split(", ")
        bound = value(low if high == r"\infty" else high)
        assert at(left, bound) == int(right)
        assert (at(left, bound + 1) < int(right)) == (high == r"\infty")
    for _, question, answer in problems("medium", "f'(x)"):
        function = re.search(r"= (.*)\$\. What", question)[1]
        for x in (-2, 0, 3):  # the symmetric difference of a cubic is off by its leading coefficient
            lead = int(re.match(r"\d+", function)[0])
            assert (at(function, x + 1) - at(function, x - 1)) / 2 - lead == at(answer, x)
    for _, question, answer in problems("medium", "Solve $"):
        x, y = map(int, answer[1:-1].split(", "))
        for left, sign, b, right in re.findall(r"\$(\S+) ([-+]) (\d+)y = (-?\d+)\$", question):
            assert at(left, x) + (-1 if sign == "-" else 1) * int(b) * y == int(right)
    for (n, first, second, _), _, answer in problems("medium", "arithmetic sequence"):
        assert int(answer) == sum(first + i * (second - first) for i in range(n))
    for (red, blue), _, answer in problems("medium", "balls"):
        assert value(answer) == Fraction(red, red + blue) * Fraction(red - 1, red + blue - 1)
    for (k, n), _, answer in problems("medium", "people"):
        assert int(answer) == sum(1 for bits in range(2**n) if bits.bit_count() == k)


def test_more_medium_problems():
    for (x, y, u, v), _, answer in problems("medium", "slope"):
        assert value(answer) * (u - x) == v - y
    for (x, y, u, v), _, answer in problems("medium", "midpoint"):
        assert [value(part) * 2 for part in answer[1:-1].split(", ")] == [x + u, y + v]
    for _, question, answer in problems("medium", "vertex"):
        h, k = map(int, answer[1:-1].split(", "))
        parabola = re.search(r"y = (.*?)\$", question)[1]
        assert at(parabola, h) == k and at(parabola, h - 1) == at(parabola, h + 1)
    for _, question, answer in problems("medium", "discriminant"):
        text = re.search(r"\$(.*)\$", question)[1]
        c, a = at(text, 0), (at(text, 1) + at(text, -1)) / 2 - at(text, 0)
        assert int(answer) == (at(text, 1) - a - c) ** 2 - 4 * a * c
    for (n, first, second, _), _, answer in problems("medium", "geometric sequence"):
        assert int(answer) == first * Fraction(second, first) ** (n - 1)
    for (radius, angle), _, answer in problems("medium", "sector"):
        assert int(answer.removesuffix("\\pi")) == Fraction(angle, 360) * radius**2
    for (_, first, _, second, least), _, answer in problems("medium", "rolled"):
        pairs = [a + b for a in range(1, first + 1) for b in range(1, second + 1)]
        assert value(answer) == Fraction(sum(total >= least for total in pairs), len(pairs))
    for _, question, answer in problems("medium", "arranged"):
        word = re.search("[A-H]+(?= be)", question)[0]
        ways = factorial(len(word))
        for letter in set(word):
            ways //= factorial(word.count(letter))
        assert int(answer) == ways
    for _, question, answer in problems("medium", "remainder of"):
        function, divisor = re.findall(r"\$(.*?)\$", question)
        assert at(function, -at(divisor, 0)) == int(answer)
    for (*_, x), question, answer in problems("medium", "f(g("):
        outer, inner = re.search(r"f\(x\) = (.*?)\$ and \$g\(x\) = (.*?)\$", question).groups()
        assert at(outer, at(inner, x)) == int(answer)
    for (*_, below, y), question, answer in problems("medium", "For which $x$"):
        assert at(re.search(r"frac\{(.*?)\}", question)[1], value(answer)) == below * y
    for (step, most), _, answer in problems("medium", "all positive multiples"):
        assert int(answer) == sum(range(step, most + 1, step))
    for (*_, x), question, answer in problems("medium", "f''("):
        function = re.search(r"= (.*)\$\. What", question)[1]
        assert at(function, x + 1) - 2 * at(function, x) + at(function, x - 1) == int(answer)  # exact for a cubic
    for (a, p, b, q), _, answer in problems("medium", "salt"):
        assert value(answer) == a * Fraction(p, 100) + b * Fraction(q, 100)
    for (a, b), _, answer in problems("medium", "pump"):
        assert 1 / value(answer) == Fraction(1, a) + Fraction(1, b)


def test_hard_problems():
    for _, question, answer in problems("hard", "larger solution"):
        polynomial = re.search(r"\$(.*) = 0", question)[1]
        square = int(re.search(r"sqrt\{(\d+)\}", answer)[1])
        first = int(re.search(r"frac\{(-?\d*)", answer)[1] or 0)
        root = (first + square**0.5) / 2
        assert abs(float(at(polynomial, Fraction(root)))) < 1e-6
        assert root > first / 2
    for (low, high, *_), question, answer in problems("hard", "int_"):
        function = re.search(r"\((.*)\)\\,dx", question)[1]
        middle = Fraction(low + high, 2)  # Simpson's rule is exact for it
        simpson = Fraction(high - low, 6) * (at(function, low) + 4 * at(function, middle) + at(function, high))
        assert value(answer) == simpson
    for (base, exponent, modulus), _, answer in problems("hard", "remainder of $"):
        assert int(answer) == base**exponent % modulus
    for _, question, answer in problems("hard", "r^2 + s^2"):
        polynomial = re.search(r"of \$(.*) = 0", question)[1]
        p, q = at(polynomial, 1) - 1 - at(polynomial, 0), at(polynomial, 0)
        root = (complex(p * p - 4 * q)) ** 0.5
        r, s = (-complex(p) + root) / 2, (-complex(p) - root) / 2
        assert r**2 + s**2 == pytest.approx(complex(int(answer)))
    for (number,), _, answer in problems("hard", "positive divisors")[:20]:
        assert int(answer) == sum(1 + (n * n < number) for n in range(1, int(number**0.5) + 1) if number % n == 0)
    for _, question, answer in problems("hard", r"\log"):
        base, inside, power = re.search(r"_\{(\d)\}\((.*)\) = (\d)", question).groups()
        assert at(inside, value(answer)) == int(base) ** int(power)
    for _, question, answer in problems("hard", "geometric series"):
        first, second, _ = (float(value(term)) for term in re.findall(r"\$(.*?)\$", question))
        assert sum(first * (second / first) ** i for i in range(400)) == pytest.approx(float(value(answer)))
    for _, question, answer in problems("hard", "region"):
        line, parabola = re.findall(r"\$y = (.*?)\$", question)
        crossings = [x for x in range(-40, 41) if at(line, x) == at(parabola, x)]
        low, high = min(crossings), max(crossings)
        middle = Fraction(low + high, 2)
        assert value(answer) == Fraction(2, 3) * (high - low) * abs(at(line, middle) - at(parabola, middle))


def matrix_in(question):
    return [
        [int(n) for n in row.split(" & ")] for row in re.search(r"pmatrix\} (.*) \\end", question)[1].split(r" \\ ")
    ]


def determinant_of(rows):
    """By elimination."""
    rows, value = [list(map(Fraction, row)) for row in rows], Fraction(1)
    for i in range(len(rows)):
        pivot = next((j for j in range(i, len(rows)) if rows[j][i]), None)
        if pivot is None:
            return 0
        rows[i], rows[pivot] = rows[pivot], rows[i]
        value *= rows[i][i] * (-1 if pivot != i else 1)
        for row in rows[i + 1 :]:
            factor = row[i] / rows[i][i]
            row[:] = [a - factor * b for a, b in zip(row, rows[i], strict=True)]
    return value


def ways_to(x, y, blocked=None):
    """Count the ways on the grid from (0, 0), one step after the other."""
    row = [0] * (x + 1)
    for j in range(y + 1):
        for i in range(x + 1):
            row[i] = 1 if i == j == 0 else 0 if (i, j) == blocked else row[i] * (j > 0) + (row[i - 1] if i else 0)
    return row[x]


def test_more_hard_problems():
    for level in ("hard", "expert"):
        for _, question, answer in problems(level, "determinant"):
            assert int(answer) == determinant_of(matrix_in(question))
    for _, question, answer in problems("hard", "trace"):
        rows = matrix_in(question)
        squared = [
            [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*rows, strict=True)] for row in rows
        ]
        assert int(answer) == sum(squared[i][i] for i in range(3))
    for (_, _, _, modulus, a), _, answer in problems("hard", "multiplied by"):
        assert int(answer) * a % modulus == 1 and 0 < int(answer) < modulus
    for (r, m, s, n), _, answer in problems("hard", "smallest positive whole number"):
        assert (int(answer) % m, int(answer) % n) == (r, s) and 0 < int(answer) < m * n
    for (n,), _, answer in problems("hard", "zeros")[:30]:
        assert sum(k % 5**i == 0 for k in range(5, n + 1, 5) for i in range(1, 6)) == int(answer)
    for (k, *_), question, answer in problems("hard", "coefficient"):
        factor, n = re.search(r"\$\((.*)\)\^(\d)\$", question).groups()
        b = at(factor, 0)
        expansion = [Fraction(1)]
        for _ in range(int(n)):
            a = at(factor, 1) - b
            expansion = [b * x + a * y for x, y in zip([*expansion, 0], [0, *expansion], strict=True)]
        assert int(answer) == expansion[k]
    for (share, first, second), _, answer in problems("hard", "faulty"):
        assert 1 / value(answer) == 1 + Fraction((100 - share) * second, share * first)
    for (*_, x), question, answer in problems("hard", "tangent"):
        function = re.search(r"y = (.*?)\$", question)[1]
        x = int(re.search(r"x = (-?\d)", question)[1])
        lead = (at(function, 2) - 3 * at(function, 1) + 3 * at(function, 0) - at(function, -1)) / 6
        slope = (at(function, x + 1) - at(function, x - 1)) / 2 - lead
        assert at(function, x) - x * slope == int(answer)
    for _, question, answer in problems("hard", "a_1"):
        found = re.search(r"a_1 = (\d)\$ and .*= (-?\d) a_n ([-+]) (\d)\$.*a_\{(\d)\}", question).groups()
        number, p, q, n = int(found[0]), int(found[1]), int(found[2] + found[3]), int(found[4])
        for _ in range(1, n):
            number = p * number + q
        assert number == int(answer)
    for (_, _, x, y, u, v), _, answer in problems("hard", "through $("):
        assert int(answer) == ways_to(x, y) - ways_to(x, y, (u, v))
    for _, question, answer in problems("hard", "r^3 + s^3"):
        polynomial = re.search(r"of \$(.*) = 0", question)[1]
        p, q = at(polynomial, 1) - 1 - at(polynomial, 0), at(polynomial, 0)
        root = (complex(p * p - 4 * q)) ** 0.5
        r, s = (-complex(p) + root) / 2, (-complex(p) - root) / 2
        assert r**3 + s**3 == pytest.approx(complex(int(answer)))
    for (a, b, c, d, e, f), _, answer in problems("hard", "triangle"):
        assert 2 * value(answer) == abs(determinant_of([[a, b, 1], [c, d, 1], [e, f, 1]]))
    for (_, faces, least, prize, loss), _, answer in problems("hard", "expected gain"):
        assert value(answer) * faces == sum(prize if roll >= least else -loss for roll in range(1, faces + 1))


def test_expert_problems():
    for (base, middle, top, modulus), _, answer in problems("expert", "left("):
        power = base % modulus  # base ** (middle ** top), by raising to the power of the middle number again and again
        for _ in range(top):
            power = power**middle % modulus
        assert int(answer) == power
    for (n, total, most), _, answer in problems("expert", "apples"):
        ways = [1]
        for _ in range(n):
            ways = [sum(ways[max(0, i - most) : i + 1]) for i in range(len(ways) + most)]
        assert int(answer) == ways[total]
    for (number, _, p), _, answer in problems("expert", "quotients")[:30]:
        divisors = {d for n in range(1, int(number**0.5) + 1) if number % n == 0 for d in (n, number // n)}
        assert int(answer) == sum(d for d in divisors if number // d % p)
    for (_, most, a, b, c), _, answer in problems("expert", "but not by"):
        either = most // a + most // b - most // lcm(a, b)
        assert int(answer) == either - (most // lcm(a, c) + most // lcm(b, c) - most // lcm(a, b, c))
    for _, question, answer in problems("expert", "a_{n+2}"):
        numbers = re.findall(r"= (\d)|\+ (\d) a_n|a_\{(\d+)\}|by \$(\d+)", question)
        a, b, p, q, n, modulus = (int("".join(found)) for found in numbers)
        for _ in range(n - 1):
            a, b = b, p * b + q * a
        assert int(answer) == a % modulus
    for (r, m, s, n, t, k), _, answer in problems("expert", "smallest positive whole number"):
        assert [int(answer) % d for d in (m, n, k)] == [r, s, t] and 0 < int(answer) < m * n * k
    for (n, _, faces, total), _, answer in problems("expert", "dice")[:40]:
        ways = Counter({0: 1})
        for _ in range(n):
            ways = sum((Counter({a + face: k for a, k in ways.items()}) for face in range(1, faces + 1)), Counter())
        assert value(answer) == Fraction(ways[total], faces**n)
    for _, question, answer in problems("expert", "A player has"):
        win = value(re.search(r"probability \$(.*?)\$", question)[1])
        start, goal = (int(re.search(rf"{words} (\d) coins", question)[1]) for words in ("has", "having"))
        chances = [Fraction(0), Fraction(1)]  # up to a factor: how likely the goal is with 0, 1, ... coins
        while len(chances) <= goal:
            chances.append((chances[-1] - (1 - win) * chances[-2]) / win)
        assert value(answer) == chances[start] / chances[goal]
    for (a, _, modulus), _, answer in problems("expert", "smallest positive $n$"):
        assert next(n for n in range(1, modulus) if pow(a, n, modulus) == 1) == int(answer)
    for _, question, answer in problems("expert", "ordered triple"):
        x, y, z = map(int, answer[1:-1].split(", "))
        for a, s, b, t, c, right in re.findall(r"\$(-?\d*)x ([-+]) (\d*)y ([-+]) (\d*)z = (-?\d+)\$", question):
            first = {"": 1, "-": -1}.get(a) or int(a)
            assert first * x + int(f"{s}{b or 1}") * y + int(f"{t}{c or 1}") * z == int(right)
    for (_, _, x, y, u, v), _, answer in problems("expert", "without $("):
        assert int(answer) == ways_to(x, y, (u, v))
    for (_, n, a, b), _, answer in problems("expert", "rounded down"):
        assert int(answer) == sum(Fraction(a * k, b).__floor__() for k in range(n + 1))


def test_every_template_is_looked_at():
    """The tests above go by words of the questions: each of these has one template, or is told apart there."""
    assert {level: len(templates) for level, templates in TEMPLATES.items()} == {
        "easy": 24, "medium": 23, "hard": 21, "expert": 13,
    }  # fmt: skip


def rules_for_numbers(question):
    """Yield what simple rules make of the numbers of a question."""
    numbers = [int(n) for n in re.findall(r"(?<![\w^])-?\d+", question)]
    if numbers:
        yield from {"first": numbers[0], "last": numbers[-1], "largest": max(numbers), "count": len(numbers)}.items()
        yield from {"sum": sum(numbers), "product": prod(numbers)}.items()
        yield from {"divisor": gcd(*numbers), "multiple": lcm(*numbers)}.items()
        yield "mean", Fraction(sum(numbers), len(numbers))
        yield "median", sorted(numbers)[len(numbers) // 2]
    for i, j in ((0, 1), (1, 0), (-2, -1), (-1, -2), (0, -1), (-1, 0)) if len(numbers) > 1 else ():
        a, b = numbers[i], numbers[j]
        yield from {f"{i} + {j}": a + b, f"{i} - {j}": a - b, f"{i} * {j}": a * b}.items()
        yield f"{i} percent of {j}", Fraction(a * b, 100)
        if b:
            yield from {f"{i} / {j}": Fraction(a, b), f"{i} // {j}": a // b, f"{i} % {j}": a % b}.items()


@pytest.mark.parametrize(("level", "rate"), [("easy", 0.06), ("medium", 0.012), ("hard", 0.02), ("expert", 0.02)])
def test_no_rule_for_numbers_and_no_constant_wins_more_than_the_chance_rate(level, rate):
    listed, wins = make_problems(level), Counter()
    for question, answer in listed:
        wins[f"constant {answer}"] += 1
        if re.fullmatch(r"-?(\d+|\\frac\{\d+\}\{\d+\})", answer):
            wins.update(rule for rule, result in rules_for_numbers(question) if result == value(answer))
    assert rate >= max(wins.values()) / len(listed)
    if level != "expert":  # which asks for the sum of six of these
        assert make(difficulty=level).unwrapped.chance_rate == rate
    assert "0 * 1" not in wins or wins["0 * 1"] / len(listed) <= 0.01


@pytest.mark.parametrize(
    "answer",
    [
        r"\operatorname{{lcm}}({a}, {b})", r"\gcd({a}, {b})", r"\operatorname{{gcd}}({a}, {b})", r"{a} \cdot {b}",
        r"{a} * {b}", r"\frac{{{a}}}{{{b}}}", r"({a} + {b}) / 2", r"{a}\% \cdot {b}", r"{a}({b})",
        r"\sqrt{{{a}^2 + {b}^2}}", r"|{a} - {b}|", r"180 - {a} - {b}", r"\lfloor {a} / {b} \rfloor", r"{a} \bmod {b}",
        r"{{{a} \choose {b}}}",
    ],
)  # fmt: skip
def test_restating_the_question_does_not_win(answer):
    templates = TEMPLATES["easy"]
    env = make(divide=False)
    rng = random.Random(0)
    for template in templates:
        question, right = template(rng.random)
        first, second, *_ = [*re.findall(r"\d+", question), "1", "1"]
        env.reset(options={"problem": {"question": question, "answer": right}})
        restated = answer.format(a=first, b=second)
        is_worked_out = restated == right or (right.startswith("\\frac") and restated.replace(" ", "") == right)
        assert env.step(format_answer(restated))[1] <= is_worked_out, (question, right)


def test_answers_are_in_lowest_terms_and_questions_do_not_repeat():
    for level in TEMPLATES:
        listed = make_problems(level)
        assert len({question for question, _ in listed}) == len(listed)
        assert make(difficulty=level).unwrapped.n_problems == (None if level == "expert" else len(listed))
        for _, answer in listed:
            for above, below in re.findall(r"\\frac\{(\d+)\}\{(\d+)\}", answer):
                assert gcd(int(above), int(below)) == 1


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_expert_level_asks_for_the_sum_of_six_problems_of_its_split(split):
    known = dict(make_problems("expert"))
    env = make(difficulty="expert", split=split)
    for seed in range(20):
        question, _ = env.reset(seed=seed)
        asked = [line.partition(". ")[2] for line in question.split("\n")[1:]]
        assert len(set(asked)) == 6 and all(split_of(" ".join(each.split())) == split for each in asked)
        assert env.step(format_answer(sum(int(known[each]) for each in asked)))[1] == 1.0
