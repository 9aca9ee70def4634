"""Code: hand-worked problems, what a hurried player tries, and planted mistakes that are some."""

import ast
import contextlib
import json
import random
import re
from collections import Counter
from functools import partial
from itertools import chain

import gymnasium as gym
import pytest
from task_play import reward

from llm_envs.checker.comparing import compared_repairs, digits_for_words
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.tasks.code.boundaries import off_by_one, outcomes, telling
from llm_envs.tasks.code.forms import (
    condition_code,
    condition_words,
    is_possible,
    normal_condition,
    one_step_away,
    turned,
    words_for_digits,
)
from llm_envs.tasks.code.pipelines import RESULTS, STEPS, behaviour, compute, source
from llm_envs.tasks.code.pipelines import describe as describe_steps
from llm_envs.tasks.code.predict_output import run_program
from llm_envs.tasks.code.programs import LETTERS, draw, is_function, key_of, mistake, neighbours, run
from llm_envs.tasks.code.programs import describe as describe_program
from llm_envs.tasks.code.programs import source as program_of
from llm_envs.tasks.code.repair_function import MOST_CHANGES, changes
from llm_envs.tasks.code.shapes import SHAPES
from llm_envs.tasks.code.sql_kinds import Words, quoted
from llm_envs.tasks.code.sql_mutations import forgetting, mutations
from llm_envs.tasks.code.sql_nested import KINDS, LEVELS
from llm_envs.tasks.code.sql_query import run as run_query
from llm_envs.tasks.sqlite_world import Database

pytest.importorskip("pydantic_monty")


# WriteFunction.

EVEN_SUM = {"program": [["even", 0], ["sum", 0]], "inputs": [[], [4], [1, 2, 4], [-2, 3], [1, 2], [3, 4]]}


def test_every_step_and_every_result_is_drawn():
    env = gym.make("llm/WriteFunction-v0", difficulty="medium").unwrapped
    drawn = {name for seed in range(300) for _ in [env.reset(seed=seed)] for name, _ in env.problem["program"]}
    assert drawn == {*STEPS, *RESULTS}


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_every_step_of_a_function_matters(level):
    """A function that leaves out a step, or has a number that is off by one, fails a hidden test."""
    env = gym.make("llm/WriteFunction-v0", difficulty=level)
    for seed in range(25):
        env.reset(seed=seed)
        program = env.unwrapped.problem["program"]
        wrong = [program[:i] + program[i + 1 :] for i in range(len(program) - 1)]
        for i, (name, k) in enumerate(program):
            if (STEPS | RESULTS)[name].numbers:
                wrong += [[*program[:i], [name, other], *program[i + 1 :]] for other in (k - 1, k + 1)]
        lines, hidden = source(program).split("\n"), env.unwrapped.problem["inputs"][:-2]
        for i, line in enumerate(lines):
            for other in off_by_one(line):
                assert outcomes([*lines[:i], other, *lines[i + 1 :]], hidden) != outcomes(lines, hidden), other
        assert env.step(env.unwrapped.oracle())[1] == 1
        for other in wrong:
            env.reset(seed=seed)
            assert env.step(f"<answer>{source(other)}</answer>")[1] == 0, (program, other)


def test_functions_that_do_the_same_are_in_one_split():
    key = gym.make("llm/WriteFunction-v0").unwrapped.split_key
    twins = ([["over", 3], ["sum", 0]], [["raise", 4], ["sum", 0]], [["absolute", 0], ["differs", 0]])
    first, other, third = (key({"program": program, "inputs": []}) for program in twins)
    assert len({str(first), str(other), str(third)}) == 3
    assert third == key({"program": [["square", 0], ["differs", 0]], "inputs": []})
    functions = {"train": set(), "test": set()}
    for split, found in functions.items():
        env = gym.make("llm/WriteFunction-v0", split=split).unwrapped
        for seed in range(300):
            env.reset(seed=seed)
            found.add(str(behaviour(env.problem["program"])))
    assert not functions["train"] & functions["test"]


def test_a_function_is_described_with_two_examples():
    observation, _ = gym.make("llm/WriteFunction-v0").reset(options={"problem": EVEN_SUM})
    assert observation.splitlines()[1:] == [
        "1. keep the even numbers",
        "Return the sum (0 for an empty list).",
        "For example:",
        "f([1, 2]) == 2",
        "f([3, 4]) == 4",
    ]
    for wrong in (
        {"program": []},
        {"program": [["fly", 0], ["sum", 0]]},
        {"program": [[["even"], 0], ["sum", 0]]},
        {"inputs": [[1]]},
        {"program": [["remainder", 0], ["sum", 0]]},
    ):
        with pytest.raises(InvalidConfigError):
            gym.make("llm/WriteFunction-v0").reset(options={"problem": EVEN_SUM | wrong})


