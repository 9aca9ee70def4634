"""Environments that are slow, leak or crash: one defect each."""

from __future__ import annotations

import tempfile
import threading
import time
from typing import Any, ClassVar

from gymnasium import Env
from sound_envs import Backwards, Sum

# Latency.


class ResetsSlowly(Sum):
    """A reset takes 6 ms, and 4 ms are allowed."""

    def draw(self) -> None:
        time.sleep(0.006)
        super().draw()


class StepsSlowly(Backwards):
    """The third turn takes 8 ms, and 4 ms are allowed."""

    def step(self, action: str) -> Any:
        if self.turn == 2:
            time.sleep(0.008)
        return super().step(action)


class ReadsLongRepliesSlowly(Sum):
    """A reply of 90,000 characters or more takes over a second."""

    def step(self, action: str) -> Any:
        if len(action) >= 90_000:
            time.sleep(1.1)
        return super().step(action)


# Memory.


class KeepsItsEpisodes(Sum):
    """Each environment keeps a log of all its episodes."""

    def __init__(self, split: str = "train") -> None:
        super().__init__(split)
        self.log: list[str] = []

    def step(self, action: str) -> Any:
        self.log.append(f"{action}{'.' * 4_000}")
        return super().step(action)


class KeepsEverything(Backwards):
    """The class keeps a log of all episodes."""

    log: ClassVar[list[list[int]]] = []

    def draw(self) -> None:
        super().draw()
        self.log.append(list(range(1_000)))


class LeavesFilesOpen(Sum):
    """Each environment opens a file, and nothing closes it."""

    files: ClassVar[list[Any]] = []

    def __init__(self, split: str = "train") -> None:
        super().__init__(split)
        self.files.append(tempfile.TemporaryFile())  # noqa: SIM115  # left open on purpose


class LeavesThreads(Sum):
    """Each environment starts a thread that never ends."""

    ends = threading.Event()

    def __init__(self, split: str = "train") -> None:
        super().__init__(split)
        threading.Thread(target=self.ends.wait, daemon=True).start()


# Crashes.


class RaisesOnWords(Sum):
    """A reply that is not a number raises."""

    def is_right(self, action: str) -> bool:
        return int(self.read(action)) == self.a + self.b


class RaisesOnSurrogates(Sum):
    """A reply is encoded as UTF-8 without a thought of what it may hold."""

    def is_right(self, action: str) -> bool:
        action.encode()
        return super().is_right(action)


class RaisesOnSilence(Backwards):
    """An empty reply raises."""

    def is_right(self, action: str) -> bool:
        return action.strip()[0].islower() and super().is_right(action)


class RaisesOnLength(Sum):
    """A long reply raises."""

    def is_right(self, action: str) -> bool:
        if len(action) > 50_000:
            raise ValueError("too long")
        return super().is_right(action)


class NeverEnds(Backwards):
    """A wrong word is asked for again, for ever."""

    def step(self, action: str) -> Any:
        if not self.is_right(action):
            return self.question(), 0.0, False, False, {}
        return super().step(action)


DEFECTS: dict[str, tuple[type[Env[str, str]], ...]] = {
    "latency": (ResetsSlowly, StepsSlowly, ReadsLongRepliesSlowly),
    "memory": (KeepsItsEpisodes, KeepsEverything, LeavesFilesOpen, LeavesThreads),
    "crashes": (RaisesOnWords, RaisesOnSurrogates, RaisesOnSilence, RaisesOnLength, NeverEnds),
}
