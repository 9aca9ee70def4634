"""The tasks of tasks/algorithmic: records, paths, rewriting, spelling, bases, dates, stacks."""

import contextlib
import random
import re
from collections import Counter
from datetime import date, timedelta
from itertools import pairwise, permutations

import gymnasium as gym
import pytest
from task_play import LEVELS, drawn, is_at_most, make, require_refused, reward

from llm_envs.errors import InvalidActionError
from llm_envs.tasks.algorithmic.base_conversion import to_base
from llm_envs.tasks.algorithmic.calendar import answer_to
from llm_envs.tasks.algorithmic.shortest_path import shortest
from llm_envs.tasks.algorithmic.sort_records import select
from llm_envs.tasks.algorithmic.stack_machine import run_program
from llm_envs.tasks.algorithmic.string_rewriting import rewrite


def text_of(id, problem):
    return gym.make(id).reset(options={"problem": problem})[0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("id", ["StringRewriting", "SpellNth", "BaseConversion", "Calendar", "StackMachine"])
def test_no_answer_is_common(id, level):
    n = 600
    found = Counter(task.solution() for task in drawn(f"llm/{id}-v0", level, n))
    assert is_at_most(max(found.values()) / n, make(f"llm/{id}-v0", level).chance_rate, n)


# SortRecords.

RECORDS = {
    "columns": ["age", "city"],
    "a": [["Ada", 30, "Rome"], ["Ben", 25, "Oslo"], ["Cleo", 30, "Lima"], ["Dan", 25, "Oslo"]],
    "b": [["Eva", 30, "Bonn"], ["Ben", 25, "Oslo"], ["Finn", 25, "Rome"]],
    "operation": "first",
    "condition": [],
    "keys": [["age", "descending"]],
}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, "Ada Cleo Ben Dan"),  # ties stay as they stand, though it is descending
        ({"keys": [["age", "ascending"]]}, "Ben Dan Ada Cleo"),
        ({"keys": [["age", "ascending"], ["city", "descending"]]}, "Ben Dan Ada Cleo"),
        ({"keys": [["age", "ascending"], ["city", "ascending"]]}, "Ben Dan Cleo Ada"),
        ({"keys": []}, "Ada Ben Cleo Dan"),
        ({"operation": "union"}, "Ada Cleo Eva Ben Dan Finn"),
        ({"operation": "both"}, "Ben"),
        ({"operation": "only first"}, "Ada Cleo Dan"),
        ({"operation": "one"}, "Ada Cleo Eva Dan Finn"),
        ({"operation": "one", "condition": ["city", "is not", "Rome"]}, "Cleo Eva Dan"),
        ({"operation": "union", "condition": ["age", "at most", 25]}, "Ben Dan Finn"),
        ({"operation": "union", "condition": ["age", "above the average of", "city"]}, "Ada"),  # 30 of 30 and 25
        ({"keys": [["same city", "ascending"], ["age", "ascending"]]}, "Ada Cleo Ben Dan"),
        ({"operation": "union", "keys": [["same city", "descending"]]}, "Ada Ben Dan Finn Cleo Eva"),
        ({"operation": "one", "keys": [["same age", "descending"], ["city", "ascending"]]}, "Eva Cleo Ada Dan Finn"),
        ({"condition": ["age", "at least", 30], "keys": [["same city", "ascending"]]}, "Ada Cleo"),  # of those kept
    ],
)
def test_sort_records(change, names):
    problem = RECORDS | change
    assert select(problem) == names.split()
    assert reward("llm/SortRecords-v0", problem, names.lower().replace(" ", ", ")) == 1
    assert reward("llm/SortRecords-v0", problem, "\n".join(names.split())) == 1


