"""The thread that kills workers at their time limits."""

import os
import signal
import subprocess
import sys
import time

import pytest

from llm_envs.processes.deadline import LONGEST, Deadline, TimeLimits


@pytest.mark.smoke
def test_what_counts_is_processor_time_and_time_in_which_code_did_not_wait_for_it():
    computes = Deadline(1.0)
    assert computes.extend(0.5) == 0.25 and computes.given_s == 1.25
    assert computes.extend(0.95) == 0.0 and not computes.was_starved
    sleeps = Deadline(1.0)
    assert sleeps.extend(0.0, 0.05) == 0.0 and sleeps.spent_s == 0.95 and not sleeps.was_starved
    waits_first = Deadline(1.0)
    assert [waits_first.extend(0.0, 0.5) for _ in range(3)] == [0.25, 0.25, 0.0]
    starved = Deadline(1.0, longest=1.5)
    assert [starved.extend(0.1) for _ in range(3)] == [0.25, 0.25, 0.0]
    assert starved.was_starved and starved.given_s == 1.5


@pytest.fixture
def worker():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_worker_over_its_limit_is_killed(worker):
    with TimeLimits().hold(worker.pid, 0.2) as limit:
        assert worker.wait(60) == -signal.SIGKILL
    assert limit.is_killed and not limit.was_starved
    assert limit.spent_s >= 0.1


def test_a_worker_without_a_processor_gets_more_time_and_is_then_called_starved(worker):
    os.kill(worker.pid, signal.SIGSTOP)
    started = time.monotonic()
    with TimeLimits().hold(worker.pid, 0.05) as limit:
        assert worker.wait(60) == -signal.SIGKILL
    assert time.monotonic() - started > LONGEST * 0.05
    assert limit.was_starved


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs to choose a processor")
def test_time_without_a_processor_does_not_count():
    """Most of a limit is used, beside a loop on the same processor: by the clock on the wall, the limit is over."""
    spend = "import time\nwhile time.process_time() < 0.8: pass"
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        busy, worker = (subprocess.Popen([sys.executable, "-c", code]) for code in ("while True: pass", spend))
    finally:
        os.sched_setaffinity(0, allowed)
    with TimeLimits().hold(worker.pid, 1.0):
        assert worker.wait(600) == 0
    busy.kill()
    busy.wait()


def test_a_worker_that_is_done_in_time_lives_on(worker):
    limits = TimeLimits()
    with limits.hold(worker.pid, 60) as longer:
        with limits.hold(worker.pid, 1.0) as limit:  # an earlier deadline wakes the thread
            pass
        time.sleep(1.5)
    assert worker.poll() is None
    assert not limit.is_killed and not longer.is_killed


def test_an_earlier_deadline_is_seen_while_a_later_one_is_waited_for(worker):
    limits = TimeLimits()
    with limits.hold(os.getpid(), 600), limits.hold(worker.pid, 0.2):
        assert worker.wait(60) == -signal.SIGKILL


def test_a_forked_child_has_its_own_thread():
    limits = TimeLimits()
    with limits.hold(os.getpid(), 600):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                signal.alarm(120)
                process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                with limits.hold(process.pid, 0.1):
                    status = 0 if process.wait(60) == -signal.SIGKILL else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
