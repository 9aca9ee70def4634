"""Progress of a collection: a live bar on a terminal, an occasional line elsewhere.

Control characters are written only to a terminal, and never if `TERM` is dumb.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

import numpy as np
import numpy.typing as npt

from llm_envs.tracking.loggers import visible_text
from llm_envs.tracking.reasons import describe_unscored
from llm_envs.tracking.stats import CollectorStats

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.progress_bar import ProgressBar
    from rich.text import Text

__all__ = [
    "Progress",
    "can_draw",
    "live_progress",
    "progress_line",
    "remaining_s",
    "repeating",
    "show_progress",
    "since",
]

Progress = Callable[[CollectorStats, int], None]
"""Called after each finished episode with the statistics and the call's total number of episodes."""

LINE_EVERY_S = 5.0
"""Seconds between two lines of text; a bar is drawn more often."""
BAR_WIDTHS = {110: 24, 72: 12, 0: 0}
"""Minimum width of the terminal -> width of the bar. The text has priority."""


def can_draw(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can move its cursor."""
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
    """Show the progress of a collection, even while no episode ends: a live bar on a terminal, else occasional lines.

    At the end the bar is removed and the cursor restored, even after an error.

    Args:
        stats: Statistics of the running collector, read from a thread. Earlier counts are subtracted.
        total: Total number of episodes.
        done: Episodes that were already there.
        stream: Output; None is standard error.
        every_s: Seconds between two updates; None is 0.2 on a terminal, else `LINE_EVERY_S`.
    """
    out = stream or sys.stderr
    before, start = since(stats, None), time.perf_counter()

    def line() -> str:
        return progress_line(since(stats, before), total, done, time.perf_counter() - start)

    if can_draw(out):
        with _bar(out, line, lambda: done + since(stats, before).accepted, total, 0.2 if every_s is None else every_s):
            yield
    else:
        seconds = LINE_EVERY_S if every_s is None else every_s
        with repeating(lambda: print(line(), file=out, flush=True), seconds, name="llm-envs-progress"):
            yield


@contextmanager
def show_progress(progress: bool | Progress, stats: CollectorStats, total: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each finished episode; print a summary line after a bar.

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


def progress_line(stats: CollectorStats, total: int, done: int, elapsed_s: float) -> str:
    """Return one line about a running collection, for `live_progress`.

    Args:
        stats: Counts of `elapsed_s`.
        total: Total number of episodes.
        done: Episodes that were already there.
        elapsed_s: Seconds since then.
    """
    now = done + stats.accepted
    parts = [f"{now}/{total} episodes"]
    rate = stats.accepted / elapsed_s if elapsed_s > 0 else 0.0
    if rate > 0:
        began = [began for _, _, began in list(stats.open_episodes.values())]
        ages = [time.monotonic() - each for each in began]
        expected = remaining_s(list(stats.durations_s), ages, max(total - now - len(ages), 0))
        left = round(max(total - now, 0) / rate if expected is None else expected)
        parts += [f"{rate:.3g}/s", f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"]
    if stats.scored > 0:
        parts += [f"success {stats.successes / stats.scored:.0%}", f"reward {stats.reward / stats.scored:.3g}"]
    if stats.live_tokens and elapsed_s > 0:
        parts.append(f"{stats.live_tokens / elapsed_s:.{0 if stats.live_tokens >= 10 * elapsed_s else 1}f} tokens/s")
    parts.append(f"{stats.running} running")
    if failed := describe_unscored(stats.errored, stats.unscored, dict(stats.why_unscored.most_common(1))):
        parts.append(failed)
    return visible_text(", ".join(parts)).replace("\n", " ")


def remaining_s(ended_s: Sequence[float], running_s: Sequence[float], n_waiting: int) -> float | None:
    """Return the expected seconds until all episodes have ended; None: too little is known.

    The slowest of the last ones decides, so each running episode is expected to last as those that took longer than its
    present age; one that is older than all of them, as long again. The others wait for a place: all places get equal
    shares of the work, until the last ones begin.

    Args:
        ended_s: Seconds that finished episodes took.
        running_s: Ages of the running episodes. There are so many places.
        n_waiting: Number of episodes that have not begun.
    """
    if not ended_s or not running_s:
        return None
    ended = np.sort(np.asarray(ended_s, np.float64))
    left = [ended[ended > age] - age if age < ended[-1] else np.array([age]) for age in running_s]
    if not n_waiting:
        return _mean_of_greatest(left)
    n_places = len(running_s)
    work = sum(float(values.mean()) for values in left) + max(n_waiting - n_places, 0) * float(ended.mean())
    last = work / n_places + _mean_of_greatest([ended] * min(n_waiting, n_places))
    return max(last, _mean_of_greatest(left))


def _mean_of_greatest(choices: Sequence[npt.NDArray[np.float64]]) -> float:
    """Return the mean of the greatest of independent draws, one from each sorted array."""
    values = np.unique(np.concatenate(choices))
    shares = np.prod([np.searchsorted(each, values, "right") / len(each) for each in choices], axis=0)
    return float(values @ np.diff(shares, prepend=0.0))


def since(stats: CollectorStats, before: CollectorStats | None) -> CollectorStats:
    """Return a copy of the counts since `before`, an earlier copy. `running` is the current number.

    Another thread may be counting, so the numbers of a copy are only nearly of the same moment.
    """
    copy = replace(
        stats,
        written_tokens=stats.live_tokens,
        open_tokens=None,
        stop_reasons=Counter(dict(stats.stop_reasons)),
        why_unscored=Counter(dict(stats.why_unscored)),
    )
    if before is not None:
        for name in _SUMS:
            setattr(copy, name, getattr(copy, name) - getattr(before, name))
        copy.stop_reasons -= before.stop_reasons
        copy.why_unscored -= before.why_unscored
    return copy


_SUMS = (
    *("accepted", "errored", "unscored", "retries", "successes", "reward"),
    *("turns", "sampled_tokens", "written_tokens", "tokens", "forks", "rejected_groups", "dropped"),
)
"""The fields that `since` subtracts."""


@contextmanager
def repeating(call: Callable[[], None], every_s: float, *, name: str) -> Iterator[None]:
    """Call a function from a thread, every `every_s` seconds while the block lasts; not at once, and not after it."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            call()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
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
    """Draw one line while the block lasts. Other output to standard error appears above it."""
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
