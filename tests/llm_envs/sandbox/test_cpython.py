"""The backend in CPython: what the kernel closes off, and what becomes of the processes."""

import json
import os
import pickle
import platform
import select
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
from ast import literal_eval
from dataclasses import replace
from pathlib import Path

import pytest
from machine import busy, is_running, wait_until
from sandboxes import make_namespaces

from llm_envs.errors import InvalidConfigError, SandboxError
from llm_envs.sandbox import CRASHED, SandboxLimits, SubprocessSandbox
from llm_envs.sandbox.cpython.seccomp import ARCHITECTURES, build_filter
from llm_envs.sandbox.cpython.session import _Exchange

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="SubprocessSandbox needs Linux")

LIMITS = SandboxLimits(timeout_s=30, memory_bytes=48 << 20, output_characters=500, file_bytes=1 << 20)
HURRIED = replace(LIMITS, timeout_s=0.5)
"""For code that does not end. What ends by itself has long enough for the busiest machine."""


@pytest.fixture(scope="module")
def sandbox():
    with make_namespaces(LIMITS) as sandbox:
        yield sandbox


def interpreter_of(session) -> tuple[int, int]:
    """Return the guardian's process and its interpreter's."""
    guardian = session._child._process.pid
    (interpreter,) = Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()
    return guardian, int(interpreter)


def test_it_says_what_is_in_force(sandbox):
    assert sandbox.isolation == "namespaces"
    assert {"limits", "files", "network", "processes"} <= sandbox.protections
    if platform.machine() in ARCHITECTURES:
        assert "system calls" in sandbox.protections


def test_it_is_the_first_process_and_has_nothing_of_the_host(session):
    session.run("import os")
    assert session.run("os.getpid()").value == "1"
    assert session.run("os.getuid() == 0 or os.geteuid() == 0").value == "False"
    assert session.run("sorted(os.listdir('/tmp'))").value == "[]"
    assert session.run("os.getcwd()").value == "'/tmp'"
    names = "['HOME', 'LANG', 'MALLOC_ARENA_MAX', 'OPENBLAS_NUM_THREADS', 'PATH', 'PYTHONHASHSEED', 'TZ']"
    assert session.run("sorted(n for n in os.environ if n != 'LC_CTYPE')").value == names
    assert (
        session.run("[p for p in ('/etc', '/home', '/proc', '/sys', '/var', '/bin') if os.path.exists(p)]").value
        == "[]"
    )
    assert session.run("sorted(os.listdir('/dev'))").value == "['null', 'urandom', 'zero']"
    folder = Path(__file__).resolve().parent
    assert session.run(f"os.path.exists({str(folder)!r})").value == "False"


def test_its_only_descriptors_are_its_streams_and_the_control_socket(session):
    code = """
        import os
        found = []
        for n in range(4096):
            try:
                os.fstat(n)
                found.append(n)
            except OSError:
                pass
        len(found)
    """
    assert session.run(textwrap.dedent(code)).value == "4"


def test_its_folder_is_empty_small_and_its_own(sandbox):
    first, second = sandbox.session(), sandbox.session()
    assert first.run("n = open('note', 'w').write('mine')\nopen('note').read()").value == "'mine'"
    assert second.run("import os\nos.listdir('.')").value == "[]"
    assert (
        first.run("with open('large', 'wb') as f:\n    for _ in range(100): f.write(b'x' * 100_000)").error == "OSError"
    )
    assert first.run("open('note').read()").value == "'mine'"
    for path in ("/written", "/lib/written", "/dev/written", os.__file__):
        assert first.run(f"open({path!r}, 'w')").error in ("OSError", "PermissionError")
    first.close()
    second.close()


def test_only_the_packages_that_are_named_can_be_imported(session):
    assert session.run("import numpy").error == "ModuleNotFoundError"
    with make_namespaces(LIMITS, packages=["numpy", "no_such"]) as other:
        assert pickle.loads(pickle.dumps(other)).packages == ("numpy", "no_such")
        opened = other.session(replace(LIMITS, memory_bytes=256 << 20))
        assert opened.run("import numpy\nnumpy.linalg.inv(numpy.eye(2)).tolist()").value == "[[1.0, 0.0], [0.0, 1.0]]"
        assert opened.run("import pytest").error == "ModuleNotFoundError"
        assert opened.run("open(numpy.__file__, 'a')").error in ("OSError", "PermissionError")


