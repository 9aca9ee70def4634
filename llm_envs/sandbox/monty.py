"""Python for models in `pydantic-monty`: an interpreter without files, network, processes or CPython inside.

1. A pool of worker processes belongs to the sandbox, that is, to the run. A session holds a worker only while it runs
   code: between runs its variables are a few kilobytes of bytes here. Any number of sessions share the workers.
2. A run that is stopped by a limit, or that takes its worker down, leaves the session's variables as they were before
   that run. The pool replaces the worker.
3. The worker enforces the limits, except that of time: a thread here kills a worker that is over it (`deadline`). A
   busy machine is not the code's fault: a worker that did not start, or died, is replaced and the code runs again; one
   that had no processor gets more time. After `_ATTEMPTS` runs, or the longest time, it raises `SandboxError`.
4. pydantic-monty has threads, which a forked process lacks. In a process that is forked from one that has run code,
   the pool therefore lives in helper processes (`_Helper`), which start with the first run, in about a second.
5. Only text leaves a worker, made there under its limits (`last_value`). A value that the code has made is never built
   in this process: its hash may take for ever.

Monty is a subset of Python: no `yield`, no third-party packages, and only part of the standard library. `time.sleep`
returns at once.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

from llm_envs.errors import InvalidConfigError, SandboxError, extra_needed
from llm_envs.processes import processors, register_for_forks
from llm_envs.processes.child import end_with_host, receive, send, take_standard_input
from llm_envs.processes.deadline import LONGEST, TimeLimit, TimeLimits
from llm_envs.processes.peer import Peer
from llm_envs.sandbox.base import CLOCK, FLOOD_FACTOR, SandboxLimits, SandboxSession, SandboxStop, cut_front
from llm_envs.sandbox.last_value import READ, VARIABLE, store_value, without_changes

__all__ = ["MontySandbox", "MontySession"]

_START_S = 60.0
"""How long a worker may take to start, on top of the longest run."""
_ATTEMPTS = 3
"""How often code is run if its worker was not able to run it."""
MAX_STATE_BYTES = 16 << 20
"""Most that a session's variables take between runs, and at most a quarter of its memory: they are held in this
process, for every episode at once, and the next run needs room to work with them."""
_TRACEBACK_CHARACTERS = 2_000
"""Longest traceback: its end names the exception."""

_LEFT_BEHIND: list[Any] = []
"""Pools of the parent process, in a forked child: dropped there, they would end the parent's workers."""
_started_in: int | None = None
"""The process in which pydantic-monty has started threads. A forked copy of it has none, and would wait for ever."""
_Fed = tuple[dict[str, Any], bytes | None]
"""The data of a run for `compose`, and the session's variables after it."""
_TIME_LIMITS = TimeLimits()
_HELPER = "from llm_envs.sandbox.monty import serve; serve()"


