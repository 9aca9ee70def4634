"""FixRepository: packages as data and as text, linking, and players that are in a hurry."""

import gc
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import gymnasium as gym
import pytest

import llm_envs
from llm_envs.checker.comparing import compared_repairs
from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.tasks.code import fix_repository, workbench
from llm_envs.tasks.code.boundaries import off_by_one
from llm_envs.tasks.code.linking import LinkError, link
from llm_envs.tasks.code.package_mistakes import outcomes_of, run_lines
from llm_envs.tasks.code.package_texts import body, names_in_words, readme, sources
from llm_envs.tasks.code.packages import functions, is_package, key_of, neighbours, takes_list, with_mistakes
from llm_envs.tasks.code.spellings import N_SPELLINGS, spell_condition, spell_value

pytest.importorskip("pydantic_monty")
assert llm_envs  # registers

ID = "llm/FixRepository-v0"
LEVELS = ["easy", "medium", "hard", "expert"]
DONE = format_answer("done")
PARTS = [
    {"kind": "rule", "name": "is_plum", "C": ["one", ">", 3]},
    {"kind": "rule", "name": "is_fig", "C": ["rest", "==", 2, 1], "with": ["and", "is_plum"]},
    {"kind": "value", "name": "date_value", "V": ["scaled", 2, "+", 1]},
    {"kind": "selection", "name": "pear_list", "rule": "is_plum", "value": "date_value"},
    {"kind": "step", "name": "lime_list", "step": ["take", 3]},
    {"kind": "measure", "name": "kiwi_score", "function": {"shape": "total", "s": 5, "A": "+="}, "rule": "is_fig",
     "value": "date_value"},
    {"kind": "report", "name": "nut_report", "calls": ["pear_list", "lime_list", "kiwi_score"]},
]  # fmt: skip
PROBLEM = {
    "package": "harbor",
    "parts": PARTS,
    "mistakes": [[0, 0]],
    "spellings": [0] * 7,
    "order": [0, 1, 2, 3, 4, 5, 6],
    "written": PARTS,
    "former": [-1] * 7,
    "tests": [["is_plum", 9], ["nut_report", [4, 5]]],
    "integers": [2, 3, 4, 5],
    "lists": [[1, 4, 5], [7, 4, 6, 5]],
}


def call(name, **arguments):
    return format_tool_call(name, **arguments)


def shell(command):
    return call("shell", command=command)


def begin(problem=PROBLEM):
    env = gym.make(ID)
    env.reset(options={"problem": problem})
    return env


def put(env, path, text):
    """Write a file as the agent would."""
    assert env.step(call("write", path=path, text=text))[0] == "(done)"


# Packages.


def test_functions_by_hand():
    made = functions(PARTS)
    assert [made["is_plum"](x) for x in (3, 4)] == [False, True]
    assert [made["is_fig"](x) for x in (3, 4, 5)] == [False, False, True]
    assert made["pear_list"]([1, 4, 5, 9, 6]) == [9, 11, 19, 13]
    assert made["lime_list"]([9, 11, 19, 13]) == [9, 11, 19]
    assert made["kiwi_score"]([9, 11, 19, 2]) == 5 + 19 + 23 + 39
    assert made["nut_report"]([1, 4, 5, 9, 6]) == 86


def test_a_package_in_words():
    assert readme(PARTS, "harbor", range(7), [None] * 7).splitlines()[4:] == [
        "- `is_plum(x)`: x is plum if it is greater than 3; True or False.",
        "- `is_fig(x)`: x is fig if it is plum and also leaves the remainder 1 on division by 2; True or False.",
        "- `date_value(x)`: the date value of a number is 2 times the number plus 1.",
        "- `pear_list(xs)`: the list of the date values of all numbers that are plum, in their order.",
        "- `lime_list(xs)`: keep the first 3 numbers (all, if there are fewer). Return the list.",
        "- `kiwi_score(xs)`: Begin a total at 5. For each number that is fig, add its date value. Return the total.",
        "- `nut_report(xs)`: `pear_list`, then `lime_list`, and `kiwi_score` of the list that results.",
    ]


