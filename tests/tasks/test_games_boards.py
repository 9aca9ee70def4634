"""Sokoban and Minesweeper: hand-worked games, solvers against brute force, and what random players earn."""

import random
from collections import deque
from itertools import combinations

import gymnasium as gym
import pytest
from task_play import LEVELS, is_at_most, make, play, require_refused, share_of_wins

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import format_answer
from llm_envs.tasks.games.game import DIRECTIONS, cell_name
from llm_envs.tasks.games.minesweeper_solver import Field, safe_cells, safest_cell
from llm_envs.tasks.games.sokoban import _read as read_warehouse

# Sokoban.

#   A B C D E F
# 1 # # # # # #
# 2 # P _ _ _ #
# 3 # _ B _ T #
# 4 # _ _ _ _ #
# 5 # # # # # #
ROOM = {"rows": ["######", "#P___#", "#_B_T#", "#____#", "######"], "moves": 9}


def test_sokoban():
    env = gym.make("llm/Sokoban-v0")
    observation, _ = env.reset(options={"problem": ROOM})
    assert observation.endswith(
        "  A B C D E F\n1 # # # # # #\n2 # P _ _ _ #\n3 # _ B _ T #\n4 # _ _ _ _ #\n5 # # # # # #\n"
        "You are at B2. You have 9 moves left.\nYou have 15 replies."
    )
    observation, reward, terminated, _, _ = env.step("<answer>down right</answer>")
    assert observation == (
        "  A B C D E F\n1 # # # # # #\n2 # _ _ _ _ #\n3 # _ P B T #\n4 # _ _ _ _ #\n5 # # # # # #\n"
        "You are at C3. You have 7 moves left.\n14 replies left."
    )
    assert (reward, terminated) == (0.0, False)
    observation, reward, terminated, _, _ = env.step("<answer>right</answer>")
    assert "3 # _ _ P X #" in observation
    assert (reward, terminated) == (1.0, True)


def test_what_sokoban_does_not_let_one_do():
    outcomes = play("llm/Sokoban-v0", ROOM, "up", "right down down left", "restart", "pull")
    assert [outcome[0].split("\n")[0] for outcome in outcomes] == [
        "Error: up is not possible.",
        "Error: down is not possible.",  # the box stands at the wall below
        "  A B C D E F",
        "Error: 'pull' is not a move; moves are up, down, left, right. 11 replies left.",
    ]
    assert [outcome[1] for outcome in outcomes] == [pytest.approx(-0.1), pytest.approx(-0.1), 0.0, pytest.approx(-0.1)]
    assert "You are at B2. You have 7 moves left." in outcomes[2][0]  # everything is back, but for the moves


def test_two_boxes_in_a_row_cannot_be_pushed():
    problem = {"rows": ["#######", "#P____#", "#_BB_T#", "#____T#", "#_____#", "#######"], "moves": 40}
    ((observation, *_),) = play("llm/Sokoban-v0", problem, "down right")
    assert observation.startswith("Error: right is not possible.")


def test_the_agent_on_a_target_is_shown():
    problem = {"rows": ["#####", "#QB_#", "#___#", "#####"], "moves": 9}
    ((observation, *_),) = play("llm/Sokoban-v0", problem, "down")
    assert "2 # T B _ #" in observation


def test_the_oracle_of_sokoban_starts_again_where_nothing_helps():
    env = make("llm/Sokoban-v0")
    env.reset(options={"problem": ROOM | {"moves": 20}})
    env.step("<answer>right down</answer>")  # the box is at the lower wall, the target in the row above
    assert env.oracle() == "<answer>restart</answer>"
    env.step(env.oracle())
    while not (outcome := env.step(env.oracle()))[2]:
        pass
    assert outcome[1] == 1.0


def test_ways_of_sokoban_have_the_fewest_pushes():
    for level, n in (("easy", 15), ("medium", 3)):
        env = make("llm/Sokoban-v0", level)
        for seed in range(n):
            env.reset(seed=seed)
            warehouse, state = env._warehouse, (env._player, env._boxes)
            pushes = 0
            for name in warehouse.solve(*state):
                after = warehouse.after(*state, name)
                pushes += after[1] != state[1]
                state = after
            assert state[1] == warehouse.targets
            assert pushes == fewest_pushes(warehouse, (env._player, env._boxes))


def fewest_pushes(warehouse, start):
    """Search over single moves, without anything that the solver leaves out."""
    pushes, queue = {start: 0}, deque([start])
    while queue:
        state = queue.popleft()
        if state[1] == warehouse.targets:
            return pushes[state]
        for name in DIRECTIONS:
            after = warehouse.after(*state, name)
            if after is not None:
                n_pushes = pushes[state] + (after[1] != state[1])
                if n_pushes < pushes.get(after, 1_000):
                    pushes[after] = n_pushes
                    (queue.append if after[1] != state[1] else queue.appendleft)(after)
    return None


