"""`llm/Blocksworld-v0`: plan how a hand turns towers of blocks into others, within a number of actions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.draws import Random, sample, shuffled
from llm_envs.tasks.logic.blocks_planner import (
    TABLE,
    Action,
    Move,
    Places,
    as_actions,
    canonical_places,
    execute,
    goal_after_goal,
    n_misplaced,
    shortest_moves,
    tower_after_tower,
    with_one_way_out,
    without_clearing,
)

__all__ = ["BlocksworldEnv"]

_COLOURS = (
    *("red", "blue", "green", "yellow", "orange", "purple", "white", "black", "pink", "brown", "grey", "golden"),
    *("silver", "beige", "violet", "turquoise", "maroon", "olive", "lilac", "cream"),
)
_BLOCK = r"(?:the )?(?:block )?(\w+)(?: block)?"
_FORMS = (
    ("pick up", re.compile(rf"pick ?up {_BLOCK}(?: from (?:the )?table)?")),
    ("put down", re.compile(rf"put ?(?:down )?{_BLOCK}(?: down)?(?: on(?:to)? (?:the )?table)?")),
    ("stack", re.compile(rf"stack {_BLOCK}(?: on(?:to)?(?: top of)?)? {_BLOCK}")),
    ("unstack", re.compile(rf"unstack {_BLOCK}(?: from(?: on)?(?: top of)?)? {_BLOCK}")),
)
_NUMBER = re.compile(
    r"^(?:(?:step|action)\s*)?(?:\(?\d{1,3}\s*[.):]|[-*\u2022]\s)?\s*(?:(?:and|then|first|next|finally)\b,?\s*){0,3}"
)
_BETWEEN = re.compile(
    r"[;\n\u2192]|->|(?:(?<![0-9])[,.]\s*|\s)(?:(?:and|then)\s+){1,2}(?=\(?(?:pick|put|stack|unstack)\b)|"
    r"(?<![0-9])[,.]\s*(?=\(?(?:\d{1,3}[.)]\s*)?(?:pick|put|stack|unstack)\b)",
    re.IGNORECASE,
)
_HEADING = re.compile(r"(?!.*\b(?:pick|put|stack|unstack)\b)[\w ',*#-]*:\**", re.IGNORECASE)
"""A line such as "Here is the plan:"."""
_NO_FEWER = "; no plan has fewer."
_MOST_BLOCKS = 20
_MOST_ACTIONS = 1_000
_MOST_CHARACTERS = 100_000


class BlocksworldEnv(SingleTurnEnv):
    """Plan how towers of blocks become others, with one hand and no more actions than allowed.

    ## Description
    A hand holds one block at a time. It picks up a clear block from the table or unstacks it from another block, and
    puts it down on the table or stacks it on another clear block. A plan is right if each of its actions is possible
    when its turn comes, and all parts of the goal hold at the end; any such plan counts. To take the goals one by one,
    as they are listed or backwards, always fails, and so does a plan that ignores what is on top of a block. From the
    medium level on, to put all that is out of place on the table first is too long. From the hard level on, the plan
    may not be longer than the shortest one, which an exact search has found: simple rules for which block has to make
    way are too long, too. Teaches planning: actions
    with conditions, goals that are in each other's way, and search. The expert level should be hard for any model
    today: up to four blocks must make way, and which ones can only be found by search.

    ## Observation
    The actions, what is on what, the goal, and the number of actions that are allowed. After the reply "Correct.",
    "Incorrect." or what was malformed.

    ## Action
    `<answer>unstack the red block from the blue block; put down the red block; pick up the blue block; stack the blue
    block on the red block</answer>`: the plan, with an action on each line, or semicolons, commas or "then" between
    the actions. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for a plan that reaches the goal. `malformed` (weight -0.1): 1 for a reply without an
    answer, with broken tags, or with a line that is not one of the four actions or names an unknown block.

    ## Episode End
    Terminates after one reply.

    ## Arguments
    - `split`: "train" or "test". Problems that differ only in the colours of the blocks, or in the order of what is
      said, are in the same split.
    - `difficulty`: "easy" (default): 6 blocks, with a goal that leaves some places open and 4 actions allowed for each
      block, which are enough to put all blocks on the table and to build the towers from there; "medium": 8 blocks,
      with at least 2 actions more than the shortest plan has, but fewer than over the table; "hard": 11 blocks, and
      "expert": 15 blocks, with as few actions as possible.
    - `reset(options={"problem": {"initial": [["red", "blue"], ["blue", "table"]], "goal": [["blue", "red"]], "limit":
      4}})` plays a given problem: pairs of a block and what it is on, of at most 20 blocks.

    ## Version History
    - v0: first version.
    """

    # The chance rates bound how often a random plan of possible actions reaches the goal in time: 0.03% at the easy
    # level, of 3,000, and never at the others.
    difficulties = {
        "easy": Difficulty("6 blocks", 0.003, settings={"blocks": 6, "hasty": 3}),
        "medium": Difficulty("8 blocks, a short plan", 0.001, settings={"blocks": 8, "hasty": 4}),
        "hard": Difficulty("11 blocks, a shortest plan", 0.001, settings={"blocks": 11, "hasty": 7, "detours": 1}),
        "expert": Difficulty("15 blocks, a shortest plan", 0.001, settings={"blocks": 15, "hasty": 7, "detours": 3}),
    }
    default_difficulty = "easy"
    problem_fields = {"initial": list, "goal": list, "limit": int}
    slow_reset_reason = "a problem is drawn until hasty plans fail, and shortest plans are searched for"
    instructions = (
        "Plan the actions. The answer is the whole plan, with one action on each line. Write each action in one of the "
        "four forms."
    )
    answer_example = "pick up the red block\nstack the red block on the blue block"
    has_natural_form = False

    def generate(self) -> dict[str, Any]:
        """Draw towers until hasty plans fail, and as many blocks as wanted must make way in a shortest plan."""
        random, n = self.np_random.random, self.settings["blocks"]
        while True:
            blocks = sample(random, _COLOURS, n)
            initial, goal = _draw_towers(random, blocks), _draw_towers(random, blocks)
            if self.difficulty == "easy":
                goal = {block: below for block, below in goal.items() if below != TABLE}
                if len(goal) < n // 2:
                    continue
                limit, moves = 4 * n, tower_after_tower(initial, goal)
            elif self.difficulty == "medium":
                n_most = len(tower_after_tower(initial, goal)) - 1
                found = shortest_moves(initial, goal, n_most - 1)
                if found is None:
                    continue
                limit, moves = 2 * n_most, found
            else:
                found = _shortest_if_hidden(initial, goal, self.settings["detours"])
                if found is None:
                    continue
                limit, moves = 2 * len(found), found
            problem = {
                "initial": [list(pair) for pair in shuffled(random, list(initial.items()))],
                "goal": [list(pair) for pair in shuffled(random, list(goal.items()))],
                "limit": limit,
            }
            if not any(_reaches(problem, hasty) for hasty in self._hasty_plans(problem).values()):
                self._drawn = problem, moves
                return problem

    def _hasty_plans(self, problem: Mapping[str, Any]) -> dict[str, list[Move]]:
        """Return the plans of hasty players that must not reach the goal in time at this level."""
        return dict(list(_hasty_plans(problem).items())[: self.settings["hasty"]])

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse towers that have the wrong form, and a limit below the plan that is known."""
        for key in ("initial", "goal"):
            _check_towers(key, problem[key])
        initial, goal = dict(problem["initial"]), dict(problem["goal"])
        if not 2 <= len(initial) <= _MOST_BLOCKS:
            raise InvalidActionError(f"there must be 2 to {_MOST_BLOCKS} blocks")
        if not set(initial) >= {*goal, *goal.values()} - {TABLE} or not set(initial) >= {*initial.values()} - {TABLE}:
            raise InvalidActionError("each block must have its place in 'initial'")
        if all(initial[block] == below for block, below in goal.items()):
            raise InvalidActionError("the goal must not hold already")
        fewest = 2 * len(_plan(problem))
        if not fewest <= problem["limit"] <= _MOST_ACTIONS:
            raise InvalidActionError(f"the limit must be from {fewest}, for which a plan is known, to {_MOST_ACTIONS}")

    def split_key(self, problem: Mapping[str, Any]) -> list[str]:
        """Return the towers, with the blocks numbered in an order that does not depend on their names."""
        return canonical_places(dict(problem["initial"]), dict(problem["goal"]))

    def begin(self) -> None:
        """Read the towers, and find a plan if the problem was not drawn."""
        self._initial: Places = dict(self.problem["initial"])
        drawn, moves = getattr(self, "_drawn", (None, []))
        self._moves: list[Move] = moves if drawn is self.problem else _plan(self.problem)

    def prompt(self) -> str:
        """Return the actions, what is on what, the goal and the limit."""
        problem = self.problem
        return "\n".join([
            "Blocks stand on a table, some on top of others. A hand moves them, and holds one block at a time. A block "
            "is clear if nothing is on it and it is not held. The actions:",
            "- pick up the X block: the hand is empty, X is clear and on the table. The hand then holds X.",
            "- put down the X block: the hand holds X. X is then on the table, and the hand is empty.",
            "- unstack the X block from the Y block: the hand is empty, X is clear and on Y. The hand then holds X.",
            "- stack the X block on the Y block: the hand holds X, and Y is clear. X is then on Y, the hand is empty.",
            "Now the hand is empty, and:",
            *(_say(pair) for pair in problem["initial"]),
            "The goal is that the hand is empty, and:",
            *(_say(pair) for pair in problem["goal"]),
            f"The plan may have {problem['limit']} actions at most{'.' if self._has_spare() else _NO_FEWER}",
        ])  # fmt: skip

    def _has_spare(self) -> bool:
        """Return whether plans are known, or thinkable, that have fewer actions than allowed."""
        return len(self.problem["goal"]) < len(self._initial) or 2 * len(self._moves) < self.problem["limit"]

    def solution(self) -> str:
        """Return a plan."""
        actions = as_actions(self._initial, self._moves)
        return "\n" + "\n".join(map(_write, actions)) + "\n"

    def is_correct(self, answer: str) -> bool:
        """Carry the plan out."""
        if len(answer) > _MOST_CHARACTERS:
            raise InvalidActionError(f"the plan has over {_MOST_CHARACTERS} characters")
        lines = [line for line in _BETWEEN.split(answer) if line.strip() and not _HEADING.fullmatch(line.strip())]
        actions = [self._read(line) for line in lines]
        if not actions:
            raise InvalidActionError("the plan has no actions")
        if len(actions) > self.problem["limit"]:
            return False
        places = execute(self._initial, actions)
        return places is not None and all(places[block] == below for block, below in self.problem["goal"])

    def _read(self, line: str) -> Action:
        text = " ".join(
            re.sub(r"[*`\"'_()\[\]-]|(?<=[a-z]),", " ", _NUMBER.sub("", line.lower().strip())).split()
        ).strip(" .,")
        for verb, form in _FORMS:
            if match := form.fullmatch(text):
                block, other = (*match.groups(), "")[:2]
                for name in (block, other):
                    if name and name not in self._initial:
                        raise InvalidActionError(f"there is no {name[:40]} block")
                return verb, block, other
        raise InvalidActionError(f"{line.strip()[:60]!r} is not one of the four actions")

    def shortcuts(self) -> Mapping[str, str]:
        """Return the plans of players who do not think ahead."""
        plans = {name: as_actions(self._initial, moves) for name, moves in self._hasty_plans(self.problem).items()}
        return {name: self.write_answer("\n".join(map(_write, plan))) for name, plan in plans.items()}