def test_sort_records_says_all_it_wants():
    text = text_of("llm/SortRecords-v0", RECORDS | {"operation": "one", "condition": ["age", "at least", 26]})
    assert text.splitlines()[0] == "Table A: name, age, city"
    assert text.splitlines()[5] == "Table B: name, age, city"
    assert text.splitlines()[-4:] == [
        "Take the records that are in exactly one of the two tables.",
        "Keep only those whose age is at least 26.",
        "Sort them by age (descending).",
        "Records that are equal in all of this stay in the order in which they stand above, first those of table A, "
        "then the others of table B.",
    ]
    by_words = text_of("llm/SortRecords-v0", RECORDS | {"keys": [["age", "ascending"], ["city", "descending"]]})
    assert "\nSort them by age (ascending), then by city (descending); words go by the alphabet.\n" in by_words
    tallies = {"condition": ["age", "above the average of", "city"], "keys": [["same city", "ascending"]]}
    text = text_of("llm/SortRecords-v0", RECORDS | {"operation": "union"} | tallies)
    assert "\nKeep only those whose age is above the average age of all those with the same city.\n" in text
    assert "\nSort them by how many of those kept have the same city (ascending).\n" in text
    unsorted = text_of("llm/SortRecords-v0", RECORDS | {"keys": []})
    assert "Sort" not in unsorted and "\nThey stay in the order in which they stand above" in unsorted


@pytest.mark.parametrize("level", LEVELS)
def test_orders_of_records_are_not_guessed(level):
    rng, n, wins = random.Random(0), 500, Counter()
    for task in drawn("llm/SortRecords-v0", level, n):
        names = select(task.problem)
        assert select(task.problem | {"keys": []}) != names
        assert len(task.problem["keys"]) == 1 or select(task.problem | {"keys": task.problem["keys"][:-1]}) != names
        wins["at random"] += rng.sample(names, len(names)) == names
        wins["by name"] += sorted(names) == names
    assert is_at_most(max(wins.values()) / n, task.chance_rate, n)


# ShortestPath.

#      1      1      1
#  A ---- B ---- C ---- D      and A - D of 4, A - E of 2, E - D of 1: two paths of length 3
PATHS = {
    "story": 1,
    "directed": False,
    "edges": [["A", "B", 1], ["B", "C", 1], ["C", "D", 1], ["A", "D", 4], ["A", "E", 2], ["D", "E", 1]],
    "start": "A",
    "goal": "D",
}


def test_directed_edges_go_one_way():
    problem = PATHS | {"directed": True}
    assert reward("llm/ShortestPath-v0", problem, "A, E, D") == 0
    assert reward("llm/ShortestPath-v0", problem, "A, B, C, D") == 1
    require_refused("llm/ShortestPath-v0", problem | {"start": "D", "goal": "A"}, "no path from D to A")


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_the_lightest_edge_is_never_on_the_way_all_along(level):
    """Not from the start or from the goal, and not if one takes the goal as soon as an edge leads there."""
    env = gym.make("llm/ShortestPath-v0", difficulty=level).unwrapped
    for seed in range(20):
        env.reset(seed=seed)
        replies = env.shortcuts()
        assert len(replies) == 4
        for name, reply in replies.items():
            env.reset(seed=seed)
            assert env.step(reply)[1] == 0, (seed, name)


def test_shortest_paths_are_those_found_by_trying_all():
    rng = random.Random(0)
    for _ in range(60):
        directed = rng.random() < 0.5
        pairs = [(a, b) for a in "ABCDE" for b in "ABCDE" if (a != b if directed else a < b)]
        edges = [[a, b, rng.randint(1, 9)] for a, b in rng.sample(pairs, 6)]
        weights = {(a, b): w for a, b, w in edges} | ({} if directed else {(b, a): w for a, b, w in edges})
        lengths = []
        for count in range(4):
            for middle in permutations("BCD", count):
                steps = list(pairwise(["A", *middle, "E"]))
                if all(step in weights for step in steps):
                    lengths.append(sum(weights[step] for step in steps))
        path = shortest({"edges": edges, "directed": directed, "start": "A", "goal": "E"})
        assert bool(path) == bool(lengths)
        assert not path or sum(weights[step] for step in pairwise(path)) == min(lengths)


@pytest.mark.parametrize("level", LEVELS)
def test_walks_at_random_are_no_shortest_paths(level):
    rng, n, wins = random.Random(0), 500, 0
    for task in drawn("llm/ShortestPath-v0", level, n):
        goal, path = task.problem["goal"].lower(), [task.problem["start"].lower()]
        assert (path[0], goal) not in task._weights or task._weights[path[0], goal] > task._length
        while path[-1] != goal:
            ahead = [b for a, b in task._weights if a == path[-1] and b not in path]
            if not ahead:
                break
            path.append(goal if goal in ahead else rng.choice(ahead))
        wins += task.is_correct(",".join(path))
    assert is_at_most(wins / n, task.chance_rate, n)