@pytest.mark.parametrize("name", [*STEPS, *RESULTS])
def test_a_step_does_as_python_what_it_does_here(name):
    program = [[name, 3], ["list", 0]] if name in STEPS else [[name, 3]]
    namespace = {}
    exec(source(program), namespace)
    for xs in ([], [5], [3, -4, 3, 0, 12, 7, -9], [2, 2]):
        assert namespace["f"](list(xs)) == compute(program, xs)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("over", [7, 12]), ("most", [3, -4, 3, 0]), ("without", [-4, 7]), ("remainder", [0, 2, 0, 0, 1, 0]),
        ("take", [3, -4, 3]), ("drop", [0, 7, 12]), ("every", [3, 0]), ("distinct", [3, -4, 0, 7, 12]),
        ("running", [3, -1, 2, 2, 9, 21]), ("neighbours", [-7, 7, -3, 7, 5]), ("descending", [12, 7, 3, 3, 0, -4]),
        ("divide", [1, -2, 1, 0, 2, 4]), ("cap", [3, -4, 3, 0, 3, 3]), ("raise", [3, 3, 3, 3, 7, 12]),
        ("places", [3, -3, 5, 3, 11, 17]), ("rotate", [0, 7, 12, 3, -4, 3]), ("sums", [-1, -1, 3, 7, 19]),
    ],
)  # fmt: skip
def test_steps_by_hand(name, expected):
    assert compute([[name, 3], ["list", 0]], [3, -4, 3, 0, 7, 12]) == expected


# RepairFunction.

SUM = {"shape": "total", "s": 2, "C": ["one", ">", 3], "A": "+=", "V": ["square"]}
"""2 plus the squares of the numbers greater than 3."""


def sum_with(condition):
    """Return the problem in which the condition of SUM is wrong so."""
    number = neighbours(dict(reversed(SUM.items()))).index(SUM | {"C": condition})
    inputs = [[], [3], [4], [2, 3, 4, 5], [9, -3, 1]]
    return {"function": SUM, "written": SUM, "mistake": number, "names": list(LETTERS), "inputs": inputs, "shown": 1,
            "former": -1}  # fmt: skip


def test_a_function_is_shown_with_its_mistake():
    observation, _ = gym.make("llm/RepairFunction-v0").reset(options={"problem": sum_with(["one", ">=", 3])})
    assert observation.splitlines() == [
        "This function takes a list of whole numbers. It should do this:",
        "Begin a total at 2. For each number that is greater than 3, add its square. Return the total.",
        " 1: def f(a):",
        " 2:     b = 2",
        " 3:     for c in a:",
        " 4:         if c >= 3:",
        " 5:             b += c * c",
        " 6:     return b",
        "But f([3]) does not give 2.",
    ]


@pytest.mark.parametrize(
    "change",
    [
        *({"names": [name, *LETTERS[1:]]} for name in ("for", "len", "a b", 3, "b")),
        {"mistake": 99},
        {"shown": 5},
        {"inputs": [[]]},  # does not show the mistake
        {"inputs": ["[]"]},
        {"function": SUM | {"s": 99}},
        {"function": SUM | {"C": ["one", "+", 3]}},
        {"function": SUM | {"V": ["rest", 0]}},
        {"function": SUM | {"shape": "sum"}},
        {"function": SUM | {"R": ">"}},
        {"written": SUM | {"C": ["one", ">=", 3]}},  # another function
        {"written": SUM | {"C": ["one", "?", 3]}},
        {"former": 99},
    ],
)
def test_functions_that_cannot_be_played_are_refused(change):
    with pytest.raises(InvalidConfigError, match="cannot be played"):
        gym.make("llm/RepairFunction-v0").reset(options={"problem": sum_with(["one", ">=", 3]) | change})


