"""A real shell in a sandbox, for agents: one interface, several runtimes (see `base`).

`open_shell` opens one. `ShellTools` gives an environment the tools `bash`, `edit` and `read`.
"""

from __future__ import annotations

from llm_envs.shell.base import HOME, Shell, ShellLimits, ShellResult, ShellSnapshot
from llm_envs.shell.container import CLIENTS
from llm_envs.shell.opening import RUNTIMES, open_shell
from llm_envs.shell.tool import ShellTools

__all__ = [
    "CLIENTS",
    "HOME",
    "RUNTIMES",
    "Shell",
    "ShellLimits",
    "ShellResult",
    "ShellSnapshot",
    "ShellTools",
    "open_shell",
]
