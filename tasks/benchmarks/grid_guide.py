"""The oracle of MiniGrid's levels: BabyAI's own bot, in a copy of the world in which it repeats the agent's actions.

The bot remembers the cells that the agent has seen. It plans through these, goes to things in these, and explores where
none is known. It asks the world about other cells only to find the things that a mission means: "on your left" is
their place at the start.
"""

from __future__ import annotations

import re
from typing import Any

from llm_envs.errors import InvalidConfigError

__all__ = ["Guide"]

_FORWARD, _DONE = 2, 6
_THING = re.compile(r"(?:an? |the )?(?:(red|green|blue|purple|yellow|grey) )?(key|ball|box|door|goal)")
_PICK_UP = re.compile(r"(?:get a|go get a|fetch a|go fetch a|you must fetch a|pick up the) (.*)")
_OPEN = re.compile(r"open the (.*)")
_GO_TO = re.compile(r"go to the (.*)")
_PUT_NEAR = re.compile(r"put the (.*) near the (.*)")


class Guide:
    """Suggests the next action.

    Args:
        world: A world in its first state, which the guide keeps.

    Raises:
        InvalidConfigError: If the bot does not know the level's missions.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self._ends_on_goal = _prepare(world)
        self._bot = _new_bot(world)
        self.action = self._ask(None)

    def follow(self, action: int) -> None:
        """Repeat an action of the agent."""
        self._world.step(action)
        self.action = self._ask(action)

    def _ask(self, taken: int | None) -> int:
        """Ask the bot; if it fails or its plan is done, ask a new one that has seen as much."""
        if self._ends_on_goal and _type_ahead(self._world) == "goal":
            return _FORWARD
        for _ in range(2):
            try:
                suggested = int(self._bot.replan(taken))
            except Exception:  # its assertions and its error for an opened box, where the agent left its plan
                suggested = _DONE
            if suggested != _DONE:
                return suggested
            seen = self._bot.vis_mask
            self._bot, taken = _new_bot(self._world), None
            self._bot.vis_mask = seen
        return _DONE


def _new_bot(world: Any) -> Any:
    from minigrid.utils.baby_ai_bot import BabyAIBot

    return BabyAIBot(world)


def _type_ahead(world: Any) -> str | None:
    ahead = world.grid.get(*world.front_pos)
    return None if ahead is None else str(ahead.type)


def _prepare(world: Any) -> bool:
    """Give a world without BabyAI's instructions those of its mission; return whether it ends on the goal."""
    from minigrid.envs.babyai.core import verifier

    if hasattr(world, "instrs"):
        return False
    if not hasattr(world, "room_from_pos"):
        world.room_from_pos = lambda *place: None  # what descriptions with a location would need
    for place, cell in enumerate(world.grid.grid):
        if cell is not None and cell.cur_pos is None:
            cell.cur_pos = (place % world.width, place // world.width)  # some levels set none for doors
        if cell is not None and cell.type == "lava":
            cell.type = "wall"  # the bot would try to carry lava out of its way; it still sees across
    mission, ends_on_goal = world.mission, False
    if mission == "open the red door then the blue door":
        red, blue = _thing(world, "red door"), _thing(world, "blue door")
        world.instrs = verifier.BeforeInstr(verifier.OpenInstr(red), verifier.OpenInstr(blue))
    elif found := _PUT_NEAR.fullmatch(mission):
        world.instrs = verifier.PutNextInstr(_thing(world, found[1]), _thing(world, found[2]))
    elif found := _PICK_UP.fullmatch(mission):
        world.instrs = verifier.PickupInstr(_thing(world, found[1]))
    elif found := _OPEN.fullmatch(mission):
        world.instrs = verifier.OpenInstr(_thing(world, found[1]))
    elif "goal" in mission:
        world.instrs, ends_on_goal = verifier.GoToInstr(_thing(world, "goal")), True
    elif found := _GO_TO.fullmatch(mission):
        world.instrs = verifier.GoToInstr(_thing(world, found[1]))
    else:
        raise InvalidConfigError(f"the mission {mission!r} has no oracle.")
    return ends_on_goal


def _thing(world: Any, words: str) -> Any:
    """Return BabyAI's description of a thing such as "red ball", with what it means in this world."""
    from minigrid.envs.babyai.core.verifier import ObjDesc

    found = _THING.fullmatch(words)
    if found is None:
        raise InvalidConfigError(f"the mission {world.mission!r} has no oracle: it knows no {words!r}.")
    description = ObjDesc(None, found[1])
    description.type = found[2]
    description.find_matching_objs(world)
    return description
