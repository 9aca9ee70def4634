"""The forms of answers that the tasks of tasks/logic accept, and the hedged and wrong ones that they do not."""

import gymnasium as gym
import pytest

from llm_envs.parsers import format_answer

TAGGED = [
    (
        "KnightsAndKnaves",
        {
            "people": ["Ada", "Ben", "Cleo"],
            "kinds": ["knight", "knave"],
            "statements": [["is", 1, False], ["different", 0, 2], ["any", 0, 2, False]],
        },
        {
            1: [
                "Ada: knave, Ben: knight, Cleo: knight",
                "Ada is a knave, Ben is a knight, and Cleo is a knight.",
                "Ada is a knave and Ben is a knight and Cleo is a knight",
                "- Ada: knave\n- Ben: knight\n- Cleo: knight",
                "1. Ada: knave\n2. Ben: knight\n3. Cleo: knight",
                "**Ada**: knave\n**Ben**: knight\n**Cleo**: knight",
                "Ada (knave), Ben (knight), Cleo (knight)",
                "Ada - knave, Ben - knight, Cleo - knight",
                '{"Ada": "knave", "Ben": "knight", "Cleo": "knight"}',
                "| Name | Kind |\n|---|---|\n| Ada | knave |\n| Ben | knight |\n| Cleo | knight |",
                "Ada \u2192 knave; Ben \u2192 knight; Cleo \u2192 knight",
                "Here are the kinds:\nAda: knave\nBen: knight\nCleo: knight",
                "knights: Ben, Cleo; knaves: Ada",
                "Knights: Ben and Cleo. Knaves: Ada.",
                "Knave: Ada\nKnight: Ben, Cleo",
                "Ada is not a knight, Ben is a knight, Cleo is a knight",
                "So Ada is a knave, Ben is a knight and Cleo is a knight.",
            ],
            0: [
                "Ada: knight, Ben: knave, Cleo: knight",
            ],
            -0.1: [
                "Ada: knave or knight, Ben: knight, Cleo: knight",
                "Ada: knave, Ben: knight, Cleo: knight, Ada: knight",
                "knave, knight, knight",
                "knights: Ada, Ben, Cleo; knaves: Ada",
                "Ada: knave",
                "Either Ada: knave, Ben: knight, Cleo: knight",
            ],
        },
    ),
    (
        "GraphColouring",
        {
            "story": "map",
            "nodes": ["A", "B", "C", "D"],
            "edges": [["A", "B"], ["B", "C"], ["C", "D"], ["D", "A"]],
            "colours": ["red", "blue"],
        },
        {
            1: [
                "A: red, B: blue, C: red, D: blue",
                "Region A: red\nRegion B: blue\nRegion C: red\nRegion D: blue",
                "red: A, C; blue: B, D",
                "Red: A, C\nBlue: B, D",
                "A (red), B (blue), C (red), D (blue)",
                "A valid colouring is: A: red, B: blue, C: red, D: blue",
                "A: RED\nB: BLUE\nC: RED\nD: BLUE",
                "A gets red, B gets blue, C gets red, D gets blue",
            ],
            0: [
                "A: red, B: red, C: red, D: blue",
                "red: A, B; blue: C, D",
            ],
            -0.1: [
                "A=red B=blue",
                "A: red or blue, B: blue, C: red, D: blue",
                "red: A, C; blue: A, B, D",
            ],
        },
    ),
    (
        "GraphColouring",
        {
            "story": "radio",
            "nodes": ["A", "B", "C", "D"],
            "edges": [["A", "B"], ["B", "C"], ["C", "D"], ["D", "A"]],
            "colours": ["one", "two"],
        },
        {
            1: [
                "A: channel one, B: channel two, C: channel one, D: channel two",
            ],
        },
    ),
    (
        "Syllogisms",
        {
            "arguments": [
                {
                    "premises": [["all", "men", "mortals"], ["all", "Greeks", "men"]],
                    "conclusion": ["all", "Greeks", "mortals"],
                },
                {
                    "premises": [["all", "men", "mortals"], ["all", "men", "Greeks"]],
                    "conclusion": ["all", "Greeks", "mortals"],
                },
            ]
        },
        {
            1: [
                "1: valid, 2: invalid",
                "1. valid\n2. invalid",
                "1) valid\n2) invalid",
                "(1) valid, (2) invalid",
                "1 valid, 2 invalid",
                "Argument 1: valid, Argument 2: invalid",
                "Argument 1 is valid and argument 2 is invalid.",
                "valid, invalid",
                "Valid\nInvalid",
                "- 1: valid\n- 2: invalid",
                "1. **valid**\n2. **invalid**",
                "1: valid; 2: not valid",
                "| 1 | valid |\n| 2 | invalid |",
            ],
            0: [
                "1: valid, 2: valid",
                "invalid, valid",
            ],
            -0.1: [
                "1) valid 2) invalid",
                "valid",
                "1: valid or invalid, 2: invalid",
                "1: valid, 2: valid, 2: invalid",
                "valid, invalid, valid",
            ],
        },
    ),
    (
        "Blocksworld",
        {"initial": [["red", "blue"], ["blue", "table"]], "goal": [["blue", "red"]], "limit": 4},
        {
            1: [
                (
                    "unstack the red block from the blue block\nput down the red b"
                    "lock\npick up the blue block\nstack the blue block on the red "
                    "block"
                ),
                (
                    "unstack the red block from the blue block; put down the red "
                    "block; pick up the blue block; stack the blue block on the r"
                    "ed block"
                ),
                (
                    "unstack the red block from the blue block, put down the red "
                    "block, pick up the blue block, stack the blue block on the r"
                    "ed block"
                ),
                (
                    "unstack the red block from the blue block, then put down the"
                    " red block, then pick up the blue block, then stack the blue"
                    " block on the red block"
                ),
                (
                    "unstack the red block from the blue block. put down the red "
                    "block. pick up the blue block. stack the blue block on the r"
                    "ed block."
                ),
                (
                    "1. unstack the red block from the blue block\n2. put down the"
                    " red block\n3. pick up the blue block\n4. stack the blue block"
                    " on the red block"
                ),
                (
                    "Step 1: unstack the red block from the blue block.\nStep 2: p"
                    "ut down the red block.\nStep 3: pick up the blue block.\nStep "
                    "4: stack the blue block on the red block."
                ),
                (
                    "- unstack the red block from the blue block\n- put down the r"
                    "ed block\n- pick up the blue block\n- stack the blue block on "
                    "the red block"
                ),
                (
                    "Here is the plan:\nunstack the red block from the blue block\n"
                    "put down the red block\npick up the blue block\nstack the blue"
                    " block on the red block"
                ),
                "unstack red from blue\nput down red on the table\npick up blue\nstack blue on red",
                "(unstack red blue)\n(put-down red)\n(pick-up blue)\n(stack blue red)",
                "unstack(red, blue)\nput_down(red)\npick_up(blue)\nstack(blue, red)",
                (
                    "```\nunstack the red block from the blue block\nput down the r"
                    "ed block\npick up the blue block\nstack the blue block on the "
                    "red block\n```"
                ),
                (
                    "unstack the red block from the blue block and then put down "
                    "the red block and then pick up the blue block and then stack"
                    " the blue block on the red block"
                ),
                (
                    "Unstack block red from block blue\nPut block red down\nPick up"
                    " block blue\nStack block blue on top of block red"
                ),
            ],
            0: [
                "put the red block on the table\n",
                "unstack the red block from the blue block\nput down the red block\npick up the blue block",
            ],
            -0.1: [
                "Unstack the red block from the blue block, then put it down",
                "fly",
                "unstack the red block from the blue block or put down the red block",
            ],
        },
    ),
    (
        "Entailment",
        {
            "letters": "pqr",
            "premises": [["if", "p", "q"], ["if", "q", "r"]],
            "conclusions": [["if", "p", "r"], ["if", "r", "p"]],
        },
        {
            1: [
                "1: follows; 2: p=false q=false r=true",
                "1. follows\n2. p=false, q=false, r=true",
                "1: follows, 2: p=false, q=false, r=true",
                "1) Follows.\n2) p = F, q = F, r = T",
                "1: follows; 2: does not follow: p=false, q=false, r=true",
                "1: It follows.\n2: Does not follow (p=false, q=false, r=true)",
                "Conclusion 1: follows\nConclusion 2: p is false, q is false and r is true",
                "1: follows; 2: p: false, q: false, r: true",
                "**1:** follows\n**2:** p=false q=false r=true",
                "- 1: follows\n- 2: p=0, q=0, r=1",
                "follows; p=false q=false r=true",
                "1: follows; 2: counterexample p=false, q=false, r=true",
                "1 -> follows; 2 -> p=false q=false r=true",
            ],
            0: [
                "1: follows; 2: follows",
                "1: follows; 2: p=true q=true r=true",
            ],
            -0.1: [
                "1: follows; 2: does not follow",
                "1: follows; 2: p=false q=true",
                "1: follows or p=true q=true r=true; 2: p=false q=false r=true",
                "1: does not follow; 2: follows",
            ],
        },
    ),
    (
        "GridPrograms",
        {
            "program": [["recolour", "all", 4], ["move", "down"]],
            "inputs": [[[1, 1], [0, 0]], [[2, 0], [0, 0], [0, 0]], [[3, 3, 0], [0, 0, 0]]],
        },
        {
            1: [
                "0 0 0\n4 4 0",
                "[[0,0,0],[4,4,0]]",
                "[[0, 0, 0],\n [4, 4, 0]]",
                "Output:\n0 0 0\n4 4 0",
                "Output 3:\n000\n440",
                "Row 1: 0 0 0\nRow 2: 4 4 0",
                "```\n0 0 0\n4 4 0\n```",
                "0,0,0\n4,4,0",
                "000/440",
                "| 0 | 0 | 0 |\n| 4 | 4 | 0 |",
            ],
            0: [
                "000440",
                "330\n000",
                "000\n440\n000\n440",
            ],
            -0.1: [
                "000 or 440",
            ],
        },
    ),
    (
        "Sudoku",
        {"rows": ["12..", "..1.", ".1..", "24.."]},
        {
            1: [
                "1243\n4312\n3124\n2431",
                "```\n1243\n4312\n3124\n2431\n```",
                "[[1,2,4,3],[4,3,1,2],[3,1,2,4],[2,4,3,1]]",
                "[1, 2, 4, 3]\n[4, 3, 1, 2]\n[3, 1, 2, 4]\n[2, 4, 3, 1]",
                "Row 1: 1243\nRow 2: 4312\nRow 3: 3124\nRow 4: 2431",
                "Solution:\n1243\n4312\n3124\n2431",
                "**1243**\n4312\n3124\n2431",
                "1. 1243\n2. 4312\n3. 3124\n4. 2431",
                (
                    "1 2 \u2502 4 3\n4 3 \u2502 1 2\n"
                    + "\u2500" * 4
                    + "\u253c"
                    + "\u2500" * 4
                    + "\n3 1 \u2502 2 4\n2 4 \u2502 3 1"
                ),
                "1243431231242431",
                "| 1 | 2 | 4 | 3 |\n| 4 | 3 | 1 | 2 |\n|---|---|---|---|\n| 3 | 1 | 2 | 4 |\n| 2 | 4 | 3 | 1 |",
                "1243; 4312; 3124; 2431",
                "- 1243\n- 4312\n- 3124\n- 2431",
            ],
            0: [
                "1234\n3412\n2143\n4321",
            ],
            -0.1: [
                "1243\n4312\n3124\n2431\n1243\n4312\n3124\n2431",
                "12..\n..1.\n.1..\n24..",
            ],
        },
    ),
    (
        "ZebraPuzzle",
        {
            "attributes": [["name", ["Ada", "Ben", "Cleo"]], ["pet", ["cat", "dog", "bird"]]],
            "clues": [["at", [0, 0], 0], ["left", [1, 1], [0, 2]], ["same", [0, 2], [1, 0]], ["other", [0, 0], [1, 1]]],
        },
        {
            1: [
                "1: Ada, bird\n2: Ben, dog\n3: Cleo, cat",
                "House 1: Ada, bird; House 2: Ben, dog; House 3: Cleo, cat",
                "1. Ada, bird\n2. Ben, dog\n3. Cleo, cat.",
                "**House 1:** Ada, bird\n**House 2:** Ben, dog\n**House 3:** Cleo, cat",
                "1: name Ada, pet bird\n2: name Ben, pet dog\n3: name Cleo, pet cat",
                (
                    "House 1:\n- Name: Ada\n- Pet: bird\nHouse 2:\n- Name: Ben\n- Pet:"
                    " dog\nHouse 3:\n- Name: Cleo\n- Pet: cat"
                ),
                "| House | Name | Pet |\n|---|---|---|\n| 1 | Ada | bird |\n| 2 | Ben | dog |\n| 3 | Cleo | cat |",
                "- 1: Ada and bird\n- 2: Ben and dog\n- 3: Cleo and cat",
                "1: Ada, bird, 2: Ben, dog, 3: Cleo, cat",
                "1 - Ada, bird\n2 - Ben, dog\n3 - Cleo, cat",
                "House 1: name=Ada; pet=bird\nHouse 2: name=Ben; pet=dog\nHouse 3: name=Cleo; pet=cat",
                "Here is the solution:\n1: Ada, bird\n2: Ben, dog\n3: Cleo, cat",
                '{"1": ["Ada", "bird"], "2": ["Ben", "dog"], "3": ["Cleo", "cat"]}',
            ],
            0: [
                "1: Ada, dog\n2: Ben, bird\n3: Cleo, cat",
            ],
            -0.1: [
                "1: Ada, bird or cat\n2: Ben, dog\n3: Cleo, cat",
                "1: Ada, bird\n2: Ben, dog\n3: Cleo, cat\n1: Ada, dog\n2: Ben, bird\n3: Cleo, cat",
                "1: Ada not bird\n2: Ben, dog\n3: Cleo, cat",
            ],
        },
    ),
]

