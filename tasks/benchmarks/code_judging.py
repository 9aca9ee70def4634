"""Runs a benchmark's own tests against a model's program, in two CPython sandboxes.

1. Neither the program nor the tests run in our process. Both sandboxes are `SubprocessSandbox`.
2. The program cannot see the tests, change them or end them: they are in another interpreter, which calls the program
   as `code_runner.py` describes. Only the tests' interpreter gives the verdict.
3. Results of the program are text here. They are read and unpacked in the tests' interpreter.
4. The program has `TIMEOUT_S` in all, as in the official harness; time without a processor does not count.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from llm_envs.sandbox import SandboxLimits, SandboxResult, SubprocessSandbox

__all__ = ["TIMEOUT_S", "imports_of", "passes_tests", "undefined_names"]

TIMEOUT_S = 3.0
"""Seconds for all that a program does."""
_TESTS_TIMEOUT_S = 20.0
_MOST_CALLS = 20_000
_LIMITS = SandboxLimits(timeout_s=TIMEOUT_S, output_characters=1_000_000, code_characters=1_000_000)
_TESTS_LIMITS = SandboxLimits(
    timeout_s=_TESTS_TIMEOUT_S, output_characters=1_000_000, code_characters=1_000_000, memory_bytes=512 << 20
)
_RUNNER = Path(__file__).with_name("code_runner.py").read_text(encoding="utf-8")
_sandboxes: list[SubprocessSandbox] = []


def passes_tests(program: str, setup: str, names: Sequence[str], tests: str) -> bool:
    """Return whether a program passes tests.

    Args:
        program: A model's program.
        setup: Code before the tests, in the tests' interpreter: imports, helpers of the prompt.
        names: The names that the tests use from the program.
        tests: Code that raises an exception unless the program is right.

    Raises:
        SandboxError: If this machine has no such sandbox.
    """
    model, judge = _sandbox().session(_LIMITS, seed=0), _sandbox().session(_TESTS_LIMITS, seed=0)
    try:
        model.run(_RUNNER)
        begun = model.run(f"program = {{}}\nexec({program!r}, program)")
        seconds = begun.seconds - begun.waited_s
        if not begun.succeeded:
            return False
        judge.run(_RUNNER)
        said = _text(judge.run(f"start({setup!r}, {list(names)!r}, {tests!r})"))
        for _ in range(_MOST_CALLS):
            if said is None or said.startswith("failed") or said == "passed":
                return said == "passed"
            done = model.run(f"serve(program, {said!r})")
            seconds += done.seconds - done.waited_s
            answer = _text(done)
            if answer is None or seconds > TIMEOUT_S:
                return False
            said = _text(judge.run(f"resume({answer!r})"))
        return False
    finally:
        model.close()
        judge.close()


@lru_cache(maxsize=1024)
def imports_of(tests: str) -> str:
    """Return the imports of tests: in the official harness a program can use them too.

    Raises:
        SyntaxError: If it is not Python.
    """
    return "\n".join(
        ast.unparse(node) for node in ast.parse(tests).body if isinstance(node, ast.Import | ast.ImportFrom)
    )


@lru_cache(maxsize=1024)
def undefined_names(setup: str, tests: str) -> tuple[str, ...]:
    """Return the names that tests use and neither they, their setup nor Python define: those of the program.

    Raises:
        SyntaxError: If it is not Python.
    """
    nodes = [node for text in (setup, tests) for node in ast.walk(ast.parse(text))]
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return tuple(sorted(used - stored - imported - set(dir(builtins))))


def _sandbox() -> SubprocessSandbox:
    """Return the sandbox of this process, made at the first verdict."""
    if not _sandboxes:
        _sandboxes.append(SubprocessSandbox())
    return _sandboxes[0]


def _text(result: SandboxResult) -> str | None:
    """Return the text that a run's last expression was; None if the run failed, or the text was cut."""
    if not result.succeeded or result.value is None or len(result.value) > _LIMITS.output_characters:
        return None
    return result.value
