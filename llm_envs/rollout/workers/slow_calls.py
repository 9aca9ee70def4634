"""Warn of an environment's `make` or `close` that does not return, by name.

In this process nothing can end such a call (in a worker process the pool does), so at least it is named.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from llm_envs.processes import register_for_forks

__all__ = ["name_if_slow"]

T = TypeVar("T")

SLOW_S = 60.0
"""Seconds after which a call is named."""


def name_if_slow(what: str, env: object, function: Callable[[], T]) -> T:
    """Return `function()`; warn if it has not returned after `SLOW_S`.

    Args:
        what: The call, such as "env.close".
        env: The environment or its maker.
        function: The call itself.
    """
    key = object()
    _running[key] = what, env, time.monotonic()
    _watcher.start()
    try:
        return function()
    finally:
        _running.pop(key, None)


_running: dict[object, tuple[str, object, float]] = {}


class _Watcher:
    """A daemon thread that looks at the running calls; it ends when there are none."""

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Start over: a forked child has neither the thread nor the calls."""
        self._lock, self._is_alive = threading.Lock(), False
        _running.clear()

    def start(self) -> None:
        with self._lock:
            if not self._is_alive:
                self._is_alive = True
                threading.Thread(target=self._watch, name="llm-envs-slow-calls", daemon=True).start()

    def _watch(self) -> None:
        named: set[object] = set()
        while True:
            time.sleep(SLOW_S / 4)
            for key, (what, env, started) in list(_running.items()):
                if key not in named and time.monotonic() - started > SLOW_S:
                    named.add(key)
                    _warn(what, env)
            with self._lock:
                if not _running:
                    self._is_alive = False
                    return


def _warn(what: str, env: Any) -> None:
    name = getattr(env, "env_id", None) or getattr(getattr(env, "spec", None), "id", None) or type(env).__name__
    warnings.warn(
        f"{what} of {name} has not returned for {SLOW_S:g} s, and nothing in this process can end it. Run tasks in "
        "worker processes (workers=N, --workers N), which are killed.",
        stacklevel=2,
    )


_watcher = _Watcher()
register_for_forks(_watcher)