def test_a_package_as_modules():
    files = sources(PARTS, "harbor", [0] * 7)
    assert list(files) == [f"/harbor/{name}.py" for name in ("rules", "values", "lists", "measures", "reports")]
    assert files["/harbor/rules.py"] == (
        "def is_plum(x):\n    return x > 3\n\n\ndef is_fig(x):\n    return is_plum(x) and x % 2 == 1\n"
    )
    assert files["/harbor/reports.py"] == (
        "from harbor.lists import (\n    pear_list,\n    lime_list,\n)\n"
        "from harbor.measures import (\n    kiwi_score,\n)\n\n\n"
        "def nut_report(xs):\n    xs = pear_list(xs)\n    xs = lime_list(xs)\n    return kiwi_score(xs)\n"
    )


def test_the_mistakes_of_a_rule_and_of_a_report():
    assert {str(part["C"][1:]) for part in neighbours(PARTS, 0)} == {
        *("['>=', 3]", "['<', 3]", "['<=', 3]"), *(f"['>', {n}]" for n in (0, 1, 2, 4, 5, 6)),
    }  # fmt: skip
    assert [part["calls"] for part in neighbours(PARTS, 6)] == [["lime_list", "pear_list", "kiwi_score"]]
    assert with_mistakes(PARTS, [[6, 0]])[6]["calls"][0] == "lime_list"


def test_a_measure_can_have_another_variable_and_a_readme_has_words_for_numbers():
    assert neighbours(PARTS, 5)[0]["function"]["shape"] == "total else"
    text = readme(PARTS, "harbor", range(7), [None] * 7, is_spoken=True)
    assert "greater than three;" in text and "the first three numbers" in text and "remainder 1" in text
    two = {**PARTS[0], "C": ["both", "or", ["one", ">", 3], ["digit", "==", 2]]}
    assert is_package([two, *PARTS[1:]]) and [functions([two])["is_plum"](x) for x in (3, 4, 2)] == [False, True, True]


CONDITIONS = [
    *(["both", sign, ["one", "<=", 3], ["rest", "!=", 4, 1]] for sign in ("and", "or")),
    ["neither", "or", ["digit", "==", 7], ["one", ">", 3]],
    *(["one", sign, 3] for sign in (">", ">=", "<", "<=")),
    *([kind, sign, *rest] for kind, rest in (("rest", [4, 3]), ("digit", [7])) for sign in ("==", "!=")),
    ["and", ">", -2, "<=", 9], ["and", ">=", -2, "<", 9], ["or", "<", -2, ">=", 9], ["or", "<=", -2, ">", 9],
]  # fmt: skip
VALUES = [["same"], ["square"], ["scaled", 3, "+", 4], ["scaled", 3, "-", 4], ["distance", 5], ["bound", "min", 6],
          ["bound", "max", 6], ["quotient", 4], ["rest", 4]]  # fmt: skip


@pytest.mark.parametrize(
    ("spell", "form"), [*((spell_condition, form) for form in CONDITIONS), *((spell_value, form) for form in VALUES)]
)
def test_all_spellings_mean_the_same(spell, form):
    texts = [spell(form, "x", spelling) for spelling in range(N_SPELLINGS)]
    assert len({str([eval(text) for x in range(-30, 40)]) for text in texts}) == 1, texts
    assert len(set(texts)) > 1 or form == ["same"]


def test_the_key_knows_neither_names_nor_signs():
    text = json.dumps(PARTS)
    for word in ("plum", "fig", "date", "pear", "lime", "kiwi", "nut"):
        text = text.replace(word, f"{word[1:]}x")
    renamed = json.loads(text)
    renamed[0]["C"] = ["one", ">=", 4]
    assert renamed != PARTS and key_of(renamed) == key_of(PARTS)
    assert key_of([PARTS[2], *PARTS[:2], *PARTS[3:]]) == key_of(PARTS)
    assert key_of(with_mistakes(PARTS, [[0, 3]])) != key_of(PARTS)


def test_what_is_no_package():
    assert is_package(PARTS)
    for place, change in (
        (0, {"C": ["one", ">", 99]}), (0, {"name": "plum"}), (0, {"name": "is_import os"}), (0, {"V": ["same"]}),
        (1, {"with": ["and", "is_fig"]}), (1, {"with": ["and", "date_value"]}), (2, {"V": ["rest", "==", 2, 1]}),
        (3, {"rule": "is_none"}), (4, {"step": ["take", 99]}), (4, {"step": ["fly", 1]}),
        (5, {"function": {"shape": "total", "s": 5}}), (6, {"calls": ["kiwi_score", "pear_list"]}), (6, {"calls": 3}),
        (2, {"name": "is_plum"}), (5, {"function": {"shape": [], "s": 5}}),
    ):  # fmt: skip
        wrong = [*PARTS[:place], {**PARTS[place], **change}, *PARTS[place + 1 :]]
        assert not is_package(wrong), change
    assert not is_package([]) and not is_package([1, 2]) and not is_package(PARTS[3:])


