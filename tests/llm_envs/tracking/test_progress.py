"""What is shown while a collection goes on: on a real terminal (a pty), and where there is none."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector, CollectorStats
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv
from llm_envs.tracking.progress import live_progress, progress_line, remaining_s, since

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
DEADLINE_S = 60.0


def wait_for(stream: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while text not in stream.getvalue():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_line() -> None:
    stats = CollectorStats(submitted=60, running=8, accepted=50, errored=10, successes=30, reward=32.0)
    stats.sampled_tokens = 5000
    stats.why_unscored["env.step: Key\x1bError"] += 10
    assert progress_line(stats, 8000, 100, 10.0) == (
        "150/8000 episodes, 5/s, 0:26:10 left, success 75%, reward 0.8, 500 tokens/s, 8 running, "
        "10 errored (10 x env.step: Key␛Error)"
    )
    assert progress_line(CollectorStats(), 5, 0, 0.0) == "0/5 episodes, 0 running"
    late = CollectorStats(accepted=4, errored=1)  # its reason is counted a moment later
    assert progress_line(late, 3, 0, 2.0).endswith("reward 0, 0 running, 1 errored")


@pytest.mark.parametrize(
    ("ended", "running", "n_waiting", "expected"),
    [
        ([10], [4], 0, 6),
        ([10, 20], [5], 0, 10),  # 5 or 15
        ([10, 20], [12], 0, 8),  # it is one of the slow
        ([10, 20], [25], 0, 25),  # slower than all: as long again
        ([10, 20], [0, 0], 0, 17.5),  # the greater of two: 10 in one of four cases
        ([10, 20], [12, 15], 0, 8),  # 8 and 5
        ([1] * 99 + [100], [30], 0, 70),  # a straggler among a hundred
        ([10], [5, 5], 4, 25),  # both end at 5, two play until 15, two until 25
        ([10], [5, 5], 2, 15),
        ([10, 20], [12, 12], 2, 8 + 17.5),
        ([10], [90], 1, 100),  # the straggler has the only place
        ([1], [0.5, 40], 1, 40),  # the straggler ends last: 20.25 is when half of the work is done, and 1 more
        ([], [5], 3, None),
        ([5], [], 3, None),
    ],
)
def test_the_time_that_is_left(ended: Any, running: Any, n_waiting: int, expected: float | None) -> None:
    assert remaining_s(ended, running, n_waiting) == (None if expected is None else pytest.approx(expected))


def test_a_line_knows_stragglers() -> None:
    stats = CollectorStats(submitted=100, running=1, accepted=99)
    stats.durations_s.extend([1.0] * 98 + [400.0])
    stats.open_episodes["g", 0] = "env", 1, time.monotonic() - 100
    assert re.search(r", 0:0[45]:[0-9]{2} left,", progress_line(stats, 100, 0, 100.0))  # by the rate: a second


def test_what_an_earlier_call_counted_is_left_out() -> None:
    stats = CollectorStats(accepted=5, successes=5, running=1)
    stats.stop_reasons["terminated"] = 5
    before = since(stats, None)
    stats.accepted, stats.successes, stats.running = 7, 5, 2
    stats.stop_reasons["max_turns"] = 2
    now = since(stats, before)
    assert (now.accepted, now.successes, now.running, dict(now.stop_reasons)) == (2, 0, 2, {"max_turns": 2})
    stream = io.StringIO()
    with live_progress(stats, 10, stream=stream, every_s=0.01):
        stats.accepted += 3
        wait_for(stream, "3/10 episodes")


class SlowPolicy(HashingTokenPolicy):
    """Never ends its second turn, of which its engine has 1,000 tokens."""

    n_turns = 0

    @property
    def n_open_tokens(self) -> int:
        return 0 if self.n_turns < 2 else 1_000

    async def sample(self, *args: Any, **kwargs: Any) -> Any:
        self.n_turns += 1
        if self.n_turns > 1:
            await asyncio.sleep(3600)
        return await super().sample(*args, **kwargs)


def test_tokens_are_shown_before_an_episode_ends() -> None:
    """Those of finished turns, and those that the engine has of the turns under way."""
    codec, stream = ByteCodec(), io.StringIO()
    policy = SlowPolicy(codec, lambda prompt_ids, random: codec.decode_reply(prompt_ids).rsplit("Say ", 1)[1][0])

    async def main() -> CollectorStats:
        collector = Collector(partial(NumbersEnv, 3), policy, codec=codec, progress=False)
        task = asyncio.ensure_future(collector.acollect(1))
        with live_progress(collector.stats, 1, stream=stream, every_s=0.01):
            await asyncio.to_thread(wait_for, stream, "tokens/s, 1 running")
            while collector.stats.live_tokens < 1_000:
                await asyncio.sleep(0.01)
        task.cancel()
        await collector.aclose()
        return collector.stats

    stats = asyncio.run(main())
    assert (stats.accepted, stats.written_tokens, stats.sampled_tokens) == (0, 2, 0)  # a digit and its end of turn
    assert re.search(r"^0/1 episodes, [0-9.]+ tokens/s, 1 running$", stream.getvalue(), re.MULTILINE)


class TestElsewhere:
    def test_lines_at_times(self) -> None:
        stream, stats = io.StringIO(), CollectorStats()
        with live_progress(stats, 10, 4, stream=stream, every_s=0.01):
            wait_for(stream, "4/10 episodes, 0 running\n")  # also while nothing ends
            stats.accepted = 3
            wait_for(stream, "7/10 episodes")
        shown = stream.getvalue()
        assert "\r" not in shown and "\x1b" not in shown and shown.endswith("\n")
        time.sleep(0.05)
        assert stream.getvalue() == shown

    def test_what_is_over_at_once_says_nothing(self) -> None:
        stream = io.StringIO()
        with live_progress(CollectorStats(), 10, stream=stream):
            pass
        assert stream.getvalue() == ""

    def test_a_collector_says_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        with Collector(NumbersEnv, OraclePolicy(), progress=True) as collector:
            collector.collect(2)
        assert capsys.readouterr() == ("", "")


@contextmanager
def a_terminal(columns: int) -> Iterator[tuple[int, Screen]]:
    """Give the far end of a terminal, to be handed on, and what it was sent."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        yield theirs, Screen(ours)
    finally:
        os.close(ours)