def _draw_towers(random: Random, blocks: Sequence[str]) -> Places:
    """Draw towers of all blocks; each block begins a new one with a chance of about one in three."""
    places: Places = {}
    below = TABLE
    for block in shuffled(random, blocks):
        places[block] = TABLE if random() < 0.3 else below
        below = block
    return places


def _shortest_if_hidden(initial: Places, goal: Places, n_detours: int) -> list[Move] | None:
    """Return a shortest plan, if most blocks must move, so many twice, and no simple rule finds these; else None."""
    n_moving = n_misplaced(initial, goal)
    if n_moving < len(initial) - 3:
        return None
    hasty = len(tower_after_tower(initial, goal))
    for choose in _WAYS_OUT.values():
        if hasty <= n_moving + n_detours:
            return None
        hasty = min(hasty, len(with_one_way_out(initial, goal, choose)))
    moves = shortest_moves(initial, goal, hasty - 1)
    return moves if moves is not None and len(moves) >= n_moving + n_detours else None


def _plan(problem: Mapping[str, Any]) -> list[Move]:
    """Return a shortest plan, if the goal places all blocks; else one over the table."""
    initial, goal = dict(problem["initial"]), dict(problem["goal"])
    shortest = shortest_moves(initial, goal) if len(goal) == len(initial) else None
    return shortest or tower_after_tower(initial, goal)


