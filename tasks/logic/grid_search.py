"""Programs of grid steps: running one, and finding all that fit given pairs of grids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from llm_envs.tasks.logic.grid_steps import (
    ARRANGE,
    DRAW,
    MOVE,
    RECOLOUR,
    SELECT,
    Board,
    Grid,
    Thing,
    arranged,
    bounds,
    disarranged,
    drawn,
    moved,
    read_grid,
    recoloured,
)

__all__ = ["PHASES", "Program", "fitting_programs", "is_program", "n_colours", "run", "run_on"]

Program = list[list[Any]]
"""At most one step of each phase, in the order of `PHASES`: [phase, kind], and the colours that a step names."""
PHASES: Mapping[str, Sequence[str]] = {
    "keep": tuple(SELECT),
    "recolour": tuple(RECOLOUR),
    "move": MOVE,
    "draw": DRAW,
    "arrange": ARRANGE,
}
_COLOURS = range(1, 10)
_NONE = ""


def n_colours(phase: str, kind: str) -> int:
    """Return how many colours a step names."""
    return RECOLOUR[kind] if phase == "recolour" else int(phase == "draw")


def is_program(program: Any) -> bool:
    """Return whether something is a program."""
    order = list(PHASES)
    last = -1
    for step in program:
        if not isinstance(step, list) or len(step) < 2 or not all(isinstance(part, str) for part in step[:2]):
            return False
        phase, kind, *colours = step
        if phase not in order or order.index(phase) <= last or kind not in PHASES[phase]:
            return False
        if len(colours) != n_colours(phase, kind) or not all(type(c) is int and c in _COLOURS for c in colours):
            return False
        last = order.index(phase)
    return last >= 0


def run(program: Program, grid: Grid) -> Grid | None:
    """Return the output of a program; None if it keeps no object."""
    return run_on(program, *read_grid(grid))


def run_on(program: Program, here: Board, things: Sequence[Thing]) -> Grid | None:
    """Return the output of a program for the objects of a grid; None if it keeps none."""
    steps = {phase: (kind, colours) for phase, kind, *colours in program}
    kept = SELECT[steps["keep"][0]](things) if "keep" in steps else things
    if not kept:
        return None
    colours = recoloured(kept, *steps["recolour"]) if "recolour" in steps else [thing.colour for thing in kept]
    masks = tuple([thing.mask for thing in kept])
    if "move" in steps:
        masks = moved(masks, steps["move"][0], here)
    parts = list(zip(masks, colours, strict=True))
    if "draw" in steps:
        kind, (colour,) = steps["draw"]
        parts.append((drawn(masks, kind, here), colour))
    output = _painted(parts, here)
    return arranged(output, steps["arrange"][0], len(kept)) if "arrange" in steps else output


def _painted(parts: Sequence[tuple[int, int]], here: Board) -> Grid:
    grid = [[0] * here.width for _ in range(here.height)]
    for mask, colour in parts:
        while mask:
            bit = mask & -mask
            mask ^= bit
            y, x = divmod(bit.bit_length() - 1, here.down)
            grid[y][x] = colour
    return grid


class _Pair:
    """An input with the output that a program must give."""

    def __init__(self, grid: Grid, output: Grid) -> None:
        self.here, self.things = read_grid(grid)
        self.output = output
        self.before: dict[str, tuple[list[tuple[int, int]], int, int]] = {}
        """By the last step: the colours before it as (cells, colour), all cells, for how many objects."""
        if (len(output), len(output[0])) == (len(grid), len(grid[0])):
            self.before[_NONE] = (*_masks(output, self.here), 0)
        for how in ARRANGE:
            undone = disarranged(output, how, self.here) if how != "crop" else None
            if undone is not None:
                self.before[how] = (*_masks(undone[0], self.here), undone[1])
        self.can_be_cropped = len(output) <= len(grid) and len(output[0]) <= len(grid[0])
        self.n_cells = sum(map(bool, (c for row in output for c in row)))
        self._kept: dict[str, list[Thing]] = {}

    def kept(self, how: str) -> list[Thing]:
        """Return the objects that a first step keeps."""
        if how not in self._kept:
            self._kept[how] = SELECT[how](self.things) if how else self.things
        return self._kept[how]

    def masks(self, keep: str, move: str) -> tuple[int, ...]:
        """Return the objects after two steps."""
        masks = tuple([thing.mask for thing in self.kept(keep)])
        return moved(masks, move, self.here) if move else masks

    def colours_before(self, arrange: str, masks: Sequence[int], extra: int) -> list[tuple[int, int]] | None:
        """Return the colours before the last step, if its output has the right cells then; else None."""
        cells = extra
        for mask in masks:
            cells |= mask
        if arrange == "crop":
            return self._cropped_colours(cells)
        if arrange not in self.before:
            return None
        colours, all_cells, n = self.before[arrange]
        return colours if all_cells == cells and n in (0, len(masks)) else None

    def _cropped_colours(self, cells: int) -> list[tuple[int, int]] | None:
        if not self.can_be_cropped or cells.bit_count() != self.n_cells:
            return None
        top, bottom, left, right = bounds(cells, self.here.down)
        if (bottom - top + 1, right - left + 1) != (len(self.output), len(self.output[0])):
            return None
        colours, all_cells = _masks(self.output, self.here)
        offset = top * self.here.down + left
        return [(mask << offset, colour) for mask, colour in colours] if all_cells << offset == cells else None


def _masks(grid: Grid, here: Board) -> tuple[list[tuple[int, int]], int]:
    """Return the cells of each colour of a grid, and all of them, as cells of a board."""
    masks: dict[int, int] = {}
    all_cells = 0
    for y, row in enumerate(grid):
        for x, colour in enumerate(row):
            if colour:
                bit = 1 << y * here.down + x
                masks[colour] = masks.get(colour, 0) | bit
                all_cells |= bit
    return [(mask, colour) for colour, mask in masks.items()], all_cells


def fitting_programs(pairs: Sequence[tuple[Grid, Grid]]) -> Iterator[Program]:
    """Yield every program of the family that gives these outputs for these inputs, and none of whose steps is idle.

    The steps that place cells are tried; those that colour them are read from the outputs. A step is idle if it changes
    nothing for any of the inputs.
    """
    looked_at = [_Pair(*pair) for pair in pairs]
    for keep, move, draw, arrange in _placements(looked_at[0]):
        found = []
        for pair in looked_at:
            masks = pair.masks(keep, move)
            extra = drawn(masks, draw, pair.here) if draw else 0
            colours = pair.colours_before(arrange, masks, extra) if masks else None
            if colours is None:
                break
            found.append((pair.kept(keep), masks, extra, colours))
        if len(found) == len(looked_at) and not _is_idle(keep, move, draw, arrange, looked_at, found):
            yield from _coloured(keep, move, draw, arrange, found)


def _placements(pair: _Pair) -> Iterator[tuple[str, str, str, str]]:
    """Yield the steps but for colours that fit one pair's cells: what to keep, move, draw and arrange."""
    by_masks: dict[tuple[int, ...], list[tuple[str, str]]] = {}
    for keep in (_NONE, *SELECT):
        if pair.kept(keep):
            for move in (_NONE, *MOVE):
                by_masks.setdefault(pair.masks(keep, move), []).append((keep, move))
    for masks, ways in by_masks.items():
        cells = 0
        for mask in masks:
            cells |= mask
        if cells.bit_count() > pair.n_cells and not any(not cells & ~b[1] for b in pair.before.values()):
            continue
        targets = [
            how for how, (_, all_cells, n) in pair.before.items() if not cells & ~all_cells and n in (0, len(masks))
        ]
        if pair.can_be_cropped and cells.bit_count() <= pair.n_cells:
            targets.append("crop")
        if not targets:
            continue
        for draw in (_NONE, *DRAW):
            extra = drawn(masks, draw, pair.here) if draw else 0
            for arrange in targets:
                if pair.colours_before(arrange, masks, extra) is not None:
                    for keep, move in ways:
                        yield keep, move, draw, arrange


