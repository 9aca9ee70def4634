"""Maze and Tower of Hanoi: hand-worked games, and what random players earn."""

from itertools import product

import gymnasium as gym
import pytest
from task_play import LEVELS, is_at_most, make, play, require_refused, share_of_wins

from llm_envs.tasks.games.game import DIRECTIONS
from llm_envs.tasks.games.maze import _distances as maze_distances
from llm_envs.tasks.games.tower_of_hanoi import _distances as hanoi_distances
from llm_envs.tasks.games.tower_of_hanoi import _moves as hanoi_moves

# Maze.

#   A B C D E
# 1 # # # # #
# 2 # S . . #
# 3 # . # . #
# 4 # # # G #
# 5 # # # # #
MAZE = {"rows": ["#####", "#S..#", "#.#.#", "###G#", "#####"], "moves": 6}
MAZE_RULES = (
    "Walk through the maze to the goal. # is a wall, . is floor, @ is you, G is the goal. Moves are up, down, left "
    "and right, by one cell; up is towards row 1, left towards column A. A reply can have several moves, separated by "
    "spaces; it is played until one leads into a wall."
)


def test_maze():
    env = gym.make("llm/Maze-v0")
    observation, _ = env.reset(options={"problem": MAZE})
    assert observation == (
        f"{MAZE_RULES}\n  A B C D E\n1 # # # # #\n2 # @ . . #\n3 # . # . #\n4 # # # G #\n5 # # # # #\n"
        "You are at B2, the goal is at D4. You have 6 moves left.\nYou have 20 replies."
    )
    observation, reward, terminated, truncated, _ = env.step("<answer>Right, r</answer>")
    assert observation == (
        "  A B C D E\n1 # # # # #\n2 # . . @ #\n3 # . # . #\n4 # # # G #\n5 # # # # #\n"
        "You are at D2, the goal is at D4. You have 4 moves left.\n19 replies left."
    )
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.step("<answer>down down down</answer>")[:3] == ("You have reached the goal.", 1.0, True)


def test_a_move_into_a_wall_ends_the_reply_and_costs_no_move():
    ((observation, reward, terminated, _),) = play("llm/Maze-v0", MAZE, "right up right")
    assert observation.startswith("Error: up of C2 is a wall.\n")
    assert "You are at C2, the goal is at D4. You have 5 moves left." in observation
    assert (reward, terminated) == (pytest.approx(-0.1), False)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("north", "'north' is not a move; moves are up, down, left, right"),
        ("right right down down left left up", "the answer has 7 moves; at most 6 are allowed now"),
        ("1 right", "'1' is not a move"),
        (",", "the answer has no move"),
    ],
)
def test_what_is_no_move_is_refused(answer, complaint):
    ((observation, reward, terminated, _),) = play("llm/Maze-v0", MAZE, answer)
    assert complaint in observation
    assert (reward, terminated) == (pytest.approx(-0.1), False)


def test_walking_to_and_fro_earns_nothing_and_loses():
    outcomes = play("llm/Maze-v0", MAZE, "right", "left", "right", "left", "right left")
    assert outcomes[-1] == ("You have no moves left.", 0.0, True, False)
    assert sum(outcome[1] for outcome in outcomes) == 0.0


def test_only_the_cells_nearby_are_seen_at_the_hard_level():
    rows = ["#######", "#S....#", "#.###.#", "#.#...#", "#.###.#", "#....G#", "#######"]
    env = gym.make("llm/Maze-v0", difficulty="hard")
    observation, _ = env.reset(options={"problem": {"rows": rows, "moves": 20}})
    assert observation == (
        f"{MAZE_RULES} You see only the cells at most 2 rows and 2 columns away from you.\n"
        "  A B C D\n1 # # # #\n2 # @ . .\n3 # . # #\n4 # . # .\n"
        "You are at B2, the goal is at F6. You have 20 moves left.\nYou have 50 replies."
    )
    observation, *_ = env.step("<answer>right right right right down down</answer>")
    assert "  D E F G\n2 . . . #\n3 # # . #\n4 . . @ #\n5 # # . #\n6 . . G #\nYou are at F4" in observation


