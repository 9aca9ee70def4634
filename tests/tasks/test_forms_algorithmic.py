"""The forms of answers that the tasks of tasks/algorithmic accept, and the hedged and wrong ones that they do not."""

import gymnasium as gym
import pytest

from llm_envs.parsers import format_answer

TAGGED = [
    (
        "BaseConversion",
        {"numbers": ["500"], "source": 10, "target": 16},
        {
            1: [
                "1f4",
                "1F4",
                "0x1f4",
                "0x1F4.",
                "1f4 (base 16)",
                "1f4_{16}",
                "$1f4_{16}$",
                "(1f4)_{16}",
                "500 = 1f4",
                "1f4 in base 16",
                "1 f 4",
                "The number is 1f4.",
                "500 in base 16 is 1f4",
                "001f4",
                "`1f4`",
            ],
            0: [
                "1f5",
                "0b1",
            ],
            -0.1: [
                "1f4_10",
                "1f4 or 1f5",
            ],
        },
    ),
    (
        "BaseConversion",
        {"numbers": ["200"], "source": 10, "target": 2},
        {
            1: [
                "1100 1000",
                "11001000",
                "0b11001000",
                "11,001,000",
            ],
            0: [
                "11001000 11001001",
            ],
        },
    ),
    (
        "BaseConversion",
        {"numbers": ["500"], "source": 10, "target": 36},
        {
            1: [
                "dw",
                "The number is dw",
                "it is dw",
                "d w",
            ],
        },
    ),
    (
        "Calendar",
        {"questions": [{"kind": "weekday", "date": "2024-03-15"}, {"kind": "shift", "date": "2024-03-01", "days": 14}]},
        {
            1: [
                "Friday; 2024-03-15",
                "1. Friday; 2. 2024-03-15",
                "1. Friday\n2. 2024-03-15",
                "1) Friday\n2) 2024-03-15",
                "1: Friday; 2: 2024-03-15",
                "- Friday\n- 2024-03-15",
                "Friday, 2024-03-15",
                "Friday and 2024-03-15",
                "Fri; March 15, 2024",
                "Friday, March 15, 2024",
                "friday; 15 March 2024",
                "Friday; 15th of March 2024",
                "**Friday**; **2024-03-15**",
                "Friday; 2024/03/15",
                "The answers are Friday; 2024-03-15.",
                "It is a Friday; 2024-03-15",
                "1. 2024-03-15 is a Friday\n2. 2024-03-15",
            ],
            0: [
                "Saturday; 2024-03-15",
                "2024-03-15; Friday",
            ],
            -0.1: [
                "Friday or Saturday; 2024-03-15",
                "Friday; Saturday; 2024-03-15",
                "Friday",
            ],
        },
    ),
    (
        "Calendar",
        {
            "questions": [
                {"kind": "between", "from": "2024-03-01", "to": "2024-07-01"},
                {"kind": "weekday", "date": "2024-03-15"},
            ]
        },
        {
            1: [
                "122; Friday",
                "122 days; Friday",
                "122 days, Friday",
                "1. 122; 2. Friday",
                "1. 122 days\n2. Friday",
            ],
        },
    ),
    (
        "ShortestPath",
        {
            "story": 1,
            "directed": False,
            "edges": [["A", "B", 3], ["B", "C", 1], ["A", "C", 9], ["C", "D", 1]],
            "start": "A",
            "goal": "D",
        },
        {
            1: [
                "A -> B -> C -> D",
                "A \u2192 B \u2192 C \u2192 D",
                "A, B, C, D",
                "A-B-C-D",
                "A B C D",
                "a->b->c->d",
                "A to B to C to D",
                "A\u2013B\u2013C\u2013D",
                "$A \\to B \\to C \\to D$",
                "A \\rightarrow B \\rightarrow C \\rightarrow D",
                "1. A\n2. B\n3. C\n4. D",
                "- A\n- B\n- C\n- D",
                "A, then B, then C, then D",
                "A -> B -> C -> D (total 5)",
                "A -> B -> C -> D (5 km)",
                "A -> B -> C -> D = 5",
                "A -> B -> C -> D, with a total weight of 5",
                "[A, B, C, D]",
                '["A", "B", "C", "D"]',
                "The path is A -> B -> C -> D.",
                "A-B, B-C, C-D",
                "**A \u2192 B \u2192 C \u2192 D**",
                "A then B then C then D",
                "from A to D: A -> B -> C -> D",
            ],
            0: [
                "A -> C -> D",
                "A -> B -> C -> D, A -> C -> D",
                "D -> C -> B -> A",
                "A -> B -> C",
            ],
            -0.1: [
                "A -> B -> C -> D or A -> C -> D",
                "A -> E -> D",
            ],
        },
    ),
    (
        "SortRecords",
        {
            "columns": ["age"],
            "a": [["Ada", 30], ["Ben", 25], ["Cleo", 20]],
            "b": [],
            "operation": "first",
            "condition": [],
            "keys": [["age", "ascending"]],
        },
        {
            1: [
                "Cleo, Ben, Ada",
                "cleo; ben; ada",
                "Cleo Ben Ada",
                "1. Cleo\n2. Ben\n3. Ada",
                "- Cleo\n- Ben\n- Ada",
                "Cleo, Ben and Ada",
                "Cleo, Ben, and Ada",
                "Cleo -> Ben -> Ada",
                "Cleo (20), Ben (25), Ada (30)",
                "['Cleo', 'Ben', 'Ada']",
                "The order is Cleo, Ben, Ada.",
                "**Cleo**, **Ben**, **Ada**",
                "1. Cleo (20)\n2. Ben (25)\n3. Ada (30)",
                "Cleo\nBen\nAda",
            ],
            0: [
                "Cleo, Ben",
                "Ada, Ben, Cleo",
            ],
            -0.1: [
                "Cleo, Ben, Ada or Ada, Ben, Cleo",
                "Cleo, Ben, Ada, Ben",
                "",
            ],
        },
    ),
    (
        "SpellNth",
        {"kind": "spell", "words": ["kite", "sun"], "numbers": [1, 2], "letters": ""},
        {
            1: [
                "k-i-t-e-s-u-n",
                "K I T E S U N",
                "k, i, t, e, s, u, n",
                "k-i-t-e, s-u-n",
                "k-i-t-e s-u-n",
                "k-i-t-e and s-u-n",
                "k-i-t-e\ns-u-n",
                "1. k-i-t-e\n2. s-u-n",
                "kite: k-i-t-e, sun: s-u-n",
                "['k','i','t','e','s','u','n']",
                "`k-i-t-e-s-u-n`.",
                "The letters are k-i-t-e-s-u-n.",
            ],
            0: [
                "k-i-t-e",
                "s-u-n-k-i-t-e",
            ],
            -0.1: [
                "kite sun",
                "kitesun",
                "k-i-t-e-s-u-n or s-u-n-k-i-t-e",
            ],
        },
    ),
    (
        "SpellNth",
        {"kind": "count", "words": ["kite", "sun", "test"], "numbers": [1, 3], "letters": "tes"},
        {
            1: [
                "3, 2, 2",
                "3 2 2",
                "t: 3, e: 2, s: 2",
                "t=3, e=2, s=2",
                "e: 2, s: 2, t: 3",
                "t: 3\ne: 2\ns: 2",
                "[3, 2, 2]",
                "3, 2, and 2",
                "1. 3\n2. 2\n3. 2",
                "3 t, 2 e, 2 s",
                "The counts are 3, 2, 2.",
            ],
            0: [
                "2, 2, 3",
                "t: 2, e: 3, s: 2",
            ],
            -0.1: [
                "3, 2",
                "t: 3, t: 3, s: 2",
                "3, 2, 2 or 2, 2, 3",
                "3-2-2",
            ],
        },
    ),
    (
        "StackMachine",
        {"program": ["push 3", "push -1", "push 4"]},
        {
            1: [
                "3, -1, 4",
                "[3, -1, 4]",
                "3 -1 4",
                "3, \u22121, 4",
                "(3, -1, 4)",
                "3\n-1\n4",
                "1. 3\n2. -1\n3. 4",
                "- 3\n- -1\n- 4",
                "The final stack is [3, -1, 4].",
                "bottom: 3, -1, 4 (top)",
                "3, -1, 4 (bottom to top)",
                "$3, -1, 4$",
                "3 (bottom), -1, 4 (top)",
                "The final stack from bottom to top is 3, -1, 4.",
                "3, -1 and 4",
                "[3, -1, 4], from bottom to top",
                "3 | -1 | 4",
            ],
            0: [
                "4, -1, 3",
                "3, -1, 4, 3, -1, 4",
                "3, -1",
            ],
            -0.1: [
                "3, -1, 4 or 4, -1, 3",
            ],
        },
    ),
    (
        "StringRewriting",
        {"rules": [["ba", "ab"], ["aa", "c"]], "string": "bbaa"},
        {
            0: [
                "abba",
            ],
        },
    ),
    (
        "StringRewriting",
        {"rules": [["ba", "ab"], ["aa", "c"]], "string": "bbaa"},
        {
            1: [
                "cbb",
                "CBB",
                "c b b",
                "'cbb'",
                "The final string is cbb.",
                "bbaa -> baba -> cbb",
                "bbaa \u2192 cbb",
                "c-b-b",
            ],
            0: [
                "cbb, cbb",
            ],
            -0.1: [
                "cbb or ab",
                "d",
            ],
        },
    ),
]