# StringRewriting.


def test_rewriting_by_hand():
    # b(ba)a -> (ba)ba -> ab(ba) -> a(ba)b -> aabb: there rule 1 finds nothing, and rule 2 makes "aa" a "c".
    rules = [["ba", "ab"], ["aa", "c"]]
    assert rewrite(rules, "bbaa", 100) == ("cbb", [0, 0, 0, 0, 1])
    problem = {"rules": rules, "string": "bbaa"}
    for answer, paid in (("cbb", 1), ("c b b", 1), ("CBB", 1), ("aabb", 0), ("bbaa", 0), ("cb", 0), ("cbd", -0.1)):
        assert reward("llm/StringRewriting-v0", problem, answer) == pytest.approx(paid)
    assert rewrite([["a", "b"], ["b", "a"]], "a", 7) == ("b", [0, 1, 0, 1, 0, 1, 0])
    text = text_of("llm/StringRewriting-v0", {"rules": [["ba", ""]], "string": "bba"})
    assert "1. ba -> (nothing)\nString: bba" in text


def test_rewriting_with_other_letters_is_the_same_problem():
    key = gym.make("llm/StringRewriting-v0").unwrapped.split_key
    first = key({"rules": [["ba", "ab"], ["aa", "c"]], "string": "bbaa"})
    assert first == key({"rules": [["yx", "xy"], ["xx", "z"]], "string": "yyxx"})
    assert first != key({"rules": [["ab", "ba"], ["aa", "c"]], "string": "bbaa"})


@pytest.mark.parametrize("level", [*LEVELS, "expert"])
def test_rewriting_takes_the_steps_of_its_level_and_is_not_sorting(level):
    n, wins = 300, 0
    for task in drawn("llm/StringRewriting-v0", level, n):
        final, used = rewrite(task.problem["rules"], task.problem["string"], 1_000)
        assert task.settings["steps"][0] <= len(used) <= task.settings["steps"][1]
        assert not any(left in final for left, _ in task.problem["rules"])
        wins += "".join(sorted(task.problem["string"])) == final
    assert is_at_most(wins / n, task.chance_rate, n)


def rewritten(rules, string, choose, find=str.find):
    """Rewrite by the rule that is chosen of those that fit, where it is found first."""
    for _ in range(300):
        fitting = [rule for rule in rules if rule[0] in string]
        if not fitting or len(string) > 100:
            return string
        left, right = choose(fitting)
        place = find(string, left)
        string = string[:place] + right + string[place + len(left) :]
    return string


def in_passes(rules, string, n_passes, n_times):
    """Take the rules one after the other, each at most n times, in so many passes."""
    for _ in range(n_passes):
        for left, right in rules:
            for _ in range(n_times):
                if len(string) < 100:
                    string = string.replace(left, right, 1)
    return string


@pytest.mark.parametrize(("level", "rate"), [("easy", 0.1), ("medium", 0.05), ("hard", 0.05), ("expert", 0.03)])
def test_who_ignores_the_order_of_the_rules_does_not_win(level, rate):
    rng, n, wins = random.Random(0), 200, Counter()
    for task in drawn("llm/StringRewriting-v0", level, n):
        rules, string = task.problem["rules"], task.problem["string"]
        played = {
            "from the bottom": rewritten(rules[::-1], string, lambda fitting: fitting[0]),
            "rightmost": rewritten(rules, string, lambda fitting: fitting[0], str.rfind),
            "each to its end, once": in_passes(rules, string, 1, 60),
            "each to its end, in rounds": in_passes(rules, string, 20, 60),
            "each once, in rounds": in_passes(rules, string, 60, 1),
            "any": rewritten(rules, string, rng.choice),
        }
        wins.update(name for name, final in played.items() if final == task.solution())
    assert task.chance_rate == rate
    assert is_at_most(wins["any"] / n, rate, n)
    assert set(wins) <= {"any"}


# SpellNth.

WORDS = ["kite", "sun", "apple", "tree"]


