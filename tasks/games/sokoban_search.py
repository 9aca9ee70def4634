"""A Sokoban room as bits: what can be reached, pushed and pulled, and a way with the fewest pushes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from llm_envs.tasks.games.game import DIRECTIONS

__all__ = ["Warehouse", "cells_of"]


@dataclass(frozen=True)
class Warehouse:
    """The walls and targets of a board with a wall all around. Cell `row * width + column` is bit 1 << cell."""

    width: int
    floor: int
    """Every cell except the walls, as bits."""
    targets: int

    def step(self, name: str) -> int:
        """Return by how much a move changes the cell."""
        down, right = DIRECTIONS[name]
        return down * self.width + right

    def after(self, player: int, boxes: int, name: str) -> tuple[int, int] | None:
        """Return the agent's cell and the boxes after a move, or None if it is not possible."""
        step = self.step(name)
        there = player + step
        if boxes >> there & 1:
            beyond = there + step
            if not (self.floor & ~boxes) >> beyond & 1:
                return None
            return there, boxes ^ (1 << there | 1 << beyond)
        return (there, boxes) if self.floor >> there & 1 else None

    def reachable(self, player: int, boxes: int) -> int:
        """Return the cells that the agent can walk to, as bits."""
        free, width = self.floor & ~boxes, self.width
        reached, before = 1 << player, 0
        while reached != before:
            before = reached
            reached |= (reached << 1 | reached >> 1 | reached << width | reached >> width) & free
        return reached

    def pulls(self, player: int, boxes: int) -> list[tuple[int, int, int]]:
        """Return (box, where it goes, where the agent then stands) of every pull that the agent can walk to."""
        reached, found = self.reachable(player, boxes), []
        for box in cells_of(boxes):
            for step in (-self.width, self.width, -1, 1):
                if reached >> (box + step) & 1 and (self.floor & ~boxes) >> (box + 2 * step) & 1:
                    found.append((box, box + step, box + 2 * step))
        return found

    def solve(self, player: int, boxes: int) -> list[str] | None:
        """Return the moves of a way with the fewest pushes, or None if it cannot be solved.

        A breadth-first search over the boxes and the part of the room that the agent can reach. Boxes never go where
        no target can be reached from.
        """
        if boxes == self.targets:
            return []
        alive = self._alive()
        start = (boxes, self._region(player, boxes))
        came_from: dict[tuple[int, int], tuple[tuple[int, int], int, int] | None] = {start: None}
        queue = deque([start])
        while queue:
            state = queue.popleft()
            boxes, region = state
            reached = self.reachable(region, boxes)
            free = alive & ~boxes
            for box in cells_of(boxes):
                for step in (-self.width, self.width, -1, 1):
                    if not (reached >> (box - step) & 1 and free >> (box + step) & 1):
                        continue
                    pushed = boxes ^ (1 << box | 1 << (box + step))
                    following = (pushed, self._region(box, pushed))
                    if following in came_from:
                        continue
                    came_from[following] = (state, box, step)
                    if pushed == self.targets:
                        return self._spell(player, start[0], came_from, following)
                    queue.append(following)
        return None

    def first_leg(self, player: int, boxes: int, moves: list[str]) -> tuple[list[str], tuple[int, int]]:
        """Return the moves up to the end of the first straight row of pushes, and (agent's cell, boxes) after them."""
        has_pushed = False
        for count, name in enumerate(moves):
            reached = self.after(player, boxes, name)
            assert reached is not None
            pushes = reached[1] != boxes
            if has_pushed and (not pushes or name != moves[count - 1]):
                return moves[:count], (player, boxes)
            has_pushed = has_pushed or pushes
            player, boxes = reached
        return moves, (player, boxes)

    def _alive(self) -> int:
        """Return the cells from which a box that is the only one in the room can be pushed onto a target, as bits."""
        alive, queue = self.targets, list(cells_of(self.targets))
        for cell in queue:
            for step in (-self.width, self.width, -1, 1):
                origin, behind = cell - step, cell - 2 * step
                if self.floor >> origin & 1 and behind >= 0 and self.floor >> behind & 1 and not alive >> origin & 1:
                    alive |= 1 << origin
                    queue.append(origin)
        return alive

    def _region(self, player: int, boxes: int) -> int:
        """Return one cell that stands for all that the agent can reach: the one of the highest number."""
        return self.reachable(player, boxes).bit_length() - 1

    def _spell(
        self,
        player: int,
        boxes: int,
        came_from: dict[tuple[int, int], tuple[tuple[int, int], int, int] | None],
        last: tuple[int, int],
    ) -> list[str]:
        """Return the moves of the pushes that lead to the last state."""
        pushes: list[tuple[int, int]] = []
        origin = came_from[last]
        while origin is not None:
            pushes.append(origin[1:])
            origin = came_from[origin[0]]
        moves: list[str] = []
        names = {self.step(name): name for name in DIRECTIONS}
        for box, step in reversed(pushes):
            moves += [*self._walk(player, box - step, boxes), names[step]]
            player, boxes = box, boxes ^ (1 << box | 1 << (box + step))
        return moves

    def _walk(self, player: int, target: int, boxes: int) -> list[str]:
        """Return the moves of a shortest walk around the boxes."""
        free, steps = self.floor & ~boxes, {name: self.step(name) for name in DIRECTIONS}
        ways: dict[int, list[str]] = {player: []}
        queue = [player]
        for cell in queue:
            if cell == target:
                break
            for name, step in steps.items():
                if free >> (cell + step) & 1 and cell + step not in ways:
                    ways[cell + step] = [*ways[cell], name]
                    queue.append(cell + step)
        return ways[target]


def cells_of(bits: int) -> list[int]:
    """Return the numbers of the bits that are set."""
    cells = []
    while bits:
        lowest = bits & -bits
        cells.append(lowest.bit_length() - 1)
        bits ^= lowest
    return cells
