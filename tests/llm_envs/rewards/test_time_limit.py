"""A limit of time for functions of the user, in the main thread and in others; what cannot be interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from make_trajectories import make_trajectory

from llm_envs.errors import InvalidConfigError, TimeLimitError
from llm_envs.rewards import score_trajectories
from llm_envs.rewards.time_limit import limited
from llm_envs.types import Trajectory, TrajectoryGroup

SHORT_S, LONG_S = 0.1, 600.0


def loops(trajectory: Any) -> float:
    while True:
        pass


def sleeps(trajectory: Any) -> float:
    time.sleep(LONG_S)
    return 0.0


def matches(trajectory: Any) -> float:
    """A regular expression that needs 2^64 steps, and holds Python's lock."""
    return float(re.match(r"(a+)+$", "a" * 64 + "b") is not None)


def catches(trajectory: Any) -> float:
    """A reward that gives 0 for whatever goes wrong."""
    try:
        time.sleep(LONG_S)
    except BaseException:
        return 0.0
    return 1.0


def in_a_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns or raises in another thread than the main one."""
    found: list[Any] = []

    def target() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


@pytest.mark.parametrize("function", [loops, sleeps, matches, catches])
def test_a_call_that_does_not_end_is_an_error_with_function_and_row(function: Callable[..., float]) -> None:
    handler, trajectory = signal.getsignal(signal.SIGALRM), replace(make_trajectory(1.0), group_id="g", member=3)
    with pytest.raises(TimeLimitError, match=r"the reward.*max_function_s=0\.1 s.*episode 3 of group 'g'"):
        limited(function, SHORT_S, "the reward")(trajectory)
    assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_it_is_in_another_thread_too() -> None:
    group = TrajectoryGroup("g", "env", 1, (make_trajectory(1.0),))
    with pytest.raises(TimeLimitError, match=r"the filter.*max_function_s=0\.1 s.*group 'g'"):
        in_a_thread(lambda: limited(sleeps, SHORT_S, "the filter")(group))


def test_a_call_in_time_is_as_without_a_limit() -> None:
    def fails(trajectory: Trajectory) -> float:
        raise KeyError("mine")

    for run in (lambda function: function(), in_a_thread):
        assert run(lambda: limited(lambda trajectory: 7.0, LONG_S, "it")(None)) == 7.0
        with pytest.raises(KeyError, match="mine"):
            run(lambda: limited(fails, LONG_S, "it")(None))
    assert limited(fails, None, "it") is fails
    with pytest.raises(InvalidConfigError, match="max_function_s=0"):
        limited(fails, 0.0, "it")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs to choose a processor")
@pytest.mark.parametrize("run", [lambda function: function(), in_a_thread], ids=["main thread", "another thread"])
def test_time_without_a_processor_does_not_count(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a limit is used, beside a loop on the same processor: by the clock on the wall, the limit is over."""
    monkeypatch.setattr("llm_envs.rewards.time_limit._LONGEST", LONG_S)

    def computes(trajectory: Any) -> float:
        while time.thread_time() < started_s + 0.8:
            pass
        return 7.0

    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    started_s = time.thread_time() if run is not in_a_thread else 0.0
    try:
        assert run(lambda: limited(computes, 1.0, "the reward")(None)) == 7.0
    finally:
        os.sched_setaffinity(0, allowed)
        busy.kill()
        busy.wait()


def test_a_batch_is_one_call() -> None:
    class Judge:
        def __call__(self, trajectory: Trajectory) -> float:
            raise AssertionError("it scores batches")

        def score_batch(self, trajectories: list[Trajectory]) -> list[float]:
            return [sleeps(trajectory) if trajectory.member else 1.0 for trajectory in trajectories]

    members = [replace(make_trajectory(1.0), group_id="g", member=member) for member in (0, 1)]
    judge = {"judge": limited(Judge(), SHORT_S, "the judge")}
    assert score_trajectories(members[:1], judge)[0].components == {"judge": 1.0}
    with pytest.raises(TimeLimitError, match=r"the judge.*2 episodes, the first episode 0 of group 'g'"):
        score_trajectories(members, judge)


def test_alarms_of_the_function_and_of_the_program_stay() -> None:
    """Libraries set an alarm in the main thread, and restore the handler afterwards."""
    rung: list[int] = []

    def has_its_own(trajectory: Any) -> float:
        handler = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(1))
        signal.setitimer(signal.ITIMER_REAL, SHORT_S)
        while not rung:
            time.sleep(0.01)
        signal.signal(signal.SIGALRM, handler)
        return 5.0

    handler = signal.signal(signal.SIGALRM, lambda number, frame: None)
    program = signal.getsignal(signal.SIGALRM)
    try:
        signal.setitimer(signal.ITIMER_REAL, LONG_S)
        assert limited(has_its_own, LONG_S, "it")(None) == 5.0
        assert signal.getsignal(signal.SIGALRM) is program and 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= LONG_S
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)


PROGRAM = """
    import sys, threading, time
    from llm_envs.rewards import time_limit

    def stubborn(trajectory):
        while True:
            try:
                time.sleep(600.0)
            except BaseException:
                pass

    def call():
        time_limit.limited(stubborn, 0.1, "the reward")(None)

    if sys.argv[1] == "beside":
        failed = []
        threading.excepthook = lambda args: failed.append(args.exc_value)
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        raise failed[0]
    time_limit.GRACE_S = 0.5
    call()
"""


@pytest.mark.parametrize(
    ("where", "said"), [("beside", "TimeLimitError: the reward was not done"), ("here", "stubborn")]
)
def test_the_exit_waits_for_no_call(where: str, said: str) -> None:
    """In another thread it is left behind. In the main thread, one that cannot be interrupted ends with its process."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and said in done.stderr, done.stderr