@pytest.mark.parametrize(
    ("kind", "numbers", "letters", "right", "wrong"),
    [
        ("spell", [2, 1], "", "s-u-n-k-i-t-e", "k-i-t-e-s-u-n"),
        ("backwards", [1, 3], "", "e-e-r-t-n-u-s", "t-r-e-e-s-u-n"),
        ("column", [3], "", "t-n-p-e", "t-n-p"),
        ("ends", [2], "", "n-e", "e-n"),
        ("count", [2, 4], "pe", "2, 3", "2, 4"),
    ],
)
def test_spelling(kind, numbers, letters, right, wrong):
    problem = {"kind": kind, "words": WORDS, "numbers": numbers, "letters": letters}
    assert reward("llm/SpellNth-v0", problem, right) == 1
    assert reward("llm/SpellNth-v0", problem, wrong) == 0
    assert reward("llm/SpellNth-v0", problem, right.replace("-", " ").upper()) == 1
    assert reward("llm/SpellNth-v0", problem, right.replace("-", "").replace(",", "")) == pytest.approx(
        1 if kind == "count" else -0.1
    )
    assert reward("llm/SpellNth-v0", problem, "suntree") == pytest.approx(-0.1)


def test_counts_must_be_as_many_as_were_asked_for():
    problem = {"kind": "count", "words": WORDS, "numbers": [1, 4], "letters": "pe"}
    assert reward("llm/SpellNth-v0", problem, "2, 4") == 1
    assert reward("llm/SpellNth-v0", problem, "2") == pytest.approx(-0.1)
    assert reward("llm/SpellNth-v0", problem, "p=2, e=4") == 1
    assert reward("llm/SpellNth-v0", problem, "p=2, s=4") == pytest.approx(-0.1)
    assert text_of("llm/SpellNth-v0", problem).endswith(
        "How often does each of the letters p, e occur in the words from the 1st to the 4th, both included, taken "
        "together? Give the numbers in this order."
    )


# BaseConversion.


@pytest.mark.parametrize(
    ("numbers", "source", "target", "right"),
    [
        (["ff"], 16, 10, "255"),
        (["255"], 10, 2, "11111111"),
        (["11111111"], 2, 16, "ff"),
        (["z"], 36, 35, "10"),
        (["12", "21"], 3, 4, "30"),  # 5 + 7
        (["0"], 10, 2, "0"),
    ],
)
def test_base_conversion(numbers, source, target, right):
    problem = {"numbers": numbers, "source": source, "target": target}
    assert reward("llm/BaseConversion-v0", problem, right) == 1
    assert reward("llm/BaseConversion-v0", problem, f" 00{right.upper()} ") == 1
    assert reward("llm/BaseConversion-v0", problem, f"{right}0" if right != "0" else "1") == 0
    prefixed = 1 if target == 16 else 0 if target > 33 else -0.1
    assert reward("llm/BaseConversion-v0", problem, f"0x{right}") == pytest.approx(prefixed)
    assert reward("llm/BaseConversion-v0", problem, "int('ff', 16)") == pytest.approx(-0.1)


def test_to_base_is_undone_by_int():
    for base in range(2, 37):
        for value in (0, 1, base, base**3 - 1, 123_456_789):
            assert int(to_base(value, base), base) == value


def test_there_and_back_is_one_problem():
    key = gym.make("llm/BaseConversion-v0").unwrapped.split_key
    there, back = ({"numbers": [n], "source": s, "target": t} for n, s, t in (("ff", 16, 10), ("255", 10, 16)))
    assert key(there) == key(back) != key(there | {"target": 8})


# Calendar.


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ({"kind": "weekday", "date": "2000-01-01"}, "Saturday"),
        ({"kind": "weekday", "date": "1900-03-01"}, "Thursday"),
        ({"kind": "between", "from": "2023-12-31", "to": "2024-03-01"}, "61"),  # 31 + 29 + 1
        ({"kind": "between", "from": "1899-12-31", "to": "1900-03-01"}, "60"),  # 1900 had no 29 February
        ({"kind": "shift", "date": "2024-02-28", "days": 2}, "2024-03-01"),
        ({"kind": "shift", "date": "2023-03-01", "days": -1}, "2023-02-28"),
        ({"kind": "nth", "n": 3, "weekday": 4, "month": 3, "year": 2024}, "2024-03-15"),
        ({"kind": "nth", "n": -1, "weekday": 3, "month": 2, "year": 2024}, "2024-02-29"),
        ({"kind": "nth", "n": 1, "weekday": 4, "month": 3, "year": 2024}, "2024-03-01"),
        ({"kind": "shifted nth", "n": 1, "weekday": 4, "month": 3, "year": 2024, "days": 30}, "2024-03-31"),
    ],
)
def test_dates(question, answer):
    assert answer_to(question) == answer
    assert reward("llm/Calendar-v0", {"questions": [question]}, answer) == 1


