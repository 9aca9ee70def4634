"""The games of `alf_world.py`: TextWorld's engine of planning problems, and the names of things that ALFWorld gives.

`child.py` runs it in a process with limits. It imports nothing of this package.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

MAY_COMPILE = True
"""The engine evaluates expressions of the game's grammar. A command is only compared with the commands that apply."""
_MOST_TRANSLATIONS = 32
"""Translations that are kept; a game has two."""
_NO_WARNINGS = ("UnsupportedGameWarning", "TruncatedInputActionWarning")
_game: Any = None
_loaded: dict[str, Any] = {"path": None, "commands": [], "state": None, "walkthrough": [], "forms": ""}


def load() -> None:
    """Import the engine and its planner."""
    global _game
    # TextWorld imports the player of another kind of game, which must be compiled and is not used here.
    jericho: Any = ModuleType("jericho")
    for name in _NO_WARNINGS:
        setattr(jericho, name, type(name, (UserWarning,), {}))
    sys.modules["jericho"] = jericho
    # A game is translated when it is loaded, when it is reset, and each time that it is played again.
    planner: Any = importlib.import_module("fast_downward")
    planner.pddl2sas = functools.lru_cache(_MOST_TRANSLATIONS)(planner.pddl2sas)
    textworld: Any = importlib.import_module("textworld")
    envs: Any = importlib.import_module("textworld.envs")
    named: Any = importlib.import_module("alfworld.agents.environment.alfred_tw_env")
    _game = named.AlfredDemangler(envs.PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True)))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Play a game up to a point, and describe the point.

    Args:
        request: `game`, the path of a game's file; `commands`, all commands until now; and `plan`, true for commands
            that solve the game from here.

    Returns:
        `text` (the game's answer to the last command), `is_won`, `admissible` (the commands that apply), `forms` (the
        game's help) and, if it was asked for, `plan`.
    """
    path, commands = request["game"], request["commands"]
    done = len(_loaded["commands"])
    if _loaded["path"] != path or _loaded["commands"] != commands[:done]:
        _start(path)
        done = 0
    for command in commands[done:]:
        # Some names of things end with a space.
        exact = {" ".join(known.split()): known for known in _loaded["state"]["admissible_commands"]}
        _loaded["state"] = _game.step(exact.get(command, command))[0]
        _loaded["commands"].append(command)
    state = _loaded["state"]
    described = {
        "text": state["feedback"].strip(),
        "is_won": bool(state["won"]),
        "admissible": [" ".join(command.split()) for command in state["admissible_commands"]],
        "forms": _loaded["forms"],
    }
    return described | ({"plan": _plan(commands)} if request["plan"] else {})


def _start(path: str) -> None:
    _loaded.update(path=None, commands=[])
    _game.load(path)
    _loaded["state"] = _game.reset()
    context = {"state": _game._pddl_state, "facts": [], "variables": {}, "mapping": {}, "entity_infos": {}}
    game = json.loads(Path(path).read_text(encoding="utf-8"))
    _loaded.update(
        path=path,
        walkthrough=list(game.get("walkthrough") or []),
        forms=_game._logic.grammar.derive("#help.feedback#", context).strip(),
    )


def _plan(commands: list[str]) -> list[str]:
    """Return the rest of the game's walkthrough; after other commands than its first ones, a plan of the planner."""
    walkthrough, n = _loaded["walkthrough"], len(commands)
    if walkthrough[:n] == commands and n < len(walkthrough):
        rest: list[str] = walkthrough[n:]
        return rest
    found = _game._pddl_state.replan(_game._entity_infos)
    return [" ".join(command.split()) for command in found]