@pytest.mark.parametrize(
    "change",
    [
        {"mistakes": []}, {"mistakes": [[0, 99]]}, {"mistakes": [[9, 0]]}, {"mistakes": [[0, 0], [0, 1]]},
        {"mistakes": [[2, 0]], "integers": [0], "lists": [[]]}, {"parts": PARTS[:2]}, {"package": "Harbor"},
        {"tests": []}, {"tests": [["none", 1]]}, {"tests": [["is_plum", [1]]]}, {"lists": []}, {"order": [0] * 7},
        {"written": with_mistakes(PARTS, [[0, 0]])}, {"written": PARTS[:6]}, {"former": [99] * 7}, {"former": [-1]},
        {"integers": [1.5]}, {"spellings": [9] * 7}, {"package": "tests"},
    ],
)  # fmt: skip
def test_a_problem_that_cannot_be_played_is_refused(change):
    with pytest.raises(InvalidConfigError):
        begin(PROBLEM | change)


# Linking.


def linked(files, names):
    namespace = {}
    exec(link(files, names), namespace)
    return namespace


def test_modules_keep_their_names_apart():
    files = {
        "/p/a.py": "K = 2\ndef f(x):\n    return g(x) + K\ndef g(x):\n    return 10 * x\n",
        "/p/b.py": "from p.a import f as h\nfrom .a import K\ndef g(x):\n    return h(x) - K\n",
    }
    made = linked(files, {"/p/b.py": ["g"]})
    assert made["g"](3) == 30


def test_a_function_may_change_its_modules_variables():
    files = {"/p/a.py": '"""A\ntext."""\nn = 0\ndef f():\n    global n\n    n += 1\n    return n\n'}
    made = linked(files, {"/p/a.py": ["f"]})
    assert [made["f"](), made["f"]()] == [1, 2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("from p.b import f", "ModuleNotFoundError: there is no file /p/b.py"),
        ("from p.a import f", "imports itself"),
        ("from p.c import g", "cannot import name 'g'"),
        ("def f(:", "SyntaxError: /p/a.py, line 1"),
        ("def f():\n    from p.c import h", "line 2: import modules at the top level"),
        ("x = 1", "cannot import name 'f'"),
        ("(" * 9_000, "SyntaxError"),
        ("f = " + "-" * 5_000 + "1", "SyntaxError"),
        ("f = 0x" + "9" * 9_000, "SyntaxError"),
        ("f = '\0'", "SyntaxError"),
        ("#" * 20_001, "20001 characters"),
    ],
)
def test_what_cannot_be_linked_is_said(text, complaint):
    with pytest.raises(LinkError, match=re.escape(complaint)):
        link({"/p/a.py": text, "/p/c.py": "h = 1"}, {"/p/a.py": ["f"]})


def test_linking_in_many_threads():
    files = {"/p/a.py": "".join(f"def f{i}(x, y):\n    return [a + {i} for a in x if a in y]\n" for i in range(60))}

    def other_threads_turn(phase, info):
        time.sleep(0)

    threshold = gc.get_threshold()
    gc.callbacks.append(other_threads_turn)
    gc.set_threshold(5)
    try:
        with ThreadPoolExecutor(4) as pool:
            texts = set(pool.map(lambda _: link(files, {"/p/a.py": ["f0"]}), range(120)))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(other_threads_turn)
    assert len(texts) == 1


# The tools.