def test_nth_weekdays_are_those_counted_day_by_day():
    for year, month in ((2023, 2), (2024, 2), (1999, 12), (2100, 7)):
        days = [day for i in range(31) if (day := date(year, month, 1) + timedelta(i)).month == month]
        for weekday in range(7):
            listed = [day.isoformat() for day in days if day.weekday() == weekday]
            for n in (1, 2, 3, 4, -1):
                question = {"kind": "nth", "n": n, "weekday": weekday, "month": month, "year": year}
                assert answer_to(question) == listed[n - 1 if n > 0 else -1]


NO_DATE = "is not about dates|must have a kind"
TWO_DATES = {
    "questions": [
        {"kind": "weekday", "date": "2024-03-15"},
        {"kind": "shift", "date": "2024-03-15", "days": -20},
        {"kind": "between", "from": "2020-01-01", "to": "2024-01-01"},
    ]
}


# StackMachine.


@pytest.mark.parametrize(
    ("program", "stack"),
    [
        ("push 3, push 10, sub", [-7]),
        ("push 3, dup, add, push 4, mul", [24]),
        ("push 1, push 2, push 3, rot", [2, 3, 1]),
        ("push 1, push 2, over, swap", [1, 1, 2]),
        ("push 5, neg, push 2, max, push 9, drop", [2]),
        ("push 1, repeat 3, dup, add, end", [8]),
        ("push 0, repeat 2, repeat 3, push 1, add, end, push 10, add, end", [26]),
    ],
)
def test_stack_machine(program, stack):
    lines = program.split(", ")
    assert run_program(lines) == stack
    assert reward("llm/StackMachine-v0", {"program": lines}, ", ".join(map(str, stack))) == 1
    assert reward("llm/StackMachine-v0", {"program": lines}, str(stack)) == 1
    assert reward("llm/StackMachine-v0", {"program": lines}, " ".join(map(str, stack))) == 1
    assert reward("llm/StackMachine-v0", {"program": lines}, str([*stack, 1])) == 0
    assert reward("llm/StackMachine-v0", {"program": lines}, str(stack[::-1])) == (stack == stack[::-1])
    assert reward("llm/StackMachine-v0", {"program": lines}, "the stack") == pytest.approx(-0.1)
    assert reward("llm/StackMachine-v0", {"program": lines}, "[]") == pytest.approx(-0.1)


@pytest.mark.parametrize("level", ["hard", "expert"])
def test_each_round_of_a_loop_matters(level):
    env = gym.make("llm/StackMachine-v0", difficulty=level).unwrapped
    for seed in range(15):
        env.reset(seed=seed)
        program = env.problem["program"]
        places = [i for i, line in enumerate(program) if line.startswith("repeat")]
        replies = env.shortcuts()
        assert places and len(replies) > len(places)
        for rounds in (dict.fromkeys(places, 1), *({i: int(program[i][7:]) - 1} for i in places)):
            changed = [f"repeat {max(1, rounds[i])}" if i in rounds else line for i, line in enumerate(program)]
            with contextlib.suppress(InvalidActionError):
                assert run_program(changed) != env._stack, (seed, rounds)
        for name, reply in replies.items():
            env.reset(seed=seed)
            assert env.step(reply)[1] == 0, (seed, name)


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("push 1, add", "add needs 2 numbers; the stack has 1"),
        ("push 1, drop", "leaves an empty stack"),
        ("push 1, repeat 2, dup", "has no end"),
        ("push 1, end", "cannot stand here as an instruction"),
        ("push x", "needs a whole number"),
        ("push 1, repeat 0, dup, end", "needs a whole number"),
        ("push 9, repeat 50, dup, mul, end", "becomes larger"),
        ("push 1, repeat 2000, repeat 2000, neg, end, end", "over 2000 steps"),
        ("push 1, jump 0", "cannot stand here as an instruction"),
    ],
)
def test_stack_machine_refuses_programs_that_fail(program, complaint):
    require_refused("llm/StackMachine-v0", {"program": program.split(", ")}, complaint)
    if complaint != "leaves an empty stack":
        with pytest.raises(InvalidActionError, match=complaint):
            run_program(program.split(", "))


