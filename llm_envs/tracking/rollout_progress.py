"""Progress on a terminal: a bar with live statistics, and a summary line at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llm_envs.tracking.progress import live_progress
from llm_envs.tracking.stats import CollectorStats

__all__ = ["Progress", "show_progress"]

Progress = Callable[[CollectorStats, int], None]
"""Called after each finished episode with the statistics and the call's total number of episodes."""


@contextmanager
def show_progress(progress: bool | Progress, stats: CollectorStats, total: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each finished episode.

    Args:
        progress: True shows a bar on a terminal and nothing elsewhere, False nothing; a function is called itself.
        stats: Statistics to show.
        total: Episodes to come.
    """
    if callable(progress):
        yield lambda: progress(stats, total)
    elif progress and sys.stderr.isatty():
        with live_progress(stats, total):
            yield lambda: None
        print(stats.summary(), file=sys.stderr)
    else:
        yield lambda: None
