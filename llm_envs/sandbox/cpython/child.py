"""The process in which `SubprocessSandbox` runs CPython. A script that uses only the standard library.

There are two processes. The guardian sets up the isolation and forks the interpreter. Then it stops the interpreter
between runs (so that threads left behind do not run), continues it, kills it on the host's order or when the host is
gone, and ends when the interpreter ends. The interpreter isolates itself for good and answers requests.

Frames in both directions on the control socket: four bytes of length, then JSON. A reply carries its request's nonce.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import ctypes
import datetime
import gc
import io
import json
import linecache
import os
import random
import resource
import select
import signal
import socket
import struct
import sys
import sysconfig
import time
import traceback
import types
from typing import Any

NEW_USER, NEW_PID, NEW_NET, NEW_MOUNT, NEW_IPC, NEW_UTS = (
    0x10000000,
    0x20000000,
    0x40000000,
    0x20000,
    0x8000000,
    0x4000000,
)
READ_ONLY, NO_SETUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPSET = {"x86_64": 126, "aarch64": 91}
MOUNT_SETATTR = 442
SET_DEATH_SIGNAL, SET_DUMPABLE, SET_SECCOMP, SET_SUBREAPER, SET_NO_NEW_PRIVILEGES = 1, 4, 22, 36, 38
STAGE = "/proc"
"""Where the new root is built: every Linux has this directory, and no interpreter is installed in it."""
HOME = "/tmp"
PACKAGES = "/packages"
"""Where the code finds packages in a new root."""
RESERVE_BYTES = 4 << 20
"""Memory that is released when the code has used up its own, so that the error can be reported."""
FIRST_UID = 61_184
"""First of the unprivileged users that nothing else runs as (systemd's dynamic users). Each interpreter has its own, so
that they do not share a count of processes."""
TRACEBACK_CHARACTERS = 2_000
WAITING = {
    "asyncio",
    "concurrent",
    "multiprocessing",
    "queue",
    "sched",
    "selectors",
    "socket",
    "subprocess",
    "threading",
}
"""Modules that measure a wait with `time.monotonic`: these read the real one."""

libc = ctypes.CDLL(None, use_errno=True)


class SetupError(Exception):
    """A part of the isolation is not available."""


def check(result: int, what: str) -> None:
    """Raise if a call of the C library failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise SetupError(f"{what}: {os.strerror(number)}")


def send(control: socket.socket, message: dict[str, Any]) -> None:
    """Write one frame."""
    data = json.dumps(message).encode()
    control.sendall(struct.pack("!I", len(data)) + data)


def receive(control: socket.socket) -> dict[str, Any]:
    """Read one frame. If the connection ends, end the process."""
    control.setblocking(True)  # the code has the descriptor too
    data = read_exactly(control, struct.unpack("!I", read_exactly(control, 4))[0])
    message: dict[str, Any] = json.loads(data)
    return message


def read_exactly(control: socket.socket, size: int) -> bytes:
    """Read that many bytes."""
    data = b""
    while len(data) < size:
        chunk = control.recv(size - len(data))
        if not chunk:
            os._exit(0)
        data += chunk
    return data


# ----------------------------------------------------------------------------------------------------------------------
# Isolation
# ----------------------------------------------------------------------------------------------------------------------


def unshare(config: dict[str, Any]) -> bool:
    """Enter new namespaces. Return whether that needed a namespace of users, because we are not root."""
    flags = NEW_PID | NEW_NET | NEW_MOUNT | NEW_IPC | NEW_UTS
    if os.geteuid() == 0 and not config["user_namespace"] and libc.unshare(flags) == 0:
        return False
    uid, gid = os.geteuid(), os.getegid()
    check(libc.unshare(flags | NEW_USER), "new namespaces")
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def visible_folders() -> list[str]:
    """Return the folders that the interpreter needs: its own library and the system's."""
    paths = sysconfig.get_paths()
    folders = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo"]
    if sys.base_prefix not in ("/", "/usr"):
        folders.append(os.path.join(sys.base_prefix, "lib"))
    folders += [os.path.dirname(os.__file__), paths["stdlib"], paths["platstdlib"]]
    chosen: list[str] = []
    for folder in folders:
        if os.path.isdir(folder) and not any((folder + "/").startswith(other + "/") for other in chosen):
            chosen.append(folder)
    return chosen


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount, or raise."""
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    data = None if options is None else options.encode()
    check(libc.mount(*encoded, ctypes.c_ulong(flags), data), f"mount {target}")


def make_read_only(target: str, flags: int) -> None:
    """Make a mount, and those below it where the kernel can, read-only."""
    attributes = struct.pack("=QQQQ", flags, 0, 0, 0)  # the flags have the same values here
    here, everything_below, size = ctypes.c_long(-100), ctypes.c_long(0x8000), ctypes.c_long(len(attributes))
    if libc.syscall(ctypes.c_long(MOUNT_SETATTR), here, target.encode(), everything_below, attributes, size) == 0:
        return
    # An older kernel. A mount that came from elsewhere keeps its own flags, or it is not changed at all.
    found = os.statvfs(target).f_flag
    kept = (found & (2 | 4 | 8 | 1024 | 2048)) | (1 << 21 if found & 4096 else 0)
    mount("none", target, None, REMOUNT | BIND | flags | kept)


def change_root(config: dict[str, Any]) -> None:
    """Replace the file system by a few read-only folders and one small empty folder."""
    folders = visible_folders()
    library = os.path.dirname(os.__file__)
    hidden = [f"{library}/site-packages", f"{library}/dist-packages", "/usr/lib/python3/dist-packages"]
    os.umask(0o022)
    mount("none", "/", None, RECURSIVE | PRIVATE)
    devices = {name: os.path.exists(f"/dev/{name}") for name in ("null", "zero", "urandom")}
    mount("none", STAGE, "tmpfs", NO_SETUID | NO_DEVICES, "size=256k,nr_inodes=512,mode=755")
    for folder in folders:
        os.makedirs(STAGE + folder, exist_ok=True)
        mount(os.path.realpath(folder), STAGE + folder, None, BIND | RECURSIVE)
        make_read_only(STAGE + folder, READ_ONLY | NO_SETUID | NO_DEVICES)
    for path in hidden:
        if os.path.isdir(STAGE + path):
            mount("none", STAGE + path, "tmpfs", READ_ONLY | NO_SETUID | NO_DEVICES, "size=4k,nr_inodes=2")
    os.makedirs(STAGE + "/dev")
    for name, exists in devices.items():
        if exists:
            os.close(os.open(f"{STAGE}/dev/{name}", os.O_CREAT, 0o666))
            mount(f"/dev/{name}", f"{STAGE}/dev/{name}", None, BIND)
    for package in config["packages"]:
        target = f"{STAGE}{PACKAGES}/{os.path.basename(package)}"
        os.makedirs(target)
        mount(package, target, None, BIND | RECURSIVE)
        make_read_only(target, READ_ONLY | NO_SETUID | NO_DEVICES)
    os.makedirs(STAGE + HOME, exist_ok=True)
    if config["file_bytes"]:
        options = f"size={config['file_bytes']},nr_inodes=1024,mode=1777"
        mount("none", STAGE + HOME, "tmpfs", NO_SETUID | NO_DEVICES, options)
    mount("none", STAGE, None, REMOUNT | BIND | READ_ONLY | NO_SETUID | NO_DEVICES)
    os.chdir(STAGE)
    check(libc.syscall(ctypes.c_long(PIVOT_ROOT[os.uname().machine]), b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "unmount the old root")
    os.chdir(HOME)


def drop_privileges(uid: int | None) -> None:
    """Become an unprivileged user without any capability, for good."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    number = CAPSET.get(os.uname().machine)
    if number is not None:
        header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
        check(libc.syscall(ctypes.c_long(number), header, nothing), "capset")
    check(libc.prctl(SET_DUMPABLE, 0, 0, 0, 0), "prctl")
    check(libc.prctl(SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0), "prctl")
    check(libc.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no_new_privs")


def limit_resources(config: dict[str, Any], counts_are_ours: bool) -> None:
    """Set the limits of this process. Memory is its present size, the code's share, and the reserve."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limits = {
        resource.RLIMIT_AS: now + config["memory_bytes"] + RESERVE_BYTES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: max(config["file_bytes"], 65_536),
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CPU: config["cpu_s"],
        resource.RLIMIT_STACK: 8 << 20,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if counts_are_ours:
        limits[resource.RLIMIT_NPROC] = 64
    for name, most in limits.items():
        _, hard = resource.getrlimit(name)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(name, (most, most))


def refuse_system_calls(encoded: str) -> bool:
    """Install the filter. Return whether that worked."""
    program = base64.b64decode(encoded)
    if not program:
        return False
    buffer = ctypes.create_string_buffer(program, len(program))
    pointer = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    return int(libc.prctl(SET_SECCOMP, 2, ctypes.c_char_p(pointer), 0, 0)) == 0


# ----------------------------------------------------------------------------------------------------------------------
# The guardian
# ----------------------------------------------------------------------------------------------------------------------


def guard(interpreter: int, lifeline: int) -> None:
    """Stop, continue and kill the interpreter on the host's orders. End when it has ended or the host is gone."""
    waker, wakened = os.pipe()
    os.set_blocking(wakened, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
    while True:
        pid, _ = os.waitpid(interpreter, os.WNOHANG)
        if pid:
            break
        readable, _, _ = select.select([lifeline, waker], [], [])
        if waker in readable:
            os.read(waker, 4096)
        if lifeline in readable:
            orders = os.read(lifeline, 1)
            action = {b"S": signal.SIGSTOP, b"C": signal.SIGCONT}.get(orders, signal.SIGKILL)
            os.kill(interpreter, action)
            if action == signal.SIGKILL:
                os.waitpid(interpreter, 0)
                break
    while True:  # processes that it left behind are our children now
        try:
            with open("/proc/self/task/self/children") as file:
                left = file.read().split()
        except OSError:
            left = []
        for child in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


# ----------------------------------------------------------------------------------------------------------------------
# The interpreter
# ----------------------------------------------------------------------------------------------------------------------


def make_repeatable(seed: int, clock: int) -> None:
    """Make everything that the code reads of chance and time depend on the seed.

    `random` and whatever asks for entropy are seeded; the clocks of `time` and `datetime` stand at `clock`, in seconds
    since 1970. This does not isolate: code that wants to can find the time, for example in `os.times`.
    """
    entropy = random.Random(seed)
    draw_seed, seed_with = entropy.getrandbits, random.Random.seed
    os.urandom = random._urandom = entropy.randbytes  # type: ignore[attr-defined]

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        seed_with(self, draw_seed(64) if a is None else a, version)

    random.Random.seed = seeded  # type: ignore[method-assign]
    random.seed = random._inst.seed
    random.seed(seed)

    monotonic = time.monotonic
    for name in ("time", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, lambda: float(clock))
        setattr(time, f"{name}_ns", lambda: clock * 10**9)
    time.monotonic = lambda: monotonic() if _is_waiting(sys._getframe(1)) else float(clock)
    time.monotonic_ns = lambda: clock * 10**9
    time.clock_gettime = lambda clk_id: float(clock)
    time.clock_gettime_ns = lambda clk_id: clock * 10**9
    for name in ("localtime", "gmtime", "ctime"):
        of_seconds = getattr(time, name)
        setattr(time, name, lambda secs=None, of=of_seconds: of(clock if secs is None else secs))
    strftime, asctime = time.strftime, time.asctime
    time.strftime = lambda format, *t: strftime(format, *(t or (time.localtime(),)))
    time.asctime = lambda *t: asctime(*(t or (time.localtime(),)))
    # These two read the clock in C. A subclass would change the type's name and what other modules take as a date.
    (methods,) = gc.get_referents(datetime.datetime.__dict__)
    methods["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(clock, tz))
    methods["utcnow"] = classmethod(lambda cls: cls.fromtimestamp(clock, datetime.UTC).replace(tzinfo=None))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))


def _is_waiting(caller: types.FrameType) -> bool:
    return str(caller.f_globals.get("__name__")).partition(".")[0] in WAITING


def answer(request: dict[str, Any], namespace: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Run code as a notebook does, and return the result as data."""
    most, name, code = config["output_characters"], f"<run {request['number']}>", request["code"]
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    sys.setrecursionlimit(config["recursion_depth"] + 20)
    reply: dict[str, Any] = {}
    reserve = bytearray()
    try:
        reserve = bytearray(RESERVE_BYTES)
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", dont_inherit=True), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace)
            if value is not None:
                reply["value"] = str(repr(value))[: most + 1]
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: no exception of the code may end us
        reserve = bytearray()
        reply = {"error": str(type(error).__name__)[:100], "traceback": describe(error)}
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    del reserve
    try:
        bytearray(RESERVE_BYTES)
    except MemoryError:  # the variables take all the memory
        reply["is_full"] = True
    return reply


def describe(error: BaseException) -> str:
    """Return the traceback without our own part of it."""
    try:
        frames = error.__traceback__
        while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<run "):
            frames = frames.tb_next
        lines = traceback.TracebackException(type(error), error, frames).format()
        return "".join(lines)[-TRACEBACK_CHARACTERS:]
    except BaseException:
        return type(error).__name__[:100]


def open_streams(output: int) -> None:
    """Redirect the output of `print` and of the C library to the host, line by line."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8")  # type: ignore[misc]
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        stream = io.TextIOWrapper(raw, "utf-8", "replace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def interpret(control: socket.socket, output: int, config: dict[str, Any], is_mapped: bool, guardian: int) -> None:
    """Isolate this process, report that it is ready, and answer requests."""
    protections = ["limits"]
    os.setsid()
    open_streams(output)
    os.closerange(3, control.fileno())
    os.closerange(control.fileno() + 1, 4096)
    uid = FIRST_UID + guardian % 4_000 if os.geteuid() == 0 and not is_mapped else None
    limit_resources(config, counts_are_ours=is_mapped or uid is not None)
    if config["isolation"] == "namespaces":
        change_root(config)
        protections += ["files", "network", "processes"]
    else:
        os.chdir(config["folder"])
        if uid is not None:
            os.chown(".", uid, uid)
    drop_privileges(uid)
    if not os.access(os.__file__, os.R_OK):
        raise SetupError(f"an unprivileged user cannot read {os.__file__}; use another interpreter, or namespaces")
    if refuse_system_calls(config["filter"]):
        protections.append("system calls")
    if config["seed"] is not None:
        make_repeatable(config["seed"], config["clock"])
    if config["packages"]:
        in_new_root = config["isolation"] == "namespaces"
        sys.path += [PACKAGES] if in_new_root else sorted({os.path.dirname(path) for path in config["packages"]})
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv, sys.orig_argv = [""], [""]
    send(control, {"ready": True, "protections": protections})
    while True:
        request = receive(control)
        reply = answer(request, main.__dict__, config)
        send(control, reply | {"nonce": request["nonce"]})


def main() -> None:
    """Set up, fork the interpreter, and guard it."""
    config = json.loads(sys.argv[1])
    control = socket.socket(fileno=config["control"])
    lifeline, output = config["lifeline"], config["output"]
    try:
        libc.prctl(SET_SUBREAPER, 1, 0, 0, 0)
        guardian = os.getpid()
        is_mapped = config["isolation"] == "namespaces" and unshare(config)
        interpreter = os.fork()
        if not interpreter:
            os.close(lifeline)
            interpret(control, output, config, is_mapped, guardian)
        control.close()
        os.close(output)
    except BaseException as error:
        with contextlib.suppress(BaseException):
            send(control, {"failed": f"{type(error).__name__}: {error}"})
        os._exit(1)
    guard(interpreter, lifeline)
    os._exit(0)


if __name__ == "__main__":
    main()