@pytest.mark.parametrize(
    ("function", "xs", "expected"),
    [
        (SUM, [4, 3, -5, 5], 2 + 16 + 25),
        ({"shape": "signed", "s": 1, "C": ["rest", "==", 3, 1], "A": "-=", "B": "+=", "V": ["scaled", 2, "+", 1]},
         [4, 5, 7], 1 - 9 + 5 - 15),
        ({"shape": "places", "s": 5, "p": 1, "C": ["digit", "==", 2]}, [2, 12, -2, 22, 21], 8),
        ({"shape": "extreme", "C": ["one", "<", 9], "V": ["distance", 3], "O": "<", "d": 7}, [1, 5, 8, 9], 2),
        ({"shape": "extreme", "C": ["one", "<", 9], "V": ["distance", 3], "O": "<", "d": 7}, [9], 7),
        ({"shape": "run", "C": ["and", ">=", 0, "<", 4], "n": 2, "d": -1}, [0, 1, 4, 3, 2, 0, 9], 3),
        ({"shape": "run", "C": ["and", ">=", 0, "<", 4], "n": 2, "d": -1}, [0, 4, 3], -1),
        ({"shape": "place", "C": ["or", "<", 0, ">=", 9], "n": 2, "d": 4}, [1, -1, 0, 9], 3),
        ({"shape": "pairs", "C": ["one", ">", 0], "P": "-", "R": ">=", "k": 3}, [5, 2, -1, 9], 3),
        ({"shape": "tank", "s": 3, "A": "+=", "V": ["same"], "k": 8, "d": 1}, [9, -9, 2], 3),
        ({"shape": "crossing", "s": 0, "A": "+=", "V": ["bound", "max", 2], "R": ">", "k": 6, "d": -2}, [1, 2, 3], 2),
        ({"shape": "jumps", "s": 1, "P": "-", "R": "<=", "k": 2}, [5, 7, 10, 1], 3),
        ({"shape": "chosen", "C": ["rest", "!=", 2, 0], "V": ["quotient", 2], "R": "<", "k": 2}, [5, 4, 5, 1, 9],
         [2, 4]),
        ({"shape": "windows", "n": 2, "C": ["one", "<", 8], "O": ">", "d": 0}, [3, 4, -1, 9], 7),
        ({"shape": "blocks", "n": 2, "s": 1, "A": "+=", "V": ["rest", 5]}, [6, 7, 8], [4, 4]),
        ({"shape": "records", "k": 4, "R": ">=", "C": ["one", "<", 9]}, [4, 3, 6, 9, 8], 2),
        (SUM | {"before": [["one", "<=", 5], ["scaled", 2, "-", 3]]}, [3, 2, 5, 6], 2 + 49),
        (SUM | {"before": [["one", ">", 0], ["same"]], "state": [10, 2, 5, "+", ["one", ">", 1]]}, [34, 1, 12],
         2 + 38**2 + 15**2),  # the states are 4, 0 and 3
        (SUM | {"shape": "total else"}, [1, 3, -5, 5], 2),  # the total is never greater than 3
        (SUM | {"shape": "total else", "s": 4}, [1, 3], 4 + 1 + 9),
        ({"shape": "signed else", "s": 1, "C": ["one", "<", 2], "A": "+=", "B": "-=", "V": ["square"]}, [3, 4, 5],
         1 + 9 - 4 - 5),
        ({"shape": "places else", "s": 5, "p": 1, "C": ["digit", "==", 2]}, [2, 12, -2, 21, 22], 7),
        ({"shape": "run else", "C": ["and", ">=", 0, "<", 4], "n": 2, "d": -1}, [0, 1, 3, 9, 2], 1),
        ({"shape": "place else", "C": ["or", "<", 0, ">=", 9], "n": 2, "d": 4}, [1, -1, 0, 9], 9),
        ({"shape": "pairs else", "C": ["one", ">", 0], "P": "+", "R": ">=", "k": 10}, [5, 2, -1, 9], 4),
        ({"shape": "crossing else", "s": 0, "A": "+=", "V": ["same"], "R": ">", "k": 6, "d": -2}, [1, 7, 3], 8),
        ({"shape": "jumps else", "s": 1, "P": "-", "R": "<=", "k": 2}, [5, 7, 10, 1], 2),
        ({"shape": "chosen else", "C": ["rest", "!=", 2, 0], "V": ["quotient", 2], "R": "<", "k": 2}, [5, 3, 1],
         [2, 1]),
        ({"shape": "windows else", "n": 2, "C": ["one", "<", 14], "O": ">", "d": 0}, [3, 4, -1, 9], 7),
        ({"shape": "records else", "k": 4, "R": ">=", "C": ["one", "<", 2]}, [4, 3, 6, 9, 8], 2),
        (SUM | {"C": ["both", "and", ["one", ">", 3], ["rest", "==", 2, 0]]}, [2, 4, 5], 2 + 16),
        (SUM | {"C": ["both", "or", ["digit", "==", 5], ["one", "<=", 2]]}, [2, 4, 15], 2 + 4 + 225),
        (SUM | {"C": ["neither", "or", ["digit", "==", 5], ["one", "<=", 2]]}, [2, 4, 15], 2 + 16),
    ],
)  # fmt: skip
def test_functions_to_repair_by_hand(function, xs, expected):
    assert is_function(function)
    namespace = {}
    exec("\n".join(program_of(function)).format(*LETTERS), namespace)
    assert namespace["f"](xs) == expected


def test_two_conditions_in_words_and_turned():
    both = ["both", "and", ["one", ">", 3], ["rest", "==", 2, 0]]
    assert condition_words(both) == "is greater than 3 and leaves the remainder 0 on division by 2"
    assert (
        condition_code(["neither", "or", ["one", "<=", 3], ["rest", "!=", 2, 0]], "x") == "not (x <= 3 or x % 2 != 0)"
    )
    rng = random.Random(0)
    forms = {str(form): form for form in (turned(rng.random, both) for _ in range(40))}
    assert len(forms) == 4 and all(normal_condition(form) == both for form in forms.values())
    assert ["both", "or", *both[2:]] in one_step_away(both)
    for wrong in (
        ["both", "and", *2 * [both[2]]],
        ["both", "and", both[2]],
        ["both", ">", *both[2:]],
        ["both", "and", 1, 2],
    ):
        assert not is_possible(wrong)


def test_numbers_as_words():
    text = "Count at least 3 and 12, from -3 to 13; the place 0 (the first is 0), 1 time"
    spoken = words_for_digits(text)
    assert spoken == text.replace(" 3", " three").replace("12", "twelve") and digits_for_words(spoken) == text
    env = gym.make("llm/RepairFunction-v0", difficulty="hard").unwrapped
    prompts = [env.reset(seed=seed)[0] for seed in range(12)]
    assert sum("three" in prompt or "two" in prompt for prompt in prompts) >= 2
    assert 2 <= sum("Until version 2 it did this instead:" in prompt for prompt in prompts) <= 10


@pytest.mark.parametrize("level", ["easy", "expert"])
def test_no_kind_of_mistake_is_frequent_enough_to_be_guessed(level):
    """Another variable or range, which no number of the text shows; a number that begins a total; "and" for "or"."""
    env, kinds, n = gym.make("llm/RepairFunction-v0", difficulty=level).unwrapped, Counter(), 100
    for seed in range(n):
        env.reset(seed=seed)
        written = env.problem["written"]
        other = neighbours(written)[env.problem["mistake"]]
        kinds["shape"] += written["shape"] != other["shape"]
        kinds["first"] += any(written.get(slot) != other.get(slot) for slot in "sd")
        kinds["and"] += str(written).count("'and'") != str(other).count("'and'")
    assert 0 < kinds["shape"] <= 25 and 0 < kinds["first"] <= 25 and (kinds["and"] > 0) == (level == "expert")