def test_the_standard_library_is_there(session):
    code = (
        "import asyncio, collections, ctypes, dataclasses, decimal, fractions, itertools, json, re, sqlite3, statistics"
    )
    assert session.run(code).error is None
    assert session.run("async def f(): return 5\nasyncio.run(f())").value == "5"
    assert session.run("list(x * x for x in range(3))").value == "[0, 1, 4]"
    code = "import threading\nthreads = [threading.Thread(target=print, args=(n,)) for n in range(3)]\n"
    code += "for t in threads:\n    t.start()\n    t.join()"
    assert session.run(code).output == "0\n1\n2"


def test_a_user_without_rights_gets_the_same(monkeypatch):
    """The way through a namespace of users, which root does not need."""
    monkeypatch.setattr(SubprocessSandbox, "_probe", lambda self: frozenset())
    with make_namespaces(LIMITS) as sandbox:
        sandbox._force_user_namespace = True
        session = sandbox.session()
        try:
            assert session.run("import os\nos.getpid(), os.getuid()").value == "(1, 1000)"
        except SandboxError as error:
            pytest.skip(str(error))
        assert session.run("[p for p in ('/etc', '/home', '/proc') if os.path.exists(p)]").value == "[]"
        assert session.run("os.setuid(0)").error in ("PermissionError", "OSError")
        assert session.run("import socket\nsocket.socket()").error == "PermissionError"
        assert sandbox.session(HURRIED).run("while True: pass").stopped == "time"


def system_python() -> str:
    """Return an interpreter that an unprivileged user can read."""
    if os.getuid():
        return sys.executable
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if python:
            try:
                SubprocessSandbox(isolation="rlimits", python=python).close()
            except SandboxError:
                continue
            return python
    pytest.skip("no interpreter here can be read by an unprivileged user")


def test_rlimits_alone_is_weaker_and_says_so(tmp_path):
    with make_namespaces(LIMITS, isolation="rlimits", python=system_python()) as sandbox:
        assert sandbox.isolation == "rlimits"
        assert not {"files", "network", "processes"} & sandbox.protections
        session = sandbox.session()
        assert session.run("import os\n1 + 1").value == "2"
        if "system calls" in sandbox.protections:
            target = tmp_path / "file"
            target.write_text("kept")
            for code in (
                f"open({str(target)!r}, 'w')",
                f"os.remove({str(target)!r})",
                "open('here', 'w')",
                "import socket\nsocket.socket()",
                "os.fork()",
                f"os.kill({os.getpid()}, 9)",
            ):
                assert session.run(code).error in ("PermissionError", "OSError"), code
            assert target.read_text() == "kept"
        session.close()
        hurried = sandbox.session(HURRIED)
        assert hurried.run("while True: pass").stopped == "time"
        assert hurried.run("1").value == "1"
        hurried.close()


_KILL = """
import fcntl, os, signal, socket
ours, theirs = socket.socketpair()
fcntl.fcntl(ours, {command}, {argument})
"""
"""A descriptor's owner is sent a signal of choice when it can be read: of the user's processes, any."""


@pytest.mark.smoke
def test_rlimits_alone_lets_no_signal_out():
    with make_namespaces(LIMITS, isolation="rlimits", python=system_python()) as sandbox:
        if "system calls" not in sandbox.protections:
            pytest.skip("no filter of system calls on this machine")
        session = sandbox.session()
        pid = os.getpid()
        for command, argument in ((8, pid), (10, signal.SIGKILL), (15, struct.pack("=ii", 1, pid)), (1024, 0)):
            result = session.run(_KILL.format(command=command, argument=argument))
            assert result.error == "PermissionError", command
        for command in (0x8901, 0x8902):  # FIOSETOWN, SIOCSPGRP
            code = f"import fcntl, struct\nfcntl.ioctl(ours, {command}, struct.pack('i', {pid}))"
            assert session.run(code).error == "PermissionError", command
        session.close()


