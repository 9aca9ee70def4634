"""`llm-envs merge`: the shards that several machines played, as one run."""

from __future__ import annotations

import argparse

from llm_envs.cli.next_line import name_next
from llm_envs.errors import counted
from llm_envs.tracking.loggers import visible_text

__all__ = ["add_arguments", "run"]

EXAMPLES = """
examples:
  llm-envs merge runs/parts --out runs/merged
  llm-envs merge shard-0-of-2 shard-1-of-2 --out runs/merged
  llm-envs merge disk-a/parts disk-b/parts --out runs/merged
  llm-envs merge s3://bucket/parts --out s3://bucket/merged
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("runs", nargs="+", metavar="DIR", help="the --out of commands with --shard, or shards' folders")
    parser.add_argument("--out", required=True, metavar="DIR", help="output folder of the merged run")


def run(arguments: argparse.Namespace) -> int:
    """Merge, and return the exit code."""
    from llm_envs.data.shards import merge_runs

    n_episodes = merge_runs(arguments.runs, arguments.out)
    print(visible_text(f"{arguments.out} has {counted(n_episodes, 'episode')}"))
    name_next("report", arguments.out)
    return 0