@pytest.mark.parametrize("n_stages", [1, 2, 3])
def test_a_function_gives_what_its_lines_give(n_stages):
    rng, shapes = random.Random(0), set()
    for _ in range(150):
        function, namespace = draw(rng.random, n_stages=n_stages), {}
        exec("\n".join(program_of(function)).format(*LETTERS), namespace)
        inputs = [[], [3], [rng.randint(-9, 20) for _ in range(8)]]
        assert run(function, inputs) == [repr(namespace["f"](xs)) for xs in inputs]
        shapes.add(function["shape"])
    assert shapes == set(SHAPES)


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_every_mistake_is_one(level):
    env = gym.make("llm/RepairFunction-v0", difficulty=level).unwrapped
    for seed in range(20):
        env.reset(seed=seed)
        lines, place = list(env._lines), env._place
        assert 0 < changes(env._right[place], lines[place]) <= MOST_CHANGES
        assert [i for i, line in enumerate(lines) if line != env._right[i]] == [place]
        assert env.step(f"<answer>{place + 1}: {lines[place].strip()}</answer>")[1] == 0


@pytest.mark.levels
@pytest.mark.parametrize("level", ["easy", "expert"])
def test_a_table_of_mistakes_made_in_train_does_not_repair_those_of_test(level):
    """A player that knows how each wrong line, names aside, was repaired most often in train, and reads no purpose."""
    repairs, functions, wins, n = {}, {"train": set(), "test": set()}, 0, 120
    for split, n_problems in (("train", 500), ("test", n)):
        env = gym.make("llm/RepairFunction-v0", difficulty=level, split=split).unwrapped
        env.reset(seed=0)
        for _ in range(n_problems):
            env.reset()
            written = env.problem["written"]
            functions[split].add(json.dumps(key_of(written), sort_keys=True))
            place, wrong = mistake(written, neighbours(written)[env.problem["mistake"]])
            lines = program_of(written)
            right, lines[place] = lines[place], wrong
            if split == "train":
                repairs.setdefault(wrong, Counter())[right] += 1
            else:
                known = next((i for i, line in enumerate(lines) if line in repairs), 0)
                wins += known == place and repairs[lines[known]].most_common(1)[0][0] == right
    assert not functions["train"] & functions["test"]
    assert len(functions["train"]) > 475 and wins / n <= 0.15 == env.chance_rate


def test_a_player_that_compares_numbers_and_signs_mends_what_is_written_as_it_is_described():
    env = gym.make("llm/RepairFunction-v0").unwrapped
    for condition in (["one", ">=", 3], ["one", ">", 5]):
        env.reset(options={"problem": sum_with(condition)})
        assert env.write_answer("4: if c > 3:") in env.shortcuts().values()
    scaled = SUM | {"V": ["scaled", 2, "+", 5]}
    for right, described, wrong in (
        (scaled, scaled, {"V": ["scaled", 5, "+", 2]}),  # exchanged
        (SUM | {"C": ["one", ">=", 4]}, SUM, {"C": ["one", ">=", 3]}),  # written otherwise than described: not found
    ):
        good, bad = ([line.format(*LETTERS) for line in program_of(function)] for function in (right, right | wrong))
        assert (good in compared_repairs(describe_program(described), bad).values()) == (right is described)


@pytest.mark.levels
@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_comparing_a_description_with_its_function_repairs_nothing(level):
    env = gym.make("llm/RepairFunction-v0", difficulty=level).unwrapped
    for seed in range(10):
        env.reset(seed=seed)
        for name, reply in env.shortcuts().items():
            env.reset(seed=seed)
            assert env.step(reply)[1] != 1 or name.startswith("reader("), (seed, name)


@pytest.mark.parametrize("level", ["easy", "expert"])
def test_every_neighbour_of_the_right_line_fails_a_hidden_input(level):
    """With a number off by one, or with another mistake of the same line."""
    env, n = gym.make("llm/RepairFunction-v0", difficulty=level).unwrapped, 0
    for seed in range(60):
        env.reset(seed=seed)
        right, place = [line.format(*LETTERS) for line in program_of(env.problem["written"])], env._place
        found = [mistake(env.problem["written"], other) for other in neighbours(env.problem["written"])]
        mistakes = [wrong[1].format(*LETTERS) for wrong in found if wrong and wrong[0] == place]
        expected = outcomes(right, env.problem["inputs"])
        for line in [*off_by_one(right[place]), *mistakes]:
            n += 1
            assert outcomes([*right[:place], line, *right[place + 1 :]], env.problem["inputs"]) != expected, (
                seed,
                line,
            )
    assert n > 300


def test_lines_off_by_one_and_the_inputs_that_tell_them():
    lines = ["def f(a):", "    return len([x for x in a if x > 13])"]
    assert off_by_one(lines[1]) == [lines[1].replace("13", n) for n in ("12", "14")]
    assert outcomes(lines, [[13, 14], []]) == ["1", "0"] and outcomes(["def f(a):", "    return a[0]"], [[]]) == [
        "IndexError"
    ]
    others = [partial(outcomes, [lines[0], line]) for line in off_by_one(lines[1])]
    assert telling(partial(outcomes, lines), others, [[3, 20]], lambda: [[1], [13], [14], [15]]) == [[13], [14]]
    assert telling(partial(outcomes, lines), others, [[13], [14]], list) == []
    assert telling(partial(outcomes, lines), others, [[3, 20]], lambda: [[1], [13]]) is None  # 12 is not told