def test_every_instruction_that_occurs_is_explained():
    for task in drawn("llm/StackMachine-v0", "hard", 30):
        explained = task.prompt().partition("Program:")[0]
        for line in task.problem["program"]:
            assert re.search(rf"\b{line.split()[0]}\b", explained)


@pytest.mark.parametrize(
    ("task", "problem", "answer", "paid"),
    [
        ("SortRecords", RECORDS, "Ada, Cleo, Dan, Ben", 0),
        ("SortRecords", RECORDS, "Ada, Cleo, Ben", 0),
        ("SortRecords", RECORDS, "Ada, Cleo, Ben, Dan, Eva", 0),
        ("SortRecords", RECORDS, "Ada, Cleo, Ben, Dan, Ada", -0.1),
        ("SortRecords", RECORDS, "Ada, Cleo, Ben, Zeno", -0.1),
        ("SortRecords", RECORDS, "Ada 30, Cleo 30, Ben 25, Dan 25", -0.1),
        ("ShortestPath", PATHS, "A -> B -> C -> D", 1),
        ("ShortestPath", PATHS, "A, E, D", 1),
        ("ShortestPath", PATHS, "a-e-d", 1),
        ("ShortestPath", PATHS, "A E D", 1),
        ("ShortestPath", PATHS, "A → E → D", 1),
        ("ShortestPath", PATHS, "A -> D", 0),
        ("ShortestPath", PATHS, "D -> E -> A", 0),
        ("ShortestPath", PATHS, "A -> C -> D", 0),  # no such edge
        ("ShortestPath", PATHS, "A -> E", 0),
        ("ShortestPath", PATHS, "A -> E -> D -> E -> D", 0),
        ("ShortestPath", PATHS, "A", -0.1),
        ("ShortestPath", PATHS, "A -> F -> D", -0.1),
        ("ShortestPath", PATHS, "3", -0.1),
        ("Calendar", TWO_DATES, "Friday; 2024-02-24; 1461", 1),
        ("Calendar", TWO_DATES, "fri; 2024-2-24; 1,461", 1),
        ("Calendar", TWO_DATES, "Friday\n2024-02-24\n1461", 1),
        ("Calendar", TWO_DATES, "Friday; 2024-02-24; 1460", 0),
        ("Calendar", TWO_DATES, "Thursday; 2024-02-24; 1461", 0),
        ("Calendar", TWO_DATES, "1461; 2024-02-24; Friday", 0),
        ("Calendar", TWO_DATES, "Friday; 2024-02-24", -0.1),
        ("Calendar", TWO_DATES, "Friday; 24 February 2024; 1461", 1),
        ("Calendar", TWO_DATES, "Friday or Saturday; 2024-02-24; 1461", -0.1),
    ],
)
def test_answers_are_paid(task, problem, answer, paid):
    assert reward(f"llm/{task}-v0", problem, answer) == pytest.approx(paid)