def test_the_oracle_of_the_hard_maze_does_not_look_beyond_what_it_saw():
    # Two corridors lead from the start; the one that looks shorter is closed behind what is seen.
    rows = ["#########", "#S......#", "#.#######", "#.......#", "#######.#", "#.......#"]
    rows += ["#.#######", "#......G#", "#########"]
    env = make("llm/Maze-v0", "hard")
    env.reset(options={"problem": {"rows": rows, "moves": 60}})
    answers = []
    while env._at != env._goal:
        answers.append(env.oracle())
        env.step(answers[-1])
    assert answers[0] == "<answer>right right</answer>"  # into the corridor whose end is hidden
    assert len(answers) > 3


@pytest.mark.parametrize("level", LEVELS)
def test_mazes_are_what_the_level_says(level):
    env = make("llm/Maze-v0", level)
    for seed in range(20):
        env.reset(seed=seed)
        rows, start, goal = env.problem["rows"], env._at, env._goal
        distances = maze_distances(rows, start)
        floor = sum(len(row) - row.count("#") for row in rows)
        assert len(distances) == floor  # every cell of the floor can be reached
        assert distances[goal] <= env.problem["moves"]
        assert len(rows) == len(rows[0]) == {"easy": 11, "medium": 17, "hard": 15}[level]
        env.check_problem(env.problem)


@pytest.mark.parametrize("level", LEVELS)
def test_walking_at_random_wins_the_maze_at_most_at_the_chance_rate(level):
    back = {"up": "down", "down": "up", "left": "right", "right": "left"}

    def choose(env, rng):
        """Walk on at random until the last move, never into a wall, nor back if there is another way."""
        (row, column), names = env._at, []
        for _ in range(env._moves_left):
            ways = [name for name, (down, right) in DIRECTIONS.items() if env._rows[row + down][column + right] != "#"]
            if names and len(ways) > 1:
                ways.remove(back[names[-1]])
            names.append(rng.choice(ways))
            row, column = row + DIRECTIONS[names[-1]][0], column + DIRECTIONS[names[-1]][1]
        return " ".join(names)

    env = make("llm/Maze-v0", level)
    assert is_at_most(share_of_wins(env, choose, 40), env.chance_rate, 40)


# Tower of Hanoi.


def test_tower_of_hanoi():
    env = gym.make("llm/TowerOfHanoi-v0")
    observation, _ = env.reset(options={"problem": {"start": "AAB", "goal": "CCC", "moves": 6}})
    assert observation.endswith(
        "Now, from the bottom to the top:\nA: 2 1\nB: 3\nC: -\nWanted, from the bottom to the top:\nA: -\nB: -\nC: 3 "
        "2 1\nYou have 6 moves and 10 replies."
    )
    observation, reward, terminated, _, _ = env.step("<answer>B>C, A to B</answer>")
    assert (observation, reward, terminated) == (
        "A: 2\nB: 1\nC: 3\nYou have 4 moves left.\n9 replies left.",
        0.0,
        False,
    )
    assert env.step("<answer>ac BC AB</answer>")[:3] == ("The disks are where they are wanted.", 1.0, True)


@pytest.mark.parametrize(
    ("answer", "observation"),
    [
        ("AB AB", "Error: AB is against the rules.\nA: 3 2\nB: 1\nC: -\nYou have 6 moves left.\n9 replies left."),
        ("BA", "Error: BA is against the rules.\nA: 3 2 1\nB: -\nC: -\nYou have 7 moves left.\n9 replies left."),
        ("AA", "Error: AA is against the rules.\nA: 3 2 1\nB: -\nC: -\nYou have 7 moves left.\n9 replies left."),
        ("AD", "Error: 'AD' is not a move; a move is two pegs, such as \"AC\". 9 replies left."),
        ("A", "Error: 'A' is not a move; a move is two pegs, such as \"AC\". 9 replies left."),
        ("AB BA " * 4, "Error: the answer has 8 moves; 1 to 7 are allowed now. 9 replies left."),
    ],
)
def test_what_is_against_the_rules_of_hanoi(answer, observation):
    outcome = play("llm/TowerOfHanoi-v0", {"start": "AAA", "goal": "CCC", "moves": 7}, answer)
    assert outcome == [(observation, pytest.approx(-0.1), False, False)]