# PredictOutput.


def test_what_is_one_problem_in_substance_is_in_one_split():
    env = gym.make("llm/PredictOutput-v0").unwrapped
    first, second = ({"program": program, "output": "6"} for program in ("a = 2\nprint(a * 3)", "q = 2\nprint(q * 3)"))
    assert env.split_key(first) == env.split_key(second)
    assert env.split_key(first) != env.split_key({"program": "a = 2\nprint(a * 4)", "output": "8"})
    for level in ("easy", "hard"):
        queries = {"train": set(), "test": set()}
        for split, found in queries.items():
            env = gym.make("llm/SQLQuery-v0", split=split, difficulty=level).unwrapped
            for seed in range(60):
                env.reset(seed=seed)
                found.add(env.solution())
        assert not queries["train"] & queries["test"]


def test_a_program_prints_to_itself(capsys):
    """Nothing of the process's own output is touched: other threads may be printing."""
    assert run_program("print(3, [1])\nprint('a', end='b')") == "3 [1]\nab"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_programs_end_and_print_what_is_said(level):
    env = gym.make("llm/PredictOutput-v0", difficulty=level)
    for seed in range(20 if level == "expert" else 200):
        env.reset(seed=seed)
        problem = env.unwrapped.problem
        assert problem["output"] == run_program(problem["program"]) != ""


def statements_of(program):
    """Return the drawn statements of a program: some are a definition, a dictionary or a list with its use."""
    lines = [ast.unparse(node) for node in ast.parse(program).body]
    first = next(i for i, line in enumerate(lines) if not re.fullmatch(r"(?:[a-z]|xs|word) = [-\[\d'][^+*/%]*", line))
    found, lines = [lines[:first]], lines[first:]
    while lines and not lines[0].startswith("print"):
        n = next((n for start, n in (("def g", 2), ("counts = ", 3), ("ys = ", 3)) if lines[0].startswith(start)), 1)
        found.append(lines[:n])
        lines = lines[n:]
    return found, lines


@pytest.mark.parametrize("level", ["starter", "easy", "medium", "hard", "expert"])
def test_no_statement_can_be_left_out(level):
    """Without any one statement, a program prints something else or fails."""
    env = gym.make("llm/PredictOutput-v0", difficulty=level).unwrapped
    for seed in range(10 if level == "expert" else 100):
        env.reset(seed=seed)
        (first, *statements), shown = statements_of(env.problem["program"])
        assert len(statements) == env.settings["n"]
        for i in range(len(statements)):
            kept = [*first, *chain(*statements[:i], *statements[i + 1 :]), *shown]
            with contextlib.suppress(IndexError, ValueError):
                assert run_program("\n".join(kept)) != env.problem["output"]


# SQLQuery.


def table(name, columns, *rows):
    typed = [["id", "INTEGER PRIMARY KEY"]]
    typed += [[column.lstrip("#"), "INTEGER" if column[0] == "#" else "TEXT"] for column in columns]
    return {"name": name, "columns": typed, "rows": [list(row) for row in rows]}


CUSTOMERS = [(1, "Ada", "Oslo", 30), (2, "Ben", "Riga", 40), (3, "Cleo", "Oslo", 50)]
PRODUCTS = [(1, "Lamp", "home", 10), (2, "Kite", "toys", 20), (3, "Rug", "home", 30)]
ORDERS = [
    (1, 1, 1, 5, "2025-01-02"),
    (2, 1, 2, 7, "2025-01-30"),
    (3, 3, 2, 9, "2025-02-01"),
    (4, 3, 1, 1, "2025-02-02"),
]
WORLD = {
    "theme": "shop",
    "tables": [
        table("customers", ["name", "city", "#age"], *CUSTOMERS),
        table("products", ["title", "category", "#price"], *PRODUCTS),
        table("orders", ["#customer_id", "#product_id", "#quantity", "date"], *ORDERS),
    ],
}
OSLO = {"world": WORLD, "kind": "listed", "values": ["a", "Riga", "<=", 50, "ASC"]}


BY_HAND = [
    ("listed", ["b", "toys", ">", 10, "DESC"], [("Rug", 30)]),
    ("top", ["a", 1, "DESC", "Oslo"], [("Cleo",)]),
    ("per_group", ["a", "count", ">=", 30, 2], [("Oslo", 2)]),
    ("per_group", ["b", "avg", "<", 99, 1], [("toys", 20), ("home", 20)]),
    ("totals", ["sum", ">", 1, 1, "Riga"], [("Ada", 12), ("Cleo", 9)]),
    ("totals", ["count", ">", 0, 2, "Riga"], [("Ada", 2), ("Cleo", 2)]),
    ("linked", ["Oslo", ">=", 7, "ASC"], [("Kite",)]),
    ("linked", ["Oslo", "<", 9, "DESC"], [("Lamp",), ("Kite",)]),
    ("counted", ["max", "<=", 7, ">", 20], [("toys", 7), ("home", 5)]),
    ("counted", ["count", "<=", 7, ">=", 50], [("home", 1)]),
    ("missing", ["toys", ">", 7, "<=", 40], [("Ada",), ("Ben",)]),
    ("above_own", ["a", ">=", "Riga"], [("Oslo", "Cleo")]),
    ("spread", [">=", 1, 1], [("Kite", 1), ("Lamp", 1)]),
    ("monthly", ["home", ">", 20], [("2025-02", 1), ("2025-01", 5)]),
    ("best", [">", 0], [("toys", "Kite", 2), ("home", "Lamp", 2)]),
    ("best", [">=", 7], [("toys", "Kite", 2)]),
    ("but_not", ["home", "garden", ">", 1], [("Ada",)]),
    (
        "of_month",
        [">", 0],
        [("2025-02", "toys", 1), ("2025-02", "home", 1), ("2025-01", "toys", 1), ("2025-01", "home", 1)],
    ),
    ("above_peers", ["garden", ">", 1], [("Oslo", "Ada", 12)]),
    ("above_peers", ["toys", ">", 1], []),
    ("own_highest", ["toys", ">="], [("Ada", 5)]),
    ("own_highest", ["toys", "<="], [("Cleo", 1)]),
    ("every_group", ["garden", ">=", 5], [("Ada", 30)]),
    ("every_group", ["toys", ">", 0], [("Ada", 30), ("Cleo", 50)]),
    ("rising", ["garden", ">=", 7], []),
    ("rising", ["toys", "<=", 99], []),
]


