"""A scorer in a child process: its limits, what it refuses, and what is left for the next request."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from llm_envs.errors import SandboxError
from llm_envs.sandbox.scorer import BoundedScorer

SCRIPT = """
import os, re, socket, subprocess

def load():
    pass

def answer(request):
    return {"double": 2 * request["n"], "pid": os.getpid()} if "n" in request else ACTIONS[request["do"]]()

ACTIONS = {
    "loop": lambda: [None for _ in iter(int, 1)],
    "memory": lambda: {"size": len(bytearray(3 << 30))},
    "crash": lambda: os._exit(1),
    "raise": lambda: 1 / 0,
    "eval": lambda: {"two": eval("1+1")},
    "write": lambda: {"file": str(open("/tmp/never_written", "w"))},
    "run": lambda: {"done": str(subprocess.run(["true"]))},
    "connect": lambda: {"socket": str(socket.create_connection(("127.0.0.1", 9)))},
    "backtrack": lambda: re.match(r"(a+)+$", "a" * 60 + "b"),
    "print": lambda: print("noise") or {"printed": True},
}
"""


@pytest.fixture
def scorer(tmp_path):
    path = tmp_path / "scorer.py"
    path.write_text(SCRIPT)
    return BoundedScorer(path)


@pytest.mark.parametrize("action", ["loop", "memory", "crash", "raise", "eval", "write", "run", "connect"])
def test_what_exceeds_limits_or_is_refused_has_no_answer_and_the_next_request_has_one(scorer, action):
    assert scorer.ask({"do": action}, 1.0) is None
    assert scorer.ask({"n": 21}, 60.0)["double"] == 42
    assert not os.path.exists("/tmp/never_written")


def test_output_of_the_scorer_is_no_reply(scorer):
    assert scorer.ask({"do": "print"}, 60.0) == {"printed": True}


def test_threads_take_turns_at_one_child(scorer):
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: scorer.ask({"n": n}, 60.0), range(50)))
    assert [reply["double"] for reply in replies] == [2 * n for n in range(50)]
    assert len({reply["pid"] for reply in replies}) == 1


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
    os.kill(scorer.ask({"n": 1}, 60.0)["pid"], signal.SIGSTOP)
    with pytest.raises(SandboxError, match=r"had a processor for 0\.0 s"):
        scorer.ask({"n": 21}, 0.1)
    assert scorer.ask({"n": 21}, 60.0)["double"] == 42


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
    deadline = time.monotonic() + 120
    while is_running(pid):
        assert time.monotonic() < deadline, "it outlives its host"
        time.sleep(0.01)


def is_running(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_scorer_that_does_not_load_says_why(tmp_path):
    path = tmp_path / "scorer.py"
    path.write_text("def load():\n    import no_such_module\n")
    with pytest.raises(SandboxError, match="No module named 'no_such_module'"):
        BoundedScorer(path).ask({}, 5.0)
