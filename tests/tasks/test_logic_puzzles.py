"""The tasks of tasks/logic that are searched: Sudoku, zebra puzzles, graph colouring."""

import random
from itertools import permutations, product

import gymnasium as gym
import pytest
from task_play import LEVELS, drawn, is_at_most, require_refused

from llm_envs.tasks.draws import shuffled
from llm_envs.tasks.logic.graph_colouring import colour
from llm_envs.tasks.logic.sudoku_grids import BOXES, box_numbers, count_solutions, full_grid, hide, turn
from llm_envs.tasks.logic.zebra_solver import BETWEEN_VALUES, OF_A_HOUSE, solve

# Sudoku.

#  1 2 | . .      1 2 | 4 3
#  . . | 1 .      4 3 | 1 2
#  . 1 | . .      3 1 | 2 4
#  2 4 | . .      2 4 | 3 1
SUDOKU = {"rows": ["12..", "..1.", ".1..", "24.."]}


def is_full(grid, size):
    every = set(range(1, size + 1))
    boxes = box_numbers(size)
    groups = [[c // size for c in range(size * size)], [c % size for c in range(size * size)], boxes]
    return all({grid[c] for c in range(size * size) if group[c] == i} == every for group in groups for i in range(size))


def test_there_are_288_grids_of_4x4():
    assert len(count_solutions([0] * 16, 4, 1_000)) == 288
    assert all(is_full(grid, 4) for grid in count_solutions([0] * 16, 4, 1_000))


@pytest.mark.parametrize("size", sorted(BOXES))
def test_turned_grids_are_grids_and_hidden_ones_have_one_solution(size):
    rng = random.Random(0)
    for number in range(8):
        grid = turn(full_grid(size, number), size, rng.random)
        assert is_full(grid, size)
        hidden = hide(grid, size, rng.random, 0)
        assert all(clue in (0, digit) for clue, digit in zip(hidden, grid, strict=True))
        assert count_solutions(hidden, size, 3) == [grid]


def test_turned_grids_share_the_split():
    rng = random.Random(0)
    key = gym.make("llm/Sudoku-v0").unwrapped.split_key
    for size in BOXES:
        hidden = hide(full_grid(size, 0), size, rng.random, 0)
        twins = [hidden, *(turn(hidden, size, rng.random) for _ in range(5))]
        texts = ["".join(str(digit or ".") for digit in twin) for twin in twins]
        keys = [key({"rows": [text[i : i + size] for i in range(0, size * size, size)]}) for text in texts]
        assert all(other == keys[0] for other in keys)
        assert len(set(texts)) > 1


def test_filling_rows_at_random_solves_no_more_sudokus_than_chance():
    rng, wins, n = random.Random(0), 0, 2_000
    for task in drawn("llm/Sudoku-v0", "easy", n):
        guess = []
        for row in task.problem["rows"]:
            missing = shuffled(rng.random, sorted(set("1234") - set(row)))
            guess.append("".join(missing.pop() if character == "." else character for character in row))
        wins += task.is_correct("\n".join(guess))
    assert wins / n <= task.chance_rate


# ZebraPuzzle.

# Ada lives in house 1. The dog's owner lives directly to the left of Cleo, so in house 1 or 2; Cleo has the cat, and
# Ada has no dog: so Ben has the dog in house 2, Cleo lives in house 3, and Ada has the bird.
ZEBRA = {
    "attributes": [["name", ["Ada", "Ben", "Cleo"]], ["pet", ["cat", "dog", "bird"]]],
    "clues": [["at", [0, 0], 0], ["left", [1, 1], [0, 2]], ["same", [0, 2], [1, 0]], ["other", [0, 0], [1, 1]]],
}


def test_zebra_puzzle_is_written_as_documented():
    text, _ = gym.make("llm/ZebraPuzzle-v0").reset(options={"problem": ZEBRA})
    assert text.splitlines()[2:] == [
        "- name: Ada, Ben, Cleo",
        "- pet: bird, cat, dog",
        "Clues:",
        "1. Ada lives in house 1.",
        "2. The owner of the dog lives directly to the left of Cleo.",
        "3. Cleo is the owner of the cat.",
        "4. Ada is not the owner of the dog.",
    ]


def fits(clue, houses):
    kind, value, other = clue
    house = houses[value[0]][value[1]]
    if isinstance(other, int):
        return OF_A_HOUSE[kind](house, other)
    return BETWEEN_VALUES[kind](house, houses[other[0]][other[1]])


def test_the_zebra_solver_finds_what_trying_all_finds():
    rng = random.Random(0)
    everything = list(product(permutations(range(3)), repeat=3))
    for _ in range(150):
        clues = []
        while len(clues) < 4:
            value, other = (rng.randrange(3), rng.randrange(3)), (rng.randrange(3), rng.randrange(3))
            if rng.random() < 0.3:
                clues.append((rng.choice(list(OF_A_HOUSE)), value, rng.randrange(3)))
            elif value != other:
                clues.append((rng.choice(list(BETWEEN_VALUES)), value, other))
        wanted = [houses for houses in everything if all(fits(clue, houses) for clue in clues)]
        found = [tuple(map(tuple, houses)) for houses in solve(3, 3, clues, 1_000)]
        assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("level", LEVELS)
def test_every_zebra_puzzle_has_one_solution(level):
    for task in drawn("llm/ZebraPuzzle-v0", level, 30):
        attributes = task.problem["attributes"]
        clues = [(k, tuple(v), w if isinstance(w, int) else tuple(w)) for k, v, w in task.problem["clues"]]
        (houses,) = solve(len(attributes[0][1]), len(attributes), clues, 3)
        assert all(fits(clue, houses) for clue in clues)
        for (_, words), where in zip(attributes, houses, strict=True):
            assert all(word in task._solution[house] for word, house in zip(words, where, strict=True))


# GraphColouring.

SQUARE = {
    "story": "map",
    "nodes": ["A", "B", "C", "D"],
    "edges": [["A", "B"], ["B", "C"], ["C", "D"], ["D", "A"]],
    "colours": ["red", "blue"],
}


def test_colouring_finds_what_trying_all_finds():
    rng = random.Random(0)
    nodes, pairs = "ABCDE", [(a, b) for a in "ABCDE" for b in "ABCDE" if a < b]
    seen = set()
    for _ in range(100):
        edges = rng.sample(pairs, 8)
        possible = any(
            all(colours[nodes.index(a)] != colours[nodes.index(b)] for a, b in edges)
            for colours in product("rgb", repeat=5)
        )
        found = colour(nodes, edges, "rgb")
        assert (found is not None) == possible
        assert found is None or all(found[a] != found[b] for a, b in edges)
        seen.add(possible)
    assert seen == {True, False}


@pytest.mark.parametrize("level", LEVELS)
def test_colours_at_random_are_no_more_often_right_than_chance(level):
    rng, wins, n = random.Random(0), 0, 1_000
    for task in drawn("llm/GraphColouring-v0", level, n):
        nodes, colours = task.problem["nodes"], task.problem["colours"]
        guess = [colours[i % len(colours)] for i in range(len(nodes))]
        rng.shuffle(guess)
        wins += task.is_correct(", ".join(f"{node}: {c}" for node, c in zip(nodes, guess, strict=True)))
    assert is_at_most(wins / n, task.chance_rate, n)


def test_graphs_with_other_names_share_the_split():
    key = gym.make("llm/GraphColouring-v0").unwrapped.split_key
    renamed = {"nodes": ["D", "A", "B", "C"], "edges": [["D", "B"], ["A", "B"], ["A", "C"], ["C", "D"]]}
    assert key(SQUARE) == key(SQUARE | renamed)
    assert key(SQUARE) != key(SQUARE | {"edges": [["A", "B"], ["B", "C"], ["C", "D"]]})


@pytest.mark.parametrize(
    ("task", "problem", "complaint"),
    [
        ("Sudoku", {"rows": ["....", "....", "....", "...."]}, "0 given digits has not exactly one"),
        ("Sudoku", {"rows": ["12..", "34..", "....", "...."]}, "has not exactly one"),
        ("Sudoku", {"rows": ["11..", "..2.", "..3.", "...4"]}, "has not exactly one"),
        ("Sudoku", {"rows": ["1...", "..1.", ".1..", "25.."]}, "digits 1 to 4"),
        ("Sudoku", {"rows": ["1...", "..1.", ".1.."]}, "rows must be"),
        ("ZebraPuzzle", ZEBRA | {"clues": [["at", [0, 0], 0]]}, "not exactly one assignment"),
        ("ZebraPuzzle", ZEBRA | {"clues": [*ZEBRA["clues"], ["at", [0, 1], 0]]}, "not exactly one assignment"),
        ("ZebraPuzzle", ZEBRA | {"clues": [["above", [0, 0], [0, 1]]]}, "a clue is"),
        ("ZebraPuzzle", ZEBRA | {"clues": [[["at"], [0, 0], 0]]}, "a clue is"),
        ("ZebraPuzzle", ZEBRA | {"clues": [["same", [0, 0], [1, 3]]]}, "a clue is"),
        ("ZebraPuzzle", ZEBRA | {"attributes": [["name", ["Ada", "Ben"]], ["pet", ["cat"]]]}, "as many values"),
        ("ZebraPuzzle", ZEBRA | {"attributes": [["name", ["Ada", "Ben"]], ["pet", ["cat", "ben"]]]}, "there twice"),
        ("GraphColouring", SQUARE | {"edges": [["A", "B"], ["B", "C"], ["C", "A"]]}, "cannot be coloured"),
        ("GraphColouring", SQUARE | {"edges": [["A", "E"]]}, "two different nodes"),
        ("GraphColouring", SQUARE | {"edges": [["A", "A"]]}, "two different nodes"),
        ("GraphColouring", SQUARE | {"story": "chess"}, "the story must be"),
        ("GraphColouring", SQUARE | {"nodes": ["A", "a", "B", "C", "D"]}, "different nodes"),
    ],
)
def test_what_cannot_be_played_is_refused(task, problem, complaint):
    require_refused(f"llm/{task}-v0", problem, complaint)
