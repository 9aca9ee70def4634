r"""Whether two mathematical answers are equal: plain arithmetic here, all else by math-verify in a bounded worker.

1. What a model writes is never executed. Plain numbers and arithmetic go to `llm_envs.arithmetic`. Everything else is
   read as LaTeX by math-verify, in a process in which sympy's own use of `eval` is replaced
   (`llm_envs/sandbox/mathematics_worker.py`).
2. Every check ends: inputs are limited in length and nesting, and a worker that takes longer than `timeout_s` or more
   than its memory is replaced. Such a check is "undecided", which is not equal.
3. Any number of threads may check at once; each check has a worker of its own, further ones wait for one.

Equality is that of values, so an answer that merely restates the question ("37*24", "\sum_{n=1}^{100} n") equals its
value. A task in which that would be cheating has to ask for a number and compare numbers.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import math
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from llm_envs.arithmetic import Number, evaluate
from llm_envs.errors import InvalidActionError, InvalidConfigError, LLMEnvsError, MissingExtraError

__all__ = ["MathChecker", "MathComparison", "Verdict", "compare_math", "math_equal"]

Verdict = Literal["equal", "different", "undecided"]

MAX_CHARACTERS = 2_000
"""Longest answer or target that is read."""
MAX_DEPTH = 30
"""Deepest nesting of brackets that is read."""
_START_S = 60.0
"""Longest time for a worker to load sympy: about 1 s on a free machine."""
_GRACE_S = 0.5
"""How much later than its own alarm a worker is given up."""
_WORKER = Path(__file__).with_name("sandbox") / "mathematics_worker.py"


@dataclass(frozen=True)
class MathComparison:
    """What came of comparing an answer with its target. True in a condition if, and only if, they are equal."""

    verdict: Verdict
    reason: str
    """Why it is undecided, or different without a comparison; else empty."""
    seconds: float
    """Wall-clock time, with any wait for a worker."""

    def __bool__(self) -> bool:
        """Tell whether the answer equals the target."""
        return self.verdict == "equal"


class MathChecker:
    """Worker processes in which math-verify compares answers. Most callers need only `compare_math`.

    Args:
        n_workers: Most comparisons at one time; a worker starts when it is first needed, in about a second.

    Raises:
        InvalidConfigError: If `n_workers` is less than 1.
    """

    def __init__(self, n_workers: int = 2) -> None:
        if isinstance(n_workers, bool) or not isinstance(n_workers, int) or n_workers < 1:
            raise InvalidConfigError(f"n_workers is {n_workers!r}; it must be a whole number from 1.")
        self._free = threading.BoundedSemaphore(n_workers)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._is_closed = False

    def compare(self, answer: str, target: str, *, timeout_s: float = 2.0) -> MathComparison:
        """Compare an answer with its target; see `compare_math`."""
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf:
            raise InvalidConfigError(f"timeout_s is {timeout_s!r}; it must be a number of seconds above 0.")
        started = time.perf_counter()
        verdict, reason = self._decide(answer, target, timeout_s)
        return MathComparison(verdict, reason, time.perf_counter() - started)

    def close(self) -> None:
        """End the workers. May be called again."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.close()

    def __enter__(self) -> MathChecker:
        """Return the checker."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End the workers."""
        self.close()

    def _decide(self, answer: str, target: str, timeout_s: float) -> tuple[Verdict, str]:
        texts = []
        for name, text in (("target", target), ("answer", answer)):
            read = _clean(text)
            if isinstance(read, _Unreadable):
                return "undecided", f"the {name} {read.why}"
            texts.append(read)
        target, answer = texts
        for name, text in (("target", target), ("answer", answer)):
            if not text.strip("{}() "):
                return "undecided", f"the {name} is empty"
        left, right = _plain_value(target), _plain_value(answer)
        if left is not None and right is not None:
            return ("equal" if _are_close(left, right, "." in target or "." in answer) else "different"), ""
        if _SEVERAL_NUMBERS.search(answer) and not _SEVERAL_NUMBERS.search(target):
            return "different", "the answer has several numbers"
        left_s = timeout_s
        for part in _claims(answer, target):
            verdict, reason, seconds = self._ask(part, target.rpartition("=")[2], left_s)
            if verdict != "equal":
                return "different", reason or f"the answer also says {part[:40]!r}"
            left_s = max(left_s - seconds, 0.01)
        return self._ask(answer, target, left_s)[:2]

    def _ask(self, answer: str, target: str, timeout_s: float) -> tuple[Verdict, str, float]:
        """Return the verdict, the reason, and the seconds without the wait for a worker."""
        with self._free:
            worker = self._take()
            started = time.perf_counter()
            try:
                equal, reason = worker.ask(answer, target, timeout_s)
            except BaseException:  # interrupted: what the worker is doing is of no interest any more
                worker.close()
                raise
            seconds = time.perf_counter() - started
            with self._lock:
                keep = worker.is_alive and not self._is_closed
                if keep:
                    self._idle.append(worker)
            if not keep:
                worker.close()
        if equal is not None:
            return ("equal" if equal else "different"), "", seconds
        if reason == "the target cannot be read" and _are_same_text(answer, target):
            return "equal", "", seconds
        return "undecided", reason, seconds

    def _take(self) -> _Worker:
        with self._lock:
            if self._is_closed:
                raise InvalidConfigError("the MathChecker is closed; make a new one.")
            if self._idle:
                return self._idle.pop()
        return _Worker()


