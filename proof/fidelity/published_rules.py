"""The published scoring rules of benchmarks that have no package for scoring, worked out anew from their sources.

Each takes the text of a reply and the problem as our task has it, and returns the official verdict.

- GSM8K: `extract_answer` and `is_correct` of openai/grade-school-math.
- MATH: `last_boxed_only_string` and `is_equiv` of hendrycks/math; for MATH-500 and AIME the package math-verify stands
  beside it.
- MMLU, GPQA: the patterns of openai/simple-evals.
- HotpotQA: `hotpot_evaluate_v1.py` on the last `<answer>`, as Search-R1 extracts it.
- HumanEval: `check_correctness` of openai/human-eval on the first block of code; MBPP: the same with the tests as
  statements, as its paper describes.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import string
import time
import warnings
from collections.abc import Mapping
from typing import Any

__all__ = [
    "gpqa",
    "gsm8k",
    "hotpot_qa",
    "human_eval",
    "last_box",
    "math_equivalent",
    "math_verify",
    "mbpp",
    "mmlu",
    "runs",
]

Problem = Mapping[str, Any]
_TIMEOUT_S = 3
_MEMORY_BYTES = 4 << 30


def gsm8k(text: str, problem: Problem) -> bool:
    """Compare the first number behind "#### " as a text, without commas."""

    def number(worked: str) -> str | None:
        found = re.search(r"#### (-?[0-9.,]+)", worked)
        return None if found is None else found[1].replace(",", "")

    return number(text) == number(f"#### {problem['answer']}")


def gpqa(text: str, problem: Problem) -> bool:
    """Compare the first letter behind "Answer:" in any case; a small letter equals no choice."""
    found = re.search(r"(?i)answer[ \t]*:[ \t]*\$?([A-D])\$?", text)
    return found is not None and found[1] == problem["answer"]


def mmlu(text: str, problem: Problem) -> bool:
    """Do the same after markdown and LaTeX are removed, where the colon may stand in a later line."""
    for mark in ("**", "$\\boxed{", "}$", "\\$", "$\\text{", "$", "\\mathrm{", "\\{", "\\text", "\\(", "\\mathbf{"):
        text = text.replace(mark, "")
    text = text.replace("{", "").replace("\\boxed", "")
    found = re.search(r"(?i)answer\s*:[ \t]*([A-D])", text)
    return found is not None and found[1] == problem["answer"]


def hotpot_qa(text: str, problem: Problem) -> bool:
    """Compare in lower case, without punctuation, articles and extra spaces."""

    def normal(answer: str) -> str:
        plain = "".join(letter for letter in answer.lower() if letter not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())

    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return bool(found) and normal(found[-1].strip()) == normal(problem["answer"])


# MATH.


def last_box(text: str) -> str | None:
    r"""Return the content of the last `\boxed{}`; None without one, or if its braces do not match."""
    start = text.rfind("\\boxed{")
    depth = 0
    for place in range(start + 6, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 7 : place]
    return None


def math_equivalent(text: str, problem: Problem) -> bool:
    """Compare the last box as a text, after the repository's list of changes."""
    said = last_box(text)
    if said is None:
        return False
    try:
        return _stripped(said) == _stripped(problem["answer"])
    except Exception:  # so does the repository
        return bool(said == problem["answer"])


def _stripped(text: str) -> str:
    for old, new in (("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", "")):
        text = text.replace(old, new)
    for old in ("\\right", "^{\\circ}", "^\\circ", "\\$"):
        text = text.replace(old, "")
    if "\\text{ " in text:
        text, _ = text.split("\\text{ ")
    text = text.replace("\\%", "").replace("%", "").replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    text = f"0{text}" if text[0] == "." else text
    sides = text.split("=")
    text = sides[1] if len(sides) == 2 and len(sides[0]) <= 2 else text
    text = re.sub(r"\\sqrt(?!\{)(.)", r"\\sqrt{\1}", text).replace(" ", "")
    text = re.sub(r"\\frac(?!\{)(.)(?!\{)(.)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac(?!\{)(.)(?=\{)", r"\\frac{\1}", text)
    text = "\\frac{1}{2}" if text == "0.5" else text
    return re.sub(r"^(-?\d+)/(-?\d+)$", r"\\frac{\1}{\2}", text)


def math_verify(text: str, problem: Problem) -> bool:
    """Return the verdict of the package math-verify, on the whole reply."""
    from math_verify import parse, verify

    return bool(verify(parse(f"\\boxed{{{problem['answer']}}}"), parse(text)))


# Programs.


def human_eval(text: str, problem: Problem) -> bool:
    """Run prompt, completion, tests and `check` as one program; the completion is the first block of code."""
    return runs(f"{problem['prompt']}{_code(text)}\n{problem['test']}\ncheck({problem['entry_point']})")


def mbpp(text: str, problem: Problem) -> bool:
    """Run program, setup and tests as one program."""
    return runs("\n".join([_code(text), problem["setup"], *problem["tests"]]).replace("\r\n", "\n"))


def _code(text: str) -> str:
    """Return the first block of Python; the whole text without one, as simple-evals does."""
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    return text if found is None else found[1]


def runs(program: str) -> bool:
    """Return whether a program ends without an exception within three seconds, in a child process.

    The child writes so after the program's end: a program that ends the process has not passed. Where the system sets
    no limit of memory, there is a warning, and the verdict stands.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run(program, writer)
    os.close(writer)
    deadline, status = time.monotonic() + _TIMEOUT_S + 1, 0
    while status == 0 and time.monotonic() < deadline:
        status, _ = os.waitpid(child, os.WNOHANG)
        time.sleep(0.002)
    if status == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    said = os.read(reader, 8)
    os.close(reader)
    if said.startswith(b"-"):
        warnings.warn("this system sets no limit of memory (RLIMIT_AS) for the programs of replies.", stacklevel=2)
    return said[1:] == b"passed"


def _limit_memory() -> bool:
    """Limit the memory of this process. Return whether the system does that: macOS does not."""
    try:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(_MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (OSError, ValueError):
        return False
    return True


def _run(program: str, writer: int) -> None:
    with contextlib.suppress(BaseException):
        os.write(writer, b"+" if _limit_memory() else b"-")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _TIMEOUT_S)
        silent = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silent, descriptor)
        exec(compile(program, "<program>", "exec", dont_inherit=True), {})
        os.write(writer, b"passed")
    os._exit(0)