class MontySandbox:
    """Run Python in `pydantic-monty`.

    Args:
        n_workers: Worker processes, and so runs at one time; further runs wait. By default one per processor.
        limits: Limits of sessions that are opened without limits. No session may have a longer `timeout_s`.

    Raises:
        InvalidConfigError: If `n_workers` is less than 1.
        MissingExtraError: If pydantic-monty is not installed.
    """

    isolation = "monty"

    def __init__(self, *, n_workers: int | None = None, limits: SandboxLimits | None = None) -> None:
        if n_workers is not None and (isinstance(n_workers, bool) or not isinstance(n_workers, int) or n_workers < 1):
            raise InvalidConfigError(f"n_workers is {n_workers!r}; it must be an integer from 1, or None.")
        self.limits = limits or SandboxLimits()
        self.n_workers = n_workers or processors()
        with extra_needed("MontySandbox needs pydantic-monty; install it with: pip install 'llm-envs[tools]'"):
            import pydantic_monty
        self._monty: Any = pydantic_monty
        self._pool: Any = None
        self._helpers: list[_Helper] = []
        self._is_closed = False
        self.reset_after_fork()
        register_for_forks(self)

    def reset_after_fork(self) -> None:
        """Start over in a forked child, leaving the parent's workers to the parent."""
        _LEFT_BEHIND.append(self._pool)
        for helper in self._helpers:
            helper.reset_after_fork()
        self._lock = threading.Lock()
        self._pool = None
        self._helpers = []
        self._free_helpers = threading.BoundedSemaphore(self.n_workers)

    def session(self, limits: SandboxLimits | None = None, *, seed: int | None = None) -> MontySession:
        """Return a new session; see `Sandbox.session`."""
        self._check_open()
        limits = limits or self.limits
        if limits.timeout_s > self.limits.timeout_s:
            raise InvalidConfigError(
                f"timeout_s of a session is {limits.timeout_s:g}; it must not be above the sandbox's own "
                f"{self.limits.timeout_s:g}: give MontySandbox(limits=...) the longest."
            )
        return MontySession(self, limits, seed)

    def close(self) -> None:
        """End every worker; sessions can no longer run."""
        with self._lock:
            self._is_closed = True
            pool, self._pool = self._pool, None
            helpers, self._helpers = self._helpers, []
        if pool is not None:
            pool.__exit__(None, None, None)
        for helper in helpers:
            helper.close()

    def __enter__(self) -> MontySandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as settings: another process has its own workers."""
        return partial(MontySandbox, n_workers=self.n_workers, limits=self.limits), ()

    def _feed(self, limits: SandboxLimits, seed: int | None, state: bytes | None, code: str) -> _Fed:
        """Run code on a worker, here or in a helper."""
        if _started_in in (None, os.getpid()):
            fed = _Feed(self._monty, self._current_pool(), limits, seed, state).run(code)
            if self._is_closed and fed[0].get("stopped") == "crash":
                raise SandboxError("the sandbox was closed while code was running in it.")
            return fed
        with self._free_helpers:
            with self._lock:
                self._check_open()
                helper = self._helpers.pop() if self._helpers else None
            helper = helper or _Helper(self.limits)
            fed = helper.feed(limits, seed, state, code)
            with self._lock:
                if not self._is_closed:
                    self._helpers.append(helper)
                    return fed
        helper.close()
        return fed

    def _current_pool(self) -> Any:
        """Return the pool of workers, started if need be."""
        global _started_in
        with self._lock:
            self._check_open()
            if self._pool is None:
                try:
                    pool = self._monty.Monty(
                        min_processes=0,
                        max_processes=self.n_workers,
                        request_timeout=LONGEST * self.limits.timeout_s + _START_S,
                    )
                    self._pool = pool.__enter__()
                except (OSError, RuntimeError, self._monty.MontyError) as error:
                    raise SandboxError(f"pydantic-monty's workers cannot be started: {error}") from error
                _started_in = os.getpid()
            return self._pool

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxError("the sandbox is closed; make a new one.")


class MontySession(SandboxSession):
    """One episode's variables, and the right to run code on a worker. Made by `MontySandbox.session`."""

    def __init__(self, sandbox: MontySandbox, limits: SandboxLimits, seed: int | None) -> None:
        super().__init__(limits, seed)
        self._sandbox = sandbox
        self._state: bytes | None = None

    def _outcome(self, code: str) -> dict[str, Any]:
        outcome, self._state = self._sandbox._feed(self.limits, self._seed, self._state, code)
        return outcome

    def _release(self) -> None:
        self._state = None