@pytest.mark.parametrize(("kind", "values", "rows"), BY_HAND)
def test_questions_by_hand(kind, values, rows):
    assert run_query(WORLD, KINDS[kind].sql(Words(WORLD), quoted, *values)) == rows
    text = KINDS[kind].text(Words(WORLD), *values)
    assert all(
        str(value) in text for value in values if type(value) is int or value in ("Oslo", "Riga", "home", "toys")
    )


def test_a_month_with_more_than_the_one_before():
    dates = ("2025-01-02", "2025-03-30", "2025-03-01", "2025-04-02")
    orders = [(*row[:4], date) for row, date in zip(ORDERS, dates, strict=True)]
    columns = ["#customer_id", "#product_id", "#quantity", "date"]
    world = WORLD | {"tables": [*WORLD["tables"][:2], table("orders", columns, *orders)]}
    assert run_query(world, KINDS["rising"].sql(Words(world), quoted, "garden", ">", 0)) == [("2025-03", 2)]


def test_every_kind_of_question_is_asked_by_hand():
    assert {kind for kind, *_ in BY_HAND} == set(KINDS) == {kind for kinds in LEVELS.values() for kind in kinds}


def test_a_question_reads_as_english():
    observation, _ = gym.make("llm/SQLQuery-v0").reset(options={"problem": OSLO})
    assert observation.split("\n\n")[-1] == (
        "List the name and the age of every customer whose city is not Riga and whose age is at most 50. Sort by "
        "age, the lowest first; sort rows with the same age by name."
    )
    assert KINDS["but_not"].text(Words(WORLD), "home", "toys", ">", 1) == (
        "List the name of every customer who has ordered a product whose category is home in an order whose quantity "
        "is greater than 1, but has never ordered a product whose category is toys. Sort by name in reverse "
        "alphabetical order."
    )


def test_a_database_takes_another_world_and_stays_readable_only():
    database = Database(WORLD)
    assert database.query("SELECT count(*) FROM orders").rows == ((4,),)
    for world in (
        WORLD | {"tables": [table("orders", ["#customer_id"], (7, 1))]},
        {"tables": [table("x", ["y"])]},
        WORLD,
    ):
        database.load(world)
        names = [(described["name"],) for described in world["tables"]]
        assert list(database.query("SELECT name FROM sqlite_master ORDER BY rowid").rows) == names
        first = world["tables"][0]
        assert list(database.query(f"SELECT * FROM {first['name']}").rows) == list(map(tuple, first["rows"]))
        for writing in ("DELETE FROM orders", "DROP TABLE x", "CREATE TABLE z (a)", "PRAGMA query_only = OFF"):
            with pytest.raises(InvalidActionError):
                database.query(writing)
    database.close()


