"""How a collection goes on, shown while it does: a live bar on a terminal, a line at times elsewhere.

Nothing is written but that: without a terminal there are no control characters, and where `TERM` is dumb there is none.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from llm_envs.reporting import visible_text

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    from llm_envs.rollout.stats import CollectorStats

__all__ = ["can_draw", "live_progress", "progress_line", "since"]

BAR_WIDTHS = {110: 24, 72: 12, 0: 0}
"""Columns of a terminal, at least -> of the bar: the words come first."""


def can_draw(stream: TextIO) -> bool:
    """Say whether a stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


@contextmanager
def live_progress(
    stats: CollectorStats,
    total: int,
    done: int = 0,
    *,
    stream: TextIO | None = None,
    every_s: float | None = None,
) -> Iterator[None]:
    """Show how a collection goes on, also while no episode ends: a live bar on a terminal, else a line at times.

    The bar is gone at the end, whatever ends the block, and so is what hid the cursor.

    Args:
        stats: Of the collector that is playing; read from a thread. What was counted before the block is left out.
        total: Episodes in all.
        done: Episodes that were there before.
        stream: Where to; None is standard error.
        every_s: Seconds between two showings; None is 0.2 on a terminal, else 5.
    """
    out = stream or sys.stderr
    before, start = since(stats, None), time.perf_counter()

    def now() -> CollectorStats:
        return since(stats, before)

    def line() -> str:
        return progress_line(now(), total, done, time.perf_counter() - start)

    if can_draw(out):
        with _bar(out, line, lambda: done + now().accepted, total, 0.2 if every_s is None else every_s):
            yield
    else:
        with _lines(out, line, 5.0 if every_s is None else every_s):
            yield


def progress_line(stats: CollectorStats, total: int, done: int, elapsed_s: float) -> str:
    """Return one line about a collection that is going on; `live_progress` shows it.

    Args:
        stats: What was counted in `elapsed_s`.
        total: Episodes in all.
        done: Episodes that were there before.
        elapsed_s: Seconds since then.
    """
    now = done + stats.accepted
    parts = [f"{now}/{total} episodes"]
    rate = stats.accepted / elapsed_s if elapsed_s > 0 else 0.0
    if rate > 0:
        left = round(max(total - now, 0) / rate)
        parts += [f"{rate:.3g}/s", f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"]
    if stats.scored > 0:
        parts += [f"success {stats.successes / stats.scored:.0%}", f"reward {stats.reward / stats.scored:.3g}"]
    if stats.sampled_tokens and elapsed_s > 0:
        parts.append(f"{stats.sampled_tokens / elapsed_s:.0f} tokens/s")
    parts.append(f"{stats.running} running")
    if stats.errored:
        commonest = "".join(f" ({kind} x{count})" for kind, count in stats.error_kinds.most_common(1))
        parts.append(f"{stats.errored} errors{commonest}")
    return visible_text(", ".join(parts)).replace("\n", " ")


def since(stats: CollectorStats, before: CollectorStats | None) -> CollectorStats:
    """Return a copy of what was counted after `before`, which is an earlier copy. `running` is what runs now.

    Another thread may be counting: a copy is whole, the numbers of one moment only nearly.
    """
    copy = replace(stats, stop_reasons=Counter(dict(stats.stop_reasons)), error_kinds=Counter(dict(stats.error_kinds)))
    if before is not None:
        for name in _SUMS:
            setattr(copy, name, getattr(copy, name) - getattr(before, name))
        copy.stop_reasons -= before.stop_reasons
        copy.error_kinds -= before.error_kinds
    return copy


_SUMS = (
    *("accepted", "errored", "unscored", "retries", "successes", "reward"),
    *("turns", "sampled_tokens", "tokens", "forks", "rejected_groups", "dropped"),
)
"""What `since` takes differences of."""


@contextmanager
def _lines(out: TextIO, line: Callable[[], str], every_s: float) -> Iterator[None]:
    """Write a line every so often while the block lasts; nothing when it is over at once."""
    ended = threading.Event()

    def show() -> None:
        while not ended.wait(every_s):
            out.write(line() + "\n")
            out.flush()

    thread = threading.Thread(target=show, name="llm-envs-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _bar(
    out: TextIO, line: Callable[[], str], position: Callable[[], int], total: int, every_s: float
) -> Iterator[None]:
    """Draw one line while the block lasts. What is written to standard error meanwhile appears above it."""
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.progress_bar import ProgressBar
    from rich.table import Column
    from rich.text import Text

    class Bar(ProgressColumn):
        def render(self, task: Task) -> ProgressBar:
            return ProgressBar(max(total, 1), min(position(), total), width=width)

    class Words(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(line())  # not from markup: an error's name may be anything

    console = Console(file=out, force_terminal=True, force_jupyter=False, highlight=False)
    width = next(bar for least, bar in BAR_WIDTHS.items() if console.width >= least)
    words = Words(Column(no_wrap=True, overflow="ellipsis", ratio=1))
    columns = [Bar(Column(no_wrap=True)), words] if width else [words]
    with Progress(
        *columns,
        console=console,
        transient=True,
        expand=True,
        refresh_per_second=1 / every_s,
        redirect_stdout=False,  # it may be a file
        redirect_stderr=out is sys.stderr,
    ) as progress:
        progress.add_task("", total=None)
        yield