class _Feed:
    """Runs code once, on a worker of a pool, from the variables of a session."""

    def __init__(self, monty: Any, pool: Any, limits: SandboxLimits, seed: int | None, state: bytes | None) -> None:
        self._monty = monty
        self._pool = pool
        self._limits = limits
        self._state = state
        self._why_again = ""
        """Why the last run must be repeated; empty if it need not."""
        self._checkout: dict[str, dict[str, Any]] = {
            "limits": {
                "max_feed_duration_secs": LONGEST * limits.timeout_s + _START_S,  # a backstop; see `_TIME_LIMITS`
                "max_memory": limits.memory_bytes,
                "max_recursion_depth": limits.recursion_depth,
            },
            "os_policy": {"sleep": "zero"},
        }
        if seed is not None:  # the session's values depend only on its seed
            self._checkout["os_policy"] |= {
                "random_start": {"seed": seed},
                "datetime": datetime.fromtimestamp(CLOCK, UTC),
            }

    def run(self, code: str) -> _Fed:
        """Run code and return the data for `compose`, and the variables, unless the run was stopped."""
        n_crashes = 0
        for _ in range(_ATTEMPTS):
            outcome = self._outcome(code)
            n_crashes += outcome.get("stopped") == "crash"
            if not self._why_again and n_crashes != 1:  # code that crashes one worker crashes the next one too
                break
        if self._why_again:
            raise SandboxError(f"{self._why_again}, in {_ATTEMPTS} attempts. Is this machine overloaded?")
        if outcome.get("stopped") in ("memory", "crash") and not self._can_go_on():
            self._state = None
            outcome["state_lost"] = True
        return outcome, self._state

    def _outcome(self, code: str) -> dict[str, Any]:
        monty = self._monty
        printed = _Printed(self._limits.output_characters)
        outcome: dict[str, Any] = {}
        limit: TimeLimit | None = None
        self._why_again = "no worker of pydantic-monty could be started"
        try:
            with self._pool.checkout(**self._checkout) as worker:
                if self._state is not None:
                    worker.load_session(self._state)
                pid = worker.worker_pid
                if pid is None:
                    raise RuntimeError("no worker is attached")
                self._why_again = ""
                try:
                    with _TIME_LIMITS.hold(pid, self._limits.timeout_s) as limit:
                        value = self._evaluate(worker, code, printed)
                    if value is not None:
                        outcome["value"] = value
                except (monty.MontyRuntimeError, monty.MontySyntaxError) as error:
                    outcome = self._explain(error, printed)
                if not outcome.get("stopped"):
                    self._keep(worker.dump(), outcome)
        except monty.MontyCrashedError as crash:
            is_over = crash.timed_out or (limit is not None and limit.is_killed)
            outcome = {"stopped": "time" if is_over else "crash"}
        except monty.MontyError as error:  # the variables themselves no longer fit
            outcome = self._explain(error, printed)
            outcome.setdefault("stopped", "memory")
            self._why_again = ""
        except (OSError, RuntimeError):
            if not outcome.get("error"):  # a worker that ended without a message
                outcome = {"stopped": "crash"}
        if limit is not None and limit.is_killed and limit.was_starved:
            raise SandboxError(
                f"a worker had a processor for {limit.spent_s:.1f} s of {limit.given_s:.1f} s. "
                "Is this machine overloaded?"
            )
        return outcome | {"printed": printed.text(), "n_printed": printed.n_characters}

    def _evaluate(self, worker: Any, code: str, printed: _Printed) -> str | None:
        """Run code and return the `repr` of its last expression, which the worker writes; None without a value."""
        changed = store_value(code, self._limits.output_characters + 1)
        if changed is not None:
            try:
                self._execute(worker, changed, printed)
                text = str(worker.feed_run(READ))
                return None if text == "None" else text
            except self._monty.MontySyntaxError as error:
                if any(frame.function_name for frame in error.traceback()):  # not of the parser: the code has run
                    raise
        self._execute(worker, code, printed)
        return None

    def _execute(self, worker: Any, code: str, printed: _Printed) -> None:
        """Run code. `feed_run` would build the value that the code returns, here."""
        step = worker.feed_start(code, inputs={VARIABLE: None}, print_callback=printed)
        while not isinstance(step, self._monty.MontyComplete):
            step = step.resume_auto()  # refuses it: nothing of the host is offered to the code

    def _can_go_on(self) -> bool:
        """Return whether code has room to run beside the variables as they were before."""
        if self._state is None:
            return True
        try:
            with self._pool.checkout(**self._checkout) as worker:
                worker.load_session(self._state)
                worker.feed_run("None")
        except (self._monty.MontyError, OSError, RuntimeError):
            return False
        return True

    def _keep(self, state: bytes, outcome: dict[str, Any]) -> None:
        if len(state) <= min(MAX_STATE_BYTES, self._limits.memory_bytes // 4):
            self._state = state
        else:
            outcome.pop("value", None)
            outcome["stopped"] = "memory"

    def _explain(self, error: Any, printed: _Printed) -> dict[str, Any]:
        """Return the exception of the code, or the limit that ended it."""
        text = without_changes(str(error.display("traceback")) if hasattr(error, "display") else str(error))
        head, _, last = text.rpartition("\n")
        name = last.partition(":")[0].strip() or type(error).__name__
        traceback = cut_front(text, _TRACEBACK_CHARACTERS)
        stopped: SandboxStop | None = None
        if printed.is_flood:
            stopped = "output"
        elif not head and last.startswith("TimeoutError: feed time limit exceeded"):
            stopped = "time"  # with a traceback, it is the code that has raised it
        elif last.startswith(("MemoryError: memory limit exceeded", "MemoryError: the worker exceeded")):
            stopped = "memory"  # a heap that a limit has caught in the middle of its work is not kept
        if stopped:
            return {"stopped": stopped, "traceback": traceback if head and stopped == "memory" else ""}
        return {"traceback": traceback, "error": name}


class _Printed:
    """Collect printed text up to a limit; past the flood limit, stop the worker."""

    def __init__(self, most: int) -> None:
        self.n_characters = 0
        self._most = most
        self._kept: list[str] = []
        self._n_kept = 0

    @property
    def is_flood(self) -> bool:
        return self.n_characters > FLOOD_FACTOR * self._most

    def __call__(self, stream: str, text: str) -> None:
        self.n_characters += len(text)
        if self._n_kept < self._most:
            self._kept.append(text[: self._most - self._n_kept])
            self._n_kept += len(self._kept[-1])
        if self.is_flood:
            raise RuntimeError("too much output")

    def text(self) -> str:
        return "".join(self._kept)


class _Helper(Peer):
    """A process with our code that runs one feed at a time, for a process in which pydantic-monty cannot run.

    Both ends trust each other: the model's code stays in pydantic-monty's worker, below the helper.
    """

    def __init__(self, limits: SandboxLimits) -> None:
        python_path = os.pathsep.join(path for path in sys.path if path)
        try:
            arguments = ["-c", _HELPER, json.dumps(asdict(limits))]
            super().__init__(arguments, stdout=2, env=os.environ | {"PYTHONPATH": python_path})
        except OSError as error:
            raise SandboxError(f"a process for pydantic-monty cannot be started: {error}") from error

    def feed(self, limits: SandboxLimits, seed: int | None, state: bytes | None, code: str) -> _Fed:
        """Have the helper run code; see `MontySandbox._feed`."""
        try:
            reply = self.ask({"limits": asdict(limits), "seed": seed, "state": _as_text(state), "code": code})
        except BaseException as error:  # interrupted, or the helper is gone: its next reply would be to this request
            self.close()
            if isinstance(error, OSError):
                raise SandboxError("the process that runs pydantic-monty has ended.") from error
            raise
        if "failed" in reply:
            self.close()
            raise SandboxError(reply["failed"])
        return reply["outcome"], _as_bytes(reply["state"])


def serve() -> None:
    """Run the requests of a forked process until it closes the connection. Called in a helper process."""
    limits, lifeline = sys.argv[-2:]
    end_with_host(int(lifeline))
    own = SandboxLimits(**json.loads(limits))
    with take_standard_input() as host, MontySandbox(n_workers=1, limits=own) as sandbox:
        while True:
            try:
                request = receive(host)
            except OSError:
                return
            try:
                limits_of, state = SandboxLimits(**request["limits"]), _as_bytes(request["state"])
                outcome, state = sandbox._feed(limits_of, request["seed"], state, request["code"])
                reply = {"outcome": outcome, "state": _as_text(state)}
            except Exception as error:
                reply = {"failed": f"{type(error).__name__}: {error}"}
            send(host, reply)


def _as_text(state: bytes | None) -> str | None:
    return None if state is None else base64.b64encode(state).decode()


def _as_bytes(state: str | None) -> bytes | None:
    return None if state is None else base64.b64decode(state)
