"""The last line of a command that leaves something: the command to run next."""

from __future__ import annotations

import shlex
import sys

from llm_envs.tracking.loggers import visible_text

__all__ = ["name_merge", "name_next", "name_page"]


def name_next(*words: object) -> None:
    """Print a command of `llm-envs` on standard error, quoted for a shell. Standard output has results only.

    Args:
        *words: The words behind `llm-envs`.
    """
    _print("llm-envs", *words)


def name_merge(shard: str) -> None:
    """Print the command that merges a shard's folder with the other shards, once all are played."""
    folder = shard.rstrip("/").rpartition("/")[0] or "."
    name_next("merge", folder, "--out", f"{folder}-merged" if folder != "." else "merged")


def name_page(page: object) -> None:
    """Print the command that opens a page."""
    _print("python", "-m", "webbrowser", page)


def _print(*words: object) -> None:
    print(visible_text(f"next: {shlex.join(map(str, words))}"), file=sys.stderr, flush=True)