def test_rooms_that_cannot_be_solved_have_no_way():
    for rows in (
        ["#####", "#B_P#", "#__T#", "#####"],  # in a corner
        ["######", "#_B__#", "#__PT#", "######"],  # at a wall without a target
        ["#####", "#P#T#", "#_#B#", "#_#_#", "#####"],  # out of reach
    ):
        warehouse, player, boxes = read_warehouse(rows)
        assert warehouse.solve(player, boxes) is None
        with pytest.raises(InvalidConfigError, match="cannot be solved"):
            make("llm/Sokoban-v0").reset(options={"problem": {"rows": rows, "moves": 50}})


@pytest.mark.parametrize("level", LEVELS)
def test_rooms_of_sokoban_are_what_the_level_says(level):
    env = make("llm/Sokoban-v0", level)
    for seed in range(10):
        env.reset(seed=seed)
        env.check_problem(env.problem)  # can be solved in time
        text = "".join(env.problem["rows"])
        assert text.count("B") + text.count("X") == {"easy": 1, "medium": 2, "hard": 3}[level]


@pytest.mark.parametrize("level", LEVELS)
def test_moving_at_random_wins_sokoban_at_most_at_the_chance_rate(level):
    def choose(env, rng):
        moves = [name for name in DIRECTIONS if env._warehouse.after(env._player, env._boxes, name)]
        return rng.choice(moves) if moves else "restart"

    n = {"easy": 80, "medium": 25, "hard": 12}[level]
    env = make("llm/Sokoban-v0", level, max_turns=150)  # one move a reply
    assert is_at_most(share_of_wins(env, choose, n), env.chance_rate, n)


# Minesweeper.

# The field, its numbers, and what is open after A1:
#   A B C D      A B C D      A B C D
# 1 . . . .    1 0 0 1 1    1 0 0 1 ?
# 2 . . . *    2 0 1 2 *    2 0 1 2 ?
# 3 . . * .    3 0 1 * 2    3 0 1 ? ?
FIELD = {"rows": ["....", "...*", "..*."], "first": "A1"}


def test_minesweeper():
    env = gym.make("llm/Minesweeper-v0")
    observation, _ = env.reset(options={"problem": FIELD})
    assert observation.endswith("You have 15 replies.\n  A B C D\n1 0 0 1 ?\n2 0 1 2 ?\n3 0 1 ? ?")
    assert "2 cells of it have one." in observation
    observation, reward, terminated, _, _ = env.step("<answer>D1</answer>")
    assert observation == "  A B C D\n1 0 0 1 1\n2 0 1 2 ?\n3 0 1 ? ?\n14 replies left."
    assert (reward, terminated) == (0.0, False)
    observation, reward, terminated, _, _ = env.step("<answer>open d3</answer>")
    assert observation == "  A B C D\n1 0 0 1 1\n2 0 1 2 ?\n3 0 1 ? 2\nAll cells without a mine are open."
    assert (reward, terminated) == (1.0, True)


def test_a_mine_loses_even_in_a_list_with_all_cells():
    for answer in ("D2", "D1 C3 D3", "D1 D2 D3 C3"):
        ((observation, reward, terminated, _),) = play("llm/Minesweeper-v0", FIELD, answer)
        assert observation.endswith("has a mine. You lose.")
        assert (reward, terminated) == (0.0, True)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("A1", "A1 is open already"),
        ("D1 B2", "B2 is open already"),
        ("E1", "'E1' is not a cell of the board; cells are A1 to D3"),
        ("D4", "'D4' is not a cell"),
        ("D0", "'D0' is not a cell"),
        ("4,1", "'4' is not a cell"),
        ("D1 " * 13, "the answer names more cells than there are"),
    ],
)
def test_what_cannot_be_opened_changes_nothing(answer, complaint):
    outcomes = play("llm/Minesweeper-v0", FIELD, answer, "D1 D3")
    assert complaint in outcomes[0][0]
    assert outcomes[0][1:] == (pytest.approx(-0.1), False, False)
    assert outcomes[1][1] == 1.0


def bits(field, *names):
    columns = len(field[0])
    return sum(1 << (int(name[1:]) - 1) * columns + "ABCDEFGH".index(name[0]) for name in names)


def test_the_rules_of_the_solver_by_hand():
    # B2 = 1 touches only the closed C3 (a mine); so C1 = 1 and C2 = 2 leave: one of D1, D2; one of D1, D2, D3.
    rows = FIELD["rows"]
    field = Field(3, 4, bits(rows, "D2", "C3"))
    opened = field.opened_with(0, 0)
    assert opened == bits(rows, "A1", "B1", "C1", "A2", "B2", "C2", "A3", "B3")
    assert safe_cells(field, opened) == bits(rows, "D3")  # by the difference of the two
    assert field.numbers[4 * 2 + 3] == 2
    assert safe_cells(field, opened, compares=False) == 0
    assert field.n_comparisons(opened) == 1  # then D2 must be the mine of C1 and C2, so that D1 is safe
    assert field.n_comparisons(opened | bits(rows, "D3")) == 0