def test_looking_testing_and_editing():
    env = begin()
    assert env.step(shell("ls /harbor"))[0] == "lists.py\nmeasures.py\nreports.py\nrules.py\nvalues.py"
    assert env.step(shell("cat /harbor/rules.py"))[0].startswith("def is_plum(x):\n    return x >= 3\n")
    assert "assert nut_report([4, 5]) == 47" in env.step(shell("cat /tests/test_harbor.py"))[0]
    assert env.step(call("run_tests"))[0] == "all 2 tests passed"  # and yet there is a mistake
    put(env, "/harbor/rules.py", "def is_plum(x):\n    return x > 7\n\n\ndef is_fig(x):\n    return 1 / 0\n")
    assert env.step(call("run_tests"))[0] == (
        "FAILED test_nut_report_2: AssertionError: assert 5 == 47\n1 of 2 tests failed"
    )
    for old, complaint in (("x > 8", "occurs 0 times"), ("return", "occurs 2 times"), ("", "occurs 0 times")):
        assert complaint in env.step(call("edit", path="/harbor/rules.py", old=old, new="x"))[0]
    assert "No such file" in env.step(call("edit", path="/harbor/none.py", old="a", new="b"))[0]
    assert "Is a directory" in env.step(call("write", path="/harbor", text="a"))[0]
    assert "20,001" in env.step(call("write", path="/a", text="a" * 20_001))[0].replace("20001", "20,001")
    assert env.step(call("edit", path="harbor/rules.py", old="x > 7", new="x > 3"))[0] == "(done)"
    assert env.step(call("edit", path="/harbor/rules.py", old="1 / 0", new="is_plum(x) and x % 2"))[0] == "(done)"
    assert env.step(DONE)[:2] == ("Incorrect.", 0.0)  # 0 is not False


def test_an_own_test_runs_beside_the_others(monkeypatch):
    env = begin()
    put(env, "/tests/test_own.py", "from harbor.rules import is_plum\n\ndef test_edge():\n    assert not is_plum(3)\n")
    assert env.step(call("run_tests"))[0].startswith("FAILED test_edge: AssertionError")
    put(env, "/tests/test_own.py", "def test_edge():\n    while True:\n        pass\n")
    monkeypatch.setattr(workbench, "_TEST_LIMITS", replace(workbench._TEST_LIMITS, timeout_s=1.0))
    assert "over the time limit" in env.step(call("run_tests"))[0]
    put(env, "/tests/test_own.py", "def test_edge(:\n")
    assert env.step(call("run_tests"))[0] == "Error: SyntaxError: /tests/test_own.py, line 1: invalid syntax"
    env.step(shell("rm -r /tests"))
    assert "there are no tests" in env.step(call("run_tests"))[0]


RIGHT = "def is_plum(x):\n    return x > 3\n\n\ndef is_fig(x):\n    return is_plum(x) and x % 2 == 1\n"


@pytest.mark.parametrize(
    ("rules", "paid"),
    [
        (RIGHT, 1),
        ("import math\n" + RIGHT.replace("x > 3", "4 <= x <= math.inf"), 1),
        ("is_plum = lambda x: x > 3\ndef is_fig(n):\n    return n > 3 and n % 2 == 1", 1),
        (RIGHT.replace("x > 3", "x >= 3"), 0),
        (RIGHT.replace("x > 3", "x in (4, 5, 9)"), 0),  # all that the tests name
        ("def is_plum(x):\n    return x == 9 or x in (4, 5, 7)\n\n\ndef is_fig(x):\n    return x == 5", 0),
        ("def is_plum(x):\n    return x > 3\n", 0),
        (RIGHT + "while True:\n    pass\n", 0),
        (RIGHT + "raise ValueError\n", 0),
        (RIGHT + "x = '\ud800'\n", 0),
        (RIGHT + "x = 0x" + "9" * 9_000, 0),
        (RIGHT + "from harbor.reports import nut_report\n", 0),  # a circle
        ("", 0),
    ],
)
def test_hidden_tests_decide(rules, paid, monkeypatch):
    env = begin()
    if "while True" in rules:
        monkeypatch.setattr(fix_repository, "_JUDGE_LIMITS", replace(fix_repository._JUDGE_LIMITS, timeout_s=1.0))
    env.unwrapped.workbench.machine.files["/harbor/rules.py"] = rules
    observation, reward, terminated, _, info = env.step(DONE)
    assert (observation, reward, terminated) == ("Correct." if paid else "Incorrect.", paid, True)
    assert info["is_success"] == bool(paid)


def test_a_deleted_module_is_wrong_and_another_answer_is_malformed():
    env = begin()
    assert env.step(format_answer("x > 3"))[1] == pytest.approx(-0.1)
    env.step(shell("rm /harbor/rules.py"))
    assert env.step(DONE)[:3] == ("Incorrect.", 0.0, True)


# Players in a hurry, at every level.


def read(env, path):
    return env.unwrapped.workbench.machine.files[path]


def wins(env):
    return env.step(DONE)[1] == 1.0


