"""Shell completion: `llm-envs completion SHELL` prints the script, and `complete` answers the shell.

A shell requests completions by running `llm-envs` with `_ARGCOMPLETE` in its environment; only then is argcomplete
imported. Tasks and trainings are never imported. Task ids come from entry points, levels from the source of the task
on the line, and a training's options from its entry point in the group `llm_envs.train_options`.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from llm_envs.cli.parser import CommandParser, Grammar

__all__ = ["TRAIN_OPTIONS", "add_arguments", "complete", "levels", "run"]

TRAIN_OPTIONS = "llm_envs.train_options"
"""Entry-point group of what `llm-envs train NAME` takes: each loads to a function without arguments that returns
{option: its values, () if it takes none, None if any will do}, and imports little, since a shell waits for it."""

SHELLS = ("bash", "zsh", "fish")

EXAMPLES = """
examples:
  llm-envs completion bash      # once in ~/.bashrc:  eval "$(llm-envs completion bash)"
  llm-envs completion zsh       # once in ~/.zshrc:   eval "$(llm-envs completion zsh)"
  llm-envs completion fish      # once: llm-envs completion fish > ~/.config/fish/completions/llm-envs.fish
"""

_FILES = ("FILE", "RUN", "OUT", "RESULTS", "MODEL")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of {', '.join(SHELLS)}")
    parser.epilog = EXAMPLES


def run(arguments: argparse.Namespace) -> None:
    """Print the completion script."""
    import argcomplete

    print(argcomplete.shellcode(["llm-envs"], shell=arguments.shell))


def complete(parser: CommandParser) -> None:
    """Print the completions of the line and end the process.

    Args:
        parser: The parser of the whole command line.
    """
    import argcomplete

    Grammar.is_completing = True
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0)]
    *typed, word = line.split(" ")
    commands = _commands(parser)
    commands["train"] = _trainings(typed, word)
    for command in commands.values():
        if "_" in word:
            _spell_with_underscores(command)
        for action in command._actions:
            if (completer := _completer(action)) is not None:
                action.completer = completer
    argcomplete.autocomplete(
        parser,
        always_complete_options="long" if "train" in typed[:-1] else False,  # only options follow a training's name
        default_completer=argcomplete.completers.SuppressCompleter(),
    )


def _commands(parser: argparse.ArgumentParser) -> dict[str, Any]:
    (found,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return found._name_parser_map


def _trainings(typed: list[str], word: str) -> CommandParser:
    """Return a parser with each training, and of the one that is typed its options, spelled as `word` begins."""
    from llm_envs.cli.train import TRAIN_COMMANDS
    from llm_envs.registration import installed_entry_points

    parser = CommandParser(prog="llm-envs train")
    parser.add_argument("--debug", action="store_true")
    names = parser.add_subparsers(metavar="NAME")
    with_options = {found.name: found for found in installed_entry_points(TRAIN_OPTIONS) if found.name in typed}
    for found in installed_entry_points(TRAIN_COMMANDS):
        training = names.add_parser(found.name, add_help=False)
        options: Mapping[str, tuple[str, ...] | None] = {}
        if found.name in with_options:
            options = with_options[found.name].load()()
        for option, values in options.items():
            spelled = option.replace("_", "-") if "-" in word[2:] and "_" not in word else option
            if values == ():
                training.add_argument(spelled, action="store_true")
                continue
            action = training.add_argument(spelled, choices=values, nargs="?" if values == ("true", "false") else None)
            action.completer = _task_ids if option in ("--env", "--environment") else None  # type: ignore[attr-defined]
            if values is None and action.completer is None:  # type: ignore[attr-defined]
                action.completer = _files  # type: ignore[attr-defined]
    return parser


def _spell_with_underscores(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        for name in [name for name in action.option_strings if "-" in name[2:]]:
            spelled = f"--{name[2:].replace('-', '_')}"
            action.option_strings = [*action.option_strings, spelled]
            parser._option_string_actions[spelled] = action


def _completer(action: argparse.Action) -> Callable[..., Iterable[str]] | None:
    """Return the completer of an argument without fixed choices; None: no completion."""
    by_name: dict[str, Callable[..., Iterable[str]]] = {
        "difficulty": _levels_typed,
        "split": _splits,
        "family": _families,
        "namespace": _namespaces,
    }
    if action.dest in by_name and action.choices is None:
        return by_name[action.dest]
    if action.metavar == "ENV" or action.dest == "exclude":
        return _task_ids
    if action.metavar == "DIR":
        return _folders
    return _files if action.metavar in _FILES else None


def _files(prefix: str, **_: Any) -> Iterable[str]:
    from argcomplete.completers import FilesCompleter

    return FilesCompleter()(prefix)


def _folders(prefix: str, **_: Any) -> Iterable[str]:
    from argcomplete.completers import DirectoriesCompleter

    return DirectoriesCompleter()(prefix)


def _task_ids(**_: Any) -> list[str]:
    from llm_envs.registration import task_ids

    return task_ids()


def _families(**_: Any) -> list[str]:
    from llm_envs.checker.catalogue import family_of
    from llm_envs.registration import task_ids

    return sorted({family_of(task_id) for task_id in task_ids()})


def _namespaces(**_: Any) -> list[str]:
    return sorted({task_id.partition("/")[0] for task_id in _task_ids()})


def _splits(**_: Any) -> tuple[str, ...]:
    return ("train", "test")


def _levels_typed(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the levels of the tasks on the line, also after a comma."""
    one = getattr(parsed_args, "environment", None)
    typed = [one] if one is not None else getattr(parsed_args, "envs", None) or []
    before = prefix[: prefix.rfind(",") + 1]
    return [before + level for task_id in typed for level in levels(task_id) if level not in before.split(",")]


def levels(task_id: str) -> list[str]:
    """Return the names of a task's levels that its source lists, if any.

    Args:
        task_id: A task's id. The result is empty if it is not registered.
    """
    from llm_envs.errors import UnknownTaskError
    from llm_envs.registration import task_spec

    try:
        entry_point = task_spec(task_id).entry_point
    except UnknownTaskError:
        return []
    module, _, name = str(entry_point).partition(":")
    try:
        found = importlib.util.find_spec(module)
        tree = ast.parse(Path(str(found.origin)).read_bytes()) if found is not None else ast.Module([], [])
    except (ImportError, OSError, SyntaxError, ValueError):
        return []
    for node in tree.body:
        for item in node.body if isinstance(node, ast.ClassDef) and node.name == name else ():
            targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
            value = getattr(item, "value", None)
            if "difficulties" in [getattr(target, "id", None) for target in targets] and isinstance(value, ast.Dict):
                return [str(key.value) for key in value.keys if isinstance(key, ast.Constant)]
    return []
