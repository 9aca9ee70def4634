"""The forms of answers that the tasks of tasks/data accept, and the hedged and wrong ones that they do not."""

import gymnasium as gym
import pytest

from llm_envs.parsers import format_answer

TAGGED = [
    (
        "DatasetMath",
        {"question": "How many?", "answer": "\\frac{5}{2}"},
        {
            1: [
                "\\frac52",
                "\\frac{5}{2}",
                "5/2",
                "2.5",
                "\\dfrac52",
                "$\\frac52$",
                "\\boxed{\\frac52}",
                "5/2.",
                "x = 5/2",
                "The answer is 5/2.",
                "The value of x is 5/2",
                "**5/2**",
                "\\frac5{2}",
                "2 1/2",
            ],
            0: [
                "5/3",
                "5/2 or 3",
                "10/4",
            ],
        },
    ),
    (
        "DatasetMath",
        {"question": "How many?", "answer": "\\{-8, -4\\}"},
        {
            1: [
                "{-8,-4}",
                "-8 and -4",
                "-8, -4",
                "\\{-8,-4\\}",
                "x = -8 and x = -4",
                "x=-8 or x=-4",
                "x = -4, x = -8",
                "-8; -4",
                "[-8, -4]",
                "The solutions are -8 and -4.",
                "x = -8, -4",
                "x=-8\nx=-4",
                "x\u2081 = -8, x\u2082 = -4",
                "x_1 = -8, x_2 = -4",
                "x \\in \\{-8, -4\\}",
                "\u22128 and \u22124",
            ],
            0: [
                "(-8, -4)",
                "-8",
                "-8, -4, 0",
            ],
        },
    ),
    (
        "DatasetMath",
        {"question": "How many?", "answer": "6x^2 + 4x - 3"},
        {
            1: [
                "6*x^2+4*x-3",
                "6x^2+4x-3",
                "6x\u00b2+4x\u22123",
                "6*x**2 + 4*x - 3",
                "f'(x) = 6x^2 + 4x - 3",
                "6x^{2}+4x-3",
                "6 \\cdot x^2 + 4 \\cdot x - 3",
                "The derivative is 6x^2 + 4x - 3.",
                "4x + 6x^2 - 3",
                "6x**2+4x-3",
            ],
            0: [
                "6x^2+4x",
                "6x^2 + 4x - 3 or 6x^2",
                "3*2x^2+4x-3",
                "2*3*x^2+4x-3",
            ],
        },
    ),
    (
        "DatasetMath",
        {"question": "How many?", "answer": "25\\pi"},
        {
            1: [
                "25*pi",
                "25pi",
                "25 pi",
                "25\u03c0",
                "25 \\cdot \\pi",
                "25\\pi",
                "25 \\times \\pi",
                "25*\u03c0",
                "The area is 25\u03c0.",
                "A = 25\u03c0",
                "25 \u03c0 square units",
            ],
            0: [
                "78.54",
                "26*pi",
                "5*5*pi",
                "5*5pi",
            ],
        },
    ),
    (
        "DatasetMath",
        {"question": "How many?", "answer": "(-\\infty, \\frac{3}{2})"},
        {
            1: [
                "(-\\infty, 3/2)",
                "(-inf, 3/2)",
                "(-\u221e, 3/2)",
                "x < 3/2",
                "(-infinity, 1.5)",
                "(-oo, 3/2)",
                "x < \\frac32",
            ],
            0: [
                "x > 3/2",
                "(-\\infty, 3/2]",
                "]-\\infty, 3/2[",
            ],
        },
    ),
    (
        "DatasetMath",
        {"question": "How many?", "answer": "\\frac{5 + \\sqrt{65}}{2}"},
        {
            1: [
                "(5 + sqrt(65))/2",
                "(5+\u221a65)/2",
                "\\frac{5+\\sqrt{65}}2",
            ],
        },
    ),
    (
        "DatasetMath",
        {"question": "How many?", "answer": "6"},
        {
            1: [
                "6",
                "6 cm",
                "6.0",
                "$6$",
                "The answer is 6.",
                "The hypotenuse is 6 long",
                "It is 6.",
                "6 units",
            ],
            0: [
                "six",
                "2*3",
                "1 or 2 or 3 or 4 or 5 or 6",
                "6, 7",
                "either 6 or 7",
            ],
        },
    ),
    (
        "DatasetMath",
        {"question": "How many?", "answer": "(1, -5)"},
        {
            1: [
                "(1,-5)",
                "x = 1, y = -5",
                "1, -5",
                "x=1 and y=-5",
            ],
            0: [
                "(-5, 1)",
            ],
        },
    ),
    (
        "DatasetMath",
        {"question": "How many?", "answer": "1234"},
        {
            1: [
                "1,234",
                "1234 ways",
                "1{,}234",
                "1\\,234",
            ],
        },
    ),
]

NATURAL = [
    (
        "DatasetMath",
        {"question": "How many?", "answer": "\\frac{5}{2}"},
        {
            1: [
                "5/2",
                "So x = 5/2.",
                "The answer is 5/2.",
                "So the answer is \\frac{5}{2}.",
                "\\frac52",
            ],
            -0.1: [
                "It is 5/2 or 3.",
            ],
        },
    ),
    (
        "DatasetMath",
        {"question": "How many?", "answer": "\\{-8, -4\\}"},
        {
            1: [
                "So the solutions are -8 and -4.",
                "So the answer is \\{-8, -4\\}.",
                "\\{-8, -4\\}",
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
