"""Splits of the games: no problem in both in substance, and nothing of what is hidden told by the split."""

from itertools import permutations

import gymnasium as gym
import pytest

from llm_envs.env import canonical_json, split_of
from llm_envs.tasks.games.symmetry import canonical_board, views

MAZE = ["#####", "#S..#", "###.#", "#..G#", "#####"]
ROOM = ["#####", "#P_T#", "#_B_#", "##__#", "#####"]


def key_of(task, **problem):
    env = gym.make(f"llm/{task}-v0", difficulty="hard").unwrapped
    return canonical_json(env.split_key(problem))


def test_a_board_has_eight_views_and_one_canonical_one():
    board = ("ab", "cd", "ef")
    assert views(board)[0] == board and len(set(views(board))) == 8
    assert {("ba", "dc", "fe"), ("ef", "cd", "ab"), ("ace", "bdf"), ("bdf", "ace"), ("fdb", "eca")} < set(views(board))
    assert {canonical_board(view) for view in views(board)} == {("ab", "cd", "ef")}


def test_a_turned_position_of_tic_tac_toe_is_in_the_same_split():
    #  X O .     . . X
    #  . X . and O X O  and so on
    keys = {key_of("TicTacToe", board="".join(view), agent="X", seed=0) for view in views(["XO.", ".X.", "O.."])}
    assert len(keys) == 1 and keys != {key_of("TicTacToe", board="XO.OX....", agent="X", seed=0)}


def test_positions_of_connect_four_are_divided_whatever_led_to_them():
    # Columns 1 3 5 and 5 3 1 leave the same discs; 7 5 3 their mirror image; the other side has the middle in 3 1 5.
    keys = {key_of("ConnectFour", opening=opening, seed=0) for opening in ("135", "531", "753", "357")}
    assert len(keys) == 1 and keys != {key_of("ConnectFour", opening="315", seed=0)}


@pytest.mark.parametrize(("task", "rows"), [("Maze", MAZE), ("Sokoban", ROOM)])
def test_a_turned_or_mirrored_board_is_in_the_same_split(task, rows):
    keys = {key_of(task, rows=list(view), moves=50) for view in views(rows)}
    assert len(keys) == 1 and keys != {key_of(task, rows=[*MAZE[:-1], "#.###", "#####"], moves=50)}


def test_a_maze_walked_from_the_goal_is_in_the_same_split():
    back = [row.translate(str.maketrans("SG", "GS")) for row in MAZE]
    assert key_of("Maze", rows=back, moves=9) == key_of("Maze", rows=MAZE, moves=9)


def test_renamed_pegs_and_the_way_back_are_in_the_same_split():
    keys = set()
    for names in permutations("ABC"):
        start, goal = ("".join(names["ABC".index(peg)] for peg in pegs) for pegs in ("AABCA", "CBBAC"))
        keys |= {key_of("TowerOfHanoi", start=start, goal=goal, moves=30)}
        keys |= {key_of("TowerOfHanoi", start=goal, goal=start, moves=30)}
    assert len(keys) == 1 and keys != {key_of("TowerOfHanoi", start="AABCA", goal="CBBAA", moves=30)}


def test_a_field_of_mines_is_divided_by_what_is_shown_at_first():
    # Row 2 shows 2 3 3 3 2 above a row of mines, which hides whatever is below.
    fields = [
        (["XXXXX", "XXXXX", "*****", "XXXXX"], "A1"),
        (["XXXXX", "XXXXX", "*****", "XXX*X"], "E1"),
        (["X*XXX", "*****", "XXXXX", "XXXXX"], "C4"),
    ]
    keys = {key_of("Minesweeper", rows=[row.replace("X", ".") for row in rows], first=at) for rows, at in fields}
    assert keys == {'["00000","23332","?????","?????"]'}


@pytest.mark.parametrize("secret", ["Zuni", "Bako"])
def test_the_name_that_is_meant_does_not_decide_the_split(secret):
    rows = [["Bako", "red", "2"], ["Zuni", "blue", "4"]]
    turned = [["Zuni", "4", "blue"], ["Moki", "2", "red"]]
    key = key_of("TwentyQuestions", theme="creature", columns=["name", "color", "legs"], rows=rows, secret=secret)
    assert key == key_of(
        "TwentyQuestions", theme="creature", columns=["name", "legs", "color"], rows=turned, secret="Moki"
    )


def test_the_hidden_word_of_a_list_does_not_decide_the_split():
    candidates = ["crane", "stone", "light"]
    keys = {key_of("Wordle", word=word, candidates=candidates) for word in candidates}
    assert keys == {key_of("Wordle", word="stone", candidates=["stone", "light", "crane"])}


def test_the_hidden_number_does_not_decide_the_split():
    assert len({split_of([low, low + 99]) for low in range(1, 60)}) == 2
    assert len({key_of("GuessNumber", low=5, high=104, secret=secret) for secret in range(5, 105)}) == 1


HIDDEN = [
    ("Wordle", "medium", "word"),
    ("Wordle", "hard", "word"),
    ("Wordle", "expert", "word"),
    ("Hangman", "easy", "word"),
    ("Hangman", "medium", "word"),
    ("Hangman", "hard", "word"),
    ("Mastermind", "medium", "code"),
    ("Mastermind", "hard", "code"),
]


@pytest.mark.parametrize(("task", "level", "field"), HIDDEN)
def test_answers_hidden_behind_one_first_observation_are_not_divided(task, level, field):
    hidden, observations = {}, set()
    for split, seeds in (("train", range(1_000)), ("test", range(1_000, 2_000))):
        env = gym.make(f"llm/{task}-v0", difficulty=level, split=split).unwrapped
        hidden[split] = set()
        for seed in seeds:
            observations.add(env.reset(seed=seed)[0])
            hidden[split].add(env.problem[field])
    assert len(observations) == 1 and hidden["train"] & hidden["test"]


DIVIDED = [
    *(
        (task, "easy")
        for task in ("TicTacToe", "ConnectFour", "Wordle", "TwentyQuestions", "Minesweeper", "Maze", "Sokoban")
    ),
    *((task, "hard") for task in ("GuessNumber", "Minesweeper", "TowerOfHanoi")),
]


@pytest.mark.parametrize(("task", "level"), DIVIDED)
def test_no_first_observation_is_in_both_splits(task, level):
    shown = []
    for split in ("train", "test"):
        env = gym.make(f"llm/{task}-v0", difficulty=level, split=split)
        shown.append({env.reset(seed=seed)[0] for seed in range(300)})
    assert not shown[0] & shown[1]
