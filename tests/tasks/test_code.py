"""Code: hand-worked problems, what a hurried player tries, and planted mistakes that are some."""

import gymnasium as gym
import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.tasks.code.pipelines import RESULTS, STEPS, compute, source
from llm_envs.tasks.code.predict_output import run_program
from llm_envs.tasks.code.programs import PROGRAMS
from llm_envs.tasks.code.repair_function import MOST_CHANGES, changes

pytest.importorskip("pydantic_monty")


def reward(id, problem, answer, **kwargs):
    """Answer a given problem; return the reward."""
    env = gym.make(id, **kwargs)
    env.reset(options={"problem": problem})
    return env.step(f"<answer>{answer}</answer>")[1]


# WriteFunction.

EVEN_SUM = {"program": [["even", 0], ["sum", 0]], "inputs": [[], [4], [1, 2, 4], [-2, 3], [1, 2], [3, 4]]}


@pytest.mark.parametrize(
    ("code", "paid"),
    [
        ("def f(xs):\n    return sum(x for x in xs if x % 2 == 0)", 1),
        ("```python\ndef f(xs):\n    n = 0\n    for x in xs:\n        n += x * (x % 2 == 0)\n    return n\n```", 1),
        ("f = lambda xs: sum([x for x in xs if x % 2 == 0])", 1),
        ("def f(xs):\n    return 2 if xs == [1, 2] else 4", 0),  # the two that are shown
        ("def f(xs):\n    return sum(xs)", 0),
        ("def f(xs):\n    return xs[0]", 0),  # raises on the empty list
        ("def f(xs):\n    while True:\n        pass", 0),
        ("def f(xs) return 1", 0),
        ("def f(xs):\n    return [x for x in xs", 0),
        ("6", -0.1),
    ],
)
def test_write_function(code, paid):
    assert reward("llm/WriteFunction-v0", EVEN_SUM, code) == pytest.approx(paid)


def test_every_step_and_every_result_is_drawn():
    env = gym.make("llm/WriteFunction-v0", difficulty="medium").unwrapped
    drawn = {name for seed in range(300) for _ in [env.reset(seed=seed)] for name, _ in env.problem["program"]}
    assert drawn == {*STEPS, *RESULTS}


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
        ("take", [3, -4, 3]), ("drop", [0, 7, 12]), ("second", [3, 3, 7]), ("distinct", [3, -4, 0, 7, 12]),
        ("running", [3, -1, 2, 2, 9, 21]), ("neighbours", [-7, 7, -3, 7, 5]), ("descending", [12, 7, 3, 3, 0, -4]),
    ],
)  # fmt: skip
def test_steps_by_hand(name, expected):
    assert compute([[name, 3], ["list", 0]], [3, -4, 3, 0, 7, 12]) == expected


# RepairFunction.

GCD = {"program": "gcd", "mistake": 1, "names": ["a", "b", "c", "d", "e"], "shown": 0}


@pytest.mark.parametrize(
    ("answer", "paid"),
    [
        ("3: c = a % b", 1),
        ("line 3:         c = (a % b)  # the rest", 1),  # as right
        ("3: c = a // b", 0),
        ("2: while b > 1:", 0),
        ("3: c = (", 0),
        ("3: c = a - b * (a // b)", -0.1),  # right, but not a repair
        ("2: return max([n for n in range(1, a + 1) if a % n == 0 and b % n == 0])", -0.1),
        ("3: while True: pass", -0.1),
        ("c = a % b", -0.1),
        ("9: c = a % b", -0.1),
        ("0: c = a % b", -0.1),
        ("3: c = a % b\n4: a = b", -0.1),  # one line only
    ],
)
def test_repair_function(answer, paid):
    assert reward("llm/RepairFunction-v0", GCD, answer) == pytest.approx(paid)


def test_a_line_that_does_all_at_once_repairs_no_mistake_of_a_function():
    names = ["a", "b", "c", "d", "e"]
    for name, line in {
        "largest": "return max(a)",
        "digits": "return sum(map(int, str(a)))",
        "merge": "return sorted(a + b)",
    }.items():
        for mistake in range(len(PROGRAMS[name].mistakes)):
            problem = {"program": name, "mistake": mistake, "names": names, "shown": -1}
            for place in range(2, PROGRAMS[name].source.count("\n") + 2):
                assert reward("llm/RepairFunction-v0", problem, f"{place}: {line}") == pytest.approx(-0.1)


