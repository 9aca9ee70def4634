"""Natural forms of the answers of tool tasks: accepted where they are one right answer, never paid where they hedge."""

import gymnasium as gym
import pytest
from shop_world import WORLD as SHOP

import llm_envs
from llm_envs.parsers import format_tool_call
from llm_envs.tasks.replies import is_done, list_items, without_fence

assert llm_envs  # registers


def user(number, name, *amounts):
    orders = [{"id": f"o{number}{place}", "amount": amount} for place, amount in enumerate(amounts)]
    return {"id": f"u{number}", "name": name, "email": f"{name}@x.org", "moved_to": "", "orders": orders}


SERVICE = {"users": [user(1, "Ada", 1_200, 34), user(2, "Bo", 5)], "failing": [], "asked": "sum", "name": "Ada"}
WORLD = {
    "town": [["Barford", "Kale", 1200], ["Dolham", "Nevis", 1450]],
    "person": [["Ana Toreda", 0, "painter", 1901, 0], ["Leno Silick", 1, "engineer", 1888, 1]],
    "company": [["Kalorn & Sons", 1, 0, 1910], ["Nevex Works", 0, 1, 1930]],
    "book": [["The Red Door", 0, 1, 1940]],
}
RIVER = {"world": WORLD, "start": ["town", 1], "path": [], "asked": "river"}
COMPANY = {"world": WORLD, "start": ["person", 1], "path": [], "asked": "employer"}
SUM = {"expression": "37*24"}
DIGITS = {"kind": "digits", "numbers": [2, 10]}
AGE = {"world": SHOP, "kind": "number", "values": ["Ben Dahl"]}
OLDEST = {"world": SHOP, "kind": "group_highest", "values": ["Dunmore"]}
NUMBERS = {
    "questions": [[20, 40, 13, 5], [1000, 1300, 601, 30], [1, 30, 3, 1, 5, 2], [1, 20, 7, 0]],
    "secrets": [31, 1232, 22, 7],
}
FILES = {"files": {"/docs/a.txt": "number: 13", "/b.log": "number: 14", "/c.md": "number: 15"}, "folders": []}
PATH = FILES | {"kind": "locate", "values": ["number: 13"]}
NUMBER = FILES | {"kind": "read", "values": ["b.log"]}

ACCEPTED = [
    ("Calculator", SUM, "**888**"),
    ("Calculator", SUM, "The answer is 888."),
    ("Calculator", SUM, "37*24 = 888"),
    ("Calculator", SUM, r"$\boxed{888}$"),
    ("PythonInterpreter", DIGITS, "The sum of the digits is `7`."),
    ("APINavigation", SERVICE, "1,234"),
    ("APINavigation", SERVICE, "The sum is $1,234."),
    ("APINavigation", SERVICE | {"asked": "email"}, "The e-mail address is **ada@x.org**."),
    ("APINavigation", SERVICE | {"asked": "email"}, "mailto:Ada@x.org"),
    ("Search", RIVER, "The town lies on the Nevis. So the answer is: the river Nevis."),
    ("Search", RIVER, "The river is **Nevis**."),
    ("Search", WORLD and {"world": WORLD, "start": ["town", 1], "path": [], "asked": "year"}, "in the year 1450"),
    ("SQLExplorer", AGE, "41 years"),
    ("SQLExplorer", AGE, "The age of Ben Dahl is 41."),
    ("SQLExplorer", OLDEST, '"Ben Dahl"'),
    ("SQLExplorer", OLDEST, "The customer is ben dahl."),
    ("SelfVerification", NUMBERS, "[31, 1232, 22, 7]"),
    ("SelfVerification", NUMBERS, "31, 1,232, 22, 7"),
    ("SelfVerification", NUMBERS, "1. 31\n2. 1232\n3. 22\n4. **7**"),
    ("SelfVerification", NUMBERS, "The four numbers are 31, 1232, 22, and 7."),
    ("FileSystem", PATH, "**/docs/a.txt**"),
    ("FileSystem", PATH, "The answer is `/docs/a.txt`."),
    ("FileSystem", NUMBER, "number: 14"),
]
REFUSED = [
    ("Calculator", SUM, "888 or 887"),
    ("Calculator", SUM, "The answer is 888. The answer is 887."),
    ("PythonInterpreter", DIGITS, "7, 8"),
    ("PythonInterpreter", DIGITS, "maybe 7"),
    ("APINavigation", SERVICE, "either 1,234 or 5"),
    ("APINavigation", SERVICE | {"asked": "email"}, "ada@x.org or bo@x.org"),
    ("APINavigation", SERVICE | {"asked": "email"}, "ada@x.org, bo@x.org"),
    ("Search", RIVER, "Nevis or Kale"),
    ("Search", RIVER, "It is Nevis or Kale."),
    ("Search", RIVER, "The answer is Nevis. The answer is Kale."),
    ("Search", RIVER, "Not Nevis"),
    ("SQLExplorer", AGE, "41 or 30"),
    ("SQLExplorer", OLDEST, "Ben Dahl, Ada Abel"),
    ("SQLExplorer", OLDEST, "It is either Ben Dahl or Ada Abel"),
    ("SelfVerification", NUMBERS, "31, 1232, 7 or 22, 7"),
    ("SelfVerification", NUMBERS, "31, 1232, 7, 22, 7"),
    ("FileSystem", PATH, "/docs/a.txt or /b.log"),
    ("FileSystem", PATH, "/docs/a.txt /b.log"),
    ("FileSystem", NUMBER, "14 or 15"),
]


