"""The backend in pydantic-monty: a pool that sessions share, and variables that outlive a stopped run."""

import os
import signal
import subprocess
from dataclasses import replace

import pytest

pytest.importorskip("pydantic_monty")

from llm_envs.errors import InvalidConfigError
from llm_envs.sandbox import CRASHED, MontySandbox, SandboxLimits

LIMITS = SandboxLimits(timeout_s=30, memory_bytes=48 << 20, recursion_depth=100, output_characters=500)


@pytest.fixture(scope="module")
def sandbox():
    with MontySandbox(n_workers=1, limits=LIMITS) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def hurried():
    """For code that does not end; what ends by itself has long enough for the busiest machine."""
    with MontySandbox(n_workers=1, limits=replace(LIMITS, timeout_s=0.4)) as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    ("code", "stopped"),
    [
        ("x = 2\nwhile True: pass", "time"),
        ("x = 2\ny = []\nwhile True: y.append('a' * 1000)", "memory"),
        ("x = 2\ny = 'a' * 10**10", "memory"),
        ("x = 2\nwhile True: print('a' * 1000)", "output"),
        ("x = 2\n10**10000000 % 7", "time"),  # one operation that does not look at the clock
        ("x = 2\nlist(range(1000000))", "memory"),  # a value too large to be handed out
    ],
)
def test_a_stopped_run_leaves_the_variables_as_they_were(sandbox, hurried, code, stopped):
    session = (hurried if stopped in ("time", "output") else sandbox).session()
    session.run("x = 1")
    result = session.run(code)
    assert (result.stopped, result.state_lost) == (stopped, False)
    assert result.output.endswith("[variables are as they were before this code]")
    assert session.run("x").value == "1"


def test_more_sessions_than_workers(sandbox):
    """A session holds a worker only while it runs: one worker serves any number of episodes in turn."""
    sessions = [sandbox.session() for _ in range(20)]
    for n, session in enumerate(sessions):
        session.run(f"x = {n}")
    assert [session.run("x").value for session in sessions] == [str(n) for n in range(20)]


def test_a_worker_that_is_killed_costs_one_run(sandbox):
    session = sandbox.session()
    session.run("x = 1")
    listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    workers = [int(line.split()[0]) for line in listed.stdout.splitlines() if line.split()[1] == "monty"]
    assert workers
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    results = [session.run("x"), session.run("x")]
    assert results[1].value == "1"
    assert results[0].value == "1" or (results[0].error, results[0].state_lost) == (CRASHED, False)


def test_variables_that_take_too_much_are_not_kept(sandbox):
    """Between runs they are held here, for every episode at once."""
    session = sandbox.session()
    session.run("x = 1")
    result = session.run("x = 2\ny = [str(n) * 1000 for n in range(5000)]\nNone")
    assert result.stopped == "memory"
    assert session.run("x").value == "1"


def test_memory_errors_that_are_caught_do_not_end_the_episode(sandbox):
    session = sandbox.session()
    for _ in range(2):
        session.run(
            "a = []\nwhile len(a) < 500:\n    try: a.append('x' * 10**6 + str(len(a)))\n    except MemoryError: break"
        )
    assert "42" in [session.run("40 + 2").value, session.run("40 + 2").value]


def test_sleep_returns_at_once(sandbox):
    result = sandbox.session().run("import time\ntime.sleep(1000)\n'awake'")
    assert result.value == "'awake'"
    assert result.seconds < 30


def test_a_session_may_not_run_longer_than_the_sandbox(sandbox):
    with pytest.raises(InvalidConfigError, match="timeout_s of a session is 99"):
        sandbox.session(SandboxLimits(timeout_s=99))


def test_instances_show_their_attributes(sandbox):
    code = "class P:\n    def __init__(self):\n        self.x = 1\n        self.y = 'a'\nP()"
    assert sandbox.session().run(code).value == "P(x=1, y='a')"


def test_an_exception_of_the_code_is_not_taken_for_a_limit(sandbox):
    session = sandbox.session()
    result = session.run("x = 1\nraise TimeoutError('feed time limit exceeded: 1s > 1s')")
    assert (result.error, result.stopped) == ("TimeoutError", None)
    assert session.run("x").value == "1"


@pytest.mark.parametrize("n_workers", [0, -1, 1.5, True, "2"])
def test_number_of_workers(n_workers):
    with pytest.raises(InvalidConfigError, match="n_workers"):
        MontySandbox(n_workers=n_workers)