def test_nearly_right_queries():
    start, order = "SELECT name FROM a WHERE ", " ORDER BY age DESC, name LIMIT 2"
    inner = "(id NOT IN (SELECT k FROM b WHERE (n = 1)))"
    assert set(mutations(f"{start}(age >= 3) AND {inner}{order}")) == {
        f"{start}(age >= 3) AND {inner} LIMIT 2",
        f"{start}(age >= 3) AND {inner} ORDER BY name LIMIT 2",
        f"{start}(age >= 3) AND {inner} ORDER BY age DESC LIMIT 2",
        f"{start}(age >= 3) AND {inner} ORDER BY age, name LIMIT 2",
        f"{start}(age >= 3) AND {inner} ORDER BY age DESC, name DESC LIMIT 2",
        f"{start}(age >= 3) AND {inner} ORDER BY age DESC, name",
        f"{start}(age >= 3) AND {inner}{order} + 1",
        f"{start}(age >= 3) AND {inner}{order} - 1",
        f"{start}(1) AND {inner}{order}",
        f"{start}(age >= 3 + 1) AND {inner}{order}",
        f"{start}(age >= 3 - 1) AND {inner}{order}",
        f"{start}(age > 3) AND {inner}{order}",
        f"{start}(age <= 3) AND {inner}{order}",
        f"{start}(age >= 3) AND (1){order}",
        f"{start}(age >= 3) AND (id IN (SELECT k FROM b WHERE (n = 1))){order}",
        f"{start}(age >= 3) AND (id NOT IN (SELECT k FROM b WHERE (1))){order}",
        f"{start}(age >= 3) AND (id NOT IN (SELECT k FROM b WHERE (n != 1))){order}",
        f"{start}(age >= 3) AND (id NOT IN (SELECT k FROM b WHERE (n = 1 + 1))){order}",
        f"{start}(age >= 3) AND (id NOT IN (SELECT k FROM b WHERE (n = 1 - 1))){order}",
    }
    counts = mutations("SELECT DISTINCT sum(n), count(DISTINCT m) FROM a GROUP BY 1 HAVING (max(n) > 2) ORDER BY 1")
    assert {
        "SELECT DISTINCT sum(n), count(DISTINCT m) FROM a GROUP BY 1 HAVING (max(n) > 2) ORDER BY 2",
        "SELECT sum(n), count(DISTINCT m) FROM a GROUP BY 1 HAVING (max(n) > 2) ORDER BY 1",
        "SELECT DISTINCT sum(n), count(m) FROM a GROUP BY 1 HAVING (max(n) > 2) ORDER BY 1",
        "SELECT DISTINCT avg(n), count(DISTINCT m) FROM a GROUP BY 1 HAVING (max(n) > 2) ORDER BY 1",
        "SELECT DISTINCT sum(n), count(DISTINCT m) FROM a GROUP BY 1 HAVING (min(n) > 2) ORDER BY 1",
        "SELECT DISTINCT sum(n), count(DISTINCT m) FROM a GROUP BY 1 HAVING (1) ORDER BY 1",
    } <= set(counts)


@pytest.mark.levels
@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_a_nearly_right_query_is_wrong(level):
    """A condition, the order or the order of equal rows left out, ">" for ">=", another limit, aggregate, ..."""
    env, n = gym.make("llm/SQLQuery-v0", difficulty=level), 0
    for seed in range(25):
        env.reset(seed=seed)
        right = env.unwrapped.solution()
        assert env.step(f"<answer>{right}</answer>")[1] == 1
        for wrong in mutations(right):
            env.reset(seed=seed)
            assert env.step(f"<answer>{wrong}</answer>")[1] == 0, (seed, wrong)
            n += 1
    assert n > 150


def test_what_a_reader_forgets_of_a_query():
    query = "SELECT a FROM t WHERE (n > (SELECT avg(u.n) FROM t u WHERE (u.k = t.k))) AND (m NOT IN (1)) ORDER BY 1"
    assert forgetting(query, 1) == "SELECT a FROM t WHERE (n > (SELECT avg(u.n) FROM t u WHERE (1))) AND (1) ORDER BY 1"
    assert forgetting(query, 3) == query


@pytest.mark.parametrize("name", ["RepairFunction", "WriteFunction", "SQLQuery"])
def test_a_reader_wins_at_most_half_of_the_expert_level(name):
    """It reads everything once and keeps some of the facts; at other levels nothing needs more."""
    env, n_won, n = gym.make(f"llm/{name}-v0", difficulty="expert").unwrapped, 0, 30
    for seed in range(n):
        env.reset(seed=seed)
        (reply,) = [reply for way, reply in env.shortcuts().items() if way.startswith("reader(")]
        n_won += env.step(reply)[1] == 1
    assert n_won <= n / 2


def test_a_step_that_comes_again_is_told_by_its_number():
    program = [["take", 3], ["reverse", 0], ["take", 3], ["sum", 0]]
    assert describe_steps(program).splitlines()[2:] == [
        "3. do what step 1 does, once more",
        "Return the sum (0 for an empty list).",
    ]


def test_a_question_without_rows_is_refused():
    with pytest.raises(InvalidConfigError, match="no rows"):
        gym.make("llm/SQLQuery-v0").reset(options={"problem": OSLO | {"values": ["a", "Riga", ">", 50, "ASC"]}})


# Answers to each, in plain and in natural forms.

SUM_CODE = "def f(xs):\n    return sum(x for x in xs if x % 2 == 0)"
OUTPUT = {"program": "print(3)\nprint([1, 2])", "output": "3\n[1, 2]"}
WRONG_LINE = sum_with(["one", ">=", 3])
QUERY = "SELECT name, age FROM customers WHERE city != 'Riga' AND age <= 50 ORDER BY age, name"


