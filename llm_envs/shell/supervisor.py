"""The first process of a shell's sandbox. A script that uses only the standard library.

It closes itself in (`isolation`: "namespaces"), or `bwrap` or a container has done so before it starts. Then it
obeys the host's orders, one JSON message each on a socket that keeps messages apart, some with descriptors:

- start a program without privileges, under the limits and the filter of system calls;
- remember which processes there are, and kill the others; kill one; end.

It reaps whatever is left behind, reports the exit of each program that it started through a pipe, and looks
at the number of processes and their memory while a command or a background process runs. When it ends, the kernel kills
everything in its process table.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

HOME = "/workspace"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC: tuple[str, ...] = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
)
ETC += ("protocols", "services", "ssl/certs", "terminfo")
USER = 1000
ACCOUNTS = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{USER}:{USER}:agent:{HOME}:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{USER}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "resolv.conf": "",
}
"""Files of /etc."""
DEVICES = ("null", "zero", "full", "random", "urandom")
WATCH_S = 0.1
"""Seconds between looks at the memory, while a program runs."""
GONE_S = 5.0
"""Longest wait for the end of killed processes, seconds."""
MORE_PROCESSES = 32
"""How many more than allowed the kernel lets through, so that we see that there are too many."""
PAGE = resource.getpagesize()
kernel: Any = None
"""The module `llm_envs/sandbox/cpython/child.py`, which wraps the system calls."""


def load(path: str) -> Any:
    """Import a file."""
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ----------------------------------------------------------------------------------------------------------------------
# Isolation
# ----------------------------------------------------------------------------------------------------------------------


def bind(source: str, target: str) -> None:
    """Show a file or folder of the host, read-only."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT, 0o644))
    kernel.mount(source, target, None, kernel.BIND | kernel.RECURSIVE)
    kernel.make_read_only(target, kernel.READ_ONLY | kernel.NO_SETUID | kernel.NO_DEVICES)


def change_root(config: dict[str, Any]) -> None:
    """Replace the file system by read-only system folders, and one file system in memory for all that is written."""
    stage, safe = kernel.STAGE, kernel.NO_SETUID | kernel.NO_DEVICES
    os.umask(0o022)
    kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    kernel.mount("none", stage, "tmpfs", safe, "size=1m,nr_inodes=1024,mode=755")
    for folder in SYSTEM:
        if os.path.islink(folder):
            os.symlink(os.readlink(folder), stage + folder)
        elif os.path.isdir(folder):
            bind(folder, stage + folder)
    for folder in config["folders"]:
        bind(os.path.realpath(folder), stage + folder)
    for name in ETC:
        if os.path.exists(f"/etc/{name}"):
            bind(os.path.realpath(f"/etc/{name}"), f"{stage}/etc/{name}")
    for name, text in ACCOUNTS.items():
        with open(f"{stage}/etc/{name}", "w") as file:
            file.write(text)
    os.makedirs(f"{stage}/dev", exist_ok=True)
    for name in DEVICES:
        os.close(os.open(f"{stage}/dev/{name}", os.O_CREAT, 0o666))
        kernel.mount(f"/dev/{name}", f"{stage}/dev/{name}", None, kernel.BIND)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{stage}/dev/{name}")
    os.makedirs(f"{stage}/run")
    kernel.mount("none", f"{stage}/run", "tmpfs", safe, f"size={config['disk_bytes']},nr_inodes={config['files']}")
    for folder, mode in ((HOME, 0o755), ("/tmp", 0o1777), ("/dev/shm", 0o1777)):
        inside = f"{stage}/run/{os.path.basename(folder)}"
        os.mkdir(inside)
        os.chmod(inside, mode)
        os.chown(inside, USER, USER)
        os.makedirs(stage + folder, exist_ok=True)
        kernel.mount(inside, stage + folder, None, kernel.BIND)
    kernel.check(kernel.libc.umount2(f"{stage}/run".encode(), kernel.DETACH), "unmount /run")
    os.makedirs(f"{stage}/var")
    os.symlink("/tmp", f"{stage}/var/tmp")
    for name in config["writable"]:
        os.symlink(HOME + name, stage + name)
    os.makedirs(f"{stage}/proc")
    kernel.mount("proc", f"{stage}/proc", "proc", safe | 8)
    kernel.mount("none", stage, None, kernel.REMOUNT | kernel.BIND | kernel.READ_ONLY | safe)
    os.chdir(stage)
    number = kernel.PIVOT_ROOT[os.uname().machine]
    kernel.check(kernel.libc.syscall(kernel.ctypes.c_long(number), b".", b"."), "pivot_root")
    kernel.check(kernel.libc.umount2(b".", kernel.DETACH), "unmount the old root")
    os.chdir("/")