def test_an_interpreter_that_stops_itself_is_over_its_time():
    """A timer of the kernel stops it: with signals to itself refused, the only way. Without the filter, any will do."""
    code = """
        import ctypes, os, platform, signal, struct, time
        libc = ctypes.CDLL(None)
        number = {"x86_64": 222, "aarch64": 107}.get(platform.machine(), -1)
        event = ctypes.create_string_buffer(struct.pack("=QiI", 0, signal.SIGSTOP, 0), 64)
        refused = libc.syscall(number, 1, event, ctypes.byref(ctypes.c_long())) != 0
        try:
            os.kill(os.getpid(), signal.SIGSTOP)
        except OSError:
            pass
        refused
    """
    with make_namespaces(LIMITS, isolation="rlimits", python=system_python()) as sandbox:
        session = sandbox.session(replace(LIMITS, timeout_s=1.0))
        result = session.run(textwrap.dedent(code))
        assert result.value == "True" if "system calls" in sandbox.protections else result.stopped == "time"
        # Stopped from outside, which the host cannot tell from stopping itself.
        _, interpreter = interpreter_of(session)
        session.run("import time")
        threading.Timer(0.2, os.kill, (interpreter, signal.SIGSTOP)).start()
        assert session.run("time.sleep(600)").stopped == "time"
        session.close()


def test_buffers_of_sockets_hold_little(session):
    code = """
        import socket
        pairs, held = [], 0
        try:
            while True: pairs.append(socket.socketpair())
        except OSError: pass
        for one in [one for pair in pairs for one in pair]:
            one.setblocking(False)
            try: one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
            except OSError: pass
            try:
                while True: held += one.send(bytes(1 << 16))
            except OSError: pass
        len(pairs) > 10 and held / (1 << 20) < 64 * 2 * {default}
    """
    assert session.run("import socket\nsocket.socketpair()[0].sendmsg([b''])").error == "PermissionError"
    assert session.run("import fcntl, os\nfcntl.fcntl(os.pipe()[1], 1031, 9)").error == "PermissionError"
    default = int(Path("/proc/sys/net/core/wmem_default").read_text()) / (1 << 20)
    assert session.run(textwrap.dedent(code).replace("{default}", str(default))).value == "True"


def test_a_crash_costs_the_session_its_variables_and_says_so(session):
    session.run("x = 1\nimport os")
    result = session.run("os._exit(3)")
    assert (result.error, result.stopped, result.state_lost) == (CRASHED, "crash", True)
    assert "[the interpreter crashed or was ended by the code]" in result.output
    assert "variables defined before are gone" in result.output
    assert session.run("x").error == "NameError"


def test_variables_that_fill_the_memory_end_the_interpreter(session):
    code = "a = []\nn = 1 << 22\nwhile n > 64:\n    try: a.append(bytearray(n))\n    except MemoryError: n //= 2"
    result = session.run(code)
    assert (result.error, result.stopped, result.state_lost) == ("MemoryError", "memory", True)
    assert session.run("1 + 1").value == "2"


def test_an_interpreter_that_dies_between_runs_is_replaced_and_the_next_result_says_so(session):
    session.run("x = 1")
    guardian, interpreter = interpreter_of(session)
    os.kill(interpreter, signal.SIGKILL)
    assert wait_until(lambda: not is_running(guardian))
    result = session.run("1 + 1")
    assert (result.value, result.error, result.state_lost) == ("2", None, True)
    assert "variables defined before are gone" in result.output


def test_threads_left_behind_do_not_go_on_between_runs(session):
    code = """
        import threading, time
        n, longest = 0, 0.0
        def count():
            global n, longest
            last = time.monotonic()
            while True:
                time.sleep(0.001)
                now = time.monotonic()
                n, longest, last = n + 1, max(longest, now - last), now
        threading.Thread(target=count, daemon=True).start()
        while not n:
            time.sleep(0.001)
    """
    session.run(textwrap.dedent(code))
    _, interpreter = interpreter_of(session)
    assert wait_until(lambda: is_stopped(interpreter))
    time.sleep(1.0)
    n, longest = literal_eval(session.run("m = n\nwhile n == m: time.sleep(0.001)\nn, longest").value)
    assert n > 1 and longest >= 1.0  # it has counted before the pause and after it, and nothing in it