def _is_idle(keep: str, move: str, draw: str, arrange: str, pairs: Sequence[_Pair], found: _Found) -> bool:
    """Return whether one of these steps changes nothing for any of the inputs."""
    if keep and all(len(things) == len(pair.things) for pair, (things, *_) in zip(pairs, found, strict=True)):
        return True
    if move and all(tuple([thing.mask for thing in things]) == masks for things, masks, *_ in found):
        return True
    if draw and not any(extra for *_, extra, _ in found):
        return True
    return arrange != _NONE and all(
        _NONE in pair.before and sorted(pair.before[_NONE][0]) == sorted(colours)
        for pair, (*_, colours) in zip(pairs, found, strict=True)
    )


_Found = Sequence[tuple[Sequence[Thing], Sequence[int], int, Sequence[tuple[int, int]]]]
"""Of each pair: the objects that are kept, their cells and what is drawn then, the colours that must come out."""


def _coloured(keep: str, move: str, draw: str, arrange: str, found: _Found) -> Iterator[Program]:
    """Yield the programs with these steps whose colours fit."""
    inks: set[int] = set(_COLOURS)
    wanted: list[tuple[Sequence[Thing], list[int]]] = []
    for things, masks, extra, colours in found:
        if extra:
            inks &= {colour for mask, colour in colours if not extra & ~mask}
        new = [next((colour for cells, colour in colours if not mask & ~cells), 0) for mask in masks]
        if not inks or not all(new):
            return
        wanted.append((things, new))
    first = [[phase, kind] for phase, kind in (("keep", keep),) if kind]
    for recolour in _recolourings(wanted):
        for ink in sorted(inks) if draw else [0]:
            program: Program = [*first, *recolour]
            program += [["move", move]] if move else []
            program += [["draw", draw, ink]] if draw else []
            yield [*program, ["arrange", arrange]] if arrange else program


def _recolourings(wanted: Sequence[tuple[Sequence[Thing], list[int]]]) -> Iterator[Program]:
    """Yield the steps, one or none, that give objects the wanted colours."""
    if all([thing.colour for thing in things] == new for things, new in wanted):
        yield []
        return
    seen = sorted({colour for things, new in wanted for colour in [*new, *(thing.colour for thing in things)]})
    for how, count in RECOLOUR.items():
        for colours in permutations(seen, count):
            if (how != "swap" or colours[0] < colours[1]) and all(
                recoloured(things, how, colours) == new for things, new in wanted
            ):
                yield [["recolour", how, *colours]]
