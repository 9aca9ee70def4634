"""`--config FILE`: the options of a command from YAML, as TRL's trainers read theirs.

    environment: llm/Calculator-v0   # arguments too, by the names that --help gives them
    n: 20
    max-new-tokens: 64               # with dashes or underscores
    env: {HF_HUB_OFFLINE: 1}         # variables of the process

The command line overrides the file. Values are checked as on the command line, with the same errors.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_envs.cli.parser import CommandParser, Grammar
from llm_envs.errors import InvalidConfigError, did_you_mean

__all__ = ["add_config_argument", "apply_config", "read_yaml", "set_process_environment", "take_config"]

_JOINED = {"difficulty": ",", "server_args": " "}
"""Options that take several values in one text -> the separator. In a file they may also be lists."""

_NO_KEYS = ("h", "help", "config", "debug", "env")
"""Options that only the command line has. (`env` has a different meaning in a file.)"""


def add_config_argument(parser: CommandParser) -> None:
    """Add the option `--config FILE` to a command."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with options; the command line overrides it")
    parser.read_config = apply_config


def take_config(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the file that `--config` names, or None, and the other arguments.

    Raises:
        InvalidConfigError: If `--config` has no value, or is given twice.
    """
    rest: list[str] = []
    path: str | None = None
    left = list(arguments)
    while left:
        argument = left.pop(0)
        if argument == "--":
            return path, [*rest, argument, *left]
        name, equals, value = argument.partition("=")
        if name != "--config":
            rest.append(argument)
            continue
        if not equals:
            if not left:
                raise InvalidConfigError("--config needs a YAML file.")
            value = left.pop(0)
        if path is not None:
            raise InvalidConfigError(f"--config is given twice, {path} and {value}: give one file.")
        path = value
    return path, rest


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that contains a mapping.

    Raises:
        InvalidConfigError: If the file cannot be read, or contains anything else. (An empty file contains None.)
    """
    import yaml  # type: ignore[import-untyped]

    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # an impossible date is a ValueError
        raise InvalidConfigError(f"--config {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InvalidConfigError(f"--config {path} has {content!r:.80}; it must be a mapping, `option: value` a line.")
    return {str(key): value for key, value in content.items()}


def set_process_environment(variables: Any, path: str | Path | None, played: str = "environment") -> None:
    """Set the environment variables that a YAML file lists under `env`, as TRL does.

    Args:
        variables: The value of `env` in the file; None if the file does not have the key.
        path: The file.
        played: The key for the environment to play. The error message suggests it.

    Raises:
        InvalidConfigError: If `variables` is not a mapping, or a variable cannot be set.
    """
    if variables is not None and not isinstance(variables, Mapping):
        raise InvalidConfigError(
            f"{path}: env is {variables!r:.80}: there it is a mapping of the process's environment variables, as in "
            f"TRL. What is played is `{played}:`."
        )
    for key, value in (variables or {}).items():
        try:
            os.environ[str(key)] = str(value)
        except (OSError, ValueError) as error:
            raise InvalidConfigError(f"{path}: env: {str(key)!r} is no variable that can be set ({error}).") from error


def apply_config(parser: CommandParser, arguments: Sequence[str], off: Collection[str] = ()) -> list[str]:
    """Set the defaults of a parser from `--config FILE`; return the remaining arguments.

    Args:
        parser: The parser of a command.
        arguments: The command's arguments, with its options spelled as the parser defines them.
        off: Destinations of the flags that the command line turns off.

    Raises:
        InvalidConfigError: If the file cannot be read, a key is unknown, or a value is refused.
    """
    path, rest = take_config(arguments)
    if path is None:
        return rest
    values = read_yaml(path)
    variables = values.pop("env", None)
    actions = _actions_by_key(parser)
    played = next((key for key in ("environment", "envs") if key in actions), "environment")
    if not isinstance(variables, Mapping):
        set_process_environment(variables, path, played)
    given = _parsed(parser, rest)
    try:
        found = _read(parser, actions, values)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{path}: {error}") from error
    won = {*given, *off, *_excluded(parser, given)}
    for action in parser._actions:
        if action.dest in found and action.dest not in won:
            action.default, action.required = found[action.dest], False
            if not action.option_strings:
                action.nargs = _relaxed(action)
    set_process_environment(variables, path, played)
    return rest


def _actions_by_key(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the parser's actions by their keys in a file, written with underscores."""
    actions: dict[str, argparse.Action] = {}
    for action in parser._actions:
        names = [name.lstrip("-") for name in action.option_strings]
        if not names:
            names = [action.dest, str(action.metavar or action.dest).lower()]
        for name in names:
            if name not in _NO_KEYS:
                actions.setdefault(name.replace("-", "_"), action)
    return actions


def _read(parser: CommandParser, actions: Mapping[str, argparse.Action], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a file by destination, converted and checked."""
    options: list[str] = []
    found: dict[str, Any] = {}
    for key, value in values.items():
        action = actions.get(key.replace("-", "_"))
        if action is None:
            near = did_you_mean(key, sorted(actions)) or f" There are {', '.join(sorted(actions))}."
            raise InvalidConfigError(f"{key}: there is no such option.{near}")
        texts = [] if value is None else _as_given(action, key, value)
        if action.option_strings:
            options += texts
        elif texts:
            found[action.dest] = texts if action.nargs in ("+", "*") else texts[0]
    return found | _parsed(parser, options)


def _as_given(action: argparse.Action, key: str, value: Any) -> list[str]:
    """Return the command-line arguments that are equivalent to a line of a file.

    Raises:
        InvalidConfigError: If the option does not accept such a value.
    """
    name = max(action.option_strings, key=len, default="")
    if isinstance(action, argparse._StoreTrueAction | argparse._StoreConstAction):
        if not isinstance(value, bool):
            raise InvalidConfigError(f"{key} is {value!r}; it is a flag, true or false.")
        return [name] if value else []
    if isinstance(value, list) and action.dest in _JOINED and action.nargs is None:
        value = _JOINED[action.dest].join(map(str, value))
    is_many = action.nargs in ("+", "*") or isinstance(action, argparse._AppendAction)
    if isinstance(value, list) and not is_many:
        raise InvalidConfigError(f"{key} is a list of {len(value)}; it takes one value.")
    texts = [_as_text(action, key, item) for item in (value if isinstance(value, list) else [value])]
    if not name:
        return texts
    if action.nargs in ("+", "*"):
        return [name, *texts]
    return [f"{name}={text}" for text in texts]


def _as_text(action: argparse.Action, key: str, value: Any) -> str:
    """Return a value as it would be written on the command line."""
    if isinstance(value, bool) and action.choices is not None:  # YAML reads `on` and `off` as truth values
        value = "on" if value else "off"
    if isinstance(value, Mapping):
        if getattr(action.type, "__name__", "") != "json_object":
            raise InvalidConfigError(f"{key} is a mapping; it takes one value.")
        return json.dumps(value)
    if isinstance(value, list):
        raise InvalidConfigError(f"{key} has a list inside a list.")
    return str(value)


def _parsed(parser: CommandParser, arguments: Sequence[str]) -> dict[str, Any]:
    """Parse, convert and check the given arguments. Defaults are left out, and required arguments may be missing."""
    with _nothing_required(parser):
        namespace, further = Grammar.parse_known_args(parser, arguments, argparse.Namespace())
    if further:
        parser.error(f"{further[0]}: unexpected argument")
    return {name: value for name, value in vars(namespace).items() if name not in parser._defaults}


@contextmanager
def _nothing_required(parser: argparse.ArgumentParser) -> Iterator[None]:
    before = [(action, action.default, action.required, action.nargs) for action in parser._actions]
    for action in parser._actions:
        action.default, action.required = argparse.SUPPRESS, False
        if not action.option_strings:
            action.nargs = _relaxed(action)
    try:
        yield
    finally:
        for action, default, required, nargs in before:
            action.default, action.required, action.nargs = default, required, nargs


def _relaxed(action: argparse.Action) -> Any:
    """Return the `nargs` of a positional argument made optional."""
    return "?" if action.nargs is None else "*" if action.nargs == "+" else action.nargs


def _excluded(parser: argparse.ArgumentParser, given: Collection[str]) -> set[str]:
    """Return the destinations of all options in a mutually exclusive group with a given option."""
    groups = [{action.dest for action in group._group_actions} for group in parser._mutually_exclusive_groups]
    return {dest for group in groups if group & set(given) for dest in group}
