"""Shell completion: `llm-envs completion SHELL` prints the script, and `complete` answers the shell.

A shell requests completions by running `llm-envs` with `_ARGCOMPLETE` in its environment; only then is argcomplete
imported. Task ids come from entry points; levels from the task on the line, which is imported; the options of a
training from its entry point in the group `llm_envs.train_options`, kept in a file per installed version.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from pathlib import Path
from typing import Any

from llm_envs.cli.parser import Parser

__all__ = ["TRAIN_OPTIONS", "add_arguments", "complete", "levels", "run"]

TRAIN_OPTIONS = "llm_envs.train_options"
"""Entry-point group of what `llm-envs train NAME` takes: each loads to a function without arguments that returns
{option: its values, () if it takes none, None if any will do}. It is called once per version of the packages below."""

_VERSIONED = ("llm-envs", "trl", "transformers")
"""Packages whose versions decide the options of a training."""

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


def run(arguments: argparse.Namespace) -> None:
    """Print the completion script."""
    import argcomplete

    print(argcomplete.shellcode(["llm-envs"], shell=arguments.shell))


def complete(parser: Parser) -> None:
    """Print the completions of the line and end the process.

    Args:
        parser: The parser of the command line.
    """
    import argcomplete

    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0)]
    before, _, word = line.rpartition(" ")
    typed = before.split()
    if word.startswith("--") and "=" not in word:  # the parsers know the spelling with dashes
        os.environ["COMP_LINE"] = f"{before} {word.replace('_', '-')}"
    if "train" in typed:
        parser = _trainings(typed)
    for command in parser.commands.values():
        for action in command.actions:
            if (completer := _completer(action)) is not None:
                action.completer = completer  # type: ignore[attr-defined]
    argcomplete.autocomplete(
        parser,
        always_complete_options="long" if "train" in typed else False,  # only options follow a training's name
        default_completer=argcomplete.completers.SuppressCompleter(),
    )


def _trainings(typed: Sequence[str]) -> Parser:
    """Return a parser of `train` with each training, and the options of the one that is typed."""
    from llm_envs.cli.train import TRAIN_COMMANDS
    from llm_envs.registration import installed_entry_points

    parser = Parser(prog="llm-envs")
    names = parser.add_subparsers().add_parser("train", add_help=False).add_subparsers()
    parser.commands = {
        found.name: names.add_parser(found.name, add_help=False) for found in installed_entry_points(TRAIN_COMMANDS)
    }
    for found in installed_entry_points(TRAIN_OPTIONS):
        if found.name in typed and found.name in parser.commands:
            for option, values in _options(found).items():
                kwargs: dict[str, Any] = {"action": "store_true"}
                if values is None:
                    kwargs = {"metavar": "ENV" if option == "--env" else "FILE"}
                elif values:
                    kwargs = {"choices": values, "nargs": "?" if "true" in values else None}
                parser.commands[found.name].add_argument(option, **kwargs)
    return parser


def _options(found: EntryPoint) -> Mapping[str, Sequence[str] | None]:
    """Return the options of a training, from a file of an earlier completion if there is one: TRL loads for seconds."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llm-envs"
    path = folder / f"options-{found.name}-{'-'.join(map(_version, _VERSIONED))}.json"
    with contextlib.suppress(OSError, ValueError):
        kept: dict[str, Sequence[str] | None] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    asking = os.environ.pop("_ARGCOMPLETE")  # the training's parser must not complete
    options: dict[str, Sequence[str] | None] = found.load()()
    os.environ["_ARGCOMPLETE"] = asking
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(options), encoding="utf-8")
    return options


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _completer(action: argparse.Action) -> Callable[..., Iterable[str]] | None:
    """Return the completer of an argument without fixed choices; None: no completion."""
    from argcomplete.completers import DirectoriesCompleter, FilesCompleter

    metavar = str(action.metavar)
    if action.choices is not None:
        return None
    if action.dest in _BY_NAME:
        return _BY_NAME[action.dest]
    if metavar == "ENV":
        return _task_ids
    if metavar == "DIR":
        return DirectoriesCompleter()
    return FilesCompleter() if metavar in _FILES else None


def _task_ids(**_: Any) -> list[str]:
    from llm_envs.registration import task_ids

    return task_ids()


def _families(**_: Any) -> list[str]:
    from llm_envs.checker.catalogue import family_of

    return sorted(set(map(family_of, _task_ids())))


def _levels_typed(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the levels of the tasks on the line, also after a comma."""
    one = getattr(parsed_args, "env", None)
    typed = [one] if one is not None else getattr(parsed_args, "envs", None) or []
    before = prefix[: prefix.rfind(",") + 1]
    return [before + level for task_id in typed for level in levels(task_id) if level not in before.split(",")]


def levels(task_id: str) -> list[str]:
    """Return the names of a task's levels.

    Args:
        task_id: A task's id. The result is empty if it is not registered, has no levels, or cannot be imported.
    """
    from gymnasium.envs.registration import load_env_creator

    from llm_envs.registration import task_spec

    try:
        entry_point = task_spec(task_id).entry_point
        return list(getattr(load_env_creator(str(entry_point)), "difficulties", ()))
    except Exception:  # an import may raise anything
        return []


_BY_NAME: dict[str, Callable[..., Iterable[str]]] = {
    "difficulty": _levels_typed,
    "exclude": _task_ids,
    "family": _families,
    "namespace": lambda **_: sorted({task_id.partition("/")[0] for task_id in _task_ids()}),
    "split": lambda **_: ("train", "test"),
}
"""Destination of an argument -> its completer."""
