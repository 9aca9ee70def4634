"""Clauses about what an environment costs: time and memory, and whether a model learns from it.

Each clause takes the subject and returns its findings; `Inapplicable` if there is nothing to examine. If the clause
does not hold, it raises `BrokenClause` with the fault and the remedy.
"""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median

import gymnasium as gym

from llm_envs.checker.episodes import repeat
from llm_envs.checker.subject import Subject, may_wait
from llm_envs.checker.verdicts import Inapplicable, require

__all__ = [
    "improves_a_model",
    "keeps_no_memory",
    "reads_long_replies_quickly",
    "releases_what_it_opens",
    "resets_in_time",
    "steps_in_time",
]

_N_TIMED = 3
"""How often a step is timed; the least time counts, because the machine may be busy."""
_LONG_WORDS = (5_000, 20_000)
_MAX_LONG_S = 1.0
"""Seconds for a reply of 20,000 words, beside the limit of a step."""
_WARM_UP, _WINDOW = 12, 24
"""Episodes before memory is measured, so that caches are full, and in each of two windows."""
_N_MADE = 12
"""Environments that are made, played and closed while open files and threads are counted."""
_MIN_GAIN = 0.05
"""Least rise of the mean return that counts as learning."""


def resets_in_time(subject: Subject) -> str:
    """The median reset takes no longer than `max_reset_s`."""
    taken = []
    for seed in range(subject.effort.n_seeds):
        started = time.perf_counter()
        subject.env.reset(seed=seed)
        taken.append(time.perf_counter() - started)
    require(
        median(taken) <= subject.settings.max_reset_s,
        f"a reset takes {median(taken):.2f} s, {subject.settings.max_reset_s:g} s allowed: make what does not change "
        "once, in __init__",
    )
    return f"{median(taken) * 1000:.1f} ms"


def steps_in_time(subject: Subject) -> str:
    """No step takes longer than `max_step_s`."""
    most_s, slowest, what = _most_step_s(subject), 0.0, ""
    for seed, trace in enumerate(subject.references):
        tries: list[Sequence[float]] = []
        for _ in range(_N_TIMED):
            subject.env.reset(seed=seed)
            times = []
            for action in trace.actions:
                started = time.perf_counter()
                subject.env.step(action)
                times.append(time.perf_counter() - started)
            tries.append(times)
            if max(tries[-1], default=0.0) <= most_s:
                break
        for turn, found in enumerate(zip(*tries, strict=False)):
            if min(found) > slowest:
                slowest, what = min(found), f"seed {seed}, turn {turn + 1}: {trace.actions[turn][:60]!r}"
    require(
        slowest <= most_s,
        f"{what} takes {slowest:.2f} s, {most_s:g} s allowed: make it quicker, or set blocking = True if it waits",
    )
    return f"{slowest * 1000:.1f} ms at most"


def _most_step_s(subject: Subject) -> float:
    return subject.settings.max_step_s * (10 if may_wait(subject.env) else 1)


def reads_long_replies_quickly(subject: Subject) -> str:
    """The time for a reply of 20,000 words stays below a second more than a step may take."""
    most_s = _most_step_s(subject) + _MAX_LONG_S
    taken = 0.0
    for n_words in _LONG_WORDS:
        for text in ("word " * n_words, "<answer>" * (n_words // 2), "(" * n_words, "9" * n_words, " " * n_words):
            times = []
            for _ in range(_N_TIMED):
                subject.env.reset(seed=0)
                started = time.perf_counter()
                try:
                    subject.env.step(text)
                except Exception:
                    return Inapplicable("a long reply raises, which `never_raises` reports")
                times.append(time.perf_counter() - started)
                if times[-1] <= most_s:
                    break
            taken = max(taken, min(times))
            require(
                min(times) <= most_s,
                f"a reply of {len(text):,} characters takes {min(times):.1f} s, {most_s:g} s allowed: read it in time "
                "proportional to its length",
            )
    return f"{taken * 1000:.0f} ms at most"


def keeps_no_memory(subject: Subject) -> str:
    """Episodes of the same seeds keep no more than `max_growth_bytes` each after the next one has begun."""
    actions = [trace.actions for trace in subject.references]

    def play(env: gym.Env[str, str], n_episodes: int) -> None:
        for number in range(n_episodes):
            seed = number % len(actions)
            subject.traced(env, seed, repeat(actions[seed]), most=len(actions[seed]))

    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        with closing(subject.make()) as env:
            play(env, _WARM_UP)
            sizes = []
            for n_episodes in (0, _WINDOW, _WINDOW):
                play(env, n_episodes)
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        if not was_tracing:
            tracemalloc.stop()
    growth = min(sizes[1] - sizes[0], sizes[2] - sizes[1]) / _WINDOW
    require(
        growth <= subject.settings.max_growth_bytes,
        f"each episode keeps {growth:,.0f} bytes for good, {subject.settings.max_growth_bytes:,} allowed: drop an "
        "episode's data in reset()",
    )
    return f"{max(0.0, growth):,.0f} bytes an episode"


def releases_what_it_opens(subject: Subject) -> str:
    """Environments that are closed leave no open files and no threads."""
    seed, actions = 0, subject.references[0].actions

    def use(n_made: int) -> None:
        for _ in range(n_made):
            env = subject.make()
            subject.traced(env, seed, repeat(actions), most=len(actions))
            env.close()
        gc.collect()

    use(2)  # pools and caches that all environments share
    before = _n_open()
    use(_N_MADE)
    more = [now - then for now, then in zip(_n_open(), before, strict=True)]
    for what, number in zip(("files", "threads"), more, strict=True):
        require(
            number < _N_MADE // 2,
            f"{_N_MADE} environments that were closed left {number} open {what}: release them in close()",
        )
    return f"{max(0, more[0])} files and {max(0, more[1])} threads left open"


def _n_open() -> tuple[int, int]:
    """Return how many files and threads this process has; 0 files where the system does not tell."""
    files = Path("/proc/self/fd")
    return sum(1 for _ in files.iterdir()) if files.is_dir() else 0, threading.active_count()


def improves_a_model(subject: Subject) -> str:
    """A training by the given learner raises the mean return."""
    learner = subject.settings.learner
    if learner is None:
        return Inapplicable("off: give Settings(learner=...), on the command line --learn")
    before, after = learner(subject.make)
    require(
        after >= before + _MIN_GAIN,
        f"the mean return was {before:.3f} before the training and {after:.3f} after it, {_MIN_GAIN:g} more "
        "expected: give partial credit, an easier level, or the learner a larger budget",
    )
    return f"{before:.3f} before, {after:.3f} after"
