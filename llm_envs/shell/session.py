"""A persistent bash in a runtime's sandbox, and its files.

1. One bash, the worker, reads commands from a pipe and writes all output into another one. Behind a command's output
   it writes a marker with the exit code, its folder, and a number that only it knows. A command could find that number,
   and would then only falsify its own output and exit code: no reward may rest on them.
2. A command over its time is killed with all the processes that it has started, wherever they have gone; the worker is
   interrupted by a signal and takes the next command. If it does not, or has ended (`exit`), a new one begins in the
   same folder.
3. Files are read and written by other programs in the same sandbox, as the same user: never from outside, where a
   link could lead to a file of the host.
4. The output of a command is read as it comes and cut; a flood ends the command.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import selectors
import time
from collections.abc import Sequence

from llm_envs.errors import InvalidActionError, InvalidConfigError, SandboxError
from llm_envs.processes.deadline import Deadline
from llm_envs.sandbox.base import FLOOD_FACTOR
from llm_envs.shell.base import ShellLimits, ShellResult, ShellSnapshot, ShellStop
from llm_envs.shell.runtime import Program, Runtime, close_quietly

__all__ = ["ShellSession"]

_WORKER = r"""
exec 9<&0 7>&1 0</dev/null
shopt -s expand_aliases
__stop() { [[ $__busy ]] && { __busy=stopped; set -T; trap 'return 124 2>/dev/null' DEBUG; }; }
trap '__stop; return 124 2>/dev/null' USR1
while IFS= read -r -d '' -u 9 __nonce && IFS= read -r -d '' -u 9 __command; do
  __busy=1
  source /dev/fd/8 8<<<"$__command" 9<&- 7>&-
  __code=$?
  [[ $__busy == stopped ]] && { trap - DEBUG; set +T; __code=124; }
  __busy=
  printf '\0%s %d %s\0' "$__nonce" "$__code" "$PWD" >&7
done
"""
"""A signal makes bash leave what it is in: the trap on every further command returns from one level after the other."""
_WRITE = 'mkdir -p -- "$(dirname -- "$1")" && cat > "$1"'
_CLEAR = 'for folder; do chmod -f u+rwx "$folder"; find "$folder" -mindepth 1 -delete; done'
_PACK = 'cd /; find "$@" -mindepth 1 -print0 | tar --null --no-recursion -cf - -T -'
"""Without the folders themselves, which in a container are root's."""
_DEFINITIONS = r"""
for __name in $(compgen -v); do
  case $__name in
    __*|_|BASH*|COMP_*|DIRSTACK|EPOCH*|EUID|FUNCNAME|GROUPS|HISTCMD) ;;
    LINENO|PIPESTATUS|PPID|SECONDS|SHELLOPTS|SRANDOM|UID) ;;
    *) declare -p "$__name";;
  esac
done
declare -f
alias -p
"""
"""Our own variables and bash's are left out."""
_INTERRUPTS, _INTERRUPT_S = 10, 0.05
"""How often an overdue command is killed, and the seconds that the worker has after each for its marker."""
_LONGEST = 10
"""Longest time of a command that had no processor, in multiples of its limit."""
_FILES_S = 60.0
"""Seconds that reading, writing, a snapshot and a restoration may take."""
_WHERE = re.compile(rb"^/dev/fd/8: ", re.MULTILINE)
_STOPPED = 124
_MARKER = re.compile(rb"(\d{1,3}) (/.*)", re.DOTALL)
"""Exit code and folder in a marker."""
_LONGEST_MARKER = 5_000


