"""Starting processes: judged by their progress; and what a forked copy of this process has to set up again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from llm_envs.processes import Shared, StartWatch, cpu_seconds, register_for_forks
from llm_envs.rollout.workers.pool import WorkerPool

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="processor times are read from /proc")


@contextmanager
def running(code: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with what it has started
        process.wait()


REFUSE = "import ctypes; ctypes.CDLL = lambda name: type('', (), {'prctl': lambda *call: -1})()"


@pytest.mark.parametrize(
    ("before", "loop"),
    [("pass", "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')"), (REFUSE, "while True: pass")],
    ids=["while no other thread runs", "without a signal of the kernel"],
)
def test_a_process_in_a_loop_ends_with_its_parent(before: str, loop: str) -> None:
    start = f"from llm_envs.processes import end_with_parent; {before}; end_with_parent()"
    child = f"{start}; print('started', flush=True); exec({loop!r})"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline()
    parent.kill()
    parent.communicate(timeout=300)  # the child has the pipe too: this waits for its end


def complaint_of(pid: int, seconds: float) -> str | None:
    """Watch a process, looking as often as the waits of this package would."""
    watch = StartWatch(pid)
    deadline = time.monotonic() + seconds
    while (complaint := watch.complaint()) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return complaint


def test_a_process_that_works_or_whose_child_works_gets_on(monkeypatch):
    monkeypatch.setattr("llm_envs.processes.IDLE_S", 1.0)
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'], timeout=60)"
    for code in ("while True: pass", parent):
        with running(code) as pid:
            while cpu_seconds(pid) < 0.2:  # it, or its child, is there: no disk is waited for any more
                time.sleep(0.01)
            assert complaint_of(pid, 2.0) is None


def test_one_that_sleeps_or_is_stopped_stands_still(monkeypatch):
    monkeypatch.setattr("llm_envs.processes.IDLE_S", 1.0)
    with running("import time; time.sleep(60)") as pid:
        assert complaint_of(pid, 30.0) == "it has done nothing for 1 s"
    with running("while True: pass") as pid:
        os.kill(pid, signal.SIGSTOP)
        assert complaint_of(pid, 30.0) == "it has done nothing for 1 s"


def test_one_that_works_for_ever_is_given_up(monkeypatch):
    monkeypatch.setattr("llm_envs.processes.START_CPU_S", 0.5)
    with running("while True: pass") as pid:
        complaint = complaint_of(pid, 60.0)
        assert complaint and re.fullmatch(r"it has used \d+ s of processor time and is not ready", complaint)
    monkeypatch.setattr("llm_envs.processes.START_WALL_S", 0.5)
    with running("import time\nwhile True: time.sleep(.01)") as pid:
        assert complaint_of(pid, 60.0) == "it is not ready after 0.5 s"


def test_processor_time_is_that_of_the_process_and_its_children():
    before = cpu_seconds(os.getpid())
    started = time.process_time()
    while time.process_time() < started + 0.3:
        pass
    code = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert before is not None and 0.75 <= cpu_seconds(os.getpid()) - before < 5


def test_a_worker_that_imports_for_longer_than_the_idle_limit_is_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr("llm_envs.processes.IDLE_S", 2.0)
    monkeypatch.syspath_prepend(tmp_path)
    end = "\nfrom llm_envs.testing import NumbersEnv"
    (tmp_path / "works_long.py").write_text(f"import time\nwhile time.process_time() < 3.0: pass{end}")
    (tmp_path / "sleeps_long.py").write_text(f"import time\ntime.sleep(60){end}")
    with WorkerPool(1) as pool:
        pool.check(lambda: __import__("works_long").NumbersEnv(1))
        with pytest.raises(TimeoutError, match=r"env.make took too long: it has done nothing for 2 s; its process"):
            pool.check(lambda: __import__("sleeps_long").NumbersEnv(1))


def test_what_a_fork_copies_is_told_to_start_anew():
    class Owner:
        n_forgotten = 0

        def reset_after_fork(self) -> None:
            self.n_forgotten += 1

    owner, shared = Owner(), Shared(lambda: [])
    register_for_forks(owner)
    made = shared()
    with shared._lock:  # as another thread would at the moment of the fork
        pid = os.fork()
        if not pid:
            os._exit(0 if owner.n_forgotten == 1 and shared() is made else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert owner.n_forgotten == 0 and shared() is made
