"""The backend in pydantic-monty: a pool that sessions share, and variables that outlive a stopped run."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("pydantic_monty")

from machine import busy
from pydantic_monty._binary import find_monty_binary

from llm_envs.errors import InvalidConfigError, SandboxError
from llm_envs.processes import cpu_seconds
from llm_envs.sandbox import MontySandbox, SandboxLimits

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
        ("x = 2\nlist(range(1000000)) * 4", "memory"),  # a value too large to be written out
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


def workers():
    """Return the processes of pydantic-monty below this one."""
    listed = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if line.split()[1] == "monty"]


def test_a_worker_that_is_killed_costs_no_run(sandbox):
    session = sandbox.session()
    session.run("x = 1")
    assert workers()
    for pid in workers():
        os.kill(pid, signal.SIGKILL)
    assert [session.run("x").value, session.run("x").value] == ["1", "1"]


def started_by(script, tmp_path, monkeypatch):
    """Have new workers started by a shell script, which the real program's path is passed to."""
    path = tmp_path / "monty"
    path.write_text(f"#!/bin/sh\nreal={find_monty_binary()}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("MONTY_BIN", str(path))


def test_the_start_of_a_worker_does_not_count_as_time_of_the_code(tmp_path, monkeypatch):
    started_by('sleep 1; exec "$real" "$@"', tmp_path, monkeypatch)
    with MontySandbox(n_workers=1, limits=replace(LIMITS, timeout_s=0.4)) as sandbox:
        assert sandbox.session().run("6 * 7").value == "42"


def test_a_worker_that_does_not_start_is_not_the_codes_fault(tmp_path, monkeypatch):
    started_by(f'[ -e {tmp_path}/second ] && exec "$real" "$@"; touch {tmp_path}/second; exit 1', tmp_path, monkeypatch)
    with MontySandbox(n_workers=1, limits=LIMITS) as sandbox:
        assert sandbox.session().run("6 * 7").value == "42"
    started_by("exit 1", tmp_path, monkeypatch)
    refused = pytest.raises(SandboxError, match="no worker of pydantic-monty could be started, in 3 attempts")
    with MontySandbox(n_workers=1, limits=LIMITS) as sandbox, refused:
        sandbox.session().run("6 * 7")


def test_time_without_a_processor_is_not_the_codes_time(sandbox):
    """A worker that was stopped for longer than the limit, as on an overloaded machine, gets another chance."""
    with MontySandbox(n_workers=1, limits=replace(LIMITS, timeout_s=1)) as patient:
        session = patient.session()
        others = workers()
        session.run("x = 1")
        (pid,) = set(workers()) - set(others)
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(1.5, os.kill, (pid, signal.SIGCONT)).start()
        result = session.run("n = 0\nfor i in range(1000): n += x\nn")
        assert (result.value, result.stopped) == ("1000", None)
        assert result.seconds > 1


def test_a_worker_that_is_stopped_during_a_run_gets_the_time_that_it_lost():
    with MontySandbox(n_workers=1, limits=replace(LIMITS, timeout_s=1)) as patient:
        session = patient.session()
        others = workers()
        session.run("x = 1")
        (pid,) = set(workers()) - set(others)
        used_s = cpu_seconds(pid)

        def stop_for_longer():
            while cpu_seconds(pid) < used_s + 0.05:  # the code has not begun
                time.sleep(0.001)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(pid, signal.SIGCONT)

        threading.Thread(target=stop_for_longer).start()
        result = session.run("while True: pass")
        assert result.stopped == "time"
        assert result.seconds > 1.5
        assert session.run("x").value == "1"


@pytest.mark.alone  # it fills the machine
def test_a_loop_beside_eight_busy_processes_is_over_its_time(hurried):
    session = hurried.session()
    session.run("x = 1")
    with busy(8):
        assert session.run("while True: pass").stopped == "time"
    assert session.run("x").value == "1"


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


def test_an_instance_shows_what_its_class_says(sandbox):
    code = "class P:\n    def __repr__(self):\n        return 'P(1)'\nP()"
    assert sandbox.session().run(code).value == "P(1)"


_DEEP = "a = ()\nfor _ in range(45): a = (a, a)\n"
"""A few tuples whose hash takes 2**45 steps."""


@pytest.mark.smoke
def test_a_value_is_never_built_in_this_process():
    """Runs in a separate process: if such a value is built, the interpreter hangs in C, and no test can stop it."""
    ends = ["{a}", "return {a}", "if a: return {1: {a}}\n5", "_llm_envs_value_ = {a}\nif a: return\n5"]
    script = (
        "import sys\nfrom llm_envs.sandbox import MontySandbox, SandboxLimits\n"
        "with MontySandbox(n_workers=1, limits=SandboxLimits(timeout_s=60, memory_bytes=16 << 20)) as sandbox:\n"
        "    print([sandbox.session().run(code).stopped for code in sys.argv[1:]])"
    )
    command = [sys.executable, "-c", script, *(_DEEP + end for end in ends)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.stdout == "['memory', None, None, 'memory']\n"


def test_a_set_of_integers_that_collide_is_written_by_the_worker(sandbox):
    result = sandbox.session().run("{(2**61 - 1) * n for n in range(20_000)}")
    assert result.value.startswith("{0, 2305843009213693951, 4611686018427387902, ")
    assert result.value.endswith("\n[cut]")


def test_an_exception_of_the_code_is_not_taken_for_a_limit(sandbox):
    session = sandbox.session()
    result = session.run("x = 1\nraise TimeoutError('feed time limit exceeded: 1s > 1s')")
    assert (result.error, result.stopped) == ("TimeoutError", None)
    assert session.run("x").value == "1"


@pytest.mark.parametrize("n_workers", [0, -1, 1.5, True, "2"])
def test_number_of_workers(n_workers):
    with pytest.raises(InvalidConfigError, match="n_workers"):
        MontySandbox(n_workers=n_workers)
