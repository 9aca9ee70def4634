"""The interface of every sandbox: limits in, a session per episode, and results that are data.

A `Sandbox` is shared by the run and may be used from any number of threads. A `SandboxSession` belongs to one episode:
it keeps its variables from one `run` to the next, as a notebook does. Whatever the code does is a `SandboxResult`; only
misuse (a closed session, a backend that is missing) raises.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

from llm_envs.errors import InvalidConfigError, SandboxError

__all__ = ["CRASHED", "Sandbox", "SandboxLimits", "SandboxResult", "SandboxSession", "SandboxStop", "check_limits"]

SandboxStop = Literal["time", "memory", "output", "crash"]
"""Which limit ended a run; "crash": the interpreter itself is gone (killed, `os._exit`, a fault)."""

CRASHED = "SandboxCrashedError"
"""`SandboxResult.error` of a run whose interpreter crashed or was ended by the code."""
_ERRORS: dict[SandboxStop, str] = {
    "time": "TimeoutError",
    "memory": "MemoryError",
    "output": "OutputLimitError",
    "crash": CRASHED,
}
_MEBIBYTE = 1 << 20
CLOCK = 1_735_732_800
"""Seconds since 1970 at which the clock of a seeded session stands: noon of 1 January 2025, UTC."""
FLOOD_FACTOR = 100
"""Output is cut at the limit, and the code runs on. Code that writes this many times the limit is stopped."""


@dataclass(frozen=True)
class SandboxLimits:
    """Resources of one session. Every limit holds in every backend unless its text restricts that."""

    timeout_s: float = 5.0
    """Longest time of one run, seconds. Time in which the code waits for a processor does not count."""
    memory_bytes: int = 256 * _MEBIBYTE
    """Most memory of a session's interpreter, on top of the interpreter itself."""
    recursion_depth: int = 1_000
    """Deepest nesting of calls."""
    output_characters: int = 8_000
    """Longest output and longest value of a result. Longer ones are cut, with a note."""
    code_characters: int = 50_000
    """Longest code that is run; longer code is answered with an error."""
    file_bytes: int = 16 * _MEBIBYTE
    """Size of the session's own directory, if it has one (`SubprocessSandbox` in namespaces)."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidConfigError: If a limit is not a number in its range.
        """
        check_limits(self, _RANGES)


