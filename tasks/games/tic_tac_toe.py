"""`llm/TicTacToe-v0`: three in a row, against an opponent of the level's strength."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.games.game import GameEnv, cell_name, draw_board, in_words, read_cell
from llm_envs.tasks.games.symmetry import canonical_board

__all__ = ["TicTacToeEnv"]

_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_OTHER = {"X": "O", "O": "X"}
_MAX_SEED = 2**31
_MAX_MARKS = 5
"""Marks on the board when a game begins, at most. With more, little is left to decide."""
_TINY = 1e-9
"""Sums of equal terms in another order differ by less."""


class TicTacToeEnv(GameEnv):
    """Play tic-tac-toe against a scripted opponent.

    ## Description
    Teaches to see what the other side threatens, to make two threats at once, and, at the hard level, not to lose
    against one who makes no mistake. The agent has X or O. Games begin after one to five marks, in positions that can
    be won (or, at the hard level, held) whatever the opponent does, and that take some thought: random marks succeed
    in at most 0.5, 0.2 and 0.2 of the games from a position.

    ## Observation
    First the rules and the board. After each mark the opponent's answer, the board, and the replies that are left.

    ## Action
    `<answer>B2</answer>`: a free cell, column and row. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for a win; at the hard level, where the opponent cannot be beaten by force, for a draw, too.
    `draw` (weight 0.5): 1 for a draw at the other levels, where it is not a success. `malformed` (weight -0.1): 1 for a
    reply without a readable free cell; nothing is marked then.

    ## Episode End
    Terminates with three in a row or a full board. Truncated after `max_turns` replies (10).

    ## Arguments
    - `split`: "train" or "test": no position to begin from is in both, be it turned or mirrored. No game begins on the
      empty board, which would be most of the problems of one split.
    - `difficulty`: strength of the opponent. "easy" (default): marks at random; "medium": completes its own three if it
      can, else prevents the agent's, else marks at random; "hard": makes no mistake. The oracle knows the opponent's
      way and plays the best there is against it: it never fails. An
      expert level is missing: the game is solved, and who makes no mistake cannot be answered by a stronger opponent.
    - `max_turns`: the number of replies, if it is to be another than 10.
    - `reset(options={"problem": {"board": "X...O....", "agent": "X", "seed": 1}})` begins with a given board, row by
      row; `seed` decides what the opponent does at random.

    ## Version History
    - v0: first version.
    """

    # The best fixed order in which to mark the cells wins 0.590, 0.326 and 0.248 of the problems of one split, exactly;
    # random marks 0.43, 0.11 and 0.13.
    difficulties = {
        "easy": Difficulty(
            "the opponent marks at random",
            chance_rate=0.6,
            n_problems=464,
            settings={"opponent": "random", "luck": 0.5, "turns": 10},
        ),
        "medium": Difficulty(
            "the opponent looks one mark ahead",
            chance_rate=0.34,
            n_problems=442,
            settings={"opponent": "look-ahead", "luck": 0.2, "turns": 10},
        ),
        "hard": Difficulty(
            "the opponent makes no mistake; a draw is enough",
            chance_rate=0.26,
            n_problems=611,
            settings={"opponent": "perfect", "luck": 0.2, "turns": 10},
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 10
    reward_weights = {"correct": 1.0, "draw": 0.5, "malformed": -0.1}
    max_return = 1.0
    problem_fields = {"board": str, "agent": str, "seed": int}
    luck_fields = ("seed",)
    instructions = (
        "Play tic-tac-toe. In each reply, answer with one free cell: the letter of its column and the number of its "
        "row."
    )
    answer_example = "B3"

    def generate(self) -> dict[str, Any]:
        """Draw a position of the level."""
        draw, settings = self.np_random.random, self.settings
        boards = _positions(settings["opponent"], settings["luck"])
        board = boards[int(draw() * len(boards))]
        return {"board": board, "agent": _turn(board), "seed": int(draw() * _MAX_SEED)}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a text that is not a board, a game that is over, or one where it is not the agent's turn."""
        board, agent = problem["board"], problem["agent"]
        if len(board) != 9 or set(board) - set("XO.") or agent not in _OTHER:
            raise InvalidActionError("its board must be 9 of X, O and ., its agent X or O")
        if board.count("X") - board.count("O") != (agent == "O") or _winner(board) or "." not in board:
            raise InvalidActionError("it must be the agent's turn (X begins), and the game not over")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the board, the same for its eight views."""
        board = problem["board"]
        return canonical_board([board[start : start + 3] for start in (0, 3, 6)])

    def begin(self) -> None:
        """Put the marks where they are at first."""
        self._board: str = self.problem["board"]
        self._agent: str = self.problem["agent"]
        self._random = random.Random(self.problem["seed"])

    def prompt(self) -> str:
        """Return the rules and the board."""
        aim = "Do not lose: a draw is enough." if self._draw_is_enough() else "Win: a draw is only half as good."
        return (
            f"Play tic-tac-toe. You are {self._agent}, I am {_OTHER[self._agent]}; . is a free cell. We mark free "
            f"cells in turn; three of a mark in a row, column or diagonal win. {aim} Name a free cell a reply by its "
            f'column and row, such as "B3"; I answer at once. You have {in_words(self.max_turns, "reply")}.\n'
            f"{self._shown()}\nIt is your turn."
        )

    def _draw_is_enough(self) -> bool:
        return bool(self.settings["opponent"] == "perfect")

    def _shown(self) -> str:
        return draw_board([self._board[start : start + 3] for start in (0, 3, 6)])

    def refuse(self, problem: str) -> Outcome:
        """Return the answer to a reply that could not be played."""
        return _with_draw(super().refuse(problem), 0.0)

    def move(self, answer: str) -> Outcome:
        """Mark the cell, and answer with a mark of the opponent's."""
        row, column = read_cell(answer, 3, 3)
        if self._board[3 * row + column] != ".":
            raise InvalidActionError(f"{cell_name(row, column)} is not free")
        self._board = _marked(self._board, 3 * row + column, self._agent)
        if (outcome := self._end("")) is not None:
            return outcome
        choices = _choices(self._board, _OTHER[self._agent], self.settings["opponent"])
        reply = choices[int(self._random.random() * len(choices))]
        self._board = _marked(self._board, reply, _OTHER[self._agent])
        note = f"I mark {cell_name(*divmod(reply, 3))}.\n"
        return self._end(note) or _with_draw(self.go_on(note + self._shown()), 0.0)

    def _end(self, note: str) -> Outcome | None:
        """Return the outcome if the game is over."""
        winner = _winner(self._board)
        if winner == self._agent:
            return _with_draw(self.win(f"{note}{self._shown()}\nYou win."), 0.0)
        if winner is not None:
            return _with_draw(self.lose(f"{note}{self._shown()}\nI win."), 0.0)
        if "." in self._board:
            return None
        text = f"{note}{self._shown()}\nA draw."
        return _with_draw(self.win(text), 0.0) if self._draw_is_enough() else _with_draw(self.lose(text), 1.0)

    def legal_answers(self) -> Sequence[str]:
        """Return the free cells."""
        return [cell_name(*divmod(cell, 3)) for cell in _free(self._board)]

    def next_action(self) -> str:
        """Mark what earns the most on average against this opponent."""
        cell = _best(self._board, self._agent, self.settings["opponent"])[1]
        return self.write_answer(cell_name(*divmod(cell, 3)))


