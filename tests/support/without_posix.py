"""A plugin for pytest, and a module to import first: what only POSIX has raises where the files of this package use it.

    PYTHONPATH=tests/support python -m pytest -p without_posix tests/llm_envs/rollout

Other packages, and the standard library, still find everything.
"""

from __future__ import annotations

import builtins
import types
from typing import Any

OWN = ("llm_envs", "trainers", "tasks")
MODULES = frozenset({"fcntl", "pwd", "resource", "termios"})
"""Modules that other systems lack."""
NAMES = {
    "os": {"fork", "getpgid", "getpgrp", "killpg", "setsid", "geteuid", "getuid", "register_at_fork"},
    "signal": {"SIGKILL", "SIGALRM", "SIGCHLD", "SIGSTOP", "SIGCONT", "SIGHUP", "setitimer", "pthread_sigmask"},
    "socket": {"AF_UNIX"},
}
"""Module: its names that other systems lack."""
VALUES = {("os", "name"): "nt", ("sys", "platform"): "win32"}
"""Module and name: the value on another system."""

_import = builtins.__import__


class _Without(types.ModuleType):
    """A module without some of its names."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__["_module"]
        if (module.__name__, name) in VALUES:
            return VALUES[module.__name__, name]
        if name in NAMES.get(module.__name__, ()):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r} here (without_posix)")
        return getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_module"], name, value)


def _import_without(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    ours = str((globals or {}).get("__name__", "")).partition(".")[0] in OWN
    if ours and not level:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r} here (without_posix)", name=name)
        if missing := NAMES.get(name, set()).intersection(fromlist or ()):
            raise ImportError(f"{name} has no {', '.join(sorted(missing))} here (without_posix)", name=name)
    module = _import(name, globals, locals, fromlist, level)
    return _Without(module) if ours and not level and name in (*NAMES, "sys") and not fromlist else module


builtins.__import__ = _import_without