def check_limits(limits: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Check a dataclass of limits.

    Args:
        limits: Its fields are integers; only `timeout_s` may be a float.
        ranges: Field -> the lowest and the highest value.

    Raises:
        InvalidConfigError: If a limit is not a number in its range.
    """
    for field in fields(limits):
        value, name = getattr(limits, field.name), f"{type(limits).__name__}.{field.name}"
        low, high = ranges[field.name]
        kinds = (int, float) if field.name == "timeout_s" else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
            raise InvalidConfigError(f"{name} is {value!r}; it must be a finite number.")
        if not low <= value <= high:
            raise InvalidConfigError(f"{name} is {value!r}; it must be from {low} to {high}.")


_RANGES: dict[str, tuple[float, float]] = {
    "timeout_s": (0.01, 3_600.0),
    "memory_bytes": (4 * _MEBIBYTE, 1 << 40),
    "recursion_depth": (10, 10_000),
    "output_characters": (100, 10_000_000),
    "code_characters": (1, 1_000_000),
    "file_bytes": (0, 1 << 40),
}


@dataclass(frozen=True)
class SandboxResult:
    """The result of one run."""

    output: str
    """The text for the model: printed output, the value of the last expression, the traceback, and our notes in
    brackets. Cut at `SandboxLimits.output_characters`, and always encodable as UTF-8."""
    value: str | None
    """The `repr` of the last expression, cut at the limit; None without an expression, or if it is None."""
    error: str | None
    """Class name of the exception that ended the code, or the name for a limit. None if the code succeeded."""
    stopped: SandboxStop | None
    """The limit that ended the run, or None."""
    state_lost: bool
    """Whether the variables of earlier runs are gone."""
    seconds: float
    """Wall-clock time of the run, with any wait for a worker."""
    waited_s: float = 0.0
    """Seconds of it in which the code was ready and had no processor, where `SubprocessSandbox` can read that."""

    @property
    def succeeded(self) -> bool:
        """Whether the code ran to its end without an exception."""
        return self.error is None


class Sandbox(Protocol):
    """A backend. Shared by the run; its methods may be called from any thread."""

    @property
    def limits(self) -> SandboxLimits:
        """Limits of sessions that are opened without limits."""
        ...

    @property
    def isolation(self) -> str:
        """The kind of isolation, in one word."""
        ...

    def session(self, limits: SandboxLimits | None = None, *, seed: int | None = None) -> SandboxSession:
        """Return a new session. It costs nothing until its first run.

        Args:
            limits: Replace the sandbox's limits.
            seed: Makes the session repeatable: seeds the sandboxed `random`, and stops the clocks of `time` and
                `datetime` at `CLOCK`. None: the system's entropy and clock.

        Raises:
            SandboxError: If the sandbox is closed.
            InvalidConfigError: If the backend cannot keep these limits.
        """
        ...

    def close(self) -> None:
        """End all sessions and every process of the sandbox. May be called again."""
        ...

    def __enter__(self) -> Sandbox: ...

    def __exit__(self, *exception: object) -> None: ...


class SandboxSession(ABC):
    """One episode's interpreter. Runs of one session are made one after the other, from any thread."""

    def __init__(self, limits: SandboxLimits, seed: int | None) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise InvalidConfigError(f"seed is {describe(seed)}; it must be an integer or None.")
        self.limits = limits
        self._seed = seed
        self._lock = threading.Lock()
        self._is_closed = False

    @abstractmethod
    def _outcome(self, code: str) -> dict[str, Any]:
        """Run code and return the data for `compose`."""

    @abstractmethod
    def _release(self) -> None:
        """Release everything."""

    def run(self, code: str) -> SandboxResult:
        """Run code and return the result. Never raises because of the code.

        Raises:
            SandboxError: If the session or its sandbox is closed, or no interpreter can be started.
        """
        with self._lock:
            if self._is_closed:
                raise SandboxError("the session is closed; ask the sandbox for a new one.")
            started = time.perf_counter()
            if len(code) > (most := self.limits.code_characters):
                name = "CodeTooLongError"
                text = f"{name}: the code has {len(code)} characters; at most {most} are run"
                outcome: dict[str, Any] = {"printed": "", "traceback": text, "error": name}
            else:
                outcome = self._outcome(code)
            return compose(limits=self.limits, seconds=time.perf_counter() - started, **outcome)

    def close(self) -> None:
        """Release everything that the session uses, once the current run has ended. May be called again."""
        with self._lock:
            self._is_closed = True
            self._release()


def compose(
    printed: str,
    limits: SandboxLimits,
    *,
    n_printed: int | None = None,
    value: str | None = None,
    traceback: str = "",
    error: str | None = None,
    stopped: SandboxStop | None = None,
    state_lost: bool = False,
    seconds: float,
    waited_s: float = 0.0,
) -> SandboxResult:
    """Make a result of its parts.

    Args:
        printed: The printed text, or its beginning.
        limits: Where to cut.
        n_printed: Characters printed in all, where `printed` is only the beginning.
        value: The last expression's `repr`.
        traceback: The exception as text.
        error: The exception's class name; that of `stopped` by default.
        stopped: The limit that ended the run.
        state_lost: Whether earlier variables are gone.
        seconds: How long it took.
        waited_s: How long of it the code had no processor.
    """
    most = limits.output_characters
    share = max(most // 2, most - len(printed))
    value = None if value is None else cut(value, most)
    ends = [cut(value, share)] if value is not None else []
    if traceback:
        ends.append(cut_front(traceback.removesuffix("\n"), share))
    room = max(most - sum(min(len(text), share) for text in ends), 0)
    printed = cut(printed, room, n_printed).removesuffix("\n")
    notes = [_stop_note(stopped, limits)] if stopped else []
    if state_lost:
        notes.append("[the interpreter was restarted: variables defined before are gone]")
    elif stopped:
        notes.append("[variables are as they were before this code]")
    output = "\n".join(part for part in (printed, *ends, *notes) if part)
    if error is None and stopped:
        error = _ERRORS[stopped]
    return SandboxResult(
        output=_encodable(output),
        value=None if value is None else _encodable(value),
        error=None if error is None else _encodable(error[:100]),
        stopped=stopped,
        state_lost=state_lost,
        seconds=seconds,
        waited_s=waited_s,
    )


def cut(text: str, most: int, n_characters: int | None = None) -> str:
    """Shorten a text to `most` characters, with a note.

    Args:
        text: The text, or its beginning.
        most: Characters to keep.
        n_characters: Its full length, if that is known and `text` is only its beginning.
    """
    if max(len(text), n_characters or 0) <= most:
        return text
    kept = text[:most]
    return f"{kept}\n[cut: {n_characters - len(kept)} more characters]" if n_characters else f"{kept}\n[cut]"


def cut_front(text: str, most: int) -> str:
    """Shorten a text to its last `most` characters: a traceback's end names the exception."""
    return text if len(text) <= most else f"[...]\n{text[-most:]}"


def _stop_note(stopped: SandboxStop, limits: SandboxLimits) -> str:
    return {
        "time": f"[stopped: over the time limit of {limits.timeout_s:g} s]",
        "memory": f"[stopped: over the memory limit of {limits.memory_bytes // _MEBIBYTE} MiB]",
        "output": f"[stopped: wrote over {FLOOD_FACTOR} times the limit of {limits.output_characters} characters]",
        "crash": "[the interpreter crashed or was ended by the code]",
    }[stopped]


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def describe(value: Any, most: int = 200) -> str:
    """Return a short `repr` of a caller's value for an error message."""
    return cut(repr(value), most)
