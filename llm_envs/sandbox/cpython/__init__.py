"""CPython itself for models, in a process that the kernel closes in. Linux only, and used only where it is asked for.

`session` is the host's side, `child` the program on the other side, `seccomp` the filter of system calls. See
`docs/guides/sandbox.md`.
"""

from __future__ import annotations

from llm_envs.sandbox.cpython.session import Isolation, SubprocessSandbox, SubprocessSession

__all__ = ["Isolation", "SubprocessSandbox", "SubprocessSession"]
