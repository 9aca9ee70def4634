"""A scorer in a child process: its limits, what it refuses, and what is left for the next request."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from machine import is_running, wait_until

from llm_envs.errors import InvalidConfigError, SandboxError
from llm_envs.processes import cpu_seconds
from llm_envs.sandbox.scorer import BoundedScorer

SCRIPT = """
import os, re, socket, subprocess

def load():
    pass

def answer(request):
    try:
        return {"double": 2 * request["n"], "pid": os.getpid()} if "n" in request else ACTIONS[request["do"]]()
    except PermissionError as error:
        return {"refused": str(error)}

ACTIONS = {
    "loop": lambda: [None for _ in iter(int, 1)],
    "memory": lambda: {"size": len(bytearray(3 << 30))},
    "crash": lambda: os._exit(1),
    "raise": lambda: 1 / 0,
    "eval": lambda: {"two": eval("1+1")},
    "exec": lambda: {"done": str(exec("x=1"))},
    "system": lambda: {"status": os.system("true")},
    "remove": lambda: {"done": str(os.remove("/tmp/never_written"))},
    "socket": lambda: {"socket": str(socket.socket())},
    "fork": lambda: {"pid": os.fork()},
    "write": lambda: {"file": str(open("/tmp/never_written", "w"))},
    "run": lambda: {"done": str(subprocess.run(["true"]))},
    "connect": lambda: {"socket": str(socket.create_connection(("127.0.0.1", 9)))},
    "backtrack": lambda: re.match(r"(a+)+$", "a" * 60 + "b"),
    "print": lambda: print("noise") or {"printed": True},
}
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "scorer.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def scorer(script):
    with closing(BoundedScorer(script)) as scorer:
        yield scorer


@pytest.mark.parametrize("action", ["loop", "memory", "crash", "raise"])
def test_what_exceeds_limits_has_no_answer_and_the_next_request_has_one(scorer, action):
    assert scorer.ask({"do": action}, 1.0) is None
    assert scorer.ask({"n": 21}, 60.0)["double"] == 42
    assert scorer.n_loaded == 1  # the next child is forked, and nothing is loaded again


REFUSED = ["eval", "exec", "system", "remove", "fork", "write", "run", "socket", "connect"]


def test_children_refuse_to_compile_text_and_to_touch_the_system(scorer):
    """The one audit hook, which is also that of mathematics."""
    replies = [scorer.ask({"do": action}, 60.0) for action in REFUSED]
    assert [action for action, reply in zip(REFUSED, replies, strict=True) if "here" in reply["refused"]] == REFUSED
    assert not os.path.exists("/tmp/never_written")


def test_output_of_the_scorer_is_no_reply(scorer):
    assert scorer.ask({"do": "print"}, 60.0) == {"printed": True}


@pytest.mark.parametrize("n_workers", [1, 2])
def test_threads_share_the_children(script, n_workers):
    with closing(BoundedScorer(script, n_workers)) as scorer, ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: scorer.ask({"n": n}, 60.0), range(50)))
    assert [reply["double"] for reply in replies] == [2 * n for n in range(50)]
    assert len({reply["pid"] for reply in replies}) <= n_workers
    assert scorer.n_loaded == 1


def test_requests_that_are_stopped_side_by_side_say_why(script):
    with closing(BoundedScorer(script, 3)) as scorer, ThreadPoolExecutor(3) as pool:
        late = list(pool.map(lambda _: scorer.try_to_answer({"do": "loop"}, 0.5), range(3)))
        assert late == [(None, "over the time limit of 0.5 s")] * 3
        assert scorer.try_to_answer({"do": "crash"}, 60.0) == (None, "it crashed")
        assert scorer.n_loaded == 1


def test_closing_ends_the_processes(scorer):
    processes = [scorer.ask({"n": 1}, 60.0)["pid"], scorer._loader.pid]
    scorer.close()
    scorer.close()
    assert wait_until(lambda: not any(map(is_running, processes)))
    with pytest.raises(InvalidConfigError, match="BoundedScorer is closed"):
        scorer.ask({"n": 1}, 60.0)


