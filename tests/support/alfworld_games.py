"""Small games in the layout of `$ALFWORLD_DATA`, made from the logic that the package `alfworld` has."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from random import Random
from typing import Any

FOLDERS = {"train": "train", "validation": "valid_seen", "test": "valid_unseen"}
KINDS = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
_PLACES = ("Drawer", "Drawer", "Drawer", "Drawer", "Shelf", "Shelf", "Shelf", "Cabinet", "Cabinet", "Desk", "SideTable")
_DEVICES = ("Fridge", "Microwave", "SinkBasin")
_OPENABLE = ("Drawer", "Cabinet", "Fridge", "Microwave")
_THINGS = ("Mug", "Apple", "Cup", "Plate", "Bread", "Egg", "Potato", "Tomato")


def write_games(root: Path, kinds: list[str] | None = None, per_kind: int = 1, walkthroughs: bool = False) -> Path:
    """Write the games of all splits, and return the folder for `$ALFWORLD_DATA`.

    Args:
        root: An empty folder.
        kinds: Types of task; all by default.
        per_kind: Games of each type and split.
        walkthroughs: Whether to store the steps of a solution, which is known for `pick_and_place_simple`.
    """
    number = 0
    for folder in FOLDERS.values():
        for kind in kinds or KINDS:
            for _ in range(per_kind):
                number += 1
                write_game(root / "json_2.1.1" / folder, kind, number, walkthroughs)
    return root


def write_game(folder: Path, kind: str, number: int, walkthrough: bool = False, solvable: bool = True) -> Path:
    """Write one game, and return its file."""
    random = Random(number)
    thing, target = random.choice(_THINGS), random.choice(["Shelf", "Drawer", "Desk", "Cabinet"])
    unseen = ("Dresser", "Sofa") if folder.name == "valid_unseen" else ()  # another room than those of the train split
    places = [(name, _place_id(name, at)) for at, name in enumerate((*_PLACES, *_DEVICES, *unseen))]
    kinds_of_thing = [thing, thing, *(name for name in _THINGS if name != thing), "DeskLamp"]
    things = [(name, f"{name}_bar__minus_{at:02}_dot_50") for at, name in enumerate(kinds_of_thing)]
    starts = [place for place in places if place[0] not in (target, *_DEVICES)]
    init = ["(= (total-cost) 0)", "(atLocation agent1 loc_bar_0)"]
    for at, (name, place) in enumerate(places, 1):
        init += [f"(receptacleType {place} {name}Type)", f"(receptacleAtLocation {place} loc_bar_{at})"]
        init += [f"(openable {place})"] * (name in _OPENABLE)
    where = {}
    for name, item in things:
        there = (
            next(place for place in places if place[0] == "SideTable") if name == "DeskLamp" else random.choice(starts)
        )
        where[item] = there
        init += [f"(objectType {item} {name}Type)", f"(inReceptacle {item} {there[1]})"]
        init += [f"(objectAtLocation {item} loc_bar_{places.index(there) + 1})"]
        init += [f"({word} {item})" for word in _abilities(name)]
    init += [
        f"(canContain {place}Type {item}Type)" for place, _ in sorted(set(places)) for item in kinds_of_thing[1:-1]
    ]
    types = [f"{name}Type - otype" for name in (*kinds_of_thing[1:], "Knife", "ButterKnife")]
    types += [f"{name}Type - rtype" for name in dict.fromkeys(name for name, _ in places)]
    objects = ["agent1 - agent", *types, *(f"loc_bar_{at} - location" for at in range(len(places) + 1))]
    objects += [f"{item} - object" for _, item in things] + [f"{place} - receptacle" for _, place in places]
    logic = _logic()
    goal = logic["goals"][kind]["pddl"].replace("#", "-").format(obj=thing, recep=target, toggle="DeskLamp")
    problem = f"(define (problem trial_{number})\n(:domain alfred)\n(:objects\n" + "\n".join(objects) + "\n)\n(:init\n"
    task = logic["goals"][kind]["templates"][0].format(obj=thing.lower(), recep=target.lower(), toggle="desklamp")
    game: dict[str, Any] = {
        "pddl_domain": logic["domain"],
        "grammar": logic["grammar"].replace("UNKNOWN GOAL", task),
        "pddl_problem": problem + "\n".join(init) + f"\n)\n{goal}",
        "solvable": solvable,
        "walkthrough": _walkthrough(things[0][1], where, places, target) if walkthrough else None,
    }
    trial = folder / f"{kind}-{thing}-None-{target}-{number}" / f"trial_{number}"
    trial.mkdir(parents=True)
    (trial / "game.tw-pddl").write_text(json.dumps(game))
    parameters = {"object_target": thing, "parent_target": target, "toggle_target": "DeskLamp", "mrecep_target": ""}
    described = {"task_type": kind, "task_id": f"trial_{number}", "pddl_params": {**parameters, "object_sliced": False}}
    (trial / "traj_data.json").write_text(json.dumps(described))
    return trial / "game.tw-pddl"


def _place_id(name: str, at: int) -> str:
    if name == "SinkBasin":
        return f"Sink_bar__plus_{at:02}_dot_00_bar_SinkBasin"
    return f"{name}_bar__plus_{at:02}_dot_00"


def _abilities(name: str) -> list[str]:
    return ["toggleable"] if name == "DeskLamp" else ["pickupable", "cleanable", "heatable", "coolable"]


def _logic() -> dict[str, Any]:
    """Return the domain, the grammar and the goals of the package, without importing it."""
    spec = importlib.util.find_spec("alfworld")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    goals: dict[str, Any] = {}
    exec(compile((folder / "gen" / "goal_library.py").read_text(), "goal_library.py", "exec"), goals)
    data = folder / "data"
    return {
        "domain": (data / "alfred.pddl").read_text(),
        "grammar": (data / "alfred.twl2").read_text(),
        "goals": goals["gdict"],
    }


def _walkthrough(item: str, where: dict[str, Any], places: list[tuple[str, str]], target: str) -> list[str]:
    """Return the steps that put the first thing into the target."""
    start, end = where[item], next(place for place in places if place[0] == target)
    steps = [f"go to {_name(start, places)}"]
    steps += [f"open {_name(start, places)}"] * (start[0] in _OPENABLE)
    held = item.split("_")[0].lower()
    # The package numbers things of a kind from the last one in order of their names.
    steps += [f"take {held} 2 from {_name(start, places)}", f"go to {_name(end, places)}"]
    steps += [f"open {_name(end, places)}"] * (target in _OPENABLE)
    return [*steps, f"move {held} 2 to {_name(end, places)}"]


def _name(place: tuple[str, str], places: list[tuple[str, str]]) -> str:
    alike = sorted((other for other in places if other[0] == place[0]), reverse=True)
    return f"{place[0].lower()} {alike.index(place) + 1}"