class ShellSession:
    """See `Shell`. Made by `open_shell`.

    Args:
        runtime: The sandbox; it ends with the session.
        limits: Of the shell.
        seed: Seeds `RANDOM` and Python's hashes, so that these are the same in each episode with the seed.
    """

    def __init__(self, runtime: Runtime, limits: ShellLimits, seed: int) -> None:
        self.limits = limits
        self._runtime, self._seed = runtime, seed
        self._folder = ""
        self._worker: Program | None = None
        self._has_started = self._is_closed = False

    @property
    def holds(self) -> dict[str, str]:
        """How the runtime isolates and limits, by subject."""
        return dict(self._runtime.holds)

    def start(self) -> None:
        """Start it; see `Shell.start`."""
        if self._is_closed:
            raise SandboxError("the shell is closed; open a new one.")
        if not self._has_started:
            self._runtime.start()
            self._has_started, self._folder = True, self._runtime.home
            self._begin()

    def run(self, command: str, timeout_s: float | None = None) -> ShellResult:
        """Run a command; see `Shell.run`."""
        if "\0" in command:
            return ShellResult("[a command cannot have null characters]", 2, None, False, 0.0)
        self.start()
        limit_s = self.limits.timeout_s if timeout_s is None else timeout_s
        if not 0 < limit_s < float("inf"):
            raise InvalidConfigError(f"timeout_s is {timeout_s!r}; it must be a finite number above 0, or None.")
        started, state_lost = time.perf_counter(), self._worker is None
        worker = self._worker or self._begin()
        _discard_input(worker.stdout)
        nonce = secrets.token_hex(16).encode()
        output = _Output(nonce, self.limits.output_characters)
        self._runtime.mark(worker)
        request = b"%s\0%s\0" % (nonce, command.encode("utf-8", "replace"))
        stopped = self._exchange(worker, request, output, limit_s)
        if stopped in ("time", "output"):
            self._interrupt(worker, output)
        self._runtime.done()
        if stopped == "ended" or not output.is_complete:
            code = self._runtime.exit_code(worker) if stopped == "ended" else _STOPPED
            self._end_worker()
        else:
            code, self._folder = output.code, output.folder
        if stopped in ("time", "output"):
            code = _STOPPED
        notes = _notes(stopped, limit_s, self.limits, state_lost, is_lost=self._worker is None)
        text = "\n".join(part for part in (output.text(), *notes) if part)
        return ShellResult(text, code, stopped, state_lost, time.perf_counter() - started)

    def read(self, path: str) -> bytes:
        """Return the content of a file; see `Shell.read`."""
        code, content = self._execute(["cat", "--", path])
        if code:
            raise InvalidActionError(f"read: {content.decode('utf-8', 'replace').removeprefix('cat: ').strip()[:300]}")
        return content

    def write(self, path: str, content: bytes) -> None:
        """Write a file; see `Shell.write`."""
        code, said = self._execute(["bash", "-c", _WRITE, "write", path], content)
        if code:
            raise InvalidActionError(f"write: {said.decode('utf-8', 'replace').strip()[-300:]}")

    def snapshot(self) -> ShellSnapshot:
        """Return the shell's state; see `ShellSnapshot`."""
        self.start()
        if self._worker is None:
            self._begin()
        variables = self._ask(_DEFINITIONS)
        folders = [folder.removeprefix("/") for folder in self._runtime.folders]
        code, archive = self._execute(["bash", "-c", _PACK, "pack", *folders])
        if code > 1:  # 1: a file has changed meanwhile
            raise SandboxError(f"a snapshot of the shell failed: {archive[-300:].decode('utf-8', 'replace')}")
        return ShellSnapshot(archive, self._folder, variables)

    def restore(self, snapshot: ShellSnapshot) -> None:
        """Take over a state; see `Shell.restore`."""
        self.start()
        self._end_worker()
        self._runtime.kill_all()
        steps = [(["bash", "-c", _CLEAR, "clear", *self._runtime.folders], b"")]
        steps.append((["tar", "-C", "/", "-xpf", "-"], snapshot.archive))
        for argv, given in steps:
            code, said = self._execute(argv, given)
            if code > 1 or (code and argv[0] == "tar"):
                raise SandboxError(f"the shell cannot be restored: {said[-300:].decode('utf-8', 'replace')}")
        self._folder = snapshot.folder
        self._begin()
        self._ask(snapshot.variables)

    def close(self) -> None:
        """End everything; see `Shell.close`."""
        if not self._is_closed:
            self._is_closed = True
            if self._worker is not None:
                self._worker.close()
                self._worker = None
            self._runtime.close()

    def __enter__(self) -> ShellSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _begin(self) -> Program:
        """Start a worker in the current folder."""
        variables = {"RANDOM": str(self._seed), "PYTHONHASHSEED": str(self._seed % 2**32)}
        worker = self._runtime.spawn(
            ["bash", "--noprofile", "--norc", "-c", f"RANDOM={self._seed}{_WORKER}"], self._folder, variables
        )
        os.set_blocking(worker.stdin, False)
        os.set_blocking(worker.stdout, False)
        self._worker = worker
        return worker

    def _end_worker(self) -> None:
        """Kill the worker; background processes run on."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._runtime.kill(worker)
            worker.close()

    def _exchange(self, worker: Program, request: bytes, output: _Output, limit_s: float) -> ShellStop | None:
        """Send a command and read its output until its marker; return what stopped that."""
        deadline, before = Deadline(limit_s, _LONGEST), self._runtime.clock()
        left_s = limit_s
        while left_s:
            stopped = _converse(worker, request, output, left_s)
            request = b""
            now = self._runtime.clock() if stopped == "time" else None
            if before is None or now is None:
                return stopped
            left_s = deadline.extend(now[0] - before[0], now[1] - before[1])
        return "time"

    def _interrupt(self, worker: Program, output: _Output) -> None:
        """Kill what a command has started, until the worker is ready again or has had its chances."""
        for _ in range(_INTERRUPTS):
            self._runtime.kill_new()
            if _converse(worker, b"", output, _INTERRUPT_S, is_bounded=False) in (None, "ended"):
                return

    def _ask(self, command: str) -> str:
        """Run a command of ours in the worker, and return its output."""
        assert self._worker is not None
        nonce = secrets.token_hex(16).encode()
        output = _Output(nonce, 1 << 20)
        _discard_input(self._worker.stdout)
        _converse(self._worker, b"%s\0%s\0" % (nonce, command.encode("utf-8", "surrogateescape")), output, _FILES_S)
        if not output.is_complete:
            raise SandboxError(f"the shell did not answer in {_FILES_S:g} s. Has a command changed it beyond repair?")
        return output.text()

    def _execute(self, argv: Sequence[str], given: bytes = b"") -> tuple[int, bytes]:
        """Run another program than the worker; return its exit code and its output, of at most `disk_bytes`."""
        self.start()
        program = self._runtime.spawn(argv, self._folder, {})
        try:
            for descriptor in (program.stdin, program.stdout):
                os.set_blocking(descriptor, False)
            content, is_over = _communicate(program, given, 2 * self.limits.disk_bytes + (1 << 20), _FILES_S)
            if is_over:
                self._runtime.kill(program)
                return _STOPPED, f"{argv[0]}: too much, or it took longer than {_FILES_S:g} s".encode()
            return self._runtime.exit_code(program), content
        finally:
            program.close()


class _Output:
    """The beginning and the end of a command's output, and its marker."""

    def __init__(self, nonce: bytes, most: int) -> None:
        self.is_complete, self.code, self.folder = False, 0, ""
        self.n_bytes = 0
        self._most, self._mark = most, b"\0" + nonce + b" "
        self._head, self._tail, self._pending = bytearray(), bytearray(), bytearray()

    @property
    def is_flood(self) -> bool:
        return self.n_bytes > FLOOD_FACTOR * self._most

    def feed(self, chunk: bytes) -> None:
        """Take a part of the output; what comes behind the marker belongs to background processes and is left out."""
        self._pending += chunk
        place = self._pending.find(self._mark)
        if place < 0:
            self._keep(self._pending[: -len(self._mark)])
            del self._pending[: -len(self._mark)]
            return
        end = self._pending.find(b"\0", place + 1)
        if end < 0 and len(self._pending) - place < _LONGEST_MARKER:
            return
        found = _MARKER.fullmatch(self._pending, place + len(self._mark), max(end, 0))
        if found is None:  # a forgery, and no good one
            self._keep(self._pending[: place + 1])
            del self._pending[: place + 1]
            return
        self._keep(self._pending[:place])
        self.is_complete, self.code, self.folder = True, int(found[1]), os.fsdecode(bytes(found[2]))
        self._pending.clear()

    def text(self) -> str:
        """Return the text, cut in its middle."""
        self._keep(self._pending)
        self._pending.clear()
        n_left_out = self.n_bytes - len(self._head) - len(self._tail)
        note = b"\n[cut: %d bytes]\n" % n_left_out if n_left_out else b""
        shown = _WHERE.sub(b"bash: ", bytes(self._head + note + self._tail))
        return shown.decode("utf-8", "replace").removesuffix("\n")

    def _keep(self, part: bytes | bytearray) -> None:
        self.n_bytes += len(part)
        room = self._most // 2 - len(self._head)
        self._head += part[: max(room, 0)]
        self._tail += part[max(room, 0) :]
        del self._tail[: max(len(self._tail) - self._most // 2, 0)]


def _converse(
    worker: Program, request: bytes, output: _Output, timeout_s: float, *, is_bounded: bool = True
) -> ShellStop | None:
    """Write a request and read until the marker; return what came instead of it."""
    until = time.perf_counter() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(worker.stdout, selectors.EVENT_READ)
        selector.register(worker.end, selectors.EVENT_READ)
        if request:
            selector.register(worker.stdin, selectors.EVENT_WRITE)
        while not output.is_complete:
            ready = {key.fd for key, _ in selector.select(max(until - time.perf_counter(), 0))}
            if worker.stdin in ready:
                try:
                    request = request[os.write(worker.stdin, request) :]
                except BrokenPipeError:
                    request = b""
                if not request:
                    selector.unregister(worker.stdin)
            chunk = _read_now(worker.stdout) if worker.stdout in ready else None
            if chunk:
                output.feed(chunk)
            elif worker.end in ready:
                return None if output.is_complete else "ended"
            if chunk == b"":
                selector.unregister(worker.stdout)
            if is_bounded and output.is_flood:
                return "output"
            if time.perf_counter() >= until and not output.is_complete:
                return "time"
    return None


def _communicate(program: Program, given: bytes, most: int, timeout_s: float) -> tuple[bytes, bool]:
    """Give a program its input and return its output, and whether it was over its size or its time."""
    until, content, view = time.perf_counter() + timeout_s, bytearray(), memoryview(given)
    with selectors.DefaultSelector() as selector:
        selector.register(program.stdout, selectors.EVENT_READ)
        selector.register(program.end, selectors.EVENT_READ)
        selector.register(program.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            left_s = until - time.perf_counter()
            if left_s <= 0 or len(content) > most:
                return bytes(content), True
            ready = {key.fd for key, _ in selector.select(left_s)}
            if program.stdin in ready:
                with contextlib.suppress(BrokenPipeError):
                    view = view[os.write(program.stdin, view[: 1 << 16]) :] if view else view
                if not view or program.end in ready:
                    selector.unregister(program.stdin)
                    close_quietly(program.stdin)
                    program.stdin = -1
            chunk = _read_now(program.stdout) if program.stdout in ready else None
            content += chunk or b""
            if not chunk and program.end in ready:
                break
            if chunk == b"":
                selector.unregister(program.stdout)
    return bytes(content), False


def _read_now(descriptor: int) -> bytes | None:
    """Return what is in a pipe; b"" at its end, None if there is nothing now."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None


def _discard_input(descriptor: int) -> None:
    """Throw away what background processes have written since the last command, up to a bound."""
    for _ in range(64):
        if not _read_now(descriptor):
            return


def _notes(
    stopped: ShellStop | None, limit_s: float, limits: ShellLimits, state_lost: bool, *, is_lost: bool
) -> list[str]:
    """Return our notes behind an output."""
    notes = []
    if state_lost:
        notes.append("[this is a new shell: variables and functions of the old one are gone, files are kept]")
    if stopped == "time":
        notes.append(f"[stopped: over the time limit of {limit_s:g} s]")
    if stopped == "output":
        notes.append(f"[stopped: wrote over {FLOOD_FACTOR} times the limit of {limits.output_characters} characters]")
    if stopped == "ended":
        notes.append("[the shell has ended]")
    if is_lost:
        notes.append("[the next command begins a new shell in the same folder]")
    return notes