def _with_draw(outcome: Outcome, draw: float) -> Outcome:
    return outcome._replace(components=outcome.components | {"draw": draw})


@cache
def _positions(opponent: str, luck: float) -> Sequence[str]:
    """Return the boards of a level: those from which the best play always succeeds.

    Args:
        opponent: How the other side plays.
        luck: How often random marks succeed, at most.
    """
    boards, reached = [], {"........."}
    for _ in range(_MAX_MARKS):
        reached = {_marked(board, cell, _turn(board)) for board in reached for cell in _free(board)}
        reached = {board for board in reached if _winner(board) is None}
        boards += sorted(reached)
    return [
        board
        for board in boards
        if _best(board, _turn(board), opponent)[0] >= 1.0 - _TINY
        and _success_at_random(board, _turn(board), opponent) <= luck + _TINY
    ]


def _turn(board: str) -> str:
    """Return whose turn it is; X begins."""
    return "XO"[(9 - board.count(".")) % 2]


def _free(board: str) -> list[int]:
    return [cell for cell, mark in enumerate(board) if mark == "."]


def _marked(board: str, cell: int, mark: str) -> str:
    return board[:cell] + mark + board[cell + 1 :]


@cache
def _winner(board: str) -> str | None:
    """Return whose three in a row stand on the board."""
    for first, second, third in _LINES:
        if board[first] == board[second] == board[third] != ".":
            return board[first]
    return None