def test_moving_a_disk_to_and_fro_loses():
    outcomes = play("llm/TowerOfHanoi-v0", {"start": "AAA", "goal": "CCC", "moves": 7}, "AB BA AB BA", "AB BA AB")
    assert outcomes[-1] == ("You have no moves left.", 0.0, True, False)


def test_distances_of_hanoi():
    # The classical puzzle takes 2**n - 1 moves; a lone disk on the wrong peg takes one.
    assert [hanoi_distances("C" * n)["A" * n] for n in range(1, 6)] == [1, 3, 7, 15, 31]
    assert hanoi_distances("CCC")["ACC"] == 1
    assert len(hanoi_distances("CCCC")) == 81
    assert dict(hanoi_moves("ABC")) == {"BBC": "AB", "CBC": "AC", "ACC": "BC"}


@pytest.mark.parametrize("level", LEVELS)
def test_the_number_of_problems_of_hanoi_is_right(level):
    env = make("llm/TowerOfHanoi-v0", level)
    n_disks, least = env.settings["disks"], env.settings["least"]
    goals = [peg * n_disks for peg in "ABC"]
    if level == "hard":
        goals = ["".join(goal) for goal in product("ABC", repeat=n_disks)]
    assert env.n_problems == sum(d >= least for goal in goals for d in hanoi_distances(goal).values())


@pytest.mark.parametrize("level", LEVELS)
def test_moving_at_random_wins_hanoi_at_most_at_the_chance_rate(level):
    def choose(env, rng):
        """Move at random within the rules, never the same disk twice in a row, until the last move."""
        at, moved, names = env._at, -1, []
        for _ in range(env._moves_left):
            choices = [(reached, name) for reached, name in hanoi_moves(at) if at.find(name[0]) != moved]
            reached, name = rng.choice(choices or list(hanoi_moves(at)))
            moved, at = at.find(name[0]), reached
            names.append(name)
        return " ".join(names)

    env = make("llm/TowerOfHanoi-v0", level)
    assert is_at_most(share_of_wins(env, choose, 200), env.chance_rate, 200)


@pytest.mark.parametrize(
    ("task", "problem", "complaint"),
    [
        ("Maze", {"rows": ["#####", "#S.G#", "#####"], "moves": 1}, "cannot be reached in so many moves"),
        ("Maze", {"rows": ["#####", "#S#G#", "#####"], "moves": 9}, "cannot be reached"),
        ("Maze", {"rows": ["#####", "#S.G.", "#####"], "moves": 9}, "walls must stand all around"),
        ("Maze", {"rows": ["#####", "#S..#", "#####"], "moves": 9}, 'one "S" and one "G"'),
        ("Maze", {"rows": ["####", "#SG#"], "moves": 9}, "3 to 26 texts"),
        ("Maze", {"rows": ["#####", "#SG#", "#####"], "moves": 9}, "of one length"),
        ("TowerOfHanoi", {"start": "AAA", "goal": "CCC", "moves": 6}, "within so many moves"),
        ("TowerOfHanoi", {"start": "AAA", "goal": "AAA", "moves": 6}, "another order than its start"),
        ("TowerOfHanoi", {"start": "AAD", "goal": "CCC", "moves": 9}, "pegs A, B, C"),
        ("TowerOfHanoi", {"start": "AAA", "goal": "CC", "moves": 9}, "as many in both"),
    ],
)
def test_what_cannot_be_played_is_refused(task, problem, complaint):
    require_refused(f"llm/{task}-v0", problem, complaint)
