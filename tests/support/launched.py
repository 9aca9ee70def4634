"""A program started on several processes by `accelerate launch`, which cannot outlive its test.

The program's last arguments may be anything; it finds `tests/support` on its path. When the limit is over every process
says where it stands (all threads, to the output), and then is ended, its descendants too: torch gives each rank a
session of its own, so the launcher's process group is not enough.

The launcher is the real one. The processes that it starts find torch and TRL imported (`preloaded.py`), except where
there is vLLM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from preloaded import folder_of_programs, variables

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "examples" / "accelerate"
SUPPORT = Path(__file__).resolve().parent
_LAST_WORDS_S = 5.0
"""Between the request for stack traces and the end of a process."""


@dataclass(frozen=True)
class Launched:
    """What became of a program."""

    code: int | None
    """Exit code of the launcher; None: it was ended when its time was over."""
    output: str
    seconds: float

    def check(self) -> None:
        """Fail with the end of the output if the program did not end well."""
        if self.code != 0:
            how = "did not end in time" if self.code is None else f"ended with {self.code}"
            raise AssertionError(f"the program {how} after {self.seconds:.0f} s:\n{self.output[-6000:]}")


def launch(
    program: Path,
    *arguments: str,
    config: Path = CONFIGS / "multi_cpu.yaml",
    n_processes: int = 2,
    limit_s: float = 600.0,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Launched:
    """Run a program on several processes and wait for its end, at most `limit_s` seconds.

    Args:
        program: A file; the arguments follow.
        *arguments: Of the program.
        config: A file for accelerate.
        n_processes: How many.
        limit_s: After which the program has hung.
        options: Further ones of `accelerate launch`.
        env: Further variables.
    """
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    command = [*launcher, "--num_processes", str(n_processes), *options, str(program), *arguments]
    environment = variables() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{SUPPORT}{os.pathsep}{_path()}"}
    environment |= env or {}
    environment["PYTHON_EXEC"] = str(folder_of_programs() / "python")
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        code: int | None = None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if code is None:
                _end(process)
        output.seek(0)
        return Launched(code, output.read(), time.monotonic() - started)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have the ranks say where they stand, and end every process that descends from this one."""
    descendants: Sequence[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        descendants = psutil.Process(process.pid).children(recursive=True)
    for child in descendants:
        if _speaks(child):
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGUSR1)
    time.sleep(_LAST_WORDS_S if descendants else 0)
    for one in [*descendants, process]:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            one.kill()
    process.wait()


def _speaks(child: psutil.Process) -> bool:
    """Whether a process has a handler for SIGUSR1 (`speak_when_asked`); the signal would end any other one."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
        caught = int(next(line for line in lines if line.startswith("SigCgt:")).split()[1], 16)
        return bool(caught >> (signal.SIGUSR1 - 1) & 1)
    return False


def speak_when_asked() -> None:
    """For a program: write the stacks of all threads when the launching test asks for them."""
    import faulthandler

    faulthandler.register(signal.SIGUSR1, all_threads=True)


def _path() -> str:
    return os.environ.get("PYTHONPATH", "")
