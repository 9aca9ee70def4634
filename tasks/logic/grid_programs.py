"""`llm/GridPrograms-v0`: find out from examples what a program does with coloured grids, and apply it to another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, between, pick, sample
from llm_envs.tasks.logic.grid_search import PHASES, Program, fitting_programs, is_program, n_colours, run, run_on
from llm_envs.tasks.logic.grid_steps import Grid, read_grid

__all__ = ["GridProgramsEnv"]

_PATTERNS = (
    *("1", "11", "111", "1111", "11/11", "111/111", "111/111/111", "1111/1111", "11/10", "10/10/11", "100/111"),
    *("110/011", "010/111", "010/111/010", "111/101/111", "1111/1001/1111", "111/101/101", "111/101/110"),
    *("1111/1010/1110", "1111/1001/1011/1100", "101/111/101", "1010/1111", "110/111/011", "0110/1111"),
    *("111/100/111", "1111/1001/1001/1111", "1110/1011/1111"),
)


def _orientations(pattern: str) -> list[Grid]:
    """Return a shape as it is, mirrored and turned."""
    shape = [list(map(int, row)) for row in pattern.split("/")]
    turned = [list(row) for row in zip(*shape, strict=True)]
    mirrored = [each for one in (shape, turned) for each in (one, [row[::-1] for row in one])]
    return [each for one in mirrored for each in (one, one[::-1])]


_SHAPES = tuple(map(_orientations, _PATTERNS))
_LONGEST_SIDE = 30
_ROW_END = re.compile(r"[\])}]\s*,\s*(?=[\[({])|;|/")
_LABEL = re.compile(
    r"^\s*(?:row\s*[0-9]+\s*[:.)]|(?:the )?(?:final )?(?:output|grid|answer|result)(?: [0-9]+)?(?: is)?:\s*$)",
    re.IGNORECASE,
)
_MOST_CHARACTERS = 500_000
"""A given program may repeat a grid to 300 rows of 300 cells."""
_N_EXAMPLES = 3
_MOST_EXAMPLES = 4
_N_TRIES = 4
"""Grids that are drawn for one more example, and for the grid whose output is asked for."""


class GridProgramsEnv(SingleTurnEnv):
    """Find out what a program does with coloured grids, and do it with another grid.

    ## Description
    A hidden program has two to five steps, in this order: it keeps some of the objects (the largest, those with a hole,
    those of the rarest colour, ...), changes colours (of some objects, of one colour, as the largest has it, ...),
    moves the objects (in one direction until they meet something, or mirrored in their places), draws around them
    (fills holes, surrounds them, draws a shadow, ...), and arranges the grid (turns, mirrors, crops or enlarges it, or
    repeats it as often as there are objects). There are over 150,000 such programs, not counting which colours they
    name. Three or four examples determine the program: all programs of the family are tried, and no other fits
    whose steps all do something in some example. Each
    step matters for the output that is asked for. Teaches to induce a rule from few examples, as the ARC benchmark
    asks for, and to carry it out exactly. The expert level, with five steps on up to 14×14 cells, should be hard for
    any model today.

    ## Observation
    The kinds of steps, inputs with their outputs, and the last input. After the reply "Correct.", "Incorrect." or what
    was malformed.

    ## Action
    The output, with one row on each line: `<answer>0 3
    3 3</answer>`.
    Spaces, commas and brackets between digits do not matter. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 if every cell is right. There is nothing for single cells. `malformed` (weight -0.1): 1 for
    a reply without an answer, with broken tags, or whose answer is not a rectangle of digits.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". A program is in one split, whatever the colours that it names and the grids.
    - `difficulty`: "easy" (default): programs of two steps, grids of 5 to 8 rows and columns; "medium": three steps, 6
      to 10; "hard": four steps, 7 to 12; "expert": five steps, 9 to 14.
    - `reset(options={"problem": {"program": [["keep", "the largest"], ["recolour", "all", 5]], "inputs": [[[1, 1], [0,
      0]], [[2, 0], [0, 2]]]}})` plays a given program; the last input is the one that is asked for. Steps and their
      kinds are in `grid_search.PHASES`. Whether the examples determine the program is not checked.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often a program without one of the steps, or the last input or a given output as it
    # stands, is right: never, by construction or in 2,000 problems.
    difficulties = {
        "easy": Difficulty(
            "two steps", 0.001, n_problems=1027, settings={"steps": 2, "sides": (5, 8), "things": (2, 4)}
        ),
        "medium": Difficulty("three steps", 0.001, settings={"steps": 3, "sides": (6, 10), "things": (3, 4)}),
        "hard": Difficulty("four steps", 0.001, settings={"steps": 4, "sides": (7, 12), "things": (3, 5)}),
        "expert": Difficulty("five steps", 0.001, settings={"steps": 5, "sides": (9, 14), "things": (4, 6)}),
    }
    default_difficulty = "easy"
    problem_fields = {"program": list, "inputs": list}
    slow_reset_reason = "every program of the family is tried on the examples, until no other than the drawn one fits"
    instructions = (
        "Find the rule, and apply it to the last input. The answer is the whole output, with one row of digits on each "
        "line."
    )
    answer_example = "0 3\n3 3"
    has_natural_form = False

    def generate(self) -> dict[str, Any]:
        """Draw programs and grids until the examples determine the program."""
        random = self.np_random.random
        while True:
            program = _draw_program(random, self.settings["steps"])
            colours = sample(random, range(1, 10), 4)
            examples: list[tuple[Grid, Grid]] = []
            while len(examples) < _N_EXAMPLES and (pair := self._draw_pair(program, colours)) is not None:
                examples.append(pair)
            if len(examples) < _N_EXAMPLES or not self._determine(program, colours, examples):
                continue
            pair = self._draw_pair(program, colours)
            if pair is not None:
                return {"program": program, "inputs": [grid for grid, _ in [*examples, pair]]}

    def _determine(self, program: Program, colours: Sequence[int], examples: list[tuple[Grid, Grid]]) -> bool:
        """Return whether no other program fits the examples; add another one where that helps."""
        others = [other for other in islice(fitting_programs(examples), 60) if other != program]
        if not others:
            return True
        if len(others) > 50:
            return False
        for _ in range(_N_TRIES):
            pair = self._draw_pair(program, colours)
            if pair is not None and all(run(other, pair[0]) != pair[1] for other in others):
                examples.append(pair)
                return True
        return False

    def _draw_pair(self, program: Program, colours: Sequence[int]) -> tuple[Grid, Grid] | None:
        """Return a grid on which each step of the program matters, and its output; None if none is found soon."""
        for _ in range(_N_TRIES):
            grid = _draw_grid(self.np_random.random, colours, self.settings)
            scene = read_grid(grid)
            output = run_on(program, *scene)
            if output is None or max(len(output), len(output[0])) > _LONGEST_SIDE or output == grid:
                continue
            if all(run_on(shorter, *scene) != output for shorter in _shorter(program)):
                return grid, output
        return None

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a program that has the wrong form, and grids on which it cannot run."""
        if not is_program(problem["program"]):
            raise InvalidActionError("the program must have steps [phase, kind, colour, ...] as in grid_search.PHASES")
        if len(problem["inputs"]) < 2:
            raise InvalidActionError("there must be two inputs at least")
        for grid in problem["inputs"]:
            if not _is_grid(grid):
                raise InvalidActionError(f"an input must have 1 to {_LONGEST_SIDE} rows, all as long, of digits from 0")
            output = run(problem["program"], grid)
            if output is None or max(len(output), len(output[0])) > 10 * _LONGEST_SIDE:
                raise InvalidActionError("the program gives no output for one of the inputs, or too large a one")

    def split_key(self, problem: Mapping[str, Any]) -> list[list[str]]:
        """Return the program without the colours that it names."""
        return [step[:2] for step in problem["program"]]

    def begin(self) -> None:
        """Run the program."""
        outputs = [run(self.problem["program"], grid) for grid in self.problem["inputs"]]
        self._outputs: list[Grid] = [output for output in outputs if output is not None]

    def prompt(self) -> str:
        """Return the kinds of steps, the examples and the last input."""
        lines = [
            "A rule makes an output from a grid. Digits are colours; 0 is the background. An object is a group of "
            "cells of one colour that touch along edges. The rule has some of these steps, in this order: keep some "
            "of the objects and remove the others; change colours; move the objects, or mirror or turn each in its "
            "place; draw in one colour in, around or from the objects; turn, mirror, crop, double or repeat the whole "
            "grid. Which objects are meant may depend on their size, their colour, their shape, holes in them, or "
            "whether they touch the edge of the grid."
        ]
        *examples, last = self.problem["inputs"]
        for i, (grid, output) in enumerate(zip(examples, self._outputs, strict=False), 1):
            lines += [f"Input {i}:", _write(grid), f"Output {i}:", _write(output)]
        return "\n".join([*lines, f"Input {len(examples) + 1}:", _write(last), "What is its output?"])

    def solution(self) -> str:
        """Return the output."""
        return f"\n{_write(self._outputs[-1])}\n"

    def is_correct(self, answer: str) -> bool:
        """Compare the grids."""
        if len(answer) > _MOST_CHARACTERS:
            raise InvalidActionError(f"the answer has over {_MOST_CHARACTERS} characters")
        lines = _ROW_END.sub("\n", answer).strip().splitlines()
        rows = [re.sub(r"[\s,|\[\](){}\"']", "", _LABEL.sub("", line)) for line in lines]
        rows = [row for row in rows if row]
        if not rows or not all(re.fullmatch(r"[0-9]{1,300}", row) for row in rows):
            raise InvalidActionError("the answer must be rows of digits, one row a line")
        if len({len(row) for row in rows}) > 1:
            raise InvalidActionError("the rows of the answer must be equally long")
        return rows == ["".join(map(str, row)) for row in self._outputs[-1]]

    def shortcuts(self) -> Mapping[str, str]:
        """Return the outputs of the program without one of its steps, the last input, and a given output."""
        last = self.problem["inputs"][-1]
        grids = {f"without the step {step[0]!r}": run(shorter, last) for step, shorter in
                 zip(self.problem["program"], _shorter(self.problem["program"]), strict=True)}  # fmt: skip
        grids |= {"the input as it stands": last, "the first output": self._outputs[0]}
        return {name: self.write_answer(_write(grid)) for name, grid in grids.items() if grid is not None}


def _draw_program(random: Random, n_steps: int) -> Program:
    phases = set(sample(random, tuple(PHASES), n_steps))
    program: Program = []
    for phase, kinds in PHASES.items():
        if phase in phases:
            kind = pick(random, kinds)
            colours = sorted(sample(random, range(1, 10), n_colours(phase, kind)))
            if kind == "from to" and random() < 0.5:
                colours.reverse()
            program.append([phase, kind, *colours])
    return program


def _shorter(program: Program) -> list[Program]:
    """Return the program without each of its steps."""
    return [program[:i] + program[i + 1 :] for i in range(len(program))]


def _draw_grid(random: Random, colours: Sequence[int], settings: Mapping[str, Any]) -> Grid:
    """Draw a grid with some objects that do not touch, and whose rectangles do not."""
    height, width = between(random, *settings["sides"]), between(random, *settings["sides"])
    grid = [[0] * width for _ in range(height)]
    taken: list[tuple[int, int, int, int]] = []
    n_things = between(random, *settings["things"])
    for _ in range(4 * n_things):
        shape = pick(random, pick(random, _SHAPES))
        y, x = int(random() * (height - len(shape) + 1)), int(random() * (width - len(shape[0]) + 1))
        bottom, right = y + len(shape), x + len(shape[0])
        if bottom > height or right > width:
            continue
        if any(y <= b and bottom >= a and x <= d and right >= c for a, b, c, d in taken):
            continue
        taken.append((y, bottom, x, right))
        colour = pick(random, colours)
        for j, row in enumerate(shape):
            for i, cell in enumerate(row):
                grid[y + j][x + i] = colour if cell else 0
        if len(taken) == n_things:
            break
    return grid


def _write(grid: Grid) -> str:
    return "\n".join(" ".join(map(str, row)) for row in grid)


def _is_grid(grid: Any) -> bool:
    if not isinstance(grid, list) or not 1 <= len(grid) <= _LONGEST_SIDE:
        return False
    if not all(isinstance(row, list) and 1 <= len(row) <= _LONGEST_SIDE for row in grid):
        return False
    cells = [cell for row in grid for cell in row]
    return len({len(row) for row in grid}) == 1 and all(type(cell) is int and 0 <= cell <= 9 for cell in cells)
