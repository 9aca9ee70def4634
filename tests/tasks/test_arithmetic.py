"""The tasks of tasks/arithmetic: word problems, linear systems, units."""

import random
import re
from collections import Counter
from fractions import Fraction
from itertools import permutations, product

import gymnasium as gym
import pytest
from task_play import LEVELS, drawn, is_at_most, require_refused, reward

from llm_envs.mathematics.arithmetic import whole_value
from llm_envs.tasks.arithmetic.linear_systems import determinant
from llm_envs.tasks.arithmetic.stories import STORIES, relations, stock

# WordProblems.


@pytest.mark.parametrize(
    ("answer", "paid"), [("17", 1), (" 17.0 ", 1), ("18", 0), ("-17", 0), ("17 coins", 1), ("50-33", -0.1)]
)
def test_word_problems(answer, paid):
    text = "Ada goes to the market with 50 coins. Ada buys 3 buns at 11 coins each. How many coins does Ada have left?"
    assert reward("llm/WordProblems-v0", {"text": text, "expression": "50-3*11"}, answer) == pytest.approx(paid)


def told_stock(story):
    """Follow the box's story sentence by sentence."""
    value = int(re.search(r"There are (\d+)", story.first[0])[1])
    for line in story.rest:
        numbers = [int(number) for number in re.findall(r"\d+", line)]
        if "bags of" in line:
            value += numbers[0] * numbers[1]
        elif "takes" in line:
            value -= numbers[0]
        elif "half" in line:
            assert value % 2 == 0
            value //= 2
        elif "double" in line:
            value *= 2
        else:
            value += numbers[0]
        assert value > 0
    return value


def told_relations(story):
    """Work out who has how many, from sentences in any order."""
    values, waiting = {}, list(story.rest)
    while waiting:
        line = waiting.pop(0)
        words = line.rstrip(".").split()
        number = int(re.search(r"\d+", line)[0])
        if " than " not in line and " as " not in line:
            values[words[0]] = number
        elif words[-1] not in values:
            waiting.append(line)
        elif "times" in line:
            values[words[0]] = values[words[-1]] * number
        else:
            values[words[0]] = values[words[-1]] + (-number if "fewer" in line else number)
    if "together" in story.question:
        names = re.search(r"do (.*) have", story.question)[1].replace(" and ", ", ").split(", ")
        assert sorted(names) == sorted(values)
        return sum(values.values())
    return values[re.search(r"does (\w+) have", story.question)[1]]


@pytest.mark.parametrize(("story", "told"), [(stock, told_stock), (relations, told_relations)])
def test_the_expression_says_what_is_told(story, told):
    rng = random.Random(0)
    for size in (2, 3, 4):
        for _ in range(100):
            drawn = story(rng.random, size)
            assert whole_value(drawn.expression) == told(drawn)


@pytest.mark.parametrize("story", STORIES)
def test_answers_are_whole_and_not_negative(story):
    rng = random.Random(1)
    for size in (2, 3, 4):
        for _ in range(100):
            drawn = story(rng.random, size)
            assert whole_value(drawn.expression) >= 0
            assert len(drawn.asides) >= 3
            told = " ".join([*drawn.first, *drawn.rest])
            # What the expression calculates with stands in the text, but for halves and doubles.
            assert set(re.findall(r"\d+", drawn.expression)) <= {"2", *re.findall(r"\d+", told)}


@pytest.mark.parametrize("level", LEVELS)
def test_blind_patterns_do_not_solve_word_problems(level):
    n, wins = 1_500, Counter()
    for task in drawn("llm/WordProblems-v0", level, n):
        numbers = [*map(int, re.findall(r"\d+", task.problem["text"])), 0]
        pairs = sum(a * b for a, b in zip(numbers[1::2], numbers[2::2], strict=False))
        guesses = {
            "sum": sum(numbers),
            "first - pairs": numbers[0] - pairs,
            "pairs": sum(a * b for a, b in zip(numbers[::2], numbers[1::2], strict=False)),
            "last": numbers[-2],
            "half": Fraction(numbers[0] + numbers[1], 2),
        }
        wins.update(name for name, guess in guesses.items() if guess == int(task.solution()))
        wins[task.solution()] += 1
    assert is_at_most(max(wins.values()) / n, task.chance_rate, n)


# LinearSystems.

SYSTEM = {"names": "xy", "equations": [[[2, 3], 0, [0, 0], 13], [[1, -1], 0, [0, 0], -1]]}  # x=2, y=3
SUM = [[1, 1], 0, [0, 0], 2]


def test_linear_systems_are_written_as_documented():
    env = gym.make("llm/LinearSystems-v0")
    assert env.reset(options={"problem": SYSTEM})[0] == "2x + 3y = 13\nx - y = -1"
    hard = {"names": "ab", "equations": [[[-1, 0], 4, [2, 1], 0], [[0, 1], 0, [0, 0], 1]]}  # -a + 4 = 2a + b
    assert env.reset(options={"problem": hard})[0] == "-a + 4 = 2a + b\nb = 1"
    assert env.unwrapped.solution() == "a=1, b=1"


