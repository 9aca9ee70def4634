"""`llm-envs audit RUN`: compute again what a training stored. `llm_envs.trainers.cli.audit` does it."""

from __future__ import annotations

import argparse

from llm_envs.cli.parser import Flag

__all__ = ["ABOUT", "add_arguments", "run"]

ABOUT = "Compute again what a training stored, and name the first difference."

EXAMPLES = """
examples:
  llm-envs audit runs/grpo
  llm-envs audit runs/grpo --model DIR --json
  llm-envs audit runs/grpo --rewards mine.py:REWARDS --algorithm mine.py:ALGORITHM

Exit codes: 0 if nothing differs, 1 if something does, 2 if the folder is not a training's.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", metavar="RUN", help="output folder of a training")
    parser.add_argument(
        "--model", metavar="DIR", help="model checkpoint that the training began with; default: as it named"
    )
    parser.add_argument("--rewards", metavar="FILE:NAME", help="the run's rewards, if it had functions of yours")
    parser.add_argument(
        "--algorithm", metavar="NAME", help="a published algorithm, or FILE.py:NAME, if it had functions of yours"
    )
    parser.add_argument(
        "--tolerance", type=float, metavar="NATS", help="of a log-probability; default: the noise of the run"
    )
    parser.add_argument("--json", action=Flag, help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Audit, and return the exit code."""
    from llm_envs.trainers.cli.audit.command import run

    return run(arguments)