def test_names_of_python_are_refused():
    for name in ("for", "len", "a b", 3):
        with pytest.raises(InvalidConfigError):
            gym.make("llm/RepairFunction-v0").reset(options={"problem": GCD | {"names": [name, "b", "c", "d", "e"]}})


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_mistake_is_one(name):
    program = PROGRAMS[name]
    lines = program.source.split("\n")

    def values(mistake):
        changed = list(lines)
        if mistake is not None:
            changed[mistake[0] - 1] = mistake[1]
        namespace, found = {}, []
        exec("\n".join(changed).format(*"abcde"), namespace)
        for arguments in program.inputs:
            try:
                found.append(namespace["f"](*arguments))
            except Exception as error:
                found.append(type(error))
        return found

    right = values(None)
    for mistake in program.mistakes:
        was, now = lines[mistake[0] - 1], mistake[1]
        assert was != now and len(was) - len(was.lstrip()) == len(now) - len(now.lstrip()), mistake
        assert changes(now.format(*"abcde"), was.format(*"abcde")) <= MOST_CHANGES, mistake
        assert values(mistake) != right, mistake
    assert len({repr(value) for value in right}) > 1


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


@pytest.mark.parametrize(
    ("answer", "paid"),
    [("3\n[1, 2]", 1), ("  3 \n[1,  2]\n", 1), ("3 [1, 2]", 0), ("[1, 2]\n3", 0), ("3", 0), ("", -0.1)],
)
def test_predict_output(answer, paid):
    problem = {"program": "print(3)\nprint([1, 2])", "output": "3\n[1, 2]"}
    assert reward("llm/PredictOutput-v0", problem, answer) == pytest.approx(paid)


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_programs_end_and_print_what_is_said(level):
    env = gym.make("llm/PredictOutput-v0", difficulty=level)
    for seed in range(300):
        env.reset(seed=seed)
        problem = env.unwrapped.problem
        assert problem["output"] == run_program(problem["program"]) != ""


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
OSLO = {"world": WORLD, "kind": "of_group", "values": ["Oslo"]}


@pytest.mark.parametrize(
    ("query", "paid"),
    [
        ("SELECT name FROM customers WHERE city = 'Oslo' ORDER BY name", 1),
        ("```sql\nselect c.name from customers c where c.city like 'oslo' order by 1;\n```", 1),
        ("SELECT 'Ada' UNION SELECT 'Cleo'", 0),  # right here, wrong on other rows
        ("SELECT name FROM customers WHERE city = 'Oslo' ORDER BY name DESC", 0),
        ("SELECT name, city FROM customers WHERE city = 'Oslo' ORDER BY name", 0),
        ("SELECT name FROM customers WHERE id IN (1, 3) ORDER BY name", 0),
        ("DELETE FROM customers", -0.1),
        ("SELECT nothing FROM customers", -0.1),
        ("SELECT 1; SELECT 2", -0.1),
    ],
)
def test_sql_query(query, paid):
    assert reward("llm/SQLQuery-v0", OSLO, query) == pytest.approx(paid)


@pytest.mark.parametrize(
    ("kind", "values", "rows"),
    [
        ("over", [10], [("Rug", 30), ("Kite", 20)]),
        ("per_group", [0], [("Oslo", 2), ("Riga", 1)]),
        ("per_group", [1], [("Oslo", 50), ("Riga", 40)]),
        ("totals", [2], [("Ada", 12), ("Cleo", 10)]),
        ("linked", ["Oslo"], [("Kite",), ("Lamp",)]),
        ("counted", [4], [("home", 1), ("toys", 2)]),
        ("missing", ["toys"], [("Ben",)]),
        ("above_own", [], [("Oslo", "Cleo")]),
        ("spread", [1], [("Kite", 1), ("Lamp", 1)]),
        ("monthly", ["home"], [("2025-01", 5), ("2025-02", 1)]),
    ],
)
def test_questions_by_hand(kind, values, rows):
    from llm_envs.tasks.code.sql_query import KINDS, _run, _Words

    assert _run(WORLD, KINDS[kind].sql(_Words(WORLD), *values)) == rows


def test_a_question_without_rows_is_refused():
    with pytest.raises(InvalidConfigError, match="no rows"):
        gym.make("llm/SQLQuery-v0").reset(options={"problem": OSLO | {"values": ["Lima"]}})
