r"""Compare two mathematical answers: plain arithmetic here, everything else by math-verify in a bounded worker.

1. A model's text is never executed. Plain numbers and arithmetic go to `llm_envs.mathematics.arithmetic`. math-verify
   reads everything else as LaTeX, in a process in which sympy's use of `eval` is replaced
   (`llm_envs/mathematics/worker.py`).
2. Every check ends. Inputs are limited in length and nesting, and a worker that exceeds `timeout_s` or its memory is
   replaced. Such a check is "undecided", which is not equal.
3. Any number of threads may check at once. Each check uses one worker, and waits if all are busy. One process loads
   sympy, which takes a second, or many on a busy machine. The workers are its children, forked in milliseconds.

Values are compared, so an answer that only restates the question ("37*24", "\sum_{n=1}^{100} n") equals its value. If
that would be cheating in a task, the task must ask for a number and compare numbers.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
from dataclasses import dataclass

from llm_envs.errors import InvalidConfigError, SandboxError
from llm_envs.mathematics.decisions import Verdict, decide, plain_value
from llm_envs.mathematics.loader import Loader as _Loader
from llm_envs.mathematics.loader import Worker as _Worker
from llm_envs.processes import Shared, forget_after_fork, processors

__all__ = ["MathChecker", "MathComparison", "Verdict", "compare_math", "math_equal", "prepare_comparison"]


@dataclass(frozen=True)
class MathComparison:
    """The result of comparing an answer with its target. True in a condition if, and only if, they are equal."""

    verdict: Verdict
    reason: str
    """Why it is undecided, or different without a comparison; otherwise empty."""
    seconds: float
    """Wall-clock time, including any wait for a worker."""

    def __bool__(self) -> bool:
        """Return whether the answer equals the target."""
        return self.verdict == "equal"


class MathChecker:
    """Worker processes in which math-verify compares answers. Most callers need only `compare_math`.

    Args:
        n_workers: Largest number of comparisons at one time.

    Raises:
        InvalidConfigError: If `n_workers` is less than 1.
    """

    def __init__(self, n_workers: int = 2) -> None:
        if isinstance(n_workers, bool) or not isinstance(n_workers, int) or n_workers < 1:
            raise InvalidConfigError(f"n_workers is {n_workers!r}; it must be an integer from 1.")
        self.n_workers = n_workers
        self.n_loaded = 0
        """How often sympy was loaded: more than once only if its process was killed, or this one was forked."""
        self._is_closed = False
        self.forget()
        forget_after_fork(self)

    def forget(self) -> None:
        """Start over in a forked child, leaving the parent's processes to the parent."""
        for connection in (*getattr(self, "_idle", ()), getattr(self, "_loader", None)):
            if connection is not None:
                connection.forget()
        self._free = threading.BoundedSemaphore(self.n_workers)
        self._lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._loader: _Loader | None = None

    def start(self) -> None:
        """Start loading sympy, without waiting for it."""
        self._started_loader()

    def compare(self, answer: str, target: str, *, timeout_s: float = 2.0) -> MathComparison:
        """Compare an answer with its target; see `compare_math`."""
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf:
            raise InvalidConfigError(f"timeout_s is {timeout_s!r}; it must be a number of seconds above 0.")
        started = time.perf_counter()
        left_s = timeout_s

        def ask(answer: str, target: str) -> tuple[Verdict, str]:
            nonlocal left_s
            verdict, reason, seconds = self._ask(answer, target, left_s)
            left_s = max(left_s - seconds, 0.01)
            return verdict, reason

        verdict, reason = decide(ask, answer, target)
        return MathComparison(verdict, reason, time.perf_counter() - started)

    def close(self) -> None:
        """End the workers. May be called again."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            loader, self._loader = self._loader, None
        for worker in idle:
            worker.close()
        if loader is not None:
            loader.close()

    def __enter__(self) -> MathChecker:
        """Return the checker."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End the workers."""
        self.close()

    def _ask(self, answer: str, target: str, timeout_s: float) -> tuple[Verdict, str, float]:
        """Return the verdict, the reason, and the seconds of processor time."""
        with self._free:
            worker = self._take()
            try:
                equal, reason, seconds = worker.ask(answer, target, timeout_s)
            except BaseException:  # interrupted: the worker's result is no longer needed
                worker.close()
                raise
            with self._lock:
                if worker.is_alive and not self._is_closed:
                    self._idle.append(worker)
                else:
                    worker.close()
        if equal is not None:
            return ("equal" if equal else "different"), "", seconds
        return "undecided", reason, seconds

    def _take(self) -> _Worker:
        with self._lock:
            self._check_open()
            while self._idle:
                worker = self._idle.pop()
                if worker.is_there():
                    return worker
                worker.close()
        with self._start_lock:
            try:
                return self._started_loader().connect()
            except OSError:  # it was killed: by the system, when memory ran out
                self._drop_loader()
                return self._started_loader().connect()
            except SandboxError:
                self._drop_loader()
                raise

    def _started_loader(self) -> _Loader:
        with self._lock:
            self._check_open()
            if self._loader is None:
                self._loader = _Loader()
                self.n_loaded += 1
            return self._loader

    def _drop_loader(self) -> None:
        with self._lock:
            loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidConfigError("the MathChecker is closed; make a new one.")