def test_forged_replies_are_not_taken_for_those_of_later_runs(session):
    code = """
        import json, os, struct
        data = json.dumps({"nonce": "0" * 32, "value": "FORGED"}).encode()
        def forge():
            for n in range(3, 4096):  # a busy host's descriptors have large numbers
                try:
                    os.write(n, struct.pack("!I", len(data)) + data)
                except OSError:
                    pass
    """
    session.run(textwrap.dedent(code))
    result = session.run("forge()")
    assert (result.error, result.value) == (CRASHED, None)
    assert session.run("1 + 1").value == "2"


def test_closing_during_a_run_waits_for_its_end(sandbox):
    session = sandbox.session(HURRIED)
    session.run("1")
    results = []
    thread = threading.Thread(target=lambda: results.append(session.run("while True: pass")))
    thread.start()
    assert wait_until(lambda: session._lock.locked() or results)
    session.close()
    thread.join(60)
    assert [result.stopped for result in results] == ["time"]


@pytest.mark.parametrize("victim", ["guardian", "interpreter"])
def test_neither_process_outlives_the_other(session, victim):
    session.run("1")
    pids = dict(zip(("guardian", "interpreter"), interpreter_of(session), strict=True))
    os.kill(pids[victim], signal.SIGKILL)
    assert wait_until(lambda: not any(map(is_running, pids.values())))


def test_a_host_that_is_killed_takes_its_interpreters_along():
    code = """
        import os, signal, sys
        from pathlib import Path
        from llm_envs.sandbox import SubprocessSandbox
        session = SubprocessSandbox().session()
        session.run("import threading, time\\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()")
        guardian = session._child._process.pid
        print(guardian, *Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    if "SandboxError" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    assert wait_until(lambda: not any(map(is_running, pids)))


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_time_without_a_processor_is_not_the_codes_time(sandbox):
    """Most of a limit is used, beside a loop on the same processor: by the clock on the wall, the limit is over."""
    spend = "import time\nstart = time.process_time()\nwhile time.process_time() - start < {}: pass\n'done'"
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        session = sandbox.session(replace(LIMITS, timeout_s=1.0))
        session.run("x = 1")
        with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as busy:
            result = session.run(spend.format(0.7))
            busy.kill()
    finally:
        os.sched_setaffinity(0, allowed)
    session.close()
    assert (result.value, result.stopped, result.state_lost) == ("'done'", None, False)
    assert result.seconds - result.waited_s < result.seconds


def test_a_reply_that_waits_when_the_host_looks_late_is_read(session):
    """The host itself had no processor from the request to the end of the limit."""
    session.run("import time")
    child = session._child
    exchange = _Exchange(child, json.dumps({"code": "6 * 7", "nonce": "n", "number": 2}).encode())
    child._received.clear()
    interpreter = interpreter_of(session)[1]
    assert wait_until(lambda: is_stopped(interpreter))
    assert exchange.run(0.0) == "time"  # the request is sent, the time is over
    child._order(b"C")
    assert wait_until(lambda: select.select([child._control], [], [], 0)[0])
    assert exchange.run(-1.0) is None
    assert exchange.reply is not None and exchange.reply["value"] == "42"
    child._order(b"S")


def test_sleeping_is_the_codes_own_time(sandbox):
    session = sandbox.session(HURRIED)
    assert session.run("import time\ntime.sleep(60)").stopped == "time"
    session.close()


@pytest.mark.alone  # it fills the machine
def test_a_loop_beside_eight_busy_processes_is_over_its_time(sandbox):
    session = sandbox.session(HURRIED)
    session.run("x = 1")
    with busy(8):
        assert session.run("while True: pass").stopped == "time"
    session.close()


def test_what_cannot_be_had_is_refused():
    with pytest.raises(InvalidConfigError, match="isolation is 'docker'"):
        SubprocessSandbox(isolation="docker")
    with pytest.raises(SandboxError, match=r"/nowhere/python cannot be started"):
        SubprocessSandbox(python="/nowhere/python")
    with pytest.raises(SandboxError, match="no interpreter can be started with isolation='namespaces'"):
        SubprocessSandbox(python="/bin/false")


def decide(program: bytes, machine: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Interpret a filter as the kernel would."""
    data = struct.pack("=IIQ6Q", number, machine, 0, *(*arguments, *[0] * (6 - len(arguments))))
    instructions = [struct.unpack("=HBBI", program[n : n + 8]) for n in range(0, len(program), 8)]
    position, word = 0, 0
    while True:
        code, if_true, if_false, operand = instructions[position]
        position += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            (word,) = struct.unpack_from("=I", data, operand)
        else:
            true = {0x15: word == operand, 0x35: word >= operand, 0x45: bool(word & operand)}[code]
            position += if_true if true else if_false


