"""`llm/Maze-v0`: walk to the exit of a maze, with the whole map or with a small part of it in view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.games.game import DIRECTIONS, GameEnv, cell_name, draw_board, in_words, read_moves
from llm_envs.tasks.games.symmetry import canonical_board

__all__ = ["MazeEnv"]

Cell = tuple[int, int]

_ENDS_SWAPPED = str.maketrans("SG", "GS")


class MazeEnv(GameEnv):
    """Walk to the goal of a maze in a limited number of moves.

    ## Description
    Teaches to plan a path on a map written as text (easy, medium), and to explore while remembering where one has been
    (hard). Any moves can be given in one reply; at the hard level only the cells at most two rows and two columns away
    are seen, so that the next moves must wait for what they show.

    ## Observation
    First the rules. Then, and after each reply, the map (or what is seen of it), where the agent is, where the goal is,
    and the moves and replies that are left.

    ## Action
    `<answer>up up right</answer>`: one or more of up, down, left, right. Thinking in `<think>...</think>` is allowed
    before it.

    ## Reward
    `correct` (weight 1): 1 for reaching the goal. `malformed` (weight -0.1): 1 for a reply without readable moves,
    which is not played, or with a move into a wall, which is played up to there. Being nearer earns nothing.

    ## Episode End
    Terminates at the goal, and, lost, after the last move. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test": no maze is in both, be it turned, mirrored or walked from the goal to the start.
    - `difficulty`: "starter": 7 by 7 cells, 10 replies; "easy" (default): 11 by 11, a quarter more moves than the
      shortest way has, 20 replies; "medium": 17 by 17, the same, 30 replies; "hard": 15 by 15, 5 by 5 of them seen, a
      quarter more moves than the oracle makes, which sees no more, 50 replies; "expert": the same with 19 by 19 cells,
      100 replies.
    - `max_turns`: the number of replies, if it is to be another than the level's. With fewer, the oracle can lose.
    - `reset(options={"problem": {"rows": ["#####", "#S.G#", "#####"], "moves": 4}})` plays a given maze: walls "#",
      floor ".", one start "S", one goal "G".

    ## Version History
    - v0: first version.
    """

    # Measured on 1,000 mazes each: a player who walks at random but never into a wall or back wins 0.37, 0.13, 0.04,
    # 0.15, 0.09; one who also turns back at random 0.02, 0, 0, 0.001, 0. n_problems: the keys that 20,000 draws find.
    difficulties = {
        "starter": Difficulty(
            "7 by 7 cells, all seen", chance_rate=0.4, n_problems=960, settings={"rooms": 3, "sight": None, "turns": 10}
        ),
        "easy": Difficulty(
            "11 by 11 cells, all seen", chance_rate=0.16, settings={"rooms": 5, "sight": None, "turns": 20}
        ),
        "medium": Difficulty(
            "17 by 17 cells, all seen", chance_rate=0.05, settings={"rooms": 8, "sight": None, "turns": 30}
        ),
        "hard": Difficulty(
            "15 by 15 cells, 5 by 5 of them seen", chance_rate=0.2, settings={"rooms": 7, "sight": 2, "turns": 50}
        ),
        "expert": Difficulty(
            "19 by 19 cells, 5 by 5 of them seen", chance_rate=0.15, settings={"rooms": 9, "sight": 2, "turns": 100}
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "a maze is carved cell by cell, and at the hard level explored to count the moves"
    problem_fields = {"rows": list, "moves": int}
    instructions = "Find the way to the goal. In each reply, answer with one or more moves: up, down, left, right."
    answer_example = "up up right"

    def generate(self) -> dict[str, Any]:
        """Draw a maze, a start, and a goal that is far from it."""
        random, n_rooms = self.np_random.random, self.settings["rooms"]
        rows = self._carve(n_rooms)
        start = (1 + 2 * int(random() * n_rooms), 1 + 2 * int(random() * n_rooms))
        distances = _distances(rows, start)
        rooms = sorted(
            (distance, cell) for cell, distance in distances.items() if cell[0] % 2 == 1 and cell[1] % 2 == 1
        )
        far = rooms[len(rooms) * 2 // 3 :]
        distance, goal = far[int(random() * len(far))]
        rows[start[0]][start[1]], rows[goal[0]][goal[1]] = "S", "G"
        maze = ["".join(row) for row in rows]
        sight = self.settings["sight"]
        needed = distance if sight is None else _explore(maze, start, goal, sight)
        return {"rows": maze, "moves": needed + (needed + 3) // 4}

    def _carve(self, n_rooms: int) -> list[list[str]]:
        """Return a maze that connects all rooms in one way, and then has a few more openings."""
        random, size = self.np_random.random, 2 * n_rooms + 1
        rows = [["#"] * size for _ in range(size)]
        grown = [(1, 1)]
        rows[1][1] = "."
        while grown:  # from the newest room, which makes corridors, or from any, which makes them branch
            place = -1 if random() < 0.5 else int(random() * len(grown))
            row, column = grown[place]
            steps = [
                (down, right)
                for down, right in DIRECTIONS.values()
                if 0 < row + 2 * down < size and 0 < column + 2 * right < size
                if rows[row + 2 * down][column + 2 * right] == "#"
            ]
            if not steps:
                grown.pop(place)
                continue
            down, right = steps[int(random() * len(steps))]
            rows[row + down][column + right] = rows[row + 2 * down][column + 2 * right] = "."
            grown.append((row + 2 * down, column + 2 * right))
        for _ in range(n_rooms - 2):
            row, column = 1 + 2 * int(random() * n_rooms), 2 + 2 * int(random() * (n_rooms - 1))
            if random() < 0.5:
                row, column = column, row
            rows[row][column] = "."
        return rows

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse anything but a closed maze with a way from the start to the goal in so many moves."""
        rows = problem["rows"]
        if not (3 <= len(rows) <= 26 and all(isinstance(row, str) and len(row) == len(rows[0]) for row in rows)):
            raise InvalidActionError("its rows must be 3 to 26 texts of one length")
        text = "".join(rows)
        if not 3 <= len(rows[0]) <= 26 or set(text) - set("#.SG") or text.count("S") != 1 or text.count("G") != 1:
            raise InvalidActionError('its rows must have 3 to 26 of "#", ".", and one "S" and one "G"')
        if set(rows[0] + rows[-1] + "".join([row[0] + row[-1] for row in rows])) != {"#"}:
            raise InvalidActionError("walls must stand all around")
        distance = _distances(rows, _find(rows, "S")).get(_find(rows, "G"))
        if distance is None or distance > problem["moves"]:
            raise InvalidActionError("its goal cannot be reached in so many moves")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the maze, the same for its eight views and either end as the start."""
        turned = [row.translate(_ENDS_SWAPPED) for row in problem["rows"]]
        return min(canonical_board(problem["rows"]), canonical_board(turned))

    def begin(self) -> None:
        """Stand at the start."""
        self._rows: list[str] = self.problem["rows"]
        self._at = _find(self._rows, "S")
        self._goal = _find(self._rows, "G")
        self._moves_left: int = self.problem["moves"]
        self._seen: set[Cell] = set()
        self._look()

    def _look(self) -> tuple[range, range]:
        """Return the rows and columns that are shown from here, and remember them for the oracle."""
        rows, columns = _seen_from(self._rows, self._at, self.settings["sight"])
        self._seen.update(product(rows, columns))
        return rows, columns

    def prompt(self) -> str:
        """Return the rules and the map."""
        sight = self.settings["sight"]
        part = (
            "" if sight is None else f" You see only the cells at most {sight} rows and {sight} columns away from you."
        )
        return (
            "Walk through the maze to the goal. # is a wall, . is floor, @ is you, G is the goal. Moves are up, down, "
            "left and right, by one cell; up is towards row 1, left towards column A. A reply can have several moves, "
            "separated by spaces; it is played until one leads into a wall." + part + f"\n{self._state()}\n"
            f"You have {in_words(self.max_turns, 'reply')}."
        )

    def _state(self) -> str:
        rows, columns = self._look()
        shown = [["@" if (row, column) == self._at else self._mark(row, column) for column in columns] for row in rows]
        return (
            f"{draw_board(shown, top=rows[0], left=columns[0])}\nYou are at {cell_name(*self._at)}, the goal is at "
            f"{cell_name(*self._goal)}. You have {in_words(self._moves_left, 'move')} left."
        )

    def _mark(self, row: int, column: int) -> str:
        mark = self._rows[row][column]
        return "." if mark == "S" else mark

    def move(self, answer: str) -> Outcome:
        """Walk until a wall, the goal, or the last move."""
        for name in read_moves(answer, limit=self._moves_left):
            down, right = DIRECTIONS[name]
            there = (self._at[0] + down, self._at[1] + right)
            if self._rows[there[0]][there[1]] == "#":
                return self.go_on(
                    f"Error: {name} of {cell_name(*self._at)} is a wall.\n{self._state()}", is_illegal=True
                )
            self._at = there
            self._moves_left -= 1
            if there == self._goal:
                return self.win("You have reached the goal.")
        if self._moves_left == 0:
            return self.lose("You have no moves left.")
        return self.go_on(self._state())

    def legal_answers(self) -> Sequence[str]:
        """Return the steps that no wall prevents."""
        row, column = self._at
        return [name for name, (down, right) in DIRECTIONS.items() if self._rows[row + down][column + right] != "#"]

    def next_action(self) -> str:
        """Walk the shortest way to the goal through what has been seen, or to the nearest cell that shows more."""
        return self.write_answer(" ".join(_next_leg(self._rows, self._at, self._goal, self._seen)))


def _find(rows: Sequence[str], mark: str) -> Cell:
    row = next(row for row, text in enumerate(rows) if mark in text)
    return row, rows[row].index(mark)


def _distances(rows: Sequence[Sequence[str]], start: Cell) -> dict[Cell, int]:
    """Return the number of moves from the start to each cell that can be reached."""
    distances = {start: 0}
    queue = [start]
    for row, column in queue:
        further = distances[row, column] + 1
        for down, right in DIRECTIONS.values():
            there = (row + down, column + right)
            if there not in distances and rows[there[0]][there[1]] != "#":
                distances[there] = further
                queue.append(there)
    return distances


def _ways(rows: Sequence[str], start: Cell, seen: set[Cell]) -> dict[Cell, list[str]]:
    """Return shortest ways through cells that were seen, to these and to the cells that come next.

    Of a cell that was not seen it is not known whether it is a wall.
    """
    ways: dict[Cell, list[str]] = {start: []}
    queue = [start]
    for row, column in queue:
        if (row, column) not in seen:
            continue
        for name, (down, right) in DIRECTIONS.items():
            there = (row + down, column + right)
            if there in ways or (there in seen and rows[there[0]][there[1]] == "#"):
                continue
            ways[there] = [*ways[row, column], name]
            queue.append(there)
    return ways


def _seen_from(rows: Sequence[str], at: Cell, sight: int | None) -> tuple[range, range]:
    """Return the rows and the columns that are seen from a cell; `sight` None is all of them."""
    if sight is None:
        return range(len(rows)), range(len(rows[0]))
    row, column = at
    return (
        range(max(0, row - sight), min(len(rows), row + sight + 1)),
        range(max(0, column - sight), min(len(rows[0]), column + sight + 1)),
    )


def _next_leg(rows: Sequence[str], at: Cell, goal: Cell, seen: set[Cell]) -> list[str]:
    """Return a shortest way to the goal if one was seen, else to where the most promising unseen cell is next.

    That is the one with the shortest way to it and, were there no walls, on from it.
    """
    ways = _ways(rows, at, seen)
    if goal in seen and goal in ways:
        return ways[goal]
    unseen = [cell for cell in ways if cell not in seen]
    target = min(unseen, key=lambda cell: (len(ways[cell]) + abs(cell[0] - goal[0]) + abs(cell[1] - goal[1]), cell))
    return ways[target][:-1]


def _explore(rows: Sequence[str], start: Cell, goal: Cell, sight: int) -> int:
    """Return the moves that the oracle makes from the start to the goal."""
    at, seen, moves = start, set(product(*_seen_from(rows, start, sight))), 0
    while at != goal:
        for name in _next_leg(rows, at, goal, seen):
            at = (at[0] + DIRECTIONS[name][0], at[1] + DIRECTIONS[name][1])
            moves += 1
        seen.update(product(*_seen_from(rows, at, sight)))  # on the way, nothing is shown
    return moves
