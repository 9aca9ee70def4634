"""Levels that are expected to be hard for frontier models, and what makes them so."""

import dataclasses
import random

import gymnasium as gym
import pytest

from llm_envs.checker.catalogue import describe, family_of, suite_ids
from llm_envs.checker.honesty_clauses import READER, shortcuts_won
from llm_envs.checker.subject import QUICK, Subject
from llm_envs.tasks.arithmetic.countdown import solve_countdown
from llm_envs.tasks.logic.graph_colouring import colour
from llm_envs.tasks.logic.sudoku_grids import count_solutions, needs_search

TASK_IDS = suite_ids()
WITHOUT_EXPERT = {"Calculator", "CliffWalking", "GuessNumber", "Taxi", "TicTacToe"}
"""Their docstrings say why."""


def test_each_family_has_a_level_that_is_expected_to_be_hard():
    hard = {id for id in TASK_IDS if any(level.expected_hard for level in describe(id).levels.values())}
    assert {family_of(id) for id in hard} == {family_of(id) for id in TASK_IDS}
    for id in hard:
        levels = describe(id).levels
        assert [name for name, level in levels.items() if level.expected_hard] == [list(levels)[-1]]


@pytest.mark.parametrize("id", TASK_IDS)
def test_a_task_has_an_expert_level_or_says_why_not(id):
    task = gym.make(id).unwrapped
    if id.removeprefix("llm/").removesuffix("-v0") in WITHOUT_EXPERT:
        stated = " ".join(type(task).__doc__.split())
        assert "n expert level is missing:" in stated
    else:
        assert "expert" in task.difficulties


@pytest.mark.parametrize("seed", range(3))
def test_expert_sudokus_need_a_search(seed):
    env = gym.make("llm/Sudoku-v0", difficulty="expert")
    env.reset(seed=seed)
    grid = [0 if c == "." else int(c) for row in env.unwrapped.problem["rows"] for c in row]
    assert needs_search(grid, 9) and len(count_solutions(grid, 9)) == 1
    solved = count_solutions(grid, 9)[0]
    assert not needs_search([*solved[:-5], 0, 0, 0, 0, 0], 9)


def test_expert_graphs_mislead():
    env = gym.make("llm/GraphColouring-v0", difficulty="expert")
    for seed in range(5):
        env.reset(seed=seed)
        given = [env.unwrapped.problem[key] for key in ("nodes", "edges", "colours")]
        assert colour(*given, may_go_back=False) is None and colour(*given) is not None


def test_no_number_divides_an_expert_countdown_target():
    env = gym.make("llm/Countdown-v0", difficulty="expert")
    for seed in range(20):
        env.reset(seed=seed)
        problem = env.unwrapped.problem
        assert len(problem["numbers"]) == 6 and all(problem["target"] % n for n in problem["numbers"])
        assert solve_countdown(problem["numbers"], problem["target"]) is not None


def test_expert_programs_run_long_and_records_are_corrected():
    env = gym.make("llm/JsonRecord-v0", difficulty="expert")
    env.reset(seed=0)
    assert env.unwrapped.problem["text"].count("Correction: ") == 16
    assert len(env.unwrapped.problem["expected"]["people"]) == 18


@pytest.mark.parametrize(
    "name", ["Extraction", "FunctionCalling", "JsonRecord", "PagedRecall", "SQLExplorer", "SortRecords", "Syllogisms"]
)
def test_reading_once_wins_at_most_half_of_the_expert_level(name):
    """The player is the task's `reader(k)`, which plays in the place of the oracle's last action."""
    subject = Subject(f"llm/{name}-v0", {"difficulty": "expert"}, dataclasses.replace(QUICK, n_seeds=12))
    won = [win for seed in range(12) for win in shortcuts_won(subject, seed, READER).values()]
    assert len(won) == 12 and sum(won) <= 6


def renamed_formula(formula, names):
    if isinstance(formula, str):
        return names[formula]
    kind, *sides = formula
    sides = [renamed_formula(side, names) for side in sides]
    return [kind, *(sides if kind == "if" else sides[::-1])]


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_entailment_under_other_letters_is_the_same_problem(level):
    env, rng = gym.make("llm/Entailment-v0", difficulty=level), random.Random(0)
    keys = set()
    for seed in range(40):
        env.reset(seed=seed)
        task, problem = env.unwrapped, env.unwrapped.problem
        letters = list(problem["letters"])
        names = dict(zip(letters, rng.sample(letters, len(letters)), strict=True))
        turned = {"letters": problem["letters"]}
        for key in ("premises", "conclusions"):
            turned[key] = [renamed_formula(formula, names) for formula in problem[key]]
            rng.shuffle(turned[key])
        assert task.split_key(turned) == task.split_key(problem)
        keys.add(str(task.split_key(problem)))
    assert len(keys) >= 38


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_zebra_puzzles_with_other_numbers_are_the_same_puzzle(level):
    env, rng = gym.make("llm/ZebraPuzzle-v0", difficulty=level), random.Random(0)
    keys = set()
    for seed in range(15):
        env.reset(seed=seed)
        task, problem = env.unwrapped, env.unwrapped.problem
        n, m = len(problem["attributes"][0][1]), len(problem["attributes"])
        attribute = rng.sample(range(m), m)
        numbers = [rng.sample(range(n), n) for _ in range(m)]

        def moved(value, attribute=attribute, numbers=numbers):
            return value if isinstance(value, int) else [attribute[value[0]], numbers[value[0]][value[1]]]

        attributes = [None] * m
        for i, (name, words) in enumerate(problem["attributes"]):
            attributes[attribute[i]] = [name, [words[numbers[i].index(j)] for j in range(n)]]
        clues = [
            [kind, moved(other), moved(value)]
            if kind in ("same", "other", "next")
            else [kind, moved(value), moved(other)]
            for kind, value, other in problem["clues"]
        ]
        rng.shuffle(clues)
        assert task.split_key({"attributes": attributes, "clues": clues}) == task.split_key(problem)
        keys.add(str(task.split_key(problem)))
    assert len(keys) >= 14