def compare_math(answer: str, target: str, *, timeout_s: float = 2.0) -> MathComparison:
    r"""Compare a model's answer with the right one, by value.

    Numbers are equal if they are exactly so, or, where one of them is written with a decimal point, to within one
    millionth (of the larger one if that is below 1). An answer of several candidates ("3 or 5", "3 5", "3 = 5") does
    not equal one of them. As in math-verify, units are ignored, "x=5" equals "5", and "50\%" equals both 0.5 and 50.

    Args:
        answer: The final answer alone, in LaTeX or as plain arithmetic; `$...$` or one `\boxed{...}` around it is
            taken off.
        target: The right answer, likewise.
        timeout_s: Longest time for the comparison, seconds, without the wait for a worker.

    Returns:
        The comparison; in a condition it is true only if the two are equal. Whatever cannot be read, or not compared
        in time, is "undecided".

    Raises:
        InvalidConfigError: If `timeout_s` is not above 0.
        MissingExtraError: If math-verify is needed and not installed.
    """
    return _shared_checker().compare(answer, target, timeout_s=timeout_s)


def math_equal(answer: str, target: str, *, timeout_s: float = 2.0) -> bool:
    """Tell whether an answer equals its target; False also where that cannot be decided. See `compare_math`."""
    return bool(compare_math(answer, target, timeout_s=timeout_s))


# ----------------------------------------------------------------------------------------------------------------------
# Texts
# ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unreadable:
    why: str


_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\boxed{", "}"), ("\\fbox{", "}"))
_SPACE = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![A-Za-z]))"
_SEVERAL_NUMBERS = re.compile(rf"(?<![\^_.\d])\d[\d.]*{_SPACE}+\d")
_MIXED = re.compile(rf"(?<![\d.])(\d+){_SPACE}+(\d+)\s*/\s*(\d+)(?![\d.])")
_GROUPED = re.compile(r"([+-]?\d{1,3})((?:,\d{3})+|(?: \d{3})+)(\.\d+)?")
_EQUALS = re.compile(r"(?<![<>!:\\])=")
_SUBSCRIPT = re.compile(r"_(?:\w|\{\w*\})|\([+-]?\d+\)")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_ASCII = str.maketrans({"\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u00d7": "*", "\u00b7": "*", "\u00f7": "/"})


def _clean(text: str) -> str | _Unreadable:
    """Take off what stands around a formula, or say why it is not read."""
    if not isinstance(text, str):
        return _Unreadable(f"is a {type(text).__name__}, not text")
    if len(text) > MAX_CHARACTERS:
        return _Unreadable(f"has {len(text)} characters; at most {MAX_CHARACTERS} are read")
    text = "".join(character if character.isprintable() else " " for character in text.translate(_ASCII)).strip()
    for _ in range(4):
        text = text.removesuffix(".").rstrip()
        for opening, closing in _WRAPPERS:
            if len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
                inner = text[len(opening) : -len(closing)].strip()
                if _depth(inner) is not None and opening.rstrip("{") not in inner:
                    text = inner
                    break
        else:
            break
    if text.startswith(("$", "\\$")) and text.count("$") == 1:
        text = text.partition("$")[2].strip()
    if "$" in text or "\\boxed" in text or "\\(" in text or "\\[" in text:
        return _Unreadable("has more than one formula")
    depth = _depth(text)
    if depth is None:
        return _Unreadable("has brackets that do not match")
    if depth > MAX_DEPTH:
        return _Unreadable(f"is nested {depth} deep; at most {MAX_DEPTH} levels are read")
    grouped = _GROUPED.fullmatch(text)
    if grouped:
        text = grouped[1] + re.sub("[ ,]", "", grouped[2]) + (grouped[3] or "")
    return _MIXED.sub(r"(\1+\\frac{\2}{\3})", text)


