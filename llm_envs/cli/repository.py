"""`llm-envs repository prepare`: problems for `llm/Repository-v0` from a real project."""

from __future__ import annotations

import argparse
import json

from llm_envs.cli.arguments import positive
from llm_envs.cli.next_line import name_next
from llm_envs.cli.parser import Repeatable

__all__ = ["add_arguments", "run"]

EXAMPLES = """
examples:
  llm-envs repository prepare toolz==1.0.0 --out problems/toolz
  llm-envs repository prepare ~/src/project --out problems/project -n 200 --needs hypothesis
  llm-envs repository prepare https://host/owner/project.git --out problems/project

A second call with the same --out continues the first one.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("action", choices=["prepare"], help="make problems")
    parser.add_argument("source", metavar="PROJECT", help="a folder, a git repository, or NAME==VERSION")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the problems")
    parser.add_argument(
        "-n",
        type=positive,
        default=50,
        metavar="N",
        dest="problems",
        help="problems of one mistake; half as many have two",
    )
    parser.add_argument(
        "--needs",
        action=Repeatable,
        metavar="NAME",
        help="an installed distribution that the tests import (repeatable)",
    )
    parser.add_argument("--runtime", default="namespaces", metavar="NAME", help="of the shells that run the tests")
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed that decides which mistakes are tried first; default 0"
    )


def run(arguments: argparse.Namespace) -> None:
    """Prepare, and print the yield."""
    from dataclasses import asdict

    from llm_envs.tasks.repository.preparing import prepare_repository

    found = prepare_repository(
        arguments.source,
        arguments.out,
        problems=arguments.problems,
        needs=arguments.needs or (),
        runtime=arguments.runtime,
        seed=arguments.seed,
        report=lambda line: print(line, flush=True),
    )
    print(", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in asdict(found).items()))
    given = json.dumps({"problems": arguments.out})
    name_next("play", "llm/Repository-v0", "--env-kwargs", given)