def wins(name, problem, reply, **options):
    env = gym.make(f"llm/{name}-v0", **options)
    env.reset(options={"problem": problem})
    return env.step(reply)[4].get("is_success", False)


@pytest.mark.parametrize(("name", "problem", "answer"), ACCEPTED)
def test_a_right_answer_counts_in_natural_forms(name, problem, answer):
    assert wins(name, problem, f"<answer>{answer}</answer>")


@pytest.mark.parametrize(("name", "problem", "answer"), REFUSED)
def test_several_answers_do_not_count(name, problem, answer):
    assert not wins(name, problem, f"<answer>{answer}</answer>")
    if name != "FileSystem":
        assert not wins(name, problem, answer, answer_form="natural")


@pytest.mark.parametrize(
    ("name", "problem", "reply"),
    [
        ("Calculator", SUM, "37 times 24 is 888. So the answer is 888."),
        ("PythonInterpreter", DIGITS, "1 + 0 + 2 + 4 = 7, so the answer is 7."),
        ("APINavigation", SERVICE | {"asked": "email"}, "I found it. The answer is ada@x.org."),
        ("Search", RIVER, "The answer is the river Nevis."),
        ("SQLExplorer", OLDEST, "The answer is **Ben Dahl**."),
        ("SelfVerification", NUMBERS, "The answer is 31, 1232, 22, 7."),
    ],
)
def test_answers_are_read_from_prose(name, problem, reply):
    assert wins(name, problem, reply, answer_form="natural")
    assert not wins(name, problem, reply)


def test_prose_between_calls_is_not_an_answer():
    env = gym.make("llm/Search-v0", answer_form="natural")
    env.reset(options={"problem": RIVER})
    observation, _, terminated, *_ = env.step("I will search for the town of Dolham.")
    assert observation.startswith("Error: ") and not terminated


def test_the_prompt_names_the_parts_of_python_that_the_sandbox_lacks():
    pytest.importorskip("pydantic_monty")
    env = gym.make("llm/PythonInterpreter-v0")
    env.reset(seed=0)
    told = env.unwrapped.system_prompt
    for word, code in [("yield", "def g():\n    yield 1\nlist(g())"), ("del", "a = [1]\ndel a[0]"),
                       ("heapq", "import heapq"), ("fractions", "import fractions")]:  # fmt: skip
        assert word in told
        assert "Error" in env.step(format_tool_call("python", code=code))[0], code


@pytest.mark.parametrize("answer", ["done", "Done!", " DONE. ", "I am done.", "'done'", "All done"])
def test_done(answer):
    assert is_done(answer)


@pytest.mark.parametrize("answer", ["", "not done", "I am not done", "finished", "done?", "done, impossible: 1"])
def test_not_done(answer):
    assert not is_done(answer)


def test_code_is_taken_out_of_its_fence():
    code = "def f(xs):\n    return 1"
    assert without_fence(f"Here it is:\n```python\n{code}\n```\nIt returns 1.") == code
    assert without_fence(f"  {code}\n") == code
    assert without_fence("`SELECT 1`") == "SELECT 1"
    assert without_fence("`a`, `b`") == "`a`, `b`"
    assert without_fence("```\na\n```\n```\nb\n```").count("```") == 4  # two fences: which one counts is not clear


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a, b and c", ["a", "b", "c"]),
        ("- a\n- b", ["a", "b"]),
        ("1. a; 2. **b**", ["a", "b"]),
        ("['a', \"b\"].", ["a", "b"]),
        ("a, and b", ["a", "b"]),
        ("a, a", ["a", "a"]),
        ("a or b", ["a or b"]),
        ("", []),
    ],
)
def test_items_of_a_list(text, items):
    assert list_items(text) == items