NATURAL = [
    (
        "KnightsAndKnaves",
        {
            "people": ["Ada", "Ben", "Cleo"],
            "kinds": ["knight", "knave"],
            "statements": [["is", 1, False], ["different", 0, 2], ["any", 0, 2, False]],
        },
        {
            1: [
                "So the answer is Ada: knave, Ben: knight, Cleo: knight.",
                "Ada: knave, Ben: knight, Cleo: knight",
                "So Ada is a knave, Ben is a knight, and Cleo is a knight.",
            ],
            -0.1: [
                "Ada: knave, Ben: knight, Cleo: knight or Ada: knight, Ben: knave, Cleo: knight",
            ],
        },
    ),
    (
        "GraphColouring",
        {
            "story": "map",
            "nodes": ["A", "B", "C", "D"],
            "edges": [["A", "B"], ["B", "C"], ["C", "D"], ["D", "A"]],
            "colours": ["red", "blue"],
        },
        {
            1: [
                "So the answer is A: red, B: blue, C: red, D: blue.",
                "A: red, B: blue, C: red, D: blue",
            ],
        },
    ),
    (
        "Syllogisms",
        {
            "arguments": [
                {
                    "premises": [["all", "men", "mortals"], ["all", "Greeks", "men"]],
                    "conclusion": ["all", "Greeks", "mortals"],
                },
                {
                    "premises": [["all", "men", "mortals"], ["all", "men", "Greeks"]],
                    "conclusion": ["all", "Greeks", "mortals"],
                },
            ]
        },
        {
            1: [
                "So the answer is 1: valid, 2: invalid.",
                "1: valid, 2: invalid",
                "Argument 1 is valid and argument 2 is invalid.",
            ],
        },
    ),
    (
        "Entailment",
        {
            "letters": "pqr",
            "premises": [["if", "p", "q"], ["if", "q", "r"]],
            "conclusions": [["if", "p", "r"], ["if", "r", "p"]],
        },
        {
            1: [
                "So the answer is 1: follows; 2: p=false q=false r=true.",
                "1: follows; 2: p=false q=false r=true",
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
