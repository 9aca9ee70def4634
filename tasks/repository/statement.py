"""The text that a player gets for a problem, and its tree."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from llm_envs.tasks.repository.prepared import Prepared, RepositoryProblem
from llm_envs.tasks.repository.running import TREE

__all__ = ["statement", "without_tests"]

_MOST_TESTS, _MOST_CHARACTERS = 8, 400
"""Most names of tests in a statement, and most characters of each message."""


def statement(prepared: Prepared, problem: RepositoryProblem, shown: str, *, is_hidden: bool) -> str:
    """Return the statement.

    Args:
        prepared: The project.
        problem: Its problem.
        shown: "messages" of the failing tests, their "names", or their "number".
        is_hidden: Whether these tests are not in the tree.
    """
    manifest, failing = prepared.manifest, problem.failing
    n, several = len(problem.mutations), "a function is" if len(problem.mutations) == 1 else "functions are"
    where = (
        f"The project {manifest.name} is in {TREE}. Since a change, {several if n < 2 else f'{n} {several}'} wrong: "
    )
    lines = [f"{where}{len(failing)} of its {len(manifest.tests)} tests fail{'s' if len(failing) == 1 else ''}."]
    if shown != "number":
        lines.append("They are not in the tree. They are called:" if is_hidden else "Among them:")
        for test in list(failing)[:_MOST_TESTS]:
            told = gist(failing[test]) if shown == "messages" else ""
            lines.append(f"- {test}" + (f"\n  {told}" if told else ""))
    command = "python3 -m pytest -q" if manifest.framework == "pytest" else "python3 -m unittest discover"
    folders = sorted({str(PurePosixPath(path).parent) for path in manifest.test_files})
    if manifest.framework == "unittest" and folders != ["."]:
        command += f" -s {folders[0]}"
    lines.append(f"`{command}` runs the tests that are there.")
    return "\n".join(lines)


def gist(message: str) -> str:
    """Return the lines of a message that tell the error."""
    lines = [line for line in message.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Warning|Exit)\b", line)]
    return "\n  ".join(errors or named[:1] or lines[-1:])[:_MOST_CHARACTERS]


def without_tests(files: Mapping[str, bytes], tests: Iterable[str]) -> dict[str, bytes]:
    """Return a tree without some tests: their functions, or their files if they cannot be found in these."""
    left = dict(files)
    names: dict[str, set[str]] = {}
    for test in tests:
        path, inner = _place(test, files)
        if path is not None:
            names.setdefault(path, set()).add(inner)
    for path, functions in names.items():
        content = _without(files[path].decode("utf-8", "replace"), functions)
        if content is None:
            del left[path]
        else:
            left[path] = content.encode()
    return left


def _place(test: str, files: Mapping[str, bytes]) -> tuple[str | None, str]:
    """Return the file of a test and its qualified name in it, as pytest or unittest names it."""
    if "::" in test or test in files:
        path, _, inner = test.partition("::")
        return (path if path in files else None), inner.partition("[")[0].replace("::", ".")
    for path in files:
        module = path.removesuffix(".py").replace("/", ".")
        for name in (module, module.rpartition(".")[2]):
            if path.endswith(".py") and test.startswith(f"{name}."):
                return path, test.removeprefix(f"{name}.")
    return None, ""


def _without(text: str, names: set[str]) -> str | None:
    """Return a file without functions; None if one of them is not there, or if the rest does not parse."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    spans, sizes = list[tuple[int, int]](), Counter[str]()
    found = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            sizes[prefix] += 1
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and prefix + node.name in names:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                spans.append((first, node.end_lineno or first))
                found.add(prefix + node.name)
                sizes[prefix] -= 1

    visit(tree.body, "")
    if found != names:
        return None
    lines = text.split("\n")
    for first, last in sorted(spans, reverse=True):
        del lines[first - 1 : last]
    result = "\n".join(lines)
    if any(not size for prefix, size in sizes.items() if prefix):
        return None
    try:
        ast.parse(result)
    except SyntaxError:
        return None
    return result
