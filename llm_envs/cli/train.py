"""`llm-envs train NAME`: the way to the trainings, which other packages, ours among them, put under it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import EntryPoint

from llm_envs.errors import InvalidConfigError, did_you_mean

__all__ = ["TRAIN_COMMANDS", "add_arguments", "run"]

TRAIN_COMMANDS = "llm_envs.train_commands"
"""Entry-point group of `llm-envs train NAME`. Each entry point is a function from the list of arguments after NAME to
an exit code or None."""

EXAMPLES = """
examples:
  llm-envs train
  llm-envs train grpo --help
  llm-envs train grpo --env llm/Calculator-v0 --model DIR --output-dir runs/grpo --max-steps 20
  llm-envs train sft --config run.yaml --learning-rate 1e-5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the training, such as grpo")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the training's options: try --help after NAME")


def run(arguments: argparse.Namespace) -> int | None:
    """Pass the arguments to the training, or print the names of all trainings."""
    from llm_envs.registration import installed_entry_points

    commands: dict[str, EntryPoint] = {found.name: found for found in installed_entry_points(TRAIN_COMMANDS)}
    if not commands:
        raise InvalidConfigError(
            f"no training is installed: no package fills the entry-point group {TRAIN_COMMANDS!r}. "
            "From Python: llm_envs.trainers."
        )
    if arguments.name is None:
        print("\n".join(sorted(commands)))
        return 0
    if arguments.name not in commands:
        near = did_you_mean(arguments.name, sorted(commands))
        raise InvalidConfigError(
            f"there is no training {arguments.name!r}; there are {', '.join(sorted(commands))}.{near}"
        )
    command: Callable[[list[str]], int | None] = commands[arguments.name].load()
    return command(list(arguments.arguments))