def raise_loopback() -> None:
    """Switch the loopback on, the only interface of a new network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = struct.unpack("16sH", fcntl.ioctl(any_socket, 0x8913, struct.pack("16sH14x", b"lo", 0))[:18])[1]
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", flags | 1))


def limit_resources(config: dict[str, Any]) -> None:
    """Set the limits of a program and of what it starts."""
    limits = {
        resource.RLIMIT_DATA: config["memory_bytes"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: config["disk_bytes"],
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_CPU: config["cpu_s"],
        resource.RLIMIT_MEMLOCK: 65_536,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 1024,
    }
    if config["isolation"] != "process":  # there all processes of the user would count
        limits[resource.RLIMIT_NPROC] = config["processes"] + MORE_PROCESSES
    for name, most in limits.items():
        _, hard = resource.getrlimit(name)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(name, (most, most))


# ----------------------------------------------------------------------------------------------------------------------
# Orders
# ----------------------------------------------------------------------------------------------------------------------


class Supervisor:
    """Obeys the host.

    Args:
        control: The socket.
        config: The host's settings.
        uid: The user of the programs; None: ours.
    """

    def __init__(self, control: socket.socket, config: dict[str, Any], uid: int | None) -> None:
        self.control, self.config, self.uid = control, config, uid
        self.ends: dict[int, int] = {}
        """The pipe for the exit status of each program that we started and that runs."""
        self.marked: set[int] = set()
        self.worker = 0
        self.is_running = False
        """Whether a command of the shell runs."""

    def serve(self) -> None:
        """Obey until the host ends it, or is gone."""
        waker, wakened = os.pipe()
        os.set_blocking(wakened, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
        control = self.control.fileno()
        while True:
            busy = self.is_running or len(self.processes()) > 1
            readable, _, _ = select.select([control, waker], [], [], WATCH_S if busy else None)
            if waker in readable:
                os.read(waker, 4096)
            self.reap()
            if control in readable and not self.obey():
                return
            if busy:
                self.watch()

    def obey(self) -> bool:
        """Obey one order; return whether it was another one than the last."""
        data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 4)
        order: dict[str, Any] = json.loads(data) if data else {"do": "end"}
        if order["do"] == "start":
            self.control.send(json.dumps({"pid": self.start(order, descriptors)}).encode())
        elif order["do"] == "mark":
            self.marked, self.worker, self.is_running = self.processes(), order["worker"], True
            self.control.send(b"{}")
        elif order["do"] == "done":
            self.is_running = False
            self.watch()
            self.control.send(b"{}")
        elif order["do"] in ("kill new", "kill all"):
            self.kill_all_but(
                self.marked if order["do"] == "kill new" else set(), spares_worker=order["do"] == "kill new"
            )
            self.control.send(b"{}")
        elif order["do"] == "kill":
            if order["pid"] in self.ends:
                os.kill(order["pid"], signal.SIGKILL)
        else:
            return False
        return True

    def start(self, order: dict[str, Any], descriptors: list[int]) -> int:
        """Start a program: standard input, standard output and the pipe for its end are the descriptors."""
        stdin, stdout, end = descriptors
        pid = os.fork()
        if not pid:
            try:
                self.become(order, stdin, stdout)
            except BaseException as error:
                with contextlib.suppress(BaseException):
                    os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(127)
        os.close(stdin)
        os.close(stdout)
        self.ends[pid] = end
        return pid

    def become(self, order: dict[str, Any], stdin: int, stdout: int) -> None:
        """Turn this forked process into the program."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.nice(5)  # behind this process, which has to see when there are too many of them
        for descriptor, target in ((stdin, 0), (stdout, 1), (stdout, 2)):
            os.dup2(descriptor, target)
        os.closerange(3, 4096)
        os.umask(0o022)
        limit_resources(self.config)
        if self.config["isolation"] != "process":
            kernel.drop_privileges(self.uid)
            kernel.refuse_system_calls(self.config["filter"])
        os.chdir(self.config["home"])
        with contextlib.suppress(OSError):
            os.chdir(order["cwd"])
        path = os.environ.get("PATH", os.defpath)  # of the image
        os.execvpe(order["argv"][0], order["argv"], {"PATH": path, **order["env"]})

    def reap(self) -> None:
        """Take note of processes that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if (end := self.ends.pop(pid, None)) is not None:
                code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError):
                    os.write(end, array.array("i", [code if code >= 0 else 128 - code]).tobytes())
                os.close(end)

    def processes(self) -> set[int]:
        """Return all processes but this one."""
        if self.config["isolation"] != "process":
            return {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
        found, pending = set(), [os.getpid()]
        while pending:
            with contextlib.suppress(OSError), open(f"/proc/{(pid := pending.pop())}/task/{pid}/children") as file:
                children = [int(child) for child in file.read().split()]
                found.update(children)
                pending += children
        return found

    def kill_all_but(self, kept: set[int], *, spares_worker: bool = True) -> None:
        """Kill all processes but these, and interrupt the worker or kill it too."""
        if self.config["isolation"] != "process":
            with contextlib.suppress(ProcessLookupError):  # there are none
                os.kill(-1, signal.SIGSTOP)  # so that none of them forks meanwhile
        spared = {self.worker} & self.ends.keys() if spares_worker else set()
        killed = self.processes() - kept - spared
        for pids, number in (
            (killed, signal.SIGKILL),
            (spared, signal.SIGUSR1),
            (self.processes(), signal.SIGCONT),
        ):
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        until = time.monotonic() + GONE_S
        while self.processes() & killed and time.monotonic() < until:  # the dead count until they are reaped
            self.reap()
            time.sleep(0.001)

    def watch(self) -> None:
        """Kill everything if there are too many processes, and the largest one if all have too much memory.

        Files in memory do not count here: their file system has its own limit.
        """
        sizes: dict[int, int] = {}
        for pid in self.processes():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm") as file:
                _, resident, shared = map(int, file.read().split()[:3])
                sizes[pid] = (resident - shared) * PAGE
        if len(sizes) > self.config["processes"]:
            self.kill_all_but(set())
        elif sum(sizes.values()) > self.config["memory_bytes"]:
            with contextlib.suppress(OSError):
                os.kill(max(sizes, key=lambda pid: sizes[pid]), signal.SIGKILL)


def enter_namespaces() -> int | None:
    """Enter new namespaces, as the user 1000. Return the user of the programs if it is not ours: if we are root.

    Root's processes are not counted by the limit of processes, so root maps another user of the host to 1000 and
    itself to 0. A process outside of the new namespace has to write that down.
    """
    flags = kernel.NEW_USER | kernel.NEW_PID | kernel.NEW_NET | kernel.NEW_MOUNT | kernel.NEW_IPC | kernel.NEW_UTS
    uid, gid, us = os.geteuid(), os.getegid(), os.getpid()
    if uid:
        kernel.check(kernel.libc.unshare(flags), "new namespaces")
        write_maps("self", f"{USER} {uid} 1", f"{USER} {gid} 1", "deny")
        return None
    ready, go = os.pipe()
    if not (helper := os.fork()):
        os.close(go)
        try:
            os.read(ready, 1)
            other = kernel.FIRST_UID + us % 4_000
            write_maps(str(us), f"0 0 1\n{USER} {other} 1", f"0 0 1\n{USER} {other} 1", "allow")
            os._exit(0)
        except BaseException:
            os._exit(1)
    kernel.check(kernel.libc.unshare(flags), "new namespaces")
    os.write(go, b"x")
    if os.waitpid(helper, 0)[1]:
        raise kernel.SetupError("the users of a new namespace cannot be set")
    for descriptor in (ready, go):
        os.close(descriptor)
    return USER


def write_maps(process: str, users: str, groups: str, setgroups: str) -> None:
    """Map the users and groups of a process's namespace to the host's."""
    for name, text in (("setgroups", setgroups), ("uid_map", users), ("gid_map", groups)):
        with open(f"/proc/{process}/{name}", "w") as file:
            file.write(text)


def set_up(config: dict[str, Any], control: socket.socket) -> tuple[int | None, list[int]]:
    """Isolate this process. Return the user of the programs if it is not ours, and a socket if there is an endpoint."""
    uid = None
    if config["isolation"] == "namespaces":
        uid = enter_namespaces()
        if pid := os.fork():  # the child is the first process of the new table
            control.close()
            os.waitpid(pid, 0)
            os._exit(0)
        kernel.check(kernel.libc.prctl(kernel.SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0), "prctl")
        socket.sethostname("sandbox")
        raise_loopback()
        change_root(config)
    kernel.libc.prctl(kernel.SET_SUBREAPER, 1, 0, 0, 0)
    if config["isolation"] != "process":
        kernel.libc.prctl(kernel.SET_DUMPABLE, 0, 0, 0, 0)  # programs of the same user may not look into this one
    listeners = []
    if config["port"]:
        listener = socket.create_server(("127.0.0.1", config["port"]))
        listeners.append(listener.detach())
    return uid, listeners


def connect(place: str) -> socket.socket:
    """Return the host's socket: a descriptor by its number, or a path, which takes one caller."""
    if place.isdigit():
        return socket.socket(fileno=int(place))
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(place)
    return control


def main() -> None:
    """Set up, report, and serve."""
    global kernel
    control = connect(sys.argv[1])
    config = json.loads(control.recv(1 << 17))
    kernel = load(config["kernel"])
    try:
        uid, listeners = set_up(config, control)
        socket.send_fds(control, [b'{"ready": true}'], listeners)
    except BaseException as error:
        with contextlib.suppress(BaseException):
            control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
        os._exit(1)
    for descriptor in listeners:
        os.close(descriptor)
    supervisor = Supervisor(control, config, uid)
    try:
        supervisor.serve()
    finally:
        if config["isolation"] == "process":
            while left := supervisor.processes():
                for pid in left:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                supervisor.reap()
        os._exit(0)


if __name__ == "__main__":
    main()