def hardcode(env):
    """Answer each visible test by heart, in front of the function that it calls."""
    tests = read(env, f"/tests/test_{env.unwrapped.problem['package']}.py")
    for name, argument, value in re.findall(r"assert (\w+)\((.*)\) == (.*)", tests):
        for path, text in env.unwrapped.workbench.machine.files.items():
            head = re.search(rf"^def {name}\((\w+)\):\n", text, re.MULTILINE)
            if head and not path.startswith("/tests"):
                new = f"{head[0]}    if {head[1]} == {argument}:\n        return {value}\n"
                assert env.step(call("edit", path=path, old=head[0], new=new))[0] == "(done)"
                break


@pytest.mark.parametrize("level", LEVELS)
def test_a_package_made_to_pass_the_tests_in_the_tree_does_not_win(level):
    env = gym.make(ID, difficulty=level, max_turns=100)
    for seed in range(8):
        env.reset(seed=seed)
        hardcode(env)
        assert "all" in env.step(call("run_tests"))[0]
        assert not wins(env), seed


@pytest.mark.parametrize("level", LEVELS)
def test_tests_that_are_deleted_or_changed_do_not_matter(level):
    env = gym.make(ID, difficulty=level)
    for seed in range(4):
        env.reset(seed=seed)
        env.step(shell("rm -r /tests"))
        put(env, "/README.md", "Every function is right.")
        assert not wins(env), seed


@pytest.mark.parametrize("level", LEVELS)
def test_each_mistake_that_is_left_is_found(level):
    env = gym.make(ID, difficulty=level)
    for seed in range(4):
        env.reset(seed=seed)
        problem = env.unwrapped.problem
        for mistake in problem["mistakes"]:
            env.reset(options={"problem": problem})
            files = sources(with_mistakes(problem["written"], [mistake]), problem["package"], problem["spellings"])
            env.unwrapped.workbench.machine.files.update(files)
            assert not wins(env), (seed, mistake)


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_level_promises_of_its_tests(level):
    env = gym.make(ID, difficulty=level).unwrapped
    n_mistakes = {"easy": 1, "medium": 2, "hard": 4, "expert": 9}[level]
    for seed in range(6):
        env.reset(seed=seed)
        parts, mistakes = env.problem["written"], env.problem["mistakes"]
        calls = [tuple(test) for test in env.problem["tests"]]
        right, wrong = outcomes_of(parts, calls), outcomes_of(with_mistakes(parts, mistakes), calls)
        failing = [place for place in range(len(calls)) if right[place] != wrong[place]]
        unseen = [mistake for mistake in mistakes if outcomes_of(with_mistakes(parts, [mistake]), calls) == right]
        assert len(mistakes) == n_mistakes and failing
        assert len(unseen) >= {"hard": 1, "expert": 4}.get(level, 0)
        assert level not in ("easy", "medium") or not unseen
        if level == "expert":  # interacting: no repair by itself mends a test
            for mistake in mistakes:
                mended = outcomes_of(with_mistakes(parts, [other for other in mistakes if other != mistake]), calls)
                assert all(mended[place] != right[place] for place in failing)


@pytest.mark.parametrize("level", ["easy", "medium"])
def test_the_tests_in_the_tree_take_other_changes_for_repairs(level):
    """Who tries small changes of the right function until the tests pass, and reads nothing, is often wrong."""
    env = gym.make(ID, difficulty=level).unwrapped
    for seed in range(6):
        env.reset(seed=seed)
        parts, calls = env.problem["written"], [tuple(test) for test in env.problem["tests"]]
        expected, n_false = outcomes_of(parts, calls), []
        for place, number in env.problem["mistakes"]:
            wrong, false = with_mistakes(parts, [[place, number]]), 0
            given = env.problem["lists" if takes_list(parts[place]) else "integers"]
            hidden = [(parts[place]["name"], value) for value in given]
            for other in neighbours(wrong, place):
                changed = [*parts[:place], other, *parts[place + 1 :]]
                false += outcomes_of(changed, calls) == expected and outcomes_of(changed, hidden) != outcomes_of(
                    parts, hidden
                )
            n_false.append(false)
        assert max(n_false) >= 2


