"""`support/preloaded.py`: its programs behave as the real ones do."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import time
from pathlib import Path

import pytest
from preloaded import variables

has_vllm = importlib.util.find_spec("vllm") is not None
pytestmark = [
    pytest.mark.examples,
    pytest.mark.skipif(has_vllm, reason="where there is vLLM, programs are the real ones"),
]


def run(*command: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=variables() | more, input="given\n", capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(input()); import sys; print('error', file=sys.stderr)", (0, "given\n", "error\n")),
        ("import sys; sys.exit(3)", (3, "", "")),
        ("import sys; sys.exit('why')", (1, "", "why\n")),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", (-signal.SIGKILL, "", "")),
        ("import atexit; atexit.register(print, 'last')", (0, "last\n", "")),
        ("import sys, os; print(sys.argv, sys.path[0], __name__)", (0, "['-c', 'a']  __main__\n", "")),
        ("import sys; print('torch' in sys.modules, 'llm_envs' in sys.modules)", (0, "True False\n", "")),
    ],
)
def test_a_program_ends_as_it_should(code: str, expected: tuple[int, str, str], tmp_path: Path) -> None:
    done = run("python", "-c", code, "a", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == expected


def test_an_error_is_shown(tmp_path: Path) -> None:
    done = run("python", "-c", "raise ValueError('why')", folder=tmp_path)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: why\n")


def test_a_file_finds_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("N = 7\n")
    (tmp_path / "program.py").write_text("import sys, beside\nprint(beside.N, sys.argv[1:], __name__)\n")
    done = run("python", "program.py", "--x", folder=tmp_path)
    assert (done.stdout, done.stderr) == ("7 ['--x'] __main__\n", "")


def test_an_unusual_variable_means_a_start_of_its_own(tmp_path: Path) -> None:
    done = run("python", "-c", "import os, sys; print(os.environ['X'], 'torch' in sys.modules)", folder=tmp_path, X="1")
    assert done.stdout == "1 False\n"


def test_signals_reach_the_program_and_it_dies_with_its_client(tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    for sent, expected in ((signal.SIGINT, -signal.SIGINT), (signal.SIGKILL, -signal.SIGKILL)):
        command = ["python", "-c", code]
        process = subprocess.Popen(command, cwd=tmp_path, env=variables(), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        program = Path("/proc", process.stdout.readline().strip())
        process.send_signal(sent)
        assert process.wait(60) == expected
        process.stdout.close()
        limit = time.monotonic() + 60
        while program.exists() and time.monotonic() < limit:
            time.sleep(0.05)
        assert not program.exists()
