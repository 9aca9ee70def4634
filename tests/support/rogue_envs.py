"""Environments that hang, crash, lie and leave things behind, for tests of worker processes; found there by name."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from llm_envs.testing import NumbersEnv
from llm_envs.types import ToolResult


class UnpicklableError(Exception):
    def __init__(self, message: str, *, lock: Any) -> None:
        super().__init__(message)
        self.lock = lock


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Odd:
    """An object of a class that the collector does not know."""

    def __repr__(self) -> str:
        return "<odd>"


def hang() -> None:
    while True:
        time.sleep(3_600)


def spin_without_the_lock_given_back() -> None:
    """Backtrack in C for longer than anybody waits; no other thread of the process runs meanwhile."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def ignore_sigterm_and_hang() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang()


def leave_and_hang() -> None:
    """Start a child, one in a session of its own, and one that holds our sockets; write down who they are; hang."""
    code = "import time; time.sleep(3600)"
    children = [subprocess.Popen([sys.executable, "-c", code], start_new_session=own).pid for own in (False, True)]
    forked = os.fork()
    if not forked:
        hang()
    Path(os.environ["ROGUE_NOTES"]).write_text(" ".join(map(str, [*children, forked])))
    hang()


def note_and_hang() -> None:
    """Write down that it has begun, and hang."""
    Path(os.environ["ROGUE_NOTES"]).write_text("begun")
    hang()


def note_and_wait() -> None:
    """Write down that it has begun, and go on when the note has been removed."""
    notes = Path(os.environ["ROGUE_NOTES"])
    notes.write_text("begun")
    while notes.exists():
        time.sleep(0.01)


def close_sockets_and_hang() -> None:
    os.closerange(3, 256)
    hang()


def fork_and_exit() -> None:
    """End while a child still holds our sockets."""
    if not os.fork():
        hang()
    os._exit(4)


def raise_unpicklable() -> None:
    raise UnpicklableError("with a lock", lock=time.sleep)


def raise_mute() -> None:
    raise Mute


def raise_(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


DEEDS: dict[str, Callable[[], Any]] = {
    "hang": hang,
    "spin": spin_without_the_lock_given_back,
    "ignore SIGTERM": ignore_sigterm_and_hang,
    "note": note_and_hang,
    "note and wait": note_and_wait,
    "leave": leave_and_hang,
    "fork": fork_and_exit,
    "fault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "close": close_sockets_and_hang,
    "close and go on": lambda: os.closerange(3, 256),
    "write": lambda: [os.write(fd, b"\xff" * 64) for fd in range(3, 256) if is_socket(fd)],
    "unpicklable": raise_unpicklable,
    "mute": raise_mute,
    "KeyError": raise_(KeyError("key")),
    "KeyboardInterrupt": raise_(KeyboardInterrupt()),
    "SystemExit": raise_(SystemExit(1)),
    "StopIteration": raise_(StopIteration(5)),
    "GeneratorExit": raise_(GeneratorExit()),
    "UnicodeDecodeError": raise_(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")),
    "ValueError": raise_(ValueError("lone \ud800")),
    "print": lambda: print("hello from the environment"),
}

RESULTS: dict[str, Any] = {
    "nothing": None,
    "a text": "text",
    "four": ("x", 1.0, True, False),
    "no reward": ("x", None, True, False, {}),
    "nan": ("x", float("nan"), True, False, {}),
    "no text": (5, 1.0, True, False, {}),
    "odd text": (Odd(), 1.0, True, False, {}),
    "odd components": ("x", 1.0, True, False, {"reward_components": Odd()}),
    "odd component": ("x", 1.0, True, False, {"reward_components": {"a": Odd()}}),
    "array of success": ("x", 1.0, True, False, {"is_success": np.array([1, 2])}),
    "role only": ("x", 1.0, True, False, {"messages": [{"role": "user"}]}),
    "a set in a message": (
        "x",
        1.0,
        False,
        True,
        {"messages": [{"role": "user", "content": "x", "metadata": {"a": {1}}}]},
    ),
    "decimals": ("x", Decimal("0.5"), True, False, {"reward_components": {"a": Decimal("0.5")}}),
    "odd success": ("x", 1.0, True, False, {"is_success": Odd()}),
    "numpy": ("x", np.float32(0.5), np.bool_(True), 0, {"reward_components": {np.str_("a"): np.float32(0.5)}}),
    "odd info": ("x", 1.0, True, False, {"debug": [Odd(), {Odd: len}], "is_success": True}),
}


def is_socket(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket")
    except OSError:
        return False


class RogueEnv(NumbersEnv):
    """A `NumbersEnv` that does a deed of `DEEDS` in one of its methods, or returns one of `RESULTS` from `step`.

    Args:
        at: "make", "reset", "step" or "close".
        deed: Which; with a seed, see `one_in`.
        result: What `step` returns.
        one_in: Do it only where the episode's seed is a multiple of this.
    """

    def __init__(
        self, at: str = "", deed: str = "", result: str = "", one_in: int = 1, n_turns: int = 1, **settings: Any
    ) -> None:
        super().__init__(n_turns, **settings)
        self.at, self.deed, self.result, self.one_in, self.seed = at, deed, result, one_in, 0
        self._do("make")

    def _do(self, where: str) -> None:
        if self.at == where and self.seed % self.one_in == 0:
            DEEDS[self.deed]()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.seed = seed or 0
        self._do("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        self._do("step")
        result = super().step(action)
        self.tool_results = (ToolResult("f", {"x": 1}, "o", True, None, 0.25),)
        return RESULTS[self.result] if self.result else result

    def close(self) -> None:
        self._do("close")
        super().close()


class PidEnv(NumbersEnv):
    """Says which process it is in."""

    def step(self, action: str) -> Any:
        return str(os.getpid()), 1.0, True, False, {"is_success": True}


class LongEnv(NumbersEnv):
    """Says something long."""

    def __init__(self, n_characters: int = 10, **settings: Any) -> None:
        super().__init__(**settings)
        self.n_characters = n_characters

    def step(self, action: str) -> Any:
        return action[:1] * self.n_characters, 1.0, True, False, {"is_success": True}