@contextmanager
def in_a_process(code: str) -> Iterator[tuple[subprocess.Popen[str], Screen]]:
    """Run Python with a terminal as its standard error, and a pipe as its standard output."""
    hidden = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"TERM": "xterm"}
    with a_terminal(100) as (theirs, screen):
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            env=environment,
        )
        os.close(theirs)
        try:
            yield child, screen
        finally:
            child.kill()
            child.communicate()


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Screen]:
    """Return what draws a collection's progress on a terminal as standard error."""

    def run(columns: int = 100, then: Callable[[], object] = lambda: None, term: str = "xterm") -> Screen:
        for name in ("LINES", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", term)
        monkeypatch.setenv("COLUMNS", str(columns))  # the width of this process's own terminal would be taken
        with a_terminal(columns) as (theirs, screen):
            reader = threading.Thread(target=screen.read_until, args=(lambda text: False,))
            reader.start()
            with os.fdopen(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
                patch.setattr(sys, "stderr", terminal)
                stats = CollectorStats(running=3)
                with live_progress(stats, 20, every_s=0.02):
                    stats.accepted, stats.successes, stats.reward, stats.errored = 5, 3, 2.5, 1
                    stats.why_unscored["env.step: [bold red]x[/] \x1b[31m :smile:"] += 1
                    then()
                    screen.wait_for("5/20 episodes"[: columns - 2])
            reader.join(DEADLINE_S)
        return screen

    return run


class Screen:
    """What a terminal was sent."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.sent = descriptor, ""

    def read_until(self, reached: Callable[[str], bool]) -> str:
        """Read until something is there; the end of the program ends it too."""
        deadline = time.monotonic() + DEADLINE_S
        while not reached(self.sent) and time.monotonic() < deadline:
            if select.select([self.descriptor], [], [], 0.1)[0]:
                try:
                    data = os.read(self.descriptor, 65536)
                except OSError:  # the other end is closed, or this one
                    return self.sent
                self.sent += data.decode()
        return self.sent

    def wait_for(self, text: str) -> None:
        """Wait until another thread has read something."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.sent:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def frames(self) -> list[str]:
        """Return what was drawn, without colours and movements."""
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\r", self.sent)
        return [frame for frame in re.split(r"[\r\n]+", re.sub(r"\r\n", "\n", text)) if frame.strip()]


LIVE = """
import time
from llm_envs.tracking.progress import live_progress
from llm_envs.rollout import CollectorStats
with live_progress(CollectorStats(accepted=5), 20, every_s=0.02):
    {then}
print("the output")
"""


class TestOnATerminal:
    def test_a_bar_of_one_line_that_is_gone_at_the_end(self, draw: Callable[..., Screen]) -> None:
        sent = draw(160).sent
        assert "━" in sent and "\x1b[31m :" not in sent  # the bar; and what would colour is visible, not obeyed
        assert "1 errored (1 x env.step: [bold red]x[/] ␛[31m :smile:)" in sent
        assert sent.count(HIDE) == 1 and sent.index(HIDE) < sent.index(SHOW) and sent.count(SHOW) == 1
        # Each drawing begins by clearing one line, never a second one; at the end that line is cleared, and left.
        assert sent.rindex("\x1b[2K") > sent.rindex("episodes") and "\x1b[2A" not in sent

    def test_standard_output_is_left_alone(self) -> None:
        with in_a_process(LIVE.format(then="print('said meanwhile')")) as (child, screen):
            screen.read_until(lambda text: False)
            assert child.stdout is not None and child.stdout.read() == "said meanwhile\nthe output\n"
            assert child.wait(60) == 0 and "said" not in screen.sent

    def test_ctrl_c_leaves_the_cursor_visible(self) -> None:
        with in_a_process(LIVE.format(then="print('inside', flush=True); time.sleep(600)")) as (child, screen):
            screen.read_until(lambda text: "0/20 episodes" in text)
            assert child.stdout is not None and child.stdout.readline() == "inside\n"
            child.send_signal(signal.SIGINT)
            sent = screen.read_until(lambda text: False)
            assert child.wait(60) in (130, -signal.SIGINT)
        assert sent.rindex(SHOW) > sent.rindex(HIDE) and "KeyboardInterrupt" in sent[sent.rindex(SHOW) :]

    @pytest.mark.parametrize("columns", [71, 40, 12])
    def test_a_narrow_one_gets_what_fits_in_a_line(self, columns: int, draw: Callable[..., Screen]) -> None:
        drawn = draw(columns).frames()
        assert drawn and max(map(len, drawn)) <= columns and "━" not in "".join(drawn)
        assert any(frame.startswith("5/20 episodes"[: columns - 2]) and frame.endswith("…") for frame in drawn)

    def test_without_colour(self, draw: Callable[..., Screen], monkeypatch: pytest.MonkeyPatch) -> None:
        colour = re.compile(r"\x1b\[(3[0-7]|9[0-7]|38;[0-9;]*)m")
        assert colour.search(draw().sent)
        monkeypatch.setenv("NO_COLOR", "1")
        assert not colour.search(draw().sent)

    def test_a_dumb_one_gets_lines(self, draw: Callable[..., Screen]) -> None:
        sent = draw(term="dumb").sent
        assert "5/20 episodes, " in sent and "\x1b" not in sent and "\r\n" in sent

    def test_warnings_appear_above_it(self, draw: Callable[..., Screen]) -> None:
        sent = draw(then=lambda: print("[red]a warning", file=sys.stderr)).sent
        assert "[red]a warning\r\n" in sent and sent.rindex("episodes") > sent.index("a warning")

    def test_a_collector_ends_with_a_summary(self) -> None:
        code = (
            "from llm_envs.policies.scripted import OraclePolicy\nfrom llm_envs.rollout import Collector\n"
            "from llm_envs.testing import NumbersEnv\n"
            "with Collector(NumbersEnv, OraclePolicy()) as c: c.collect(3)"
        )
        with in_a_process(code) as (_, screen):
            sent = screen.read_until(lambda text: False)
        assert re.search(r"3 episodes in [\d.]+ s .*success 100", sent[sent.rindex(SHOW) :])
