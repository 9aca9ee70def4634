"""Options that come from outside the core: for `collect`, `eval`, `doctor` and the trainings.

Each entry point of the group `llm_envs.options` is a module that has some of these:

- `add_arguments(parser, command)` adds options to "collect", "eval" or "doctor". Their default is None.
- `EXAMPLES` has lines for the end of their helps: {command: lines}.
- `PLAYED` is the option that `collect` and `eval` take in place of ENV. `read_played(arguments)` returns its
  environment, or None; `played_settings(arguments, played)` what identifies it in the settings of a run.
- `open_collector(arguments)` is `open_collector` of this module; it returns None if its options are unset.
- `examine(arguments)` returns what `doctor` also prints, as a function of (codec, colour) that returns what is wrong or
  None; or None.
- `TrainingOptions` is a dataclass. Its fields are options that trainings take in place of `--env`, and its method
  `played()` returns the environment, or None.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from llm_envs.cli.arguments import check_one
from llm_envs.cli.parser import Parser
from llm_envs.cli.policy_options import open_player
from llm_envs.registration import load_entry_points

__all__ = [
    "OPTION_GROUP",
    "add_room_arguments",
    "hooks",
    "in_place_of_env",
    "open_collector",
    "played_settings",
    "read_played",
]

OPTION_GROUP = "llm_envs.options"


@cache
def _rooms() -> tuple[Any, ...]:
    return tuple(load_entry_points(OPTION_GROUP).values())


def hooks(name: str) -> list[Any]:
    """Return an attribute of each module that has it."""
    return [getattr(room, name) for room in _rooms() if hasattr(room, name)]


def add_room_arguments(parser: Parser, command: str) -> None:
    """Add the options for a command, and their examples; `room_options` of the arguments has their destinations."""
    n = len(parser.actions)
    for add_arguments in hooks("add_arguments"):
        add_arguments(parser, command)
    parser.set_defaults(room_options=[action.dest for action in parser.actions[n:]])
    parser.epilog = "".join([parser.epilog or "", *(examples.get(command, "") for examples in hooks("EXAMPLES"))])


def in_place_of_env(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return {option: its value} of the options that stand in place of ENV."""
    return {option: getattr(arguments, option.removeprefix("--")) for option in hooks("PLAYED")}


def read_played(arguments: argparse.Namespace) -> Any:
    """Return the environment of the option that stands in place of ENV; None: ENV is given.

    Raises:
        InvalidConfigError: If both or neither are given, or the option cannot be read.
    """
    check_one({"ENV": arguments.envs} | in_place_of_env(arguments))
    return next((found for read in hooks("read_played") if (found := read(arguments)) is not None), None)


def played_settings(arguments: argparse.Namespace, played: Any) -> dict[str, Any]:
    """Return what identifies the environment of `read_played` in the settings of a run, as JSON types."""
    return {key: value for find in hooks("played_settings") for key, value in find(arguments, played).items()}


@contextmanager
def open_collector(arguments: argparse.Namespace) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the policy, and the arguments `codec` or `make_collector` of `collect_run`.

    Raises:
        InvalidConfigError: If the options contradict each other, or as `open_player` does.
    """
    for room in hooks("open_collector"):
        if (opened := room(arguments)) is not None:
            with opened as found:
                yield found
            return
    with open_player(arguments) as (policy, codec):
        yield policy, {"codec": codec}