def test_what_the_solver_calls_safe_is_safe_in_every_field_that_looks_the_same():
    rng = random.Random(0)
    compared = 0
    for _ in range(150):
        mines = sum(1 << cell for cell in rng.sample(range(12), 3))
        field = Field(3, 4, mines)
        opened = 0
        for cell in rng.sample([cell for cell in range(12) if not mines >> cell & 1], 4):
            opened = field.opened_with(cell, opened)
        safe = safe_cells(field, opened)
        for n_mines in range(8):
            for cells in combinations([cell for cell in range(12) if not opened >> cell & 1], n_mines):
                other = Field(3, 4, sum(1 << cell for cell in cells))
                if all(other.numbers[cell] == field.numbers[cell] for cell in range(12) if opened >> cell & 1):
                    assert other.mines & safe == 0
                    compared += safe != 0
    assert compared > 100


@pytest.mark.parametrize("level", LEVELS)
def test_fields_are_opened_without_guessing(level):
    env = make("llm/Minesweeper-v0", level)
    for seed in range(15):
        env.reset(seed=seed)
        assert "".join(env.problem["rows"]).count("*") == env.settings["mines"]
        assert (env._field.safe & ~env._opened).bit_count() >= env.settings["closed"]
        while not (outcome := env.step(format_answer(cells_shown_safe(env))))[2]:
            pass
        assert outcome[1] == 1.0


@pytest.mark.parametrize(("level", "most"), [("hard", 0.6), ("expert", 0.4)])
def test_single_numbers_do_not_open_a_field(level, most):
    """A player that never compares two numbers, and opens the cell that seems safest where one number shows none."""
    n, env = 40, make("llm/Minesweeper-v0", level)
    n_opened = 0
    for seed in range(n):
        env.reset(seed=seed)
        field, opened, n_guesses = env._field, env._opened, 0
        assert field.n_comparisons(opened) >= env.settings["comparisons"] > 0
        while opened != field.safe:
            if not (cells := safe_cells(field, opened, compares=False)):
                cells, n_guesses = safest_cell(field, opened), n_guesses + 1
            if cells & field.mines:
                break
            for cell in range(env._n_rows * env._n_columns):
                if cells >> cell & 1:
                    opened = field.opened_with(cell, opened)
        assert n_guesses > 0
        n_opened += opened == field.safe
    assert n_opened / n <= most


def cells_shown_safe(env):
    safe = safe_cells(env._field, env._opened)
    assert safe
    return " ".join(cell_name(*divmod(cell, env._n_columns)) for cell in range(64) if safe >> cell & 1)


@pytest.mark.parametrize("level", LEVELS)
def test_opening_at_random_wins_minesweeper_at_most_at_the_chance_rate(level):
    def choose(env, rng):
        closed = [cell for cell in range(env._n_rows * env._n_columns) if not env._opened >> cell & 1]
        return cell_name(*divmod(rng.choice(closed), env._n_columns))

    env = make("llm/Minesweeper-v0", level)
    assert is_at_most(share_of_wins(env, choose, 100), env.chance_rate, 100)


def test_where_only_guessing_helps_the_oracle_knows():
    env = make("llm/Minesweeper-v0")
    env.reset(options={"problem": {"rows": ["..*.", "..*."], "first": "A1"}})  # D1 and D2 touch no open cell
    assert env.oracle() == "<answer>D1</answer>"
    env.step(env.oracle())
    assert env.step(env.oracle())[1] == 1.0


@pytest.mark.parametrize(
    ("task", "problem", "complaint"),
    [
        ("Sokoban", {"rows": ["#####", "#PBT#", "#####"], "moves": 0}, "not in so many moves"),
        ("Sokoban", {"rows": ["#####", "#PB_#", "#####"], "moves": 5}, "as many targets"),
        ("Sokoban", {"rows": ["#####", "#PX_#", "#####"], "moves": 5}, "not all on targets"),
        ("Sokoban", {"rows": ["#####", "#_BT#", "#####"], "moves": 5}, "with one P or Q"),
        ("Sokoban", {"rows": ["#####", "#PBT_", "#####"], "moves": 5}, "walls must stand all around"),
        ("Minesweeper", {"rows": ["..", ".*"], "first": "B2"}, "must have no mine"),
        ("Minesweeper", {"rows": ["...", "..."], "first": "A1"}, "leave something to open"),
        ("Minesweeper", {"rows": ["..", ".*"], "first": "C1"}, "not a cell of the board"),
        ("Minesweeper", {"rows": ["..", ".x"], "first": "A1"}, "1 to 26 of"),
        ("Minesweeper", {"rows": ["..", "."], "first": "A1"}, "of one length"),
    ],
)
def test_what_cannot_be_played_is_refused(task, problem, complaint):
    require_refused(f"llm/{task}-v0", problem, complaint)
