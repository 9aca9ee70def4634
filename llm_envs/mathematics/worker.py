"""The process in which math-verify compares formulas for `llm_envs.mathematics.equality`.

This is a script: it imports nothing of this package.

The first process loads sympy once, and then only forks: one child for each connection that it receives, in
milliseconds. A child answers requests, one line of JSON each, until its connection closes, or until a check takes too
much processor time (a timer ends it), needs too much memory, or crashes. Input is never executed: an audit hook refuses
to compile text, to start a process, to open a socket and to write a file, whatever sympy tries to do with a string.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
import resource
import signal
import socket
import sys
import time
from functools import partial
from typing import Any

MAX_MEMORY = 1 << 30
"""Address space of a child, bytes, with sympy itself (about 300 MB of it)."""
MAX_DEPTH = 2_000
"""Python's recursion limit in a child: latex2sympy descends once for each level of nesting."""
FLOAT_DIGITS = 6
"""Decimals to which math-verify rounds where a decimal number is compared."""

_WARM_UP = (
    ("\\frac{1}{2}", "0.5"),
    ("x^2-1", "(x-1)(x+1)"),
    ("\\{1,2\\}", "2,1"),
    ("x^2<9", "-3<x<3"),
    ("x^2=9", "x=3"),
    ("\\sin^2 x+\\cos^2 x", "1"),
    ("\\int_0^1 x dx", "\\sum_{n=1}^{3} n"),
    ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\lim_{x\\to 5} x"),
    ("[0,1)\\cup(2,3)", "e^{i\\pi}+\\log_2 8+5!"),
)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_DECIMALS = re.compile(r"\.([0-9]+)")
_REFUSED: tuple[str, ...] = ("os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork", "os.kill", "os.remove")
_REFUSED += ("os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "subprocess.", "socket.", "ctypes.", "pty.")
_REFUSED += ("shutil.", "webbrowser.", "urllib.")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def refuse_to_execute(event: str, arguments: tuple[Any, ...]) -> None:
    """Allow imports and refuse other execution. This is an audit hook."""
    if event == "compile":
        filename = arguments[1]
        if not (isinstance(filename, str) and filename.endswith(".py")):
            raise PermissionError("text is not compiled here")
    elif event == "open":
        if arguments[2] & _WRITING:
            raise PermissionError("files are not written here")
    elif event.startswith(_REFUSED):
        raise PermissionError(f"{event} is refused here")


def read_number(text: str, *unused: Any, **unused_too: Any) -> Any:
    """Replace sympy's `parse_expr`, which passes text to `eval`: read a number, refuse everything else."""
    sympy: Any = importlib.import_module("sympy")
    text = text.strip()
    if _WHOLE.fullmatch(text):
        return sympy.Integer(int(text))
    if _DECIMAL.fullmatch(text):
        return sympy.Float(text)
    raise ValueError("only numbers are read from text")


def replace_eval() -> None:
    """Keep sympy from evaluating text: `sympy.Number("5")`, which reads every number, goes through `eval`."""
    sympy_parser: Any = importlib.import_module("sympy.parsing.sympy_parser")
    sympy_parser.parse_expr = read_number
    sympy_parser.eval_expr = read_number


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Compare two expressions in LaTeX. `equal` is None if one of them cannot be read."""
    from math_verify import verify

    parsed = []
    for name in ("target", "answer"):
        expression = read(request[name])
        if expression is None:
            return {"equal": None, "reason": f"the {name} cannot be read"}
        parsed.append(expression)
    target, answer = parsed
    equal = bool(verify([target], [answer], float_rounding=FLOAT_DIGITS, timeout_seconds=None))
    decimals = decimals_of(request["target"], request["answer"])
    return {"equal": equal and not is_rounded_away(target, answer, decimals), "reason": ""}


def read(text: str) -> Any:
    """Return the sympy object for a text in LaTeX, or None."""
    from math_verify import LatexExtractionConfig, parse

    config = [LatexExtractionConfig(boxed_match_priority=-1)]
    found = parse(f"${text}$", config, fallback_mode="no_fallback", extraction_mode="first_match", parsing_timeout=None)
    return found[0] if len(found) == 1 else None


def decimals_of(*texts: str) -> int | None:
    """Return to how many decimals numbers in some texts are rounded; None without a decimal. Short ones are exact."""
    found = [max(map(len, decimals)) for decimals in map(_DECIMALS.findall, texts) if decimals]
    return min((n for n in found if n >= FLOAT_DIGITS), default=max(found, default=None))


def is_rounded_away(target: Any, answer: Any, decimals: int | None) -> bool:
    """Return whether numbers are equal only because both round to the same decimals: 0.0000001 is not 0."""
    try:
        lefts, rights = numbers_in(target), numbers_in(answer)
        return len(lefts) == len(rights) and any(map(partial(is_too_far, decimals), lefts, rights))
    except Exception:  # not numbers after all: verify has compared them in another way
        return False


def numbers_in(expression: Any) -> list[complex]:
    """Return a number, or the numbers of a tuple, a set or an interval in their order."""
    if expression.is_number:
        return [complex(expression.evalf(20))] if expression.is_finite is not False else []
    if type(expression).__name__ not in ("FiniteSet", "Interval", "Tuple", "Union"):
        return []
    found = [number for part in expression.args if not part.is_Boolean for number in numbers_in(part)]
    return sorted(found, key=lambda number: (number.real, number.imag))


def is_too_far(decimals: int | None, left: complex, right: complex) -> bool:
    """Return whether two numbers, or their hundredths, differ by more than the rounding to some decimals."""
    difference = min(abs(left - right), abs(left - right * 100), abs(left * 100 - right))
    rounding = math.inf if decimals is None else 0.5 * 10.0**-decimals + 1e-13
    return difference > min(1e-6 * min(1.0, max(abs(left), abs(right))), rounding)


def load() -> None:
    """Load what comparisons load on demand: parts of sympy hand their own constants to `eval` as they are loaded."""
    importlib.import_module("sympy.physics.units")
    importlib.import_module("sympy.solvers.inequalities")

    for target, answer in _WARM_UP:
        answer_request({"target": target, "answer": answer})
    replace_eval()


def limit_memory() -> bool:
    """Limit the memory of this process and its children. Return whether the system does that: macOS does not."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = MAX_MEMORY if hard == resource.RLIM_INFINITY else min(MAX_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (OSError, ValueError):
        return False
    return True


def serve(connection: socket.socket) -> None:
    """Answer requests until the connection ends."""
    sys.setrecursionlimit(MAX_DEPTH)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    sys.addaudithook(refuse_to_execute)
    with connection.makefile("rb") as requests:
        for line in requests:
            request = json.loads(line)
            started = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, request["timeout_s"])
            try:
                answer = answer_request(request)
            except Exception as error:
                answer = {"equal": None, "reason": type(error).__name__}
            signal.setitimer(signal.ITIMER_PROF, 0)
            answer["seconds"] = time.process_time() - started
            connection.sendall(json.dumps(answer).encode() + b"\n")


def main() -> None:
    """Load sympy, report whether memory is limited, and fork a child for each connection."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no code waits for the children
    control.sendall(b"+" if limit_memory() else b"-")
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        if not os.fork():
            with contextlib.suppress(BaseException):
                control.close()
                serve(socket.socket(fileno=descriptors[0]))
            os._exit(0)
        os.close(descriptors[0])


if __name__ == "__main__":
    main()
