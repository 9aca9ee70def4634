"""A sandbox as a tool of an environment: `python(code: str) -> str`, with an interpreter for each episode."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from llm_envs.sandbox.base import Sandbox, SandboxLimits, SandboxResult, SandboxSession
from llm_envs.sandbox.monty import MontySandbox

__all__ = ["PythonTool", "shared_sandbox"]


class PythonTool:
    """Give an environment the tool `python`.

    An environment returns one of these from `make_tools`; a `ToolEnv` resets it with each episode and closes it. The
    interpreter is started with an episode's first call.

    Args:
        sandbox: Where the code runs; by default `shared_sandbox()`.
        limits: Limits in place of the sandbox's own.

    Raises:
        MissingExtraError: If no sandbox is given and pydantic-monty is not installed.
    """

    def __init__(self, sandbox: Sandbox | None = None, *, limits: SandboxLimits | None = None) -> None:
        self._given = sandbox
        self._limits = limits
        self._sandbox: Sandbox = shared_sandbox() if sandbox is None else sandbox
        self._seed: int | None = None
        self._session: SandboxSession | None = None
        self.last_result: SandboxResult | None = None
        """What the last call came to; None before the first of an episode."""

    def python(self, code: str) -> str:
        """Run Python code. Returns what it prints and the value of its last expression. Variables are kept.

        Args:
            code: The code.
        """
        if self._session is None:
            self._session = self._sandbox.session(self._limits, seed=self._seed)
        self.last_result = self._session.run(code)
        return self.last_result.output

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode: no variables, and `random` in the sandbox starts from `seed`."""
        self.close()
        self._seed = seed

    def close(self) -> None:
        """End the interpreter. The next call has a new one."""
        session, self._session, self.last_result = self._session, None, None
        if session is not None:
            session.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as settings: another process has its own interpreters."""
        return _rebuild, (self._given, self._limits)


def shared_sandbox() -> MontySandbox:
    """Return the `MontySandbox` of this process: made at the first call, closed as the process ends.

    Every process has its own. One that is forked after its parent has run code cannot use it (`MontySandbox`).

    Raises:
        MissingExtraError: If pydantic-monty is not installed.
    """
    global _shared
    with _lock:
        if _shared is None or _shared[0] != os.getpid():
            if _shared is not None:
                _inherited.append(_shared[1])
            _shared = (os.getpid(), MontySandbox())
            atexit.register(_close_shared)
        return _shared[1]


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


_shared: tuple[int, MontySandbox] | None = None
_inherited: list[MontySandbox] = []
"""The parent's, in a forked child: never closed there."""
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # another thread of the parent may have held it
    os.register_at_fork(after_in_child=_renew_lock)


def _close_shared() -> None:
    if _shared is not None and _shared[0] == os.getpid():
        _shared[1].close()


def _rebuild(sandbox: Sandbox | None, limits: SandboxLimits | None) -> PythonTool:
    return PythonTool(sandbox, limits=limits)
