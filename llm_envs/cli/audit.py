"""`llm-envs audit RUN`: compute again what a training stored. The audit itself is in a package of the trainings."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from llm_envs.cli.parser import Flag
from llm_envs.errors import InvalidConfigError

__all__ = ["AUDIT_COMMAND", "add_arguments", "run"]

AUDIT_COMMAND = "llm_envs.audit_command"
"""Entry-point group of the function that runs the audit: from the parsed arguments to an exit code."""

EXAMPLES = """
examples:
  llm-envs audit runs/grpo
  llm-envs audit runs/grpo --model DIR --json
  llm-envs audit runs/grpo --rewards my_rewards:REWARDS --algorithm my_algorithms:MINE

Exit codes: 0 if nothing differs, 1 if something does, 2 if the folder is not a training's.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", metavar="RUN", help="output folder of a training")
    parser.add_argument(
        "--model", metavar="DIR", help="model checkpoint that the training began with; default: as it named"
    )
    parser.add_argument("--rewards", metavar="MODULE:NAME", help="the training's RewardSettings, if it had functions")
    parser.add_argument(
        "--algorithm", metavar="NAME", help="a published algorithm, or module:NAME, if it had functions of yours"
    )
    parser.add_argument(
        "--tolerance", type=float, metavar="NATS", help="of a log-probability; default: the noise of the run"
    )
    parser.add_argument("--json", action=Flag, help="print the result as JSON")
    parser.epilog = EXAMPLES


def run(arguments: argparse.Namespace) -> int:
    """Pass the arguments on to the package of the trainings."""
    from llm_envs.registration import installed_entry_points

    found = installed_entry_points(AUDIT_COMMAND)
    if not found:
        raise InvalidConfigError(f"no audit is installed: no package fills the entry-point group {AUDIT_COMMAND!r}.")
    command: Callable[[argparse.Namespace], int] = found[0].load()
    return command(arguments)
