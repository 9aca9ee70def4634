"""Blocks on a table: what a plan does, a plan for any goal, and a shortest plan where the goal places every block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "TABLE",
    "Action",
    "Move",
    "Places",
    "as_actions",
    "canonical_places",
    "execute",
    "goal_after_goal",
    "n_misplaced",
    "shortest_moves",
    "tower_after_tower",
    "with_one_way_out",
    "without_clearing",
]

TABLE = "table"
Places = dict[str, str]
"""Block -> the block below it, or `TABLE`."""
Move = tuple[str, str]
"""A block, and where it goes."""
Action = tuple[str, str, str]
"""Verb ("pick up", "put down", "stack", "unstack"), block, and the other block ("" for the first two verbs)."""


def execute(places: Mapping[str, str], actions: Sequence[Action]) -> Places | None:
    """Return the places of all blocks after a plan; None if an action is impossible or the hand is not empty then."""
    now, held = dict(places), ""
    for verb, block, other in actions:
        below = now.get(block)
        if verb in ("pick up", "unstack"):
            expected = TABLE if verb == "pick up" else other
            if held or below is None or below != expected or block in now.values():
                return None
            held = block
            del now[block]
        else:
            target = TABLE if verb == "put down" else other
            if held != block or (target != TABLE and (target not in now or target in now.values())):
                return None
            now[block] = target
            held = ""
    return None if held else now


def as_actions(places: Mapping[str, str], moves: Sequence[Move]) -> list[Action]:
    """Return the two actions of each move."""
    now, actions = dict(places), list[Action]()
    for block, target in moves:
        below = now[block]
        actions.append(("pick up", block, "") if below == TABLE else ("unstack", block, below))
        actions.append(("put down", block, "") if target == TABLE else ("stack", block, target))
        now[block] = target
    return actions


class _Table:
    """The blocks on the way to a goal that places every block.

    After each change, every move that puts a block into its final place is made: some shortest plan begins with it. If
    none is left, a block must make way and go to the table; elsewhere it would only be in the way of others. See
    Slaney and Thiébaux, "Blocks World revisited", 2001.
    """

    __slots__ = ("_above", "_final", "_goal", "_goal_above", "_n_left", "moves", "places")

    def __init__(self, places: Mapping[str, str], goal: Mapping[str, str]) -> None:
        self.places, self._goal = dict(places), goal
        self.moves: list[Move] = []
        self._above = {below: block for block, below in places.items()}
        self._goal_above = {below: block for block, below in goal.items()}
        self._above.pop(TABLE, None)
        self._final: set[str] = set()
        for block, below in places.items():
            if below != TABLE or goal[block] != TABLE:
                continue
            self._final.add(block)
            while block in self._above and goal[self._above[block]] == block:
                block = self._above[block]
                self._final.add(block)
        self._n_left = len(places) - len(self._final)

    @property
    def fewest(self) -> int:
        """The fewest moves that may be left: one of each block that is not in its final place."""
        return self._n_left

    def copy(self) -> _Table:
        """Return the same blocks, to be moved on their own."""
        other = object.__new__(_Table)
        other.places, other.moves, other._goal, other._goal_above = (
            *(self.places.copy(), self.moves.copy()),
            *(self._goal, self._goal_above),
        )
        other._above, other._final, other._n_left = self._above.copy(), self._final.copy(), self._n_left
        return other

    def settle(self) -> None:
        """Make all moves that put a block into its final place."""
        above, final, goal = self._above, self._final, self._goal
        agenda = [block for block in self.places if block not in above and block not in final]
        while agenda:
            block = agenda.pop()
            target = goal[block]
            if block in final or block in above or (target != TABLE and (target not in final or target in above)):
                continue
            left = self._move(block, target)
            final.add(block)
            self._n_left -= 1
            for near in (left, self._goal_above.get(left), self._goal_above.get(block)):
                if near is not None and near != TABLE:
                    agenda.append(near)

    def stuck(self) -> list[str]:
        """Return the blocks that can make way."""
        above, final = self._above, self._final
        return [
            block
            for block, below in self.places.items()
            if below != TABLE and block not in above and block not in final
        ]

    def set_aside(self, block: str) -> None:
        """Let a block make way."""
        self._move(block, TABLE)
        self.settle()

    def _move(self, block: str, target: str) -> str:
        left = self.places[block]
        self._above.pop(left, None)
        self.places[block] = target
        if target != TABLE:
            self._above[target] = block
        self.moves.append((block, target))
        return left


def n_misplaced(places: Mapping[str, str], goal: Mapping[str, str]) -> int:
    """Return how many blocks are not where the goal wants them, or on one that is not."""
    return _Table(places, goal).fewest


def shortest_moves(places: Mapping[str, str], goal: Mapping[str, str], at_most: int | None = None) -> list[Move] | None:
    """Return a shortest plan, as moves, to a goal that places every block.

    Args:
        places: Where the blocks are.
        goal: Where they are to be.
        at_most: Return None if a shortest plan has more moves than this.
    """
    table = _Table(places, goal)
    most_detours = len(places) if at_most is None else at_most - table.fewest
    table.settle()
    for n_detours in range(most_detours + 1):
        moves = _search(table, n_detours)
        if moves is not None:
            return moves
    return None


def _search(table: _Table, n_detours: int) -> list[Move] | None:
    """Return the moves of a plan in which so many blocks make way at most; None if no such plan exists."""
    if not table.fewest:
        return table.moves
    if not n_detours:
        return None
    for block in table.stuck():
        following = table.copy()
        following.set_aside(block)
        moves = _search(following, n_detours - 1)
        if moves is not None:
            return moves
    return None


def with_one_way_out(
    places: Mapping[str, str], goal: Mapping[str, str], choose: Callable[[Sequence[str], Mapping[str, str]], str]
) -> list[Move]:
    """Return a plan like `shortest_moves`, in which `choose(blocks, places)` returns the block that makes way."""
    table = _Table(places, goal)
    table.settle()
    while table.fewest:
        table.set_aside(choose(table.stuck(), table.places))
    return table.moves


def tower_after_tower(places: Mapping[str, str], goal: Mapping[str, str]) -> list[Move]:
    """Return a plan for any goal: all blocks out of place go to the table, and then each onto what shall be below."""
    now, moves = dict(places), list[Move]()
    wanted = {below: block for block, below in goal.items()}

    def is_in_place(block: str) -> bool:
        below = places[block]
        if goal.get(block, below) != below or below == TABLE:
            return goal.get(block, below) == below
        return wanted.get(below, block) == block and is_in_place(below)

    moving = [block for block in places if not is_in_place(block)]
    while tops := [block for block in moving if now[block] != TABLE and block not in now.values()]:
        for block in tops:
            moves.append((block, TABLE))
            now[block] = TABLE
    waiting = {block: below for block, below in goal.items() if block in moving and below != TABLE}
    while waiting:
        for block, below in list(waiting.items()):
            if below not in waiting:
                moves.append((block, below))
                del waiting[block]
    return moves


def goal_after_goal(places: Mapping[str, str], goals: Sequence[Move]) -> list[Move]:
    """Return what a player does who reaches one goal after the other, and does not look at those reached before."""
    now, moves = dict(places), list[Move]()

    def clear(block: str) -> None:
        for other, below in list(now.items()):
            if below == block:
                clear(other)
                moves.append((other, TABLE))
                now[other] = TABLE

    for block, below in goals:
        if now[block] == below:
            continue
        clear(block)
        if below != TABLE:
            clear(below)
        moves.append((block, below))
        now[block] = below
    return moves


def without_clearing(places: Mapping[str, str], goal: Mapping[str, str]) -> list[Move]:
    """Return what a player does who builds the towers from below, and does not look at what is on top of a block."""
    now, moves, waiting = dict(places), list[Move](), dict(goal)
    while waiting:
        for block, below in list(waiting.items()):
            if below in waiting:
                continue
            if now[block] != below:
                moves.append((block, below))
                now[block] = below
            del waiting[block]
    return moves


def canonical_places(places: Mapping[str, str], goal: Mapping[str, str]) -> list[str]:
    """Return a text for each group of blocks that hang together, in order; other names of blocks give the same texts.

    A text is the least of those that walks from each block of the group give. A walk goes down and up, in the towers
    that there are and in those of the goal, and numbers the blocks as it meets them.
    """
    above = {below: block for block, below in places.items() if below != TABLE}
    goal_above = {below: block for block, below in goal.items() if below != TABLE}
    texts: list[str] = []
    left = set(places)
    while left:
        walks = [_walk(next(iter(left)), places, above, goal, goal_above)]
        group = walks[0][1]
        left -= set(group)
        walks += [_walk(block, places, above, goal, goal_above) for block in group[1:]]
        texts.append(min(text for text, _ in walks))
    return sorted(texts)


def _walk(start: str, *neighbours: Mapping[str, str]) -> tuple[str, list[str]]:
    numbers, order, text = {start: "0"}, [start], []
    for block in order:
        for near in neighbours:
            other = near.get(block, "")
            if other == TABLE or not other:
                text.append("t" if other else "-")
                continue
            if other not in numbers:
                numbers[other] = str(len(order))
                order.append(other)
            text.append(numbers[other])
    return ",".join(text), order