@cache
def _value(board: str, mark: str) -> int:
    """Return what perfect play on both sides comes to for the one to move: more is better, quick wins are better.

    0 is a draw; a win is 1 and the number of cells left free; a loss is minus that.
    """
    if _winner(board) is not None:
        return -1 - board.count(".")
    if "." not in board:
        return 0
    return max(-_value(_marked(board, cell, mark), _OTHER[mark]) for cell in _free(board))


@cache
def _choices(board: str, mark: str, opponent: str) -> Sequence[int]:
    """Return the cells among which the opponent chooses at random."""
    free = _free(board)
    if opponent == "perfect":
        values = [-_value(_marked(board, cell, mark), _OTHER[mark]) for cell in free]
        return [cell for cell, value in zip(free, values, strict=True) if value == max(values)]
    if opponent == "look-ahead":
        for who in (mark, _OTHER[mark]):
            completing = [cell for cell in free if _winner(_marked(board, cell, who)) == who]
            if completing:
                return completing
    return free


@cache
def _best(board: str, agent: str, opponent: str) -> tuple[float, int]:
    """Return what the agent, whose turn it is, earns on average by the best play, and the cell to mark for it."""
    return max((_expected(_marked(board, cell, agent), agent, opponent), -cell, cell) for cell in _free(board))[::2]


def _expected(board: str, agent: str, opponent: str) -> float:
    """Return what the agent earns on average once it has marked."""
    pay = _pay(board, agent, opponent)
    if pay is not None:
        return pay
    total, cells = 0.0, _choices(board, _OTHER[agent], opponent)
    for cell in cells:
        answered = _marked(board, cell, _OTHER[agent])
        pay = _pay(answered, agent, opponent)
        total += _best(answered, agent, opponent)[0] if pay is None else pay
    return total / len(cells)


@cache
def _success_at_random(board: str, agent: str, opponent: str) -> float:
    """Return how often the agent succeeds that marks at random."""
    total, cells = 0.0, _free(board)
    for cell in cells:
        marked = _marked(board, cell, agent)
        pay = _pay(marked, agent, opponent)
        after = [] if pay is not None else _choices(marked, _OTHER[agent], opponent)
        for reply in after:
            answered = _marked(marked, reply, _OTHER[agent])
            end = _pay(answered, agent, opponent)
            success = _success_at_random(answered, agent, opponent) if end is None else float(end == 1)
            total += success / len(after)
        total += pay == 1
    return total / len(cells)


def _pay(board: str, agent: str, opponent: str) -> float | None:
    """Return what a board earns on which the game is over, else None."""
    winner = _winner(board)
    if winner is not None:
        return 1.0 if winner == agent else 0.0
    if "." in board:
        return None
    return 1.0 if opponent == "perfect" else 0.5
