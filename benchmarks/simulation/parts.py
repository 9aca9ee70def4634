"""The parts of a system: engines, and processes that do one thing at a time.

1. An engine's step takes longer with more rows and more tokens in them. What arrives during a step is read in the next.
2. Rows and kept prefixes share the cache. Kept prefixes go first, the oldest first; then the newest row is preempted:
   it waits at the head of the queue and is read again.
3. An engine that dies answers False to all of its turns, and to new ones until it is back.
4. While an engine is paused no step begins; its rows continue afterwards.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

Events = Generator[Any, Any, None]
PIECES = 100
"""Of what is sent beside other things."""


@dataclass(frozen=True)
class EngineRates:
    """Times of an engine, in seconds."""

    step_s: float
    """A decoding step without rows."""
    row_s: float
    """What a row adds to a step."""
    begin_s: float = 0.0
    """What a turn adds to the step that it begins in."""
    mixed_s: float = 0.0
    """What a step takes longer in which turns begin, however many."""
    token_s: float = 0.0
    """What a token in the cache adds to a step."""
    read_s: float = 0.0
    """Reading one token of a prompt."""
    max_rows: int = 256
    max_tokens: float = math.inf
    """Room of the cache."""


@dataclass(eq=False, slots=True)
class _Turn:
    session: int
    n_context: int
    n_tokens: int
    done: simpy.Event
    end: float = 0.0
    begun: float = 0.0


class Engine:
    """Continuous batching: rows share steps, and turns join and leave between two steps."""

    def __init__(self, env: simpy.Environment, rates: EngineRates) -> None:
        self.env, self.rates = env, rates
        self.n_sampled = self.n_read = self.n_preempted = 0
        self.busy_s = self.stolen_s = 0.0
        self._rows: list[tuple[float, int, _Turn]] = []
        self._queue: deque[_Turn] = deque()
        self._kept: OrderedDict[int, int] = OrderedDict()
        """Tokens of sessions whose turns have ended."""
        self._n_kept = 0
        self._used = 0.0
        """Tokens of the rows."""
        self._steps, self._numbers = 0.0, itertools.count()
        self._is_paused = self._is_down = False
        self._news = env.event()
        env.process(self._run())

    def sample(self, session: int, n_context: int, n_tokens: int) -> simpy.Event:
        """Return an event: the tokens are sampled (True), or the engine has died (False).

        Args:
            session: The episode, whose earlier tokens may be in the cache.
            n_context: Tokens of the prompt, all earlier turns included.
            n_tokens: Tokens to sample, at least 1.
        """
        turn = _Turn(session, n_context, max(1, n_tokens), self.env.event())
        if self._is_down:
            turn.done.succeed(False)
        else:
            self._queue.append(turn)
            self._tell()
        return turn.done

    def abort(self, session: int) -> None:
        """Drop a session's turn, whose caller is gone."""
        for row in [row for row in self._rows if row[2].session == session]:
            self._rows.remove(row)
            self._used -= row[2].n_context + self._steps - row[2].begun
        heapq.heapify(self._rows)
        self._queue = deque(turn for turn in self._queue if turn.session != session)
        self._tell()

    def pause(self) -> None:
        """Begin no further step."""
        self._is_paused = True
        self._tell()

    def resume(self, *, is_new: bool = True) -> None:
        """Continue; with new weights, kept prefixes are useless."""
        self._is_paused = False
        if is_new:
            self._kept.clear()
            self._n_kept = 0
        self._tell()

    @property
    def is_playing(self) -> bool:
        """Whether it has turns."""
        return bool(self._rows or self._queue)

    def die(self) -> None:
        """Lose all rows and the cache."""
        self._is_down = True
        lost = [turn for _, _, turn in self._rows] + list(self._queue)
        self._rows, self._used = [], 0.0
        self._queue.clear()
        self._kept.clear()
        self._n_kept = 0
        for turn in lost:
            turn.done.succeed(False)
        self._tell()

    def come_back(self) -> None:
        """Take turns again."""
        self._is_down = False

    def _tell(self) -> None:
        if not self._news.triggered:
            self._news.succeed()

    def _run(self) -> Events:
        env = self.env
        while True:
            if self._is_paused or not (self._rows or self._queue):
                self._news = env.event()
                yield self._news
                continue
            extra_s, is_first = self._admit()
            rows = len(self._rows)
            step_s = self.rates.step_s + self.rates.row_s * rows + self.rates.token_s * self._used
            room = (self.rates.max_tokens - self._used) / max(rows, 1)
            n_steps = 1.0
            if self._rows and not is_first:
                n_steps = max(1.0, float(math.floor(min(self._rows[0][0] - self._steps, room) + 1e-9)))
            began, self.stolen_s = env.now, 0.0
            if n_steps > 1:
                self._news = env.event()
                yield self._news | env.timeout(n_steps * step_s)
                if self._news.triggered:  # the step under way is the last
                    n_steps = min(n_steps, float(math.ceil((env.now - began - self.stolen_s) / step_s - 1e-9)))
            while (left := began + max(n_steps, 0.0) * step_s + extra_s + self.stolen_s - env.now) > 1e-9:
                yield env.timeout(left)
            self.busy_s += env.now - began
            self._advance(max(n_steps, 0.0))

    def _admit(self) -> tuple[float, bool]:
        """Begin waiting turns; return the seconds that they add to the next step, and whether there are any."""
        seconds, is_first, rates = 0.0, False, self.rates
        while self._queue and len(self._rows) < rates.max_rows:
            turn = self._queue[0]
            n_whole = turn.n_context
            n_kept = min(self._kept.pop(turn.session, 0), n_whole)
            self._n_kept -= n_kept
            if self._used + n_whole + 1 > rates.max_tokens and self._rows:
                self._keep(turn.session, n_kept)
                break
            self._queue.popleft()
            self._used += n_whole
            self._make_room()
            n_read = n_whole - n_kept
            self.n_read += n_read
            seconds += rates.begin_s + n_read * rates.read_s
            turn.begun, turn.end, is_first = self._steps, self._steps + turn.n_tokens, True
            heapq.heappush(self._rows, (turn.end, next(self._numbers), turn))
        return seconds + rates.mixed_s * is_first, is_first

    def _keep(self, session: int, n_tokens: int) -> None:
        self._kept[session] = n_tokens
        self._n_kept += n_tokens
        self._make_room()

    def _make_room(self) -> None:
        while self._kept and self._used + self._n_kept > self.rates.max_tokens:
            self._n_kept -= self._kept.popitem(last=False)[1]

    def _advance(self, n_steps: float) -> None:
        """Let steps have happened: end turns, and preempt rows that the cache has no room for."""
        if not self._rows:  # the engine died during the step
            return
        self._steps += n_steps
        self._used += n_steps * len(self._rows)
        while self._rows and self._rows[0][0] <= self._steps + 1e-9:
            turn = heapq.heappop(self._rows)[2]
            n_whole = turn.n_context + round(turn.end - turn.begun)
            self._used -= n_whole
            self.n_sampled += round(turn.end - turn.begun)
            self._keep(turn.session, n_whole)
            turn.done.succeed(True)
        self._make_room()
        while len(self._rows) > 1 and self._used + len(self._rows) > self.rates.max_tokens:
            newest = max(self._rows, key=lambda row: row[1])
            self._rows.remove(newest)
            heapq.heapify(self._rows)
            turn = newest[2]
            n_done = round(self._steps - turn.begun)
            self._used -= turn.n_context + n_done
            self.n_sampled += n_done
            self.n_preempted += 1
            turn.n_context, turn.n_tokens = turn.n_context + n_done, turn.n_tokens - n_done
            self._queue.appendleft(turn)


class Process:
    """A process that does one thing at a time, in the order of asking.

    Args:
        env: The environment.
        beside: An engine in the same process, whose steps wait while this one works.
    """

    def __init__(self, env: simpy.Environment, beside: Engine | None = None) -> None:
        self.env, self.busy_s = env, 0.0
        self._one, self._beside = simpy.Resource(env), beside

    def work(self, seconds: float) -> Events:
        """Work for some seconds."""
        if seconds <= 0:
            return
        with self._one.request() as turn:
            yield turn
            if self._beside is not None:
                self._beside.stolen_s += seconds
            yield self.env.timeout(seconds)
            self.busy_s += seconds

    def share(self, seconds: float) -> Events:
        """Work for some seconds in small pieces, between which others have their turn."""
        for _ in range(PIECES):
            yield from self.work(seconds / PIECES)

    @property
    def n_waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._one.queue)