ALLOW, KILL, NOT_PERMITTED, NO_SUCH_CALL = 0x7FFF0000, 0x80000000, 0x50001, 0x50026
X86 = 0xC000003E


@pytest.mark.parametrize(
    ("number", "arguments", "decision"),
    [
        (0, (), ALLOW),  # read
        (9, (), ALLOW),  # mmap
        (53, (), ALLOW),  # socketpair
        (41, (2, 1), NOT_PERMITTED),  # socket
        (57, (), NOT_PERMITTED),  # fork
        (59, (), NOT_PERMITTED),  # execve
        (62, (1, 9), NOT_PERMITTED),  # kill
        (101, (), NOT_PERMITTED),  # ptrace
        (56, (0x3D0F00,), ALLOW),  # clone, as pthread_create calls it
        (56, (0x1200011,), NOT_PERMITTED),  # clone, as fork calls it
        (56, (0x4111,), NOT_PERMITTED),  # clone, as posix_spawn calls it
        (302, (0, 7, 0, 1), ALLOW),  # prlimit64, reading
        (302, (0, 7, 1), NOT_PERMITTED),
        (302, (0, 7, 1 << 32), NOT_PERMITTED),
        (157, (1, 0), NOT_PERMITTED),  # prctl, to outlive the parent
        (157, (15, 0), ALLOW),  # prctl, to name a thread
        (16, (0, 0x5412), NOT_PERMITTED),  # ioctl, typing on a terminal
        (16, (0, 0x5413), ALLOW),
        (16, (0, 0x8901), NOT_PERMITTED),  # ioctl, FIOSETOWN
        (72, (0, 8), NOT_PERMITTED),  # fcntl, F_SETOWN
        (72, (0, 10), NOT_PERMITTED),  # fcntl, F_SETSIG
        (72, (0, 4), ALLOW),  # fcntl, F_SETFL
        (54, (), NOT_PERMITTED),  # setsockopt
        (222, (), NOT_PERMITTED),  # timer_create
        (425, (), NO_SUCH_CALL),  # io_uring_setup
        (435, (), NO_SUCH_CALL),  # clone3
        (0x40000000 | 41, (), NO_SUCH_CALL),  # the other numbering of the same machine
        (257, (0, 0, os.O_WRONLY | os.O_CREAT), ALLOW),  # openat
        (87, (), ALLOW),  # unlink
    ],
)
def test_the_filter_refuses_what_it_should(number, arguments, decision):
    program = build_filter("x86_64", read_only=False)
    assert program is not None
    assert decide(program, X86, number, arguments) == decision


def test_the_read_only_filter_also_refuses_to_change_files():
    program = build_filter("x86_64", read_only=True)
    assert program is not None
    assert decide(program, X86, 257, (0, 0, os.O_RDONLY)) == ALLOW
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_CREAT, os.O_RDONLY | os.O_TRUNC):
        assert decide(program, X86, 257, (0, 0, flags)) == NOT_PERMITTED
        assert decide(program, X86, 2, (0, flags)) == NOT_PERMITTED
    for number in (87, 82, 83, 90, 76, 234):  # unlink, rename, mkdir, chmod, truncate, tgkill
        assert decide(program, X86, number) == NOT_PERMITTED


def test_calls_of_another_machine_end_the_process():
    program = build_filter("x86_64", read_only=False)
    assert program is not None
    assert decide(program, 0x40000003, 5) == KILL  # i386, through int 0x80
    assert build_filter("vax", read_only=False) is None