NATURAL = [
    (
        "BaseConversion",
        {"numbers": ["500"], "source": 10, "target": 16},
        {
            1: [
                "So the answer is 1f4.",
                "1f4",
                "500 in base 16 is 1F4.",
            ],
            -0.1: [
                "1f4 or 1f5",
            ],
        },
    ),
    (
        "Calendar",
        {"questions": [{"kind": "weekday", "date": "2024-03-15"}, {"kind": "shift", "date": "2024-03-01", "days": 14}]},
        {
            1: [
                "So the answer is Friday; 2024-03-15.",
                "Friday; 2024-03-15",
            ],
            -0.1: [
                "Friday; 2024-03-15 or 2024-03-16",
            ],
        },
    ),
    (
        "ShortestPath",
        {
            "story": 1,
            "directed": False,
            "edges": [["A", "B", 3], ["B", "C", 1], ["A", "C", 9], ["C", "D", 1]],
            "start": "A",
            "goal": "D",
        },
        {
            1: [
                "So the answer is A -> B -> C -> D.",
                "A -> B -> C -> D",
                "The shortest path is A \u2192 B \u2192 C \u2192 D.",
            ],
            -0.1: [
                "A -> B -> C -> D or A -> C -> D",
            ],
        },
    ),
    (
        "SortRecords",
        {
            "columns": ["age"],
            "a": [["Ada", 30], ["Ben", 25], ["Cleo", 20]],
            "b": [],
            "operation": "first",
            "condition": [],
            "keys": [["age", "ascending"]],
        },
        {
            1: [
                "So the answer is Cleo, Ben, Ada.",
                "Cleo, Ben, Ada",
                "Sorted by age, the names are Cleo, Ben, and Ada.",
            ],
            -0.1: [
                "Cleo, Ben, Ada or Ben, Cleo, Ada",
            ],
        },
    ),
    (
        "SpellNth",
        {"kind": "spell", "words": ["kite", "sun"], "numbers": [1, 2], "letters": ""},
        {
            1: [
                "So the answer is k-i-t-e-s-u-n.",
                "k-i-t-e-s-u-n",
            ],
        },
    ),
    (
        "SpellNth",
        {"kind": "count", "words": ["kite", "sun", "test"], "numbers": [1, 3], "letters": "tes"},
        {
            1: [
                "So the answer is 3, 2, 2.",
                "3, 2, 2",
                "t: 3, e: 2, s: 2",
            ],
            -0.1: [
                "3, 2, 2 or 1, 2, 3",
            ],
        },
    ),
    (
        "StackMachine",
        {"program": ["push 3", "push -1", "push 4"]},
        {
            1: [
                "So the answer is 3, -1, 4.",
                "3, -1, 4",
                "The stack is [3, -1, 4].",
            ],
            -0.1: [
                "3, -1, 4 or 4, -1, 3",
            ],
        },
    ),
    (
        "StringRewriting",
        {"rules": [["ba", "ab"], ["aa", "c"]], "string": "bbaa"},
        {
            1: [
                "So the answer is cbb.",
                "cbb",
                "bbaa -> baba -> cbb",
            ],
            -0.1: [
                "cbb or ab",
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
