"""A sandbox as a tool of an environment: `python(code: str) -> str`, with an interpreter for each episode."""

from __future__ import annotations

import atexit
from typing import Any

from llm_envs.processes import Shared
from llm_envs.sandbox.base import Sandbox, SandboxLimits, SandboxResult, SandboxSession
from llm_envs.sandbox.monty import MontySandbox

__all__ = ["PythonTool", "shared_sandbox"]


class PythonTool:
    """Give an environment the tool `python`.

    An environment returns one of these from `make_tools`. A `ToolEnv` resets it with each episode and closes it. The
    interpreter starts with an episode's first call.

    Args:
        sandbox: Where the code runs; by default `shared_sandbox()`.
        limits: Replace the sandbox's limits.

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
        """The result of the last call; None before the first of an episode."""

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
        """Begin an episode without variables. `random` in the sandbox starts from `seed`."""
        self.close()
        self._seed = seed

    def close(self) -> None:
        """End the interpreter. The next call starts a new one."""
        session, self._session, self.last_result = self._session, None, None
        if session is not None:
            session.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as settings: another process has its own interpreters."""
        return _rebuild, (self._given, self._limits)


def shared_sandbox() -> MontySandbox:
    """Return the `MontySandbox` of this process: made at the first call, closed as the process ends.

    A forked process has its own workers (`MontySandbox`).

    Raises:
        MissingExtraError: If pydantic-monty is not installed.
    """
    return _shared()


def _make_shared() -> MontySandbox:
    sandbox = MontySandbox()
    atexit.register(sandbox.close)
    return sandbox


_shared = Shared(_make_shared)


def _rebuild(sandbox: Sandbox | None, limits: SandboxLimits | None) -> PythonTool:
    return PythonTool(sandbox, limits=limits)