@pytest.mark.parametrize(
    ("name", "problem", "answer", "paid"),
    [
        ("WriteFunction", EVEN_SUM, SUM_CODE, 1),
        (
            "WriteFunction",
            EVEN_SUM,
            "```python\ndef f(xs):\n    n = 0\n    for x in xs:\n        n += x * (x % 2 == 0)\n    return n\n```",
            1,
        ),
        ("WriteFunction", EVEN_SUM, "f = lambda xs: sum([x for x in xs if x % 2 == 0])", 1),
        ("WriteFunction", EVEN_SUM, "def f(xs):\n    return 2 if xs == [1, 2] else 4", 0),  # the two that are shown
        ("WriteFunction", EVEN_SUM, "def f(xs):\n    return sum(xs)", 0),
        ("WriteFunction", EVEN_SUM, "def f(xs):\n    return xs[0]", 0),  # raises on the empty list
        ("WriteFunction", EVEN_SUM, "def f(xs):\n    while True:\n        pass", 0),
        ("WriteFunction", EVEN_SUM, "def f(xs) return 1", 0),
        ("WriteFunction", EVEN_SUM, "def f(xs):\n    return [x for x in xs", 0),
        ("WriteFunction", EVEN_SUM, "6", -0.1),
        ("RepairFunction", WRONG_LINE, "4: if c > 3:", 1),
        ("RepairFunction", WRONG_LINE, "line 4:         if c > 3:  # not 3", 1),
        ("RepairFunction", WRONG_LINE, "4: if not c <= 3:", 1),  # as right
        ("RepairFunction", WRONG_LINE, "4: if c >= 3:", 0),
        ("RepairFunction", WRONG_LINE, "5: b += c * c + 1", 0),
        ("RepairFunction", WRONG_LINE, "4: if c > (", 0),
        ("RepairFunction", WRONG_LINE, "4: if c > 3 and c * c > 9 and True:", -0.1),  # right, but not a repair
        ("RepairFunction", WRONG_LINE, "2: return 2 + sum([c * c for c in a if c > 3])", -0.1),
        ("RepairFunction", WRONG_LINE, "4: while True: pass", -0.1),
        ("RepairFunction", WRONG_LINE, "if c > 3:", -0.1),
        ("RepairFunction", WRONG_LINE, "9: if c > 3:", -0.1),
        ("RepairFunction", WRONG_LINE, "0: if c > 3:", -0.1),
        ("RepairFunction", WRONG_LINE, "4: if c > 3:\n5: b += c * c", -0.1),  # one line only
        ("PredictOutput", OUTPUT, "3\n[1, 2]", 1),
        ("PredictOutput", OUTPUT, "  3 \n[1,  2]\n", 1),
        ("PredictOutput", OUTPUT, "3 [1, 2]", 0),
        ("PredictOutput", OUTPUT, "[1, 2]\n3", 0),
        ("PredictOutput", OUTPUT, "3", 0),
        ("PredictOutput", OUTPUT, "", -0.1),
        ("SQLQuery", OSLO, QUERY, 1),
        (
            "SQLQuery",
            OSLO,
            "```sql\nselect name, age from customers c where c.city not like 'riga' and age < 51 order by 2, 1;\n```",
            1,
        ),
        ("SQLQuery", OSLO, "SELECT 'Ada', 30 UNION SELECT 'Cleo', 50", 0),  # right here, wrong on other rows
        ("SQLQuery", OSLO, QUERY.replace("BY age", "BY age DESC"), 0),
        ("SQLQuery", OSLO, QUERY.replace("name, age", "name", 1), 0),
        ("SQLQuery", OSLO, "SELECT name, age FROM customers WHERE id IN (1, 3) ORDER BY age", 0),
        ("SQLQuery", OSLO, "DELETE FROM customers", -0.1),
        ("SQLQuery", OSLO, "SELECT nothing FROM customers", -0.1),
        ("SQLQuery", OSLO, "SELECT 1; SELECT 2", -0.1),
        ("WriteFunction", EVEN_SUM, f"Here is the function:\n```python\n{SUM_CODE}\n```\nIt adds the even numbers.", 1),
        ("WriteFunction", EVEN_SUM, f"```\n{SUM_CODE}\n```", 1),
        ("WriteFunction", EVEN_SUM, f"```python\n{SUM_CODE}\n```\n```python\ndef f(xs):\n    return 0\n```", 0),
        ("RepairFunction", WRONG_LINE, "**Line 4:** `if c > 3:`", 1),
        ("RepairFunction", WRONG_LINE, "**4: if c > 3:**", 1),
        ("RepairFunction", WRONG_LINE, "**4:** if c > 3:", 1),
        ("RepairFunction", WRONG_LINE, "**4: `if c >= 3:`**", 0),
        ("RepairFunction", WRONG_LINE, "Line 4 should be: if c > 3:", 1),
        ("RepairFunction", WRONG_LINE, "4:\n```python\n        if c > 3:\n```", 1),
        ("RepairFunction", WRONG_LINE, "```\n 4:         if c > 3:\n```", 1),
        ("RepairFunction", WRONG_LINE, "4: if c > 3: or 4: if c >= 4:", -0.1),
        ("RepairFunction", WRONG_LINE, "3: for c in a:\n4: if c > 3:", -0.1),
        ("PredictOutput", OUTPUT, "The output is:\n```\n3\n[1, 2]\n```", 1),
        ("PredictOutput", OUTPUT, "3\n[1,2]", 1),
        ("PredictOutput", OUTPUT, "**3\n[1, 2]**", 1),
        ("PredictOutput", OUTPUT, "3\n[1, 2]\nor\n4\n[1, 2]", 0),
        ("PredictOutput", OUTPUT, "3.0\n[1, 2]", 0),
        ("SQLQuery", OSLO, f"`{QUERY}`", 1),
        ("SQLQuery", OSLO, f"This query answers it:\n```sql\n{QUERY};\n```\nIt sorts by age.", 1),
        ("SQLQuery", OSLO, f"```sql\n{QUERY};\n```\nor\n```sql\nSELECT 1\n```", -0.1),
    ],
)
def test_answers_are_paid(name, problem, answer, paid):
    assert reward(f"llm/{name}-v0", problem, answer) == pytest.approx(paid)


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_each_drawn_function_to_repair_can_be_given(level):
    env = gym.make("llm/RepairFunction-v0", difficulty=level).unwrapped
    for seed in range(30):
        env.reset(seed=seed)
        given = json.loads(json.dumps(env.problem))
        env.reset(options={"problem": given})
        assert env.problem == given
