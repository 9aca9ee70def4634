"""The host's side of a sandbox with our own supervisor in it: "namespaces", "bubblewrap", and "process".

The sandbox is the supervisor's process table: when the supervisor ends, the kernel kills everything in it, whatever it
has forked and however it has detached itself. The supervisor ends on our order, or when our end of its socket closes.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from llm_envs.errors import SandboxError
from llm_envs.processes import StartWatch, children_of, cpu_seconds
from llm_envs.processes.peer import end_group
from llm_envs.sandbox.cpython import seccomp
from llm_envs.shell.base import HOME, ShellLimits
from llm_envs.shell.relay import Relay
from llm_envs.shell.runtime import Program, close_quietly

__all__ = ["FIRST_UID", "HOLDS", "INSIDE", "KERNEL", "PULSE_S", "SUPERVISOR", "SYSTEM", "ConfinedRuntime", "Isolation"]

Isolation = Literal["namespaces", "bubblewrap", "process", "container"]

SUPERVISOR = Path(__file__).with_name("supervisor.py")
KERNEL = Path(seccomp.__file__).with_name("child.py")
INSIDE = "/run/llm-envs"
PULSE_S = 1.0
_END_S = 10.0
"""Longest time for the supervisor to end, before it is killed."""
_CPU_S = 24 * 3_600
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
FIRST_UID = 61_184
"""As in the CPython sandbox: of users that nothing else runs as."""

_WATCHED = "looked at every 0.1 s; at too many, all are killed"
_SAME = {
    "network": "its own loopback; with `endpoint`, one address through a relay",
    "host files": "system folders and those given, read-only",
    "privileges": "an unprivileged user, no capabilities, a filter of system calls",
    "memory": "rlimit of each process; all together looked at every 0.1 s, the largest is killed",
    "processes": f"rlimit of its user; {_WATCHED}",
    "disk": "one file system in memory",
    "end": "the kernel kills its process table",
}
HOLDS: dict[str, dict[str, str]] = {
    "namespaces": _SAME,
    "bubblewrap": _SAME
    | {
        "disk": "three file systems in memory, each of that size; any number of files",
    },
    "process": {
        "network": "not isolated",
        "host files": "not isolated",
        "privileges": "the rights of this process",
        "memory": _SAME["memory"],
        "processes": _WATCHED,
        "disk": "rlimit of each file",
        "end": "the supervisor kills its descendants",
    },
    "container": _SAME
    | {
        "host files": "the image and the folders given, read-only",
        "privileges": f"{_SAME['privileges']}, and the client's",
        "memory": f"the container's cgroup; {_SAME['memory']}",
        "processes": f"the container's cgroup; {_WATCHED}",
        "disk": "three file systems in memory, each of that size; any number of files",
    },
}
"""How each runtime isolates and limits."""


class ConfinedRuntime:
    """A sandbox with our supervisor.

    Args:
        isolation: Who isolates: our supervisor, `bwrap`, none, or a client of containers (`ContainerRuntime`).
        limits: Of the shell.
        endpoint: Host and port that programs reach at 127.0.0.1 and the same port; None: nothing.
        folders: Folders of the host that are visible at the same place, read-only.
        writable: Names directly below / that lead to folders of the home.
    """

    _seen: int
    """The process that has all others of the sandbox below it, as the host counts."""

    def __init__(
        self,
        isolation: Isolation,
        limits: ShellLimits,
        endpoint: tuple[str, int] | None,
        folders: Sequence[str],
        writable: Sequence[str] = (),
    ) -> None:
        self.isolation, self.limits = isolation, limits
        self.holds: Mapping[str, str] = HOLDS[isolation]
        self.home = HOME
        self.folders: tuple[str, ...] = (HOME, "/tmp", "/dev/shm")
        self._endpoint, self._writable = endpoint, writable
        self._python = os.path.realpath(sys.executable)
        if isolation == "bubblewrap" and os.geteuid() == 0 and not _is_open_to_all(self._python):
            self._python = "/usr/bin/python3"  # bwrap runs as another user then
        base = [] if self._python.startswith("/usr/") else [sys.base_prefix]
        self._visible = [*base, *folders]
        self._path = [*(os.path.join(folder, "bin") for folder in base), "/usr/local/bin", "/usr/bin", "/bin"]
        self._owner = os.getpid()
        self._end: Any = None

    def start(self) -> None:
        """Start the supervisor, and wait until it has isolated itself."""
        if not sys.platform.startswith("linux"):
            raise SandboxError(f"the shell {self.isolation!r} needs Linux, and this is {sys.platform}.")
        folder = ""
        if self.isolation in ("process", "container"):
            folder = os.path.realpath(tempfile.mkdtemp(prefix="shell-"))
        if self.isolation == "process":
            self.home, self.folders = folder, (folder,)
        try:
            self._process, self._control = self._launch(folder)
        except (OSError, SandboxError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise error if isinstance(error, SandboxError) else SandboxError(self._complaint(str(error))) from error
        self._control.send(json.dumps(self._settings()).encode())
        self._relay = Relay(self._endpoint) if self._endpoint else None
        self._end = weakref.finalize(self, _end, self._process, self._control, self._relay, folder, self._owner)
        self._wait_until_ready()

    def spawn(self, argv: Sequence[str], folder: str, variables: Mapping[str, str]) -> Program:
        """Start a program."""
        ends = [*os.pipe(), *os.pipe(), *os.pipe()]
        stdin, our_stdin, our_stdout, stdout, our_end, end = ends
        fixed = {"HOME": self.home, "USER": "agent", "LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat", "TZ": "UTC"}
        path = {"PATH": ":".join(self._path)} if self._path else {}
        order = {
            "do": "start",
            "argv": list(argv),
            "cwd": folder,
            "env": {**fixed, "GIT_PAGER": "cat", **path, **variables},
        }
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], [stdin, stdout, end])
            reply = json.loads(self._control.recv(1 << 16))
        except (OSError, ValueError) as error:
            for descriptor in (our_stdin, our_stdout, our_end):
                close_quietly(descriptor)
            raise SandboxError("the shell's supervisor is gone. Was it killed?") from error
        finally:
            for descriptor in (stdin, stdout, end):
                close_quietly(descriptor)
        return Program(reply["pid"], our_stdin, our_stdout, our_end)

    def exit_code(self, program: Program) -> int:
        """Return what the supervisor has written about its end."""
        data = os.read(program.end, 4)
        return array("i", data)[0] if len(data) == 4 else 137

    def mark(self, worker: Program) -> None:
        """Remember the processes."""
        self._order({"do": "mark", "worker": worker.pid}, is_answered=True)

    def done(self) -> None:
        """Stop watching, if nothing is left in the background."""
        self._order({"do": "done"}, is_answered=True)

    def kill_new(self) -> None:
        """Kill the processes since the mark."""
        self._order({"do": "kill new"}, is_answered=True)

    def kill_all(self) -> None:
        """Kill everything but the supervisor."""
        self._order({"do": "kill all"}, is_answered=True)

    def kill(self, program: Program) -> None:
        """Kill one program."""
        self._order({"do": "kill", "pid": program.pid})

    def clock(self) -> tuple[float, float] | None:
        """Return what the kernel counts."""
        used_s, waited_ns = cpu_seconds(self._seen), 0
        for pid in children_of(self._seen):
            with contextlib.suppress(OSError, IndexError):
                waited_ns += int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
        return None if used_s is None else (used_s, waited_ns / 1e9)

    def close(self) -> None:
        """End the supervisor and wait."""
        if self._end is not None:
            self._end()

    def _order(self, order: dict[str, Any], *, is_answered: bool = False) -> None:
        try:
            self._control.send(json.dumps(order).encode())
            if is_answered:
                self._control.recv(1 << 16)
        except OSError as error:
            raise SandboxError("the shell's supervisor is gone. Was it killed?") from error

    def _settings(self) -> dict[str, Any]:
        """Return what the supervisor is told, in its first message: others could read its arguments."""
        return {
            "isolation": self.isolation,
            "kernel": f"{INSIDE}/{KERNEL.name}" if self.isolation in ("bubblewrap", "container") else str(KERNEL),
            "home": self.home,
            "folders": self._visible,
            "writable": list(self._writable),
            "port": self._endpoint[1] if self._endpoint and self.isolation != "process" else 0,
            "filter": base64.b64encode(seccomp.build_shell_filter(platform.machine()) or b"").decode(),
            "cpu_s": _CPU_S,
            "memory_bytes": self.limits.memory_bytes,
            "disk_bytes": self.limits.disk_bytes,
            "files": self.limits.files,
            "processes": self.limits.processes,
        }

    def _launch(self, folder: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start the supervisor; return its process, or its client's, and our end of its socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = self._popen(theirs)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._seen = process.pid
        return process, ours

    def _popen(self, control: socket.socket) -> subprocess.Popen[bytes]:
        """Start the supervisor, in bubblewrap if that is asked for."""
        python = [self._python, "-I", "-S", "-B"]
        options: dict[str, Any] = {"cwd": "/", "env": {"PATH": os.defpath}, "start_new_session": True}
        options |= {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if self.isolation != "bubblewrap":
            command = [*python, str(SUPERVISOR), str(control.fileno())]
            return subprocess.Popen(command, pass_fds=[control.fileno()], **options)
        sources = [os.open(path, os.O_RDONLY) for path in (KERNEL, SUPERVISOR)]
        try:
            given = self._bubblewrap(sources)
            if os.geteuid() == 0:  # root could write to /proc/sys, and the kernel does not count its processes
                uid = FIRST_UID + os.getpid() % 4_000
                options |= {"user": uid, "group": uid, "extra_groups": []}
            command = [*given, *python, f"{INSIDE}/{SUPERVISOR.name}", str(control.fileno())]
            options |= {"stderr": subprocess.PIPE}
            return subprocess.Popen(command, pass_fds=[control.fileno(), *sources], **options)
        finally:
            for descriptor in sources:
                os.close(descriptor)

    def _bubblewrap(self, sources: Sequence[int]) -> list[str]:
        """Return the command line up to the program."""
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise FileNotFoundError("bwrap was not found: install bubblewrap, or take runtime='namespaces'")
        given = [bwrap, "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
        given += ["--as-pid-1", "--new-session", "--die-with-parent"]
        for folder in SYSTEM:
            if os.path.islink(folder):
                given += ["--symlink", os.readlink(folder), folder]
            elif os.path.isdir(folder):
                given += ["--ro-bind", folder, folder]
        for folder in self._visible:
            given += ["--ro-bind", os.path.realpath(folder), folder]
        for name in self._writable:
            given += ["--symlink", HOME + name, name]
        size = str(self.limits.disk_bytes)
        given += ["--proc", "/proc", "--dev", "/dev"]
        for folder in ("/dev/shm", HOME, "/tmp"):
            given += ["--size", size, "--tmpfs", folder]
        given += ["--symlink", "/tmp", "/var/tmp"]
        for descriptor, path in zip(sources, (KERNEL, SUPERVISOR), strict=True):
            given += ["--ro-bind-data", str(descriptor), f"{INSIDE}/{path.name}"]
        return [*given, "--remount-ro", "/dev", "--remount-ro", "/", "--"]

    def _wait_until_ready(self) -> None:
        watch, complaint, message = StartWatch(self._process.pid), None, None
        self._control.settimeout(PULSE_S)
        while complaint is None and message is None:
            with contextlib.suppress(TimeoutError):
                try:
                    data, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
                except ConnectionResetError:
                    data, descriptors = b"", []
                message = json.loads(data) if data else {"failed": self._last_words()}
                if self._relay is not None and descriptors:
                    self._relay.serve(descriptors[0])
                break
            complaint = watch.complaint()
        self._control.settimeout(None)
        if message is None or "failed" in message:
            self.close()
            raise SandboxError(self._complaint(complaint if message is None else message["failed"]))

    def _last_words(self) -> str:
        said = self._process.stderr.read().decode("utf-8", "replace").strip() if self._process.stderr else ""
        return said[-500:] or "it ends immediately"

    def _complaint(self, why: str | None) -> str:
        return (
            f"no shell can be started with runtime={self.isolation!r} on this machine: {why}. 'namespaces' and "
            "'bubblewrap' need Linux with user namespaces for everybody (/proc/sys/user/max_user_namespaces above 0, "
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns 0), or root with CAP_SYS_ADMIN; ask whoever "
            "administers the machine, or take runtime='process', which isolates nothing."
        )


def _is_open_to_all(path: str) -> bool:
    """Return whether every user may read a file."""
    return all(each.stat().st_mode & 1 for each in Path(path).parents)


def _end(
    process: subprocess.Popen[bytes], control: socket.socket, relay: Relay | None, folder: str, owner: int
) -> None:
    """Make the supervisor end, and wait until everything is gone. In a forked copy, only close the copies."""
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            control.send(b'{"do": "end"}')
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            end_group(process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    control.close()
    if process.stderr is not None:
        process.stderr.close()
    if relay is not None:
        relay.close()
