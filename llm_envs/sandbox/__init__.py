"""Python for models: one interface, two backends (see `base`).

`MontySandbox` runs a subset of Python in `pydantic-monty`, a fraction of a millisecond a run. `SubprocessSandbox` runs
CPython itself in a separate process, confined by the kernel; it runs only where the caller asks for it.
"""

from __future__ import annotations

from llm_envs.sandbox.base import CRASHED, Sandbox, SandboxLimits, SandboxResult
from llm_envs.sandbox.cpython import SubprocessSandbox
from llm_envs.sandbox.monty import MontySandbox
from llm_envs.sandbox.tool import PythonTool, shared_sandbox

__all__ = [
    "CRASHED",
    "MontySandbox",
    "PythonTool",
    "Sandbox",
    "SandboxLimits",
    "SandboxResult",
    "SubprocessSandbox",
    "shared_sandbox",
]