def test_determinants():
    def by_definition(rows):
        total = 0
        for order in permutations(range(len(rows))):
            inversions = sum(order[i] > order[j] for i in range(len(rows)) for j in range(i + 1, len(rows)))
            term = (-1) ** inversions
            for i, j in enumerate(order):
                term *= rows[i][j]
            total += term
        return total

    rng = random.Random(0)
    for size in (2, 3, 4):
        for _ in range(50):
            rows = [[rng.randint(-3, 3) for _ in range(size)] for _ in range(size)]
            assert determinant(rows) == by_definition(rows)


def test_twins_of_a_system_share_the_split():
    key = gym.make("llm/LinearSystems-v0").unwrapped.split_key
    twin = {"names": "ba", "equations": [[[-1, 1], 0, [0, 0], -1], [[3, 2], 2, [0, 0], 15]]}
    assert key(SYSTEM) == key(twin)
    assert key(SYSTEM) != key(SYSTEM | {"equations": [[[2, 3], 0, [0, 0], 8], [[1, -1], 0, [0, 0], -1]]})


@pytest.mark.parametrize("level", LEVELS)
def test_drawn_systems_hold(level):
    env = gym.make("llm/LinearSystems-v0", difficulty=level)
    for seed in range(60):
        text, _ = env.reset(seed=seed)
        values = {name: int(value) for name, value in re.findall(r"(\w)=(-?\d+)", env.unwrapped.solution())}
        for line in text.splitlines():
            sides = [re.sub(r"(\d)([a-z])", r"\1*\2", side) for side in line.split(" = ")]
            for name, value in values.items():
                sides = [side.replace(name, f"({value})") for side in sides]
            assert whole_value(sides[0]) == whole_value(sides[1])


# Units.

FACTS = [["mile", 8, "furlong"], ["furlong", 10, "chain"], ["week", 7, "day"], ["zarp", 3, "chain"]]
MILES = {"facts": FACTS, "amount": 3, "source": ["mile"], "target": ["chain"]}


@pytest.mark.parametrize(
    ("amount", "source", "target", "value"),
    [
        (3, ["mile"], ["chain"], 240),
        (240, ["chain"], ["mile"], 3),
        (6, ["zarp"], ["chain"], 18),
        (3, ["mile"], ["zarp"], 80),
        (35, ["mile", "week"], ["chain", "day"], 400),
        (4, ["furlong", "day"], ["chain", "week"], 280),
    ],
)
def test_units(amount, source, target, value):
    problem = {"facts": FACTS, "amount": amount, "source": source, "target": target}
    assert reward("llm/Units-v0", problem, value) == 1
    assert reward("llm/Units-v0", problem, f"{value:,}.0") == 1
    assert reward("llm/Units-v0", problem, value + 1) == 0
    assert reward("llm/Units-v0", problem, amount) == 0
    assert reward("llm/Units-v0", problem, f"{value} {target[0]}s") == 1


def test_units_are_asked_readably():
    env = gym.make("llm/Units-v0")
    problem = {"facts": [["yard", 3, "foot"], ["day", 1, "lunt"]], "amount": 6, "source": ["foot"], "target": ["yard"]}
    text, _ = env.reset(options={"problem": problem})
    assert text == "1 yard = 3 feet.\n1 day = 1 lunt.\nHow many yards are 6 feet?"
    rate = {"facts": FACTS, "amount": 35, "source": ["mile", "week"], "target": ["chain", "day"]}
    text, _ = env.reset(options={"problem": rate})
    assert text.endswith("How many chains per day are 35 miles per week?")


@pytest.mark.parametrize("level", LEVELS)
def test_factors_at_random_do_not_solve_units(level):
    n, wins = 1_500, Counter()
    for task in drawn("llm/Units-v0", level, n):
        amount, value = task.problem["amount"], Fraction(int(task.solution()))
        factors = [number for _, number, _ in task.problem["facts"]]
        for signs in product((1, -1, 0), repeat=2):
            guess = amount * Fraction(factors[0]) ** signs[0] * Fraction(factors[1]) ** signs[1]
            wins[signs] += guess == value
        wins[value] += 1
    assert is_at_most(max(wins.values()) / n, task.chance_rate, n)


@pytest.mark.parametrize(
    ("task", "problem", "complaint"),
    [
        ("LinearSystems", SYSTEM | {"equations": [[[2, 2], 0, [0, 0], 4], SUM]}, "no solution, or many"),
        ("LinearSystems", SYSTEM | {"equations": [[[2, 0], 0, [0, 0], 1], SUM]}, "the value of x is not whole"),
        ("LinearSystems", SYSTEM | {"equations": [[[2, 0], 0, [0, 0], 1]]}, "there must be 2 equations"),
        ("LinearSystems", SYSTEM | {"equations": [[[2], 0, [0, 0], 1]] * 2}, "there must be 2 equations"),
        ("LinearSystems", SYSTEM | {"names": "xx"}, "different letters"),
        ("Units", MILES | {"amount": 1, "source": ["chain"], "target": ["mile"]}, "not to a whole number"),
        ("Units", MILES | {"target": ["day"]}, "not to a whole number"),
        ("Units", MILES | {"amount": 0}, "the amount be 1"),
        ("Units", MILES | {"source": ["mile", "week"]}, "one unit each"),
        ("Units", MILES | {"facts": [["mile", 0, "furlong"]]}, "each fact must be"),
    ],
)
def test_what_cannot_be_played_is_refused(task, problem, complaint):
    require_refused(f"llm/{task}-v0", problem, complaint)
