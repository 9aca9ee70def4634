"""The tools of `fix_repository.py`: a shell, an editor and a runner of tests, on a tree of files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from llm_envs.errors import InvalidActionError
from llm_envs.sandbox import SandboxLimits, shared_sandbox
from llm_envs.tasks.code.linking import MAX_MODULE_CHARACTERS, LinkError, link
from llm_envs.tasks.tools.shell import Shell
from llm_envs.tools.toolset import Toolset, tool

__all__ = ["Workbench"]

_TEST_LIMITS = SandboxLimits(timeout_s=5.0, memory_bytes=64 << 20, output_characters=4_000, code_characters=400_000)
_RUNNER = """
_n_failed = 0
for _name, _test in [{tests}]:
    try:
        _test()
    except Exception as _error:
        _n_failed = _n_failed + 1
        print("FAILED " + _name + ": " + type(_error).__name__ + ": " + str(_error))
print(str(_n_failed) + " of {n} tests failed" if _n_failed else "all {n} tests passed")
"""


class Workbench(Toolset):
    """Tools on a tree of files: a shell, an editor, and a runner of the tests that are in the tree.

    Args:
        tree: Returns the files of a problem, by path.
    """

    blocking = True

    def __init__(self, tree: Callable[[Mapping[str, Any]], Mapping[str, str]]) -> None:
        self._tree = tree

    @property
    def is_tested(self) -> bool:
        """Whether the tests were run since the last change."""
        return self._tested is not None and self._tested[0] == self.machine.files

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Lay out the tree."""
        self.machine = Shell(self._tree(problem))
        self.done: set[str] = set()
        """Commands that were run without an error."""
        self._tested: tuple[dict[str, str], str] | None = None
        """The files at the last run of the tests, and what came of it."""

    @tool
    def shell(self, command: str) -> str:
        """Run one of ls, cd, pwd, cat, grep (plain text, no regular expressions), find, mkdir, mv, cp, rm, rmdir.

        Args:
            command: One command, without pipes and redirections, such as: grep -rn "def " /
        """
        output = self.machine.run(command)
        self.done.add(command)
        return output or "(done)"

    @tool
    def edit(self, path: str, old: str, new: str) -> str:
        """Replace a text in a file by another one.

        Args:
            path: The file.
            old: The present text, with its indentation. It must occur exactly once.
            new: The text to put in its place.
        """
        path = self.machine.resolve(path)
        if path not in self.machine.files:
            raise InvalidActionError(f"edit: {path[:100]}: No such file")
        text = self.machine.files[path]
        if (n := text.count(old) if old else 0) != 1:
            raise InvalidActionError(f"edit: the old text occurs {n} times in {path}; it must occur exactly once")
        return self._put(path, text.replace(old, new))

    @tool
    def write(self, path: str, text: str) -> str:
        """Write a file, new or in place of the old one.

        Args:
            path: The file.
            text: All that it should contain.
        """
        path = self.machine.resolve(path)
        if path in self.machine.folders:
            raise InvalidActionError(f"write: {path[:100]}: Is a directory")
        return self._put(path, text)

    @tool
    def run_tests(self) -> str:
        """Run every function whose name begins with test_ in the files of /tests."""
        if not self.is_tested:
            self._tested = dict(self.machine.files), self._test()
        assert self._tested is not None
        return self._tested[1]

    def _test(self) -> str:
        files = self.machine.files
        names = {
            path: re.findall(r"^def (test_\w+)\(\)", files[path], re.MULTILINE)
            for path in sorted(files)
            if re.fullmatch(r"/tests/\w+\.py", path)
        }
        found = [name for tests in names.values() for name in tests]
        if not found:
            return "Error: there are no tests in /tests"
        if len(set(found)) < len(found):
            return "Error: two tests have one name"
        try:
            program = link(files, names)
        except LinkError as error:
            return f"Error: {error}"
        session = shared_sandbox().session(_TEST_LIMITS, seed=0)
        try:
            tests = ", ".join(f"({name!r}, {name})" for name in found)
            return session.run(program + _RUNNER.format(tests=tests, n=len(found))).output
        finally:
            session.close()

    def _put(self, path: str, text: str) -> str:
        if len(text) > MAX_MODULE_CHARACTERS:
            raise InvalidActionError(f"a file may have {MAX_MODULE_CHARACTERS} characters, not {len(text)}")
        self.machine.put({path: text}, "write")
        return "(done)"
