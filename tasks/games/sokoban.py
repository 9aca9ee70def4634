"""`llm/Sokoban-v0`: push boxes onto targets; they cannot be pulled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.games.game import DIRECTIONS, GameEnv, cell_name, draw_board, in_words, read_moves
from llm_envs.tasks.games.sokoban_search import Warehouse, cells_of
from llm_envs.tasks.games.symmetry import canonical_board

__all__ = ["SokobanEnv"]

_MARKS = "#_TBXPQ"
_MAX_BOXES = 4
_RESTART = "restart"


class SokobanEnv(GameEnv):
    """Push all boxes onto targets in a limited number of moves; a box can be pushed, never pulled.

    ## Description
    Teaches to plan several pushes ahead: what cannot be undone, from which side a box must be pushed, in which order
    the boxes go. Boards are made by pulling boxes away from the targets at random, so that each can be solved. A board
    that has become hopeless can be started again.

    ## Observation
    First the rules. Then, and after each reply, the board, where the agent is, and the moves and replies that are left.

    ## Action
    `<answer>up up right</answer>`: one or more of up, down, left, right; or `<answer>restart</answer>`, which puts
    everything back to where it was at first, but gives no moves back. Thinking in `<think>...</think>` is allowed
    before it.

    ## Reward
    `correct` (weight 1): 1 when all boxes are on targets. `malformed` (weight -0.1): 1 for a reply without readable
    moves, which is not played, or with a move that is not possible (into a wall, or a push of a box that has no room),
    which is played up to there. Single boxes earn nothing.

    ## Episode End
    Terminates when all boxes are on targets, and, lost, after the last move. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test": no board is in both, be it turned or mirrored.
    - `difficulty`: "easy" (default): a room of 5 by 5 cells, 1 box, 35 moves, 15 replies; "medium": 5 by 5, 2 boxes,
      100 moves, 40 replies; "hard": 5 by 6, 3 boxes, 150 moves, 60 replies; "expert": 6 by 6, 4 boxes, 250 moves,
      80 replies.
    - `max_turns`: the number of replies, if it is to be another than the level's. With fewer, the oracle can lose.
    - `reset(options={"problem": {"rows": ["#####", "#PBT#", "#####"], "moves": 20}})` plays a given board: "#" wall,
      "_" floor, "T" target, "B" box, "X" box on a target, "P" the agent, "Q" the agent on a target.

    ## Version History
    - v0: first version.
    """

    # Measured on 500 boards each: a player who takes any possible move wins 0.04, 0.02, 0; one who does not step back
    # at once 0.06, 0.03, 0.002. The oracle needed at most 25, 58 and 82 moves on 1,000 boards of each level, and 95 on
    # 150 of the expert level.
    difficulties = {
        "easy": Difficulty(
            "5 by 5 cells, 1 box",
            chance_rate=0.12,
            n_problems=49_824,
            settings={
                "rows": 5,
                "columns": 5,
                "boxes": 1,
                "walls": 3,
                "pulls": 12,
                "least": 3,
                "moves": 35,
                "turns": 15,
            },
        ),
        "medium": Difficulty(
            "5 by 5 cells, 2 boxes",
            chance_rate=0.05,
            settings={
                "rows": 5,
                "columns": 5,
                "boxes": 2,
                "walls": 3,
                "pulls": 16,
                "least": 4,
                "moves": 100,
                "turns": 40,
            },
        ),
        "hard": Difficulty(
            "5 by 6 cells, 3 boxes",
            chance_rate=0.01,
            settings={
                "rows": 5,
                "columns": 6,
                "boxes": 3,
                "walls": 4,
                "pulls": 24,
                "least": 5,
                "moves": 150,
                "turns": 60,
            },
        ),
        "expert": Difficulty(
            "6 by 6 cells, 4 boxes",
            chance_rate=0.01,
            settings={
                "rows": 6,
                "columns": 6,
                "boxes": 4,
                "walls": 5,
                "pulls": 36,
                "least": 8,
                "moves": 250,
                "turns": 80,
            },
            expected_hard="Four boxes in 31 cells: most pushes that bring one box nearer block another, the moves "
            "allow about three attempts, and a dead end shows only several pushes later.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "boxes are pulled around at random until they are far enough from the targets"
    problem_fields = {"rows": list, "moves": int}
    instructions = (
        "Push the boxes onto the targets. In each reply, answer with one or more moves: up, down, left, right. To "
        "begin "
        "again from the first position, answer with the word restart."
    )
    answer_example = "up up right"
    not_state = ("_plan",)

    def generate(self) -> dict[str, Any]:
        """Draw a room with boxes on their targets, and pull them away at random."""
        while True:
            rows = self._pull_apart()
            if rows is not None:
                return {"rows": rows, "moves": self.settings["moves"]}

    def _pull_apart(self) -> list[str] | None:
        """Return a board, or None if the boxes are too near to targets to be worth playing."""
        random, settings = self.np_random.random, self.settings
        height, width = settings["rows"] + 2, settings["columns"] + 2
        inside = [row * width + column for row in range(1, height - 1) for column in range(1, width - 1)]
        draws = random(settings["walls"] + settings["boxes"] + 1).tolist()
        cells = [inside.pop(int(draw * len(inside))) for draw in draws]
        walls, targets, player = cells[: settings["walls"]], cells[settings["walls"] : -1], cells[-1]
        floor = sum(1 << cell for cell in inside) | sum(1 << cell for cell in (*targets, player))
        warehouse = Warehouse(width, floor, sum(1 << target for target in targets))
        boxes, last = warehouse.targets, -1
        for draw in random(settings["pulls"] - int(2 * random())).tolist():
            pulls = warehouse.pulls(player, boxes)
            if not pulls:
                return None
            # A box that was just pulled is often pulled again: otherwise two pulls mostly undo each other.
            going_on = [pull for pull in pulls if pull[0] == last]
            choices = going_on if going_on and random() < 0.5 else pulls
            box, there, player = choices[int(draw * len(choices))]
            boxes ^= 1 << box | 1 << there
            last = there
        if sum(min(_distance(box, target, width) for target in targets) for box in cells_of(boxes)) < settings["least"]:
            return None
        marks = dict.fromkeys((*inside, cells[-1]), "_") | dict.fromkeys(walls, "#")
        marks |= dict.fromkeys(targets, "T")
        marks |= {cell: "X" if cell in targets else "B" for cell in cells_of(boxes)}
        marks[player] = "Q" if player in targets else "P"
        return ["".join([marks.get(row * width + column, "#") for column in range(width)]) for row in range(height)]

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse anything but a closed board that can be solved in so many moves."""
        rows = problem["rows"]
        if not (3 <= len(rows) <= 12 and all(isinstance(row, str) and len(row) == len(rows[0]) for row in rows)):
            raise InvalidActionError("its rows must be 3 to 12 texts of one length")
        text = "".join(rows)
        if not 3 <= len(rows[0]) <= 12 or set(text) - set(_MARKS) or text.count("P") + text.count("Q") != 1:
            raise InvalidActionError(f"its rows must have 3 to 12 of {_MARKS}, with one P or Q")
        if set(rows[0] + rows[-1] + "".join([row[0] + row[-1] for row in rows])) != {"#"}:
            raise InvalidActionError("walls must stand all around")
        n_targets, n_boxes = sum(map(text.count, "TXQ")), text.count("B") + text.count("X")
        if not 1 <= n_boxes == n_targets <= _MAX_BOXES or "B" not in text:
            raise InvalidActionError(f"it must have 1 to {_MAX_BOXES} boxes, not all on targets, and as many targets")
        warehouse, player, boxes = _read(rows)
        moves = warehouse.solve(player, boxes)
        if moves is None or len(moves) > problem["moves"]:
            raise InvalidActionError("it cannot be solved, or not in so many moves")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the board, the same for its eight views."""
        return canonical_board(problem["rows"])

    def begin(self) -> None:
        """Put everything where it is at first."""
        self._warehouse, self._player, self._boxes = _read(self.problem["rows"])
        self._start = (self._player, self._boxes)
        self._moves_left: int = self.problem["moves"]
        self._plan: tuple[tuple[int, int], list[str]] | None = None

    def prompt(self) -> str:
        """Return the rules and the board."""
        return (
            "Push all boxes onto targets. # is a wall, _ is floor, T is a target, B is a box, X is a box on a "
            "target, P is you (Q if you stand on a target). Moves are up, down, left and right, by one cell; up is "
            "towards row 1, left towards column A. To move against a box pushes it on by one cell, if that cell is "
            "neither a wall nor another box; boxes cannot be pulled. A reply can have several moves, separated by "
            f'spaces; it is played until one is not possible. The answer "{_RESTART}" puts you and all boxes back to '
            f"where they were at first, but gives no moves back.\n{self._state()}\n"
            f"You have {in_words(self.max_turns, 'reply')}."
        )

    def _state(self) -> str:
        width = self._warehouse.width
        rows = [
            "".join([self._mark(row * width + column) for column in range(width)])
            for row in range(len(self.problem["rows"]))
        ]
        at = cell_name(*divmod(self._player, width))
        return f"{draw_board(rows)}\nYou are at {at}. You have {in_words(self._moves_left, 'move')} left."

    def _mark(self, cell: int) -> str:
        is_target = self._warehouse.targets >> cell & 1
        if cell == self._player:
            return "Q" if is_target else "P"
        if self._boxes >> cell & 1:
            return "X" if is_target else "B"
        return "T" if is_target else "_" if self._warehouse.floor >> cell & 1 else "#"

    def move(self, answer: str) -> Outcome:
        """Walk and push until a move is not possible, all boxes are on targets, or no move is left."""
        if answer.strip(" !.").lower() == _RESTART:
            self._player, self._boxes = self._start
            return self.go_on(self._state())
        for name in read_moves(answer, limit=self._moves_left):
            reached = self._warehouse.after(self._player, self._boxes, name)
            if reached is None:
                return self.go_on(f"Error: {name} is not possible.\n{self._state()}", is_illegal=True)
            self._player, self._boxes = reached
            self._moves_left -= 1
            if self._boxes == self._warehouse.targets:
                return self.win(f"{self._state()}\nAll boxes are on targets.")
        if self._moves_left == 0:
            return self.lose("You have no moves left.")
        return self.go_on(self._state())

    def legal_answers(self) -> Sequence[str]:
        """Return the steps and pushes that are possible."""
        after = self._warehouse.after
        return [name for name in DIRECTIONS if after(self._player, self._boxes, name) is not None]

    def next_action(self) -> str:
        """Walk to the next box of a way with the fewest pushes and push it, as long as it moves in a straight line."""
        state = (self._player, self._boxes)
        if self._plan is None or self._plan[0] != state:
            moves = self._warehouse.solve(*state)
            if moves is None:
                return self.write_answer(_RESTART)
            self._plan = (state, moves)
        moves = self._plan[1]
        leg, reached = self._warehouse.first_leg(*state, moves)
        self._plan = (reached, moves[len(leg) :])
        return self.write_answer(" ".join(leg))


def _read(rows: list[str]) -> tuple[Warehouse, int, int]:
    """Return the room, the agent's cell and the boxes of a board."""
    text, width = "".join(rows), len(rows[0])
    bits = {mark: sum(1 << cell for cell, other in enumerate(text) if other == mark) for mark in _MARKS}
    floor = sum(bits.values()) ^ bits["#"]
    player = (bits["P"] | bits["Q"]).bit_length() - 1
    return Warehouse(width, floor, bits["T"] | bits["X"] | bits["Q"]), player, bits["B"] | bits["X"]


def _distance(cell: int, other: int, width: int) -> int:
    """Return the number of rows and columns between two cells."""
    return abs(cell // width - other // width) + abs(cell % width - other % width)
