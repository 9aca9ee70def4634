"""The forms of answers that the tasks of tasks/arithmetic accept, and the hedged and wrong ones that they do not."""

import gymnasium as gym
import pytest

from llm_envs.parsers import format_answer

TAGGED = [
    (
        "Countdown",
        {"numbers": [25, 4, 7], "target": 93},
        {
            1: [
                "25*4-7",
                "25 \u00d7 4 \u2212 7",
                "25 x 4 - 7 = 93",
                "93 = 25*4-7",
                "So 25*4-7 = 93.",
                "`25*4 - 7`",
                "$25 \\times 4 - 7 = 93$",
                "25 \\cdot 4 - 7",
                "The expression is 25*4-7.",
                "[25*4]-7",
                "25*4-7 equals 93",
            ],
            0: [
                "25*4-7 = 94",
                "100-7",
                "25*4+7",
            ],
            -0.1: [
                "25*4-7 or 4*25-7",
                "25*4-7, 4*25-7",
                "93",
                "25*4=100; 100-7=93",
            ],
        },
    ),
    (
        "LinearSystems",
        {"names": "xy", "equations": [[[2, 3], 0, [0, 0], 13], [[1, -1], 0, [0, 0], -1]]},
        {
            1: [
                "x=2, y=3",
                "x = 2 and y = 3",
                "x: 2, y: 3",
                "x is 2, y is 3",
                "(2, 3)",
                "(x, y) = (2, 3)",
                "(y, x) = (3, 2)",
                "So x = 2 and y = 3.",
                "- x = 2\n- y = 3",
                "1. x = 2\n2. y = 3",
                "$x = 2$, $y = 3$",
                "$x=2$ and $y=3$",
                "x = 2, \\quad y = 3",
                "x = 2 \\\\ y = 3",
                "**x = 2**, **y = 3**",
                "y=3; x=2",
                "The solution is x = 2, y = 3.",
                "x = 2 y = 3",
                "{x: 2, y: 3}",
            ],
            0: [
                "x=3, y=2",
                "(3, 2)",
                "x=\u22122, y=3",
            ],
            -0.1: [
                "x=2, y=3, x=3",
                "x=2 or x=3, y=3",
                "x=2",
            ],
        },
    ),
    (
        "LinearSystems",
        {"names": "yx", "equations": [[[2, 3], 0, [0, 0], 13], [[1, -1], 0, [0, 0], -1]]},
        {
            1: [
                "y=2, x=3",
                "(x, y) = (3, 2)",
            ],
            -0.1: [
                "(2, 3)",
            ],
        },
    ),
    (
        "Units",
        {"facts": [["mile", 8, "furlong"]], "amount": 3, "source": ["mile"], "target": ["furlong"]},
        {
            1: [
                "24",
                "24 furlongs",
                "3 miles = 24 furlongs",
            ],
            0: [
                "25",
            ],
            -0.1: [
                "24 or 25",
            ],
        },
    ),
    (
        "WordProblems",
        {"text": "Ada has 3 apples and buys 4. How many has she?", "expression": "3+4"},
        {
            1: [
                "7",
                "7 apples",
                "**7**.",
                "3+4=7",
                "She has 7 apples.",
                "$7",
            ],
            0: [
                "8 apples",
            ],
            -0.1: [
                "7 or 8",
                "7, 8",
            ],
        },
    ),
    (
        "WordProblems",
        {"text": "Ada has 3 apples and buys 4. How many has she?", "expression": "3+4"},
        {
            1: [
                "She has 7 apples.",
                "So Ada has **7 apples** left.",
                "7 apples.",
            ],
            0: [
                "She has -7 apples",
            ],
            -0.1: [
                "She does not have 7 apples",
                "She has about 7",
                "She has 7 apples and 8 pears",
            ],
        },
    ),
]

NATURAL = [
    (
        "Countdown",
        {"numbers": [25, 4, 7], "target": 93},
        {
            1: [
                "25*4-7 = 93",
                "So the answer is 25*4-7.",
                "25*4-7",
                "So 25 * 4 - 7 = 93.",
                "**25*4-7**",
                "The answer is 25*4-7 = 93.",
            ],
            -0.1: [
                "The answer is 25*4-7 or 4*25-7",
            ],
        },
    ),
    (
        "LinearSystems",
        {"names": "xy", "equations": [[[2, 3], 0, [0, 0], 13], [[1, -1], 0, [0, 0], -1]]},
        {
            1: [
                "So x = 2 and y = 3.",
                "x=2, y=3",
                "So the answer is x=2, y=3.",
                "The solution is (2, 3).",
            ],
            -0.1: [
                "x=2 or y=3",
            ],
        },
    ),
    (
        "WordProblems",
        {"text": "Ada has 3 apples and buys 4. How many has she?", "expression": "3+4"},
        {
            1: [
                "She has 3 + 4 = 7 apples.",
                "So Ada has 7 apples.",
            ],
            -0.1: [
                "She has 7 or 8 apples.",
            ],
        },
    ),
]


def rows(table):
    return [
        pytest.param(id, problem, answer, paid, id=f"{id}: {answer[:40]!r} pays {paid}")
        for id, problem, answers in table
        for paid, texts in answers.items()
        for answer in texts
    ]


@pytest.mark.parametrize(("id", "problem", "answer", "paid"), rows(TAGGED))
def test_answers_in_tags(id, problem, answer, paid):
    env = gym.make(f"llm/{id}-v0")
    env.reset(seed=0, options={"problem": problem})
    assert env.step(format_answer(answer))[1] == pytest.approx(paid)


@pytest.mark.parametrize(("id", "problem", "answer", "paid"), rows(NATURAL))
def test_answers_in_prose(id, problem, answer, paid):
    env = gym.make(f"llm/{id}-v0", answer_form="natural")
    env.reset(seed=0, options={"problem": problem})
    assert env.step(answer)[1] == pytest.approx(paid)