def test_a_script_is_loaded_again_if_its_processes_were_killed(scorer):
    pid = scorer.ask({"n": 1}, 60.0)["pid"]
    os.killpg(scorer._loader.pid, signal.SIGKILL)
    scorer._loader.process.wait()
    assert wait_until(lambda: not is_running(pid))
    assert scorer.ask({"n": 21}, 60.0)["double"] == 42
    assert scorer.n_loaded == 2


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs Linux's /proc")
def test_an_interrupted_request_leaves_no_child_and_no_reply(scorer):
    """Ctrl-C while a request is under way: the child is killed, and its reply is not read as that of the next."""
    pid = scorer.ask({"n": 1}, 60.0)["pid"]
    before_s = cpu_seconds(pid)

    def interrupt_once_it_works():
        while cpu_seconds(pid) < before_s + 0.1:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_once_it_works).start()
    with pytest.raises(KeyboardInterrupt):
        scorer.ask({"do": "loop"}, 600.0)
    assert wait_until(lambda: not is_running(pid))
    assert scorer.ask({"n": 21}, 60.0)["double"] == 42


def test_a_forked_child_starts_its_own(scorer):
    mine = scorer.ask({"n": 1}, 60.0)["pid"]
    read, write = os.pipe()
    if not (pid := os.fork()):
        os.write(write, json.dumps(scorer.ask({"n": 2}, 60.0)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    theirs = json.loads(os.read(read, 1_000))
    assert theirs["double"] == 4 and theirs["pid"] != mine
    assert scorer.ask({"n": 3}, 60.0) == {"double": 6, "pid": mine}


@pytest.mark.smoke
def test_a_system_without_a_limit_of_memory_says_so_and_still_answers(scorer, tmp_path, monkeypatch):
    """macOS refuses RLIMIT_AS; so does the module in the place of Python's `sitecustomize`, in the child."""
    refuse = "import resource\ndef refuse(*limit): raise ValueError\nresource.setrlimit = refuse\n"
    (tmp_path / "sitecustomize.py").write_text(refuse)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with pytest.warns(UserWarning, match="RLIMIT_AS"):
        assert scorer.ask({"n": 21}, 60.0)["double"] == 42


def test_a_system_that_sends_no_signal_when_a_pipe_closes_is_no_obstacle(scorer, tmp_path, monkeypatch):
    """F_SETSIG may be missing or refused; a thread then waits for the pipe."""
    refuse = "import fcntl\ndef refuse(*call): raise OSError\nfcntl.fcntl = refuse\n"
    (tmp_path / "sitecustomize.py").write_text(refuse)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert scorer.ask({"n": 21}, 60.0)["double"] == 42


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs Linux's /proc")
def test_a_scorer_without_a_processor_is_an_error_and_no_answer(scorer):
    """A child that was stopped for longer than its limit, as on an overloaded machine, still answers."""
    pid = scorer.ask({"n": 1}, 60.0)["pid"]
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(1.5, os.kill, (pid, signal.SIGCONT)).start()
    assert scorer.ask({"n": 21}, 1.0) == {"double": 42, "pid": pid}
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(SandboxError, match=r"had a processor for 0\.0 s"):
        scorer.ask({"n": 21}, 0.05)
    assert scorer.ask({"n": 21}, 60.0)["double"] == 42


def test_a_start_is_judged_by_its_progress(tmp_path, monkeypatch):
    """One that takes longer than the limit and works is waited for; one that stands still is given up."""
    monkeypatch.setattr("llm_envs.processes.IDLE_S", 2.0)
    path = tmp_path / "scorer.py"
    path.write_text(SCRIPT.replace("    pass\n", "    import time\n    while time.process_time() < 3.0: pass\n"))
    with closing(BoundedScorer(path)) as scorer:
        assert scorer.ask({"n": 21}, 60.0)["double"] == 42
    path.write_text(SCRIPT.replace("    pass\n", "    import time\n    time.sleep(600)\n"))
    with closing(BoundedScorer(path)) as scorer, pytest.raises(SandboxError, match="it has done nothing for 2 s"):
        scorer.ask({"n": 21}, 60.0)


HOST = """
import sys
from pathlib import Path
from llm_envs.sandbox.scorer import BoundedScorer

scorer = BoundedScorer(Path(sys.argv[1]))
print(scorer.ask({"n": 1}, 60.0)["pid"], flush=True)
scorer.ask({"do": "backtrack"}, 3600.0)
"""


def test_one_in_a_loop_ends_with_its_host(scorer):
    host = subprocess.Popen([sys.executable, "-c", HOST, scorer._script], stdout=subprocess.PIPE, text=True)
    pid = int(host.stdout.readline())
    host.kill()
    host.communicate()
    assert wait_until(lambda: not is_running(pid))


def test_a_scorer_that_does_not_load_says_why(tmp_path):
    path = tmp_path / "scorer.py"
    path.write_text("def load():\n    import no_such_module\n")
    with pytest.raises(SandboxError, match="No module named 'no_such_module'"):
        BoundedScorer(path).ask({}, 5.0)
