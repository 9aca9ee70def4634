"""The host's side of the CPython sandbox: sessions, and the processes that they start. Linux only.

1. A session is two processes (`child`): an interpreter, and the guardian that kills it. They start with the first run
   and end with the session. Nothing of the host is inherited: no environment, no descriptors but the session's own
   three, no modules.
2. `isolation="namespaces"`: the interpreter has its own network (none, not even loopback), process table, shared
   memory and file system: of the machine's files it sees the standard library and the system's libraries, read-only;
   it can write to one empty folder of `SandboxLimits.file_bytes`, in memory. It runs as an unprivileged user without
   capabilities, under resource limits, and (x86-64 and aarch64) a seccomp filter refuses it sockets, new processes,
   programs, signals, tracing and everything of the kind (`seccomp`). Works for root and, where the system lets
   unprivileged users create namespaces, for everyone.
3. `isolation="rlimits"` is for machines without namespaces, and weaker: the code can read the files that an
   unprivileged user, or if the host is not root, the host's user can read, secrets included. Resource limits and the
   seccomp filter hold, and the filter also refuses to change any file. `protections` lists the active ones.
4. Between runs the interpreter is stopped, and so are threads that the code has left running.
5. A run that is over its time, its output or its memory, or that ends its interpreter, costs the session its variables
   (unlike in `MontySandbox`): the next run has a new interpreter, and its result has a note.
6. A busy machine is not the code's fault. The time in which an interpreter waits for a processor does not count as
   the run's; at the longest it raises `SandboxError` (`processes.deadline`). Code that sleeps, or has stopped itself,
   does not wait.
7. A session with a seed is repeatable: its clock stands (`child.make_repeatable`), and an object's address in what it
   shows is written as `0x...`. Values that are addresses (`id`) and the operating system's own figures are not covered.
8. The interpreter sends only data: frames of limited size with the nonce of the request, read by a JSON parser.
   Anything else costs the session its interpreter. Model code shares that process, so a value may be a lie, but the
   code could have printed the same.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import platform
import re
import secrets
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from llm_envs.errors import InvalidConfigError, SandboxError
from llm_envs.processes import StartWatch, children_of, cpu_seconds
from llm_envs.processes.deadline import Deadline
from llm_envs.sandbox.base import CLOCK, FLOOD_FACTOR, SandboxLimits, SandboxSession, SandboxStop
from llm_envs.sandbox.cpython.seccomp import build_filter

__all__ = ["Isolation", "SubprocessSandbox", "SubprocessSession"]

Isolation = Literal["namespaces", "rlimits"]

_CHILD = Path(__file__).with_name("child.py")
_PULSE_S = 1.0
"""Seconds between checks of a starting interpreter's progress. A start takes about 0.1 s on a free machine."""
_END_S = 5.0
"""Longest time for the guardian to kill its interpreter, before it is killed itself."""
_CPU_S = 3_600
"""Most processor time of an interpreter, in seconds: a backstop in case the guardian is gone."""
_ENVIRONMENT = {
    **{"HOME": "/tmp", "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "1", "PATH": "", "PYTHONHASHSEED": "0", "TZ": "UTC"},
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's library otherwise takes memory for a thread on each processor
}
_ADDRESS = re.compile(r"(?<= at )0x[0-9a-f]+(?=>)")


class SubprocessSandbox:
    """Run full CPython in separate processes, one for each session.

    Args:
        limits: Limits of sessions that are opened without limits.
        isolation: "namespaces", or, weaker, "rlimits"; see the module.
        python: The interpreter to run; by default this one.
        packages: Third-party packages of this process's interpreter that the code may import, such as "numpy", if they
            are installed. No others are visible to it; with "rlimits", those in the same folder are.

    Raises:
        InvalidConfigError: If `isolation` has another value.
        SandboxError: If this machine cannot isolate as asked.
    """

    def __init__(
        self,
        *,
        limits: SandboxLimits | None = None,
        isolation: Isolation = "namespaces",
        python: str | os.PathLike[str] | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        if isolation not in ("namespaces", "rlimits"):
            raise InvalidConfigError(f"isolation is {isolation!r}; it must be 'namespaces' or 'rlimits'.")
        if not sys.platform.startswith("linux"):
            raise SandboxError(f"SubprocessSandbox needs Linux; this is {sys.platform}. MontySandbox runs everywhere.")
        self.limits = limits or SandboxLimits()
        self.isolation: Isolation = isolation
        self.python = str(python or sys.executable)
        self.packages = tuple(packages)
        self._sessions: weakref.WeakSet[SubprocessSession] = weakref.WeakSet()
        self._is_closed = False
        self._force_user_namespace = False
        self.protections = self._probe()
        """The active protections: "limits", "system calls", "files", "network", "processes"."""

    def session(self, limits: SandboxLimits | None = None, *, seed: int | None = None) -> SubprocessSession:
        """Return a new session; see `Sandbox.session`."""
        if self._is_closed:
            raise SandboxError("the sandbox is closed; make a new one.")
        session = SubprocessSession(self, limits or self.limits, seed)
        self._sessions.add(session)
        return session

    def close(self) -> None:
        """End every session and its processes."""
        self._is_closed = True
        for session in list(self._sessions):
            session.close()

    def __enter__(self) -> SubprocessSandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as settings: another process has its own sessions."""
        settings = {name: getattr(self, name) for name in ("limits", "isolation", "python", "packages")}
        return partial(SubprocessSandbox, **settings), ()

    def _probe(self) -> frozenset[str]:
        """Start one interpreter, to check that this works and which protections are active."""
        child = _Child(self, self.limits, None)
        child.close()
        return frozenset(child.protections)


class SubprocessSession(SandboxSession):
    """One episode's interpreter, started with its first run. Made by `SubprocessSandbox.session`."""

    def __init__(self, sandbox: SubprocessSandbox, limits: SandboxLimits, seed: int | None) -> None:
        super().__init__(limits, seed)
        self._sandbox = sandbox
        self._child: _Child | None = None
        self._has_run = False

    def _outcome(self, code: str) -> dict[str, Any]:
        child, is_new = self._ready_child()
        outcome = child.run(code) | {"state_lost": is_new and self._has_run}
        if self._seed is not None:
            outcome |= {k: _ADDRESS.sub("0x...", text) for k, text in outcome.items() if isinstance(text, str)}
        self._has_run = True
        if outcome.get("stopped"):
            self._release()
            outcome["state_lost"] = True
        return outcome

    def _ready_child(self) -> tuple[_Child, bool]:
        """Return the interpreter, and whether the result must report that it is new."""
        child, told = self._child, self._child is None
        if child is not None and (child.pid != os.getpid() or not child.is_silent()):
            child.close()
            child = None
        if child is None:
            child = self._child = _Child(self._sandbox, self.limits, self._seed)
            return child, not told
        return child, False

    def _release(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()


class _Child:
    """A guardian and its interpreter, seen from the host. Used by one thread at a time."""

    def __init__(self, sandbox: SubprocessSandbox, limits: SandboxLimits, seed: int | None) -> None:
        self.pid = os.getpid()
        self.limits = limits
        self.protections: list[str] = []
        self._n_runs = 0
        self._received = bytearray()
        host, control = socket.socketpair()
        self._output, output = os.pipe()
        lifeline, self._lifeline = os.pipe()
        self._control = host
        folder = tempfile.mkdtemp(prefix="sandbox-") if sandbox.isolation == "rlimits" else ""
        config = {
            "isolation": sandbox.isolation,
            "user_namespace": sandbox._force_user_namespace,
            "control": control.fileno(),
            "output": output,
            "lifeline": lifeline,
            "folder": folder,
            "filter": _encode_filter(sandbox.isolation),
            "seed": seed,
            "clock": CLOCK,
            "packages": _folders_of(sandbox.packages),
            "cpu_s": _CPU_S,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "recursion_depth": limits.recursion_depth,
            "output_characters": limits.output_characters,
        }
        descriptors = (control.fileno(), output, lifeline)
        try:
            self._process = subprocess.Popen(
                [sandbox.python, "-s", "-S", "-P", "-B", "-X", "utf8", str(_CHILD), json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
                env=_ENVIRONMENT,
                cwd="/",
            )
        except OSError as error:
            _close_all((self._output, self._lifeline), host, folder)
            raise SandboxError(f"the interpreter {sandbox.python} cannot be started: {error}") from error
        finally:
            control.close()
            os.close(output)
            os.close(lifeline)
        self._end = weakref.finalize(
            self, _end_child, self._process, self._output, self._lifeline, host, folder, self.pid
        )
        for descriptor in (self._output, self._lifeline):
            os.set_blocking(descriptor, False)
        host.setblocking(False)
        self._wait_until_ready(sandbox)

    def close(self) -> None:
        """Kill the interpreter, wait until it is gone, and release everything."""
        self._end()

    def is_silent(self) -> bool:
        """Return whether the interpreter is alive and has sent nothing since its last reply."""
        try:
            self._control.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # a reply forged for a later request, or the end of the connection

    def run(self, code: str) -> dict[str, Any]:
        """Run code and return the data for `compose`."""
        self._n_runs += 1
        nonce = secrets.token_hex(16)
        exchange = _Exchange(self, json.dumps({"code": code, "nonce": nonce, "number": self._n_runs}).encode())
        self._received.clear()
        before = _read_clock(self._process.pid)
        self._order(b"C")
        stopped = self._exchange_in_time(exchange)
        after = _read_clock(self._process.pid)
        self._order(b"S")
        reply = exchange.reply
        outcome: dict[str, Any] = {}
        if stopped is None and reply is not None and reply.get("nonce") == nonce:
            for name in ("value", "error", "traceback"):
                if isinstance(reply.get(name), str):
                    outcome[name] = reply[name]
            if reply.get("is_full") is True:
                outcome["stopped"] = "memory"
        else:
            outcome["stopped"] = stopped or "crash"
        if before is not None and after is not None:
            outcome["waited_s"] = after.waited_s - before.waited_s
        return outcome | {"printed": exchange.text(), "n_printed": exchange.n_characters}

    def _exchange_in_time(self, exchange: _Exchange) -> SandboxStop | None:
        """Exchange until the time limit, in which time without a processor does not count."""
        deadline = Deadline(self.limits.timeout_s)
        left_s, start = deadline.limit_s, _read_clock(self._process.pid)
        while left_s:
            stopped = exchange.run(left_s)
            now = _read_clock(self._process.pid) if stopped == "time" else None
            if start is None or now is None:
                return stopped
            left_s = deadline.extend(now.used_s - start.used_s, now.waited_s - start.waited_s)
        if not deadline.was_starved:
            return stopped
        self.close()
        raise SandboxError(
            f"an interpreter had a processor for {deadline.spent_s:.1f} s of {deadline.given_s:.1f} s. "
            "Is this machine overloaded?"
        )

    def _order(self, order: bytes) -> None:
        """Tell the guardian to continue or stop the interpreter. If it is gone, the control socket shows that."""
        with contextlib.suppress(OSError):
            os.write(self._lifeline, order)

    def _wait_until_ready(self, sandbox: SubprocessSandbox) -> None:
        exchange = _Exchange(self, None)
        watch = StartWatch(self._process.pid)
        complaint = None
        while (stopped := exchange.run(_PULSE_S)) == "time" and complaint is None:
            complaint = watch.complaint()
        reply = exchange.reply or {}
        if reply.get("ready") is True and not stopped:
            self.protections = [str(word) for word in reply["protections"]]
            self._order(b"S")
            return
        self.close()
        why = reply.get("failed") or complaint or "it ends at once"
        raise SandboxError(
            f"no interpreter can be started with isolation={sandbox.isolation!r} on this machine: {why}. "
            "MontySandbox works everywhere; isolation='rlimits' is weaker but needs no namespaces."
        )


class _Exchange:
    """One request, its reply, and the output in between."""

    def __init__(self, child: _Child, request: bytes | None) -> None:
        self.reply: dict[str, Any] | None = None
        self.n_characters = 0
        self._child = child
        self._unsent = b"" if request is None else struct.pack("!I", len(request)) + request
        self._most = child.limits.output_characters
        self._kept = bytearray()

    def run(self, timeout_s: float) -> SandboxStop | None:
        """Exchange until the reply is complete. Return the limit that was reached, or None.

        The time begins when the request is sent. A reply that has arrived by its end is read, however late we look.
        """
        deadline = time.perf_counter() + timeout_s
        control, output = self._child._control, self._child._output
        with selectors.DefaultSelector() as selector:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            selector.register(control, both if self._unsent else selectors.EVENT_READ)
            selector.register(output, selectors.EVENT_READ)
            while self.reply is None:
                left_s, has_moved = deadline - time.perf_counter(), False
                for key, events in selector.select(max(left_s, 0)):
                    if key.fd == output and not self._read_output():
                        selector.unregister(output)
                    elif key.fd != output:
                        try:
                            if events & selectors.EVENT_WRITE:
                                self._unsent = self._unsent[control.send(self._unsent) :]
                                deadline, has_moved = time.perf_counter() + timeout_s, True
                                if not self._unsent:
                                    selector.modify(control, selectors.EVENT_READ)
                            if events & selectors.EVENT_READ:
                                if not self._read_control():
                                    return "crash"
                                has_moved = True
                        except BlockingIOError:
                            continue
                        except OSError:
                            return "crash"
                if self._is_flood:
                    return "output"
                if left_s <= 0 and not has_moved:
                    return "time"
        while self._read_output(nothing_now=False) and not self._is_flood:
            pass  # output from before the reply is already in the pipe
        return "output" if self._is_flood else None

    def text(self) -> str:
        """Return the beginning of the printed text."""
        return self._kept.decode("utf-8", "replace")

    @property
    def _is_flood(self) -> bool:
        return self.n_characters > FLOOD_FACTOR * self._most

    def _read_output(self, nothing_now: bool = True) -> bool:
        """Keep the beginning of the pipe's content; return whether there may be more, `nothing_now` if it is empty."""
        try:
            chunk = os.read(self._child._output, 1 << 20)
        except BlockingIOError:
            return nothing_now
        self.n_characters += len(chunk.decode("utf-8", "replace"))
        room = 4 * self._most + 4 - len(self._kept)
        if room > 0:
            self._kept += chunk[:room]
        return bool(chunk)

    def _read_control(self) -> bool:
        """Read a part of the reply. Return False for anything but a well-formed reply."""
        chunk = self._child._control.recv(1 << 20)
        received = self._child._received
        received += chunk
        if not chunk:
            return False
        if len(received) < 4:
            return True
        (size,) = struct.unpack("!I", received[:4])
        if size > 12 * self._most + 65_536:  # six characters for each one escaped, a value and a traceback
            return False
        if len(received) >= 4 + size:
            try:
                reply = json.loads(received[4 : 4 + size])
            except (ValueError, RecursionError):
                return False
            if not isinstance(reply, dict) or len(received) > 4 + size:
                return False
            self.reply = reply
        return True


@dataclass(frozen=True)
class _Clock:
    """How a guardian and its interpreter have spent their time so far."""

    used_s: float
    """Processor time."""
    waited_s: float
    """Time in which they were ready to run and had no processor."""


def _read_clock(guardian: int) -> _Clock | None:
    """Return the clock of an interpreter, or None if it is gone or the system does not report these times."""
    used_s, waited_ns = cpu_seconds(guardian), 0
    try:
        for pid in (guardian, *children_of(guardian)):
            waited_ns += int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except OSError:
        return None
    return None if used_s is None else _Clock(used_s, waited_ns / 1e9)


def _encode_filter(isolation: Isolation) -> str:
    program = build_filter(platform.machine(), read_only=isolation == "rlimits")
    return base64.b64encode(program or b"").decode()


def _end_child(
    process: subprocess.Popen[bytes], output: int, lifeline: int, control: socket.socket, folder: str, pid: int
) -> None:
    """Make the guardian kill its interpreter and end. In a forked copy of the host, only close the copies."""
    if pid == os.getpid():
        with contextlib.suppress(OSError):
            os.write(lifeline, b"K")
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    _close_all((output, lifeline), control, folder if pid == os.getpid() else "")


def _close_all(descriptors: tuple[int, ...], control: socket.socket, folder: str) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    control.close()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _folders_of(packages: Sequence[str]) -> list[str]:
    """Return the folders of the installed ones, with those of the libraries that their wheels bring."""
    specs = filter(None, map(importlib.util.find_spec, packages))
    folders = [folder for spec in specs for folder in spec.submodule_search_locations or ()]
    return [path for folder in folders for path in (folder, f"{folder}.libs") if os.path.isdir(path)]
