"""Progress on a terminal: a bar with live statistics, and a summary line at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llm_envs.rollout.stats import CollectorStats

__all__ = ["Progress", "show_progress"]

Progress = Callable[[CollectorStats, int], None]
"""Called after each finished episode with the statistics and how many episodes the call has in all."""


@contextmanager
def show_progress(progress: bool | Progress, stats: CollectorStats, total: int) -> Iterator[Callable[[], None]]:
    """Give a function to be called after each finished episode.

    Args:
        progress: True shows a bar on a terminal and nothing elsewhere, False nothing; a function is called itself.
        stats: Statistics to show.
        total: Episodes to come.
    """
    if callable(progress):
        yield lambda: progress(stats, total)
    elif progress and sys.stderr.isatty():
        with _bar(stats, total) as show:
            yield show
        print(stats.summary(), file=sys.stderr)
    else:
        yield lambda: None


@contextmanager
def _bar(stats: CollectorStats, total: int) -> Iterator[Callable[[], None]]:
    try:
        from tqdm import tqdm
    except ImportError:  # it comes with the extra `train`; without it the summary line has to do
        yield lambda: None
        return
    with tqdm(total=total, unit="episode", desc="rollout", dynamic_ncols=True, leave=False) as bar:

        def show() -> None:
            scored = max(stats.scored, 1)
            errors = f", {stats.errored} errors" if stats.errored else ""
            text = f"success {stats.successes / scored:.0%}, reward {stats.reward / scored:.3g}{errors}"
            bar.set_postfix_str(text, refresh=False)
            bar.update()

        yield show