def _hasty_plans(problem: Mapping[str, Any]) -> dict[str, list[Move]]:
    """Return what players plan who do not think ahead, by name."""
    initial, goals = dict(problem["initial"]), [(block, below) for block, below in problem["goal"]]
    goal = dict(goals)
    plans = {
        "the goals in their order": goal_after_goal(initial, goals),
        "the goals backwards": goal_after_goal(initial, goals[::-1]),
        "without a look at what is on top": without_clearing(initial, goal),
    }
    if len(goal) < len(initial):
        return plans
    plans["everything on the table first"] = tower_after_tower(initial, goal)
    for name, choose in _WAYS_OUT.items():
        plans[name] = with_one_way_out(initial, goal, choose)
    return plans


def _height(block: str, places: Mapping[str, str]) -> int:
    height = 0
    while block != TABLE:
        block, height = places[block], height + 1
    return height


_WAYS_OUT = {
    "the first block that can makes way": lambda blocks, places: blocks[0],
    "the last block that can makes way": lambda blocks, places: blocks[-1],
    "a block of the lowest tower makes way": lambda blocks, places: min(blocks, key=lambda b: _height(b, places)),
}


def _reaches(problem: Mapping[str, Any], moves: Sequence[Move]) -> bool:
    initial = dict(problem["initial"])
    places = execute(initial, as_actions(initial, moves))
    if places is None or 2 * len(moves) > problem["limit"]:
        return False
    return all(places[block] == below for block, below in problem["goal"])


def _check_towers(key: str, pairs: Sequence[Any]) -> None:
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            raise InvalidActionError(f'{key!r} must have pairs of a block and what it is on, such as ["red", "table"]')
        if not all(re.fullmatch(r"[a-z]{1,20}", name) for name in pair) or pair[0] == TABLE:
            raise InvalidActionError(f"the names of blocks must be words in small letters, none of them {TABLE!r}")
    places = dict(pairs)
    carrying = [below for below in places.values() if below != TABLE]
    if len(places) < len(pairs) or len(set(carrying)) < len(carrying):
        raise InvalidActionError(f"{key!r} has a block in two places, or two blocks on one")
    for block in places:
        below, steps = places[block], 0
        while below in places and steps <= len(places):
            below, steps = places[below], steps + 1
        if steps > len(places):
            raise InvalidActionError(f"{key!r} has blocks in a circle")


def _say(pair: Sequence[str]) -> str:
    block, below = pair
    return f"- the {block} block is on the {'table' if below == TABLE else f'{below} block'}"


def _write(action: Action) -> str:
    verb, block, other = action
    if not other:
        return f"{verb} the {block} block"
    return f"{verb} the {block} block {'on' if verb == 'stack' else 'from'} the {other} block"