def compare_math(answer: str, target: str, *, timeout_s: float = 2.0) -> MathComparison:
    r"""Compare a model's answer with the right one, by value.

    - The same text is always equal, except for spaces.
    - Numbers must be exactly equal. A decimal also equals a number that rounds to it, if it is off by at most one
      millionth (of the larger one if that is below 1). "1e3" and "1,000" are 1000. "x=5" equals "5".
    - An answer of several candidates ("3 or 5", "3 5", "3 = 5") does not equal one of them. Lists ("3,5", "x=3 or
      x=5", `\{3,5\}`) are equal in any order; a pair is equal to a list in the same order, and never to a set.
    - Texts of only words ("no", "cat", "north pole") are compared as text, ignoring case: never as products of
      variables. So "ab" is not "ba"; "a b" and "a*b" are formulas.
    - A unit behind a number counts only if both have one: "5 km" equals "5", and neither "5 cm" nor "5000 m".
      "10 grams" is "10 g"; quantities are not converted.
    - A percentage equals its hundredth: "50%" is "0.5". The answer "50" equals the target "50%", too; "50%" does not
      equal the target "50". A degree sign is a unit, except behind a fraction.
    - "x>3" equals `(3,\infty)`.

    Args:
        answer: Only the final answer, in LaTeX or as plain arithmetic. `$...$` or one `\boxed{...}` around it is
            removed.
        target: The right answer, in the same form.
        timeout_s: Longest processor time of the comparison, in seconds. The first comparison of a process waits until
            sympy is loaded.

    Returns:
        The comparison. In a condition it is true only if the two are equal. It is "undecided" if a text cannot be read
        or the comparison takes too long.

    Raises:
        InvalidConfigError: If `timeout_s` is not above 0.
        MissingExtraError: If math-verify is needed and not installed.
        SandboxError: If its process does not start, or has no processor for `timeout_s` in thirty times as long.
    """
    return shared_checker().compare(answer, target, timeout_s=timeout_s)


def prepare_comparison(target: str) -> None:
    """Start loading sympy, unless the target is a plain number. Call this before the answer arrives."""
    if plain_value(target) is None:
        shared_checker().start()


def math_equal(answer: str, target: str, *, timeout_s: float = 2.0) -> bool:
    """Return whether an answer equals its target; False if that cannot be decided. See `compare_math`."""
    return bool(compare_math(answer, target, timeout_s=timeout_s))


def _make_shared() -> MathChecker:
    checker = MathChecker(processors())
    atexit.register(checker.close)
    return checker


shared_checker = Shared(_make_shared)
"""Returns the `MathChecker` of this process."""