def _depth(text: str) -> int | None:
    """Return how deep a text is nested, or None if its braces do not match. `[0,1)` is fine."""
    braces = depth = deepest = 0
    for character in text:
        if character in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "})]":
            depth -= 1
        if character == "{":
            braces += 1
        elif character == "}":
            braces -= 1
            if braces < 0:
                return None
    return None if braces else deepest


def _plain_value(text: str) -> Number | None:
    """Return the value of plain arithmetic, or None for anything else."""
    try:
        return evaluate(text)
    except InvalidActionError:
        return None


def _are_close(left: Number, right: Number, is_decimal: bool) -> bool:
    if left == right:
        return True
    if not is_decimal:
        return False
    first, second = Fraction(left), Fraction(right)
    return abs(first - second) <= min(max(abs(first), abs(second)), Fraction(1)) / 1_000_000


def _claims(answer: str, target: str) -> list[str]:
    """Return the parts of "3 = 4 = 5" before the last that have to be equal to it: each part with a number in it."""
    parts = _EQUALS.split(answer)
    first = 1 if "=" in target else 0
    return [part for part in parts[first:-1] if any(map(str.isdigit, _SUBSCRIPT.sub("", part)))]


def _are_same_text(answer: str, target: str) -> bool:
    """Tell whether two texts that are no formulas ("12:30") are the same, spaces aside."""
    left, right = "".join(answer.split()), "".join(target.split())
    return left == right and any(map(str.isalnum, _COMMAND.sub("", left)))


# ----------------------------------------------------------------------------------------------------------------------
# Workers
# ----------------------------------------------------------------------------------------------------------------------


class _Worker:
    """One worker process, used by one thread at a time."""

    def __init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError(
                "comparing formulas needs math-verify; install it with: pip install 'llm-envs[tools]'"
            )
        environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            env=environment | {"OMP_NUM_THREADS": "1"},
        )
        self._n_asked = 0
        self._unread = b""
        self.is_alive = True
        ready = self._receive(time.perf_counter() + _START_S)
        if ready is None or "ready" not in ready:
            self.close()
            raise LLMEnvsError(f"the process that compares formulas does not start (python: {sys.executable}).")

    def ask(self, answer: str, target: str, timeout_s: float) -> tuple[bool | None, str]:
        """Return whether the two are equal, or None and the reason."""
        self._n_asked += 1
        request = {"id": self._n_asked, "answer": answer, "target": target, "timeout_s": timeout_s}
        deadline = time.perf_counter() + timeout_s + _GRACE_S
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError:
            self.close()
            return None, "the comparison crashed"
        while (message := self._receive(deadline)) is not None:
            if message.get("id") == self._n_asked:
                return message["equal"], message["reason"]
            if "ready" in message:  # the child that worked on it is gone, and the next one is there
                over_time = message["ended_by"] == 14  # SIGALRM
                return None, f"over the time limit of {timeout_s:.3g} s" if over_time else "the comparison crashed"
        self.close()
        return None, f"over the time limit of {timeout_s:.3g} s"

    def close(self) -> None:
        """End the process and everything it started, and wait for it."""
        self.is_alive = False
        process = self._process
        if process.returncode is None:
            try:
                os.killpg(process.pid, 9)
            except ProcessLookupError:
                process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        """Return the next message, or None when there is none by the deadline or the process has ended."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left_s = deadline - time.perf_counter()
                if left_s <= 0 or not selector.select(left_s):
                    if left_s <= 0:
                        return None
                    continue
                chunk = os.read(descriptor, 65_536)
                if not chunk:
                    return None
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


_shared: tuple[int, MathChecker] | None = None
_inherited: list[MathChecker] = []
_shared_lock = threading.Lock()


def _shared_checker() -> MathChecker:
    """Return this process's checker; a forked child gets its own."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared[0] != os.getpid():
            if _shared is not None:
                _inherited.append(_shared[1])
            n_workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            _shared = (os.getpid(), MathChecker(n_workers))
            atexit.register(_close_shared, os.getpid())
        return _shared[1]


def _close_shared(pid: int) -> None:
    if _shared is not None and pid == os.getpid() == _shared[0]:
        _shared[1].close()