@pytest.mark.parametrize(
    ("task", "problem", "complaint"),
    [
        ("SortRecords", RECORDS | {"operation": "minus"}, "operation must be"),
        ("SortRecords", RECORDS | {"keys": [["name", "ascending"]]}, "a key must be"),
        ("SortRecords", RECORDS | {"b": [["Ben", 26, "Oslo"]]}, "the same in both"),
        ("SortRecords", RECORDS | {"a": [["Ada", 30, "Rome"], ["Ben", "25", "Oslo"]]}, "all be whole numbers"),
        ("SortRecords", RECORDS | {"a": [["Ada", 30]]}, "each record must be"),
        ("SortRecords", RECORDS | {"condition": ["age", "at least", 99]}, "no record is left"),
        ("SortRecords", RECORDS | {"condition": ["age", ["at least"], 25]}, "a condition must be"),
        ("SortRecords", RECORDS | {"condition": ["age", "at least", "x"]}, "of the column's type"),
        ("SortRecords", RECORDS | {"condition": ["city", "above the average of", "age"]}, "needs a column"),
        ("SortRecords", RECORDS | {"condition": ["age", "above the average of", "town"]}, "needs a column"),
        ("SortRecords", RECORDS | {"keys": [["same town", "ascending"]]}, "a key must be"),
        ("ShortestPath", PATHS | {"goal": "A"}, "no path"),
        ("ShortestPath", PATHS | {"goal": "Z"}, "no path"),
        ("ShortestPath", PATHS | {"edges": [["A", "D", 0]]}, "whole weight from 1"),
        ("ShortestPath", PATHS | {"edges": [["A", "A", 1], ["A", "D", 1]]}, "two different nodes"),
        ("ShortestPath", PATHS | {"edges": [["A", "D", 1], ["D", "A", 2]]}, "is there twice"),
        ("ShortestPath", PATHS | {"edges": [["A", "D", 1], ["a", "D", 2]]}, "upper and lower case"),
        ("ShortestPath", PATHS | {"story": 2}, "the story"),
        ("StringRewriting", {"rules": [["a", "b"], ["b", "a"]], "string": "a"}, "must end within"),
        ("StringRewriting", {"rules": [["a", "aa"]], "string": "a"}, "must end within"),
        ("StringRewriting", {"rules": [["a", ""]], "string": "aa"}, "must end within"),
        ("StringRewriting", {"rules": [["", "a"]], "string": "a"}, "may not be empty"),
        ("StringRewriting", {"rules": [["a"]], "string": "a"}, "pairs of texts"),
        ("StringRewriting", {"rules": [["a", "B"]], "string": "a"}, "small letters"),
        ("StringRewriting", {"rules": [["a", "b"]], "string": ""}, "1 to 200 letters"),
        ("SpellNth", {"kind": "shout", "words": WORDS, "numbers": [1], "letters": ""}, "kinds and how many"),
        ("SpellNth", {"kind": "spell", "words": WORDS, "numbers": [1], "letters": ""}, "kinds and how many"),
        ("SpellNth", {"kind": "spell", "words": WORDS, "numbers": [1, 5], "letters": ""}, "go beyond 4"),
        ("SpellNth", {"kind": "column", "words": WORDS, "numbers": [4], "letters": ""}, "go beyond 3"),
        ("SpellNth", {"kind": "count", "words": WORDS, "numbers": [3, 2], "letters": "p"}, "not in order"),
        ("SpellNth", {"kind": "count", "words": WORDS, "numbers": [1, 2], "letters": ""}, 'needed for "count"'),
        ("SpellNth", {"kind": "spell", "words": ["Kite", "sun"], "numbers": [1, 2], "letters": ""}, "small letters"),
        ("BaseConversion", {"numbers": ["12"], "source": 2, "target": 10}, "does not have"),
        ("BaseConversion", {"numbers": ["12"], "source": 10, "target": 37}, "from 2 to 36"),
        ("BaseConversion", {"numbers": [], "source": 10, "target": 2}, "must be a number"),
        ("BaseConversion", {"numbers": ["-5"], "source": 10, "target": 2}, "does not have"),
        ("BaseConversion", {"numbers": [5], "source": 10, "target": 2}, "must be texts"),
        ("Calendar", {"questions": [{"kind": "weekday", "date": "2023-02-29"}]}, NO_DATE),
        ("Calendar", {"questions": [{"kind": "weekday", "date": 5}]}, NO_DATE),
        ("Calendar", {"questions": [{"kind": "weekday"}]}, NO_DATE),
        ("Calendar", {"questions": [{"kind": "shift", "date": "9999-12-31", "days": 1}]}, NO_DATE),
        ("Calendar", {"questions": [{"kind": "shift", "date": "2000-01-01", "days": 10**30}]}, NO_DATE),
        ("Calendar", {"questions": [{"kind": "nth", "n": 5, "weekday": 1, "month": 1, "year": 2000}]}, NO_DATE),
        ("Calendar", {"questions": [{"kind": "nth", "n": 1, "weekday": 1, "month": 13, "year": 2000}]}, NO_DATE),
        ("Calendar", {"questions": [{"kind": "moon", "date": "2023-02-28"}]}, NO_DATE),
    ],
)
def test_what_cannot_be_played_is_refused(task, problem, complaint):
    require_refused(f"llm/{task}-v0", problem, complaint)
