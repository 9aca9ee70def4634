"""The tasks of tasks/data: mathematics from data sets."""

import json
import re
import sys
from fractions import Fraction
from math import gcd

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
        ("6", "6" + " " * 10 + "x" * 600, 0),
    ],
)
def test_answers_are_compared_by_value(right, answer, paid):
    env = make()
    env.reset(options={"problem": {"question": "How many?", "answer": right}})
    assert env.step(format_answer(answer))[1] == paid


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
    for (a, b, c, d), _, answer in problems("easy", "Compute"):
        assert value(answer) * b * d == a * d + c * b
    for _, question, answer in problems("easy", "Solve"):
        left, right = re.search(r"\$(.*) = (.*)\$ for", question).groups()
        assert at(left, value(answer)) == int(right)
    for (percent, whole), _, answer in problems("easy", "%"):
        assert Fraction(percent * whole, 100) == int(answer)
    for (a, b), _, answer in problems("easy", "greatest common divisor"):
        assert int(answer) == max(n for n in range(1, min(a, b) + 1) if a % n == b % n == 0)
    for (a, b), _, answer in problems("easy", "least common multiple"):
        assert int(answer) == next(n for n in range(a, a * b + 1, a) if n % b == 0)
    for (*_, x), question, answer in problems("easy", "Let $f(x)"):
        assert at(re.search(r"= (.*)\$\. What", question)[1], x) == int(answer)
    for (a, b), _, answer in problems("easy", "hypotenuse"):
        assert a * a + b * b == int(answer) ** 2
    for numbers, _, answer in problems("easy", "mean"):
        assert value(answer) * len(numbers) == sum(numbers)


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
    for _, question, answer in problems("medium", "ordered pair"):
        x, y = map(int, answer[1:-1].split(", "))
        for left, sign, b, right in re.findall(r"\$(\S+) ([-+]) (\d+)y = (-?\d+)\$", question):
            assert at(left, x) + (-1 if sign == "-" else 1) * int(b) * y == int(right)
    for (n, first, second, _), _, answer in problems("medium", "arithmetic sequence"):
        assert int(answer) == sum(first + i * (second - first) for i in range(n))
    for (red, blue), _, answer in problems("medium", "probability"):
        assert value(answer) == Fraction(red, red + blue) * Fraction(red - 1, red + blue - 1)
    for (k, n), _, answer in problems("medium", "In how many ways"):
        assert int(answer) == sum(1 for bits in range(2**n) if bits.bit_count() == k)


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
    for (base, exponent, modulus), _, answer in problems("hard", "remainder"):
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


def test_answers_are_in_lowest_terms_and_questions_do_not_repeat():
    for level in TEMPLATES:
        listed = make_problems(level)
        assert len({question for question, _ in listed}) == len(listed) == make(difficulty=level).unwrapped.n_problems
        for _, answer in listed:
            for above, below in re.findall(r"\\frac\{(\d+)\}\{(\d+)\}", answer):
                assert gcd(int(above), int(below)) == 1