def compared(env, is_former_read):
    """Return the modules by the name of a way to compare each function with its sentence, and to mend it so."""
    files, package = env.workbench.machine.files, env.problem["package"]
    names, repaired = names_in_words(env.problem["parts"]), {}
    for name, text in re.findall(r"^- `(\w+)\(\w+\)`: (.*)$", files["/README.md"], re.MULTILINE):
        text = text if is_former_read else text.partition(" Until version 2:")[0]
        for path in [path for path in files if path.startswith(f"/{package}/")]:
            found = re.search(rf"(^def {name}\(\w+\):\n)((?:    .*\n)+)", files[path], re.MULTILINE)
            if found is None:
                continue
            for way, lines in compared_repairs(text, found[2].rstrip().split("\n"), names, name).items():
                modules = repaired.setdefault(way, dict(files))
                modules[path] = modules[path].replace(found[0], found[1] + "\n".join(lines) + "\n")
    return repaired


def test_the_player_that_compares_mends_what_is_written_as_it_is_described():
    env = begin().unwrapped
    n_mended = 0
    for modules in compared(env, True).values():
        env.workbench.machine.files = modules
        n_mended += env.is_correct("done")
    assert n_mended >= 3


@pytest.mark.levels
@pytest.mark.parametrize("level", LEVELS)
def test_comparing_the_readme_with_the_code_mends_nothing(level):
    env = gym.make(ID, difficulty=level).unwrapped
    for seed in range(5):
        for is_former_read in (True, False):
            env.reset(seed=seed)
            for name, modules in compared(env, is_former_read).items():
                env.workbench.machine.files = modules
                assert not env.is_correct("done"), (seed, name)


@pytest.mark.parametrize("level", ["easy", "expert"])
def test_every_wrong_function_off_by_one_fails_a_hidden_test(level):
    env, n = gym.make(ID, difficulty=level).unwrapped, 0
    for seed in range(12):
        env.reset(seed=seed)
        problem = env.problem
        made = functions(problem["parts"])
        for place, _ in problem["mistakes"]:
            part, right = problem["written"][place], body(problem["written"][place], problem["spellings"][place])
            given = problem["lists" if takes_list(part) else "integers"]
            expected = run_lines(right, made, given)
            for i, line in enumerate(right):
                for other in off_by_one(line) if i else ():
                    n += 1
                    assert run_lines([*right[:i], other, *right[i + 1 :]], made, given) != expected, (seed, other)
    assert n > 30


def test_a_reader_that_keeps_most_of_the_readme_does_not_mend_an_expert_package():
    """It reads everything once, keeps the last 45 of 56 sentences, and mends the functions that these are about."""
    env, n_won = gym.make(ID, difficulty="expert").unwrapped, 0
    for seed in range(6):
        env.reset(seed=seed)
        problem = env.problem
        left = [mistake for mistake in problem["mistakes"] if problem["order"][mistake[0]] < len(problem["parts"]) - 45]
        parts = with_mistakes(problem["written"], left)
        env.workbench.machine.files |= sources(parts, problem["package"], problem["spellings"])
        n_won += env.is_correct("done")
    assert n_won <= 3


def test_what_the_hidden_tests_call_is_nowhere_in_the_tree():
    env = gym.make(ID, difficulty="hard").unwrapped
    for seed in range(10):
        env.reset(seed=seed)
        text = "".join(env.workbench.machine.files.values())
        assert not [xs for xs in env.problem["lists"] if len(xs) > 3 and str(xs) in text]


@pytest.mark.levels
def test_no_package_is_in_both_splits():
    keys = {}
    for split in ("train", "test"):
        env = gym.make(ID, split=split).unwrapped
        for seed in range(25):
            env.reset(seed=seed)
            keys.setdefault(split, set()).add(str(key_of(env.problem["parts"])))
    assert len(keys["train"]) == len(keys["test"]) == 25
    assert not keys["train"] & keys["test"]


def test_the_oracle_mends_line_by_line_and_recovers():
    env = begin()
    actions = []
    for _ in range(6):
        actions.append(env.unwrapped.oracle())
        if len(actions) == 3:  # somebody has written over a module before
            put(env, "/harbor/values.py", "nothing")
        last = env.step(actions[-1])
    assert '"ls -R /"' in actions[0] and actions[1].count("cat ") == 7 and "run_tests" in actions[2]
    assert '"old": "    return x >= 3"' in actions[3] and '"path": "/harbor/values.py", "text": "def' in actions[3]
    assert "run_tests" in actions[4] and actions[5] == DONE and last[1] == 1.0
