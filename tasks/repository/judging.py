"""Decides whether a player has repaired a project.

The tests run in a new shell, on a fresh copy of the project in which only the player's changes of existing source
files are taken over. Tests, configuration, new files, and processes that were left behind count for nothing.

The tests and the code that they test share a process, so a source file could forge what the tests report. Three
things stand against that, and none of them is proof against every program:

1. A change may not bring new ways to the interpreter, the tests or the system into a file (`intrusions`).
2. Every test that passed before must be reported once, in results that carry a number which only the run has.
3. If all pass, they run again with the mistakes put back into their functions. Then a test that failed before the
   repair must fail: code that makes every test pass, or that reports by itself, is found out. So is a change elsewhere
   that makes up for a mistake which it leaves in place.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from llm_envs.tasks.repository.mutations import FUNCTIONS, functions
from llm_envs.tasks.repository.prepared import Prepared, RepositoryProblem
from llm_envs.tasks.repository.running import run_tests

__all__ = ["Judgement", "intrusions", "judge"]

_HARMLESS = {
    "__future__", "abc", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "heapq", "itertools", "math", "numbers", "re", "statistics", "textwrap", "typing",
}  # fmt: skip
"""Modules that any file may import."""
_POWERS = {
    "breakpoint", "compile", "delattr", "eval", "exec", "exit", "getattr", "globals", "locals", "open", "quit",
    "setattr", "vars", "modules", "tb_frame", "f_back", "f_globals", "f_locals", "gi_frame", "cr_frame", "SystemExit",
    "KeyboardInterrupt", "BaseException", "update_wrapper", "get_type_hints", "Formatter",
}  # fmt: skip
_PRIVATE = {"_exit", "_getframe", "_sys", "_os"}
"""Private names that no project makes harmless by its own use of them."""


@dataclass(frozen=True)
class Judgement:
    """A verdict."""

    is_repaired: bool
    reason: str
    """For a person; the player is not told which tests fail."""


def judge(
    prepared: Prepared, problem: RepositoryProblem, files: Mapping[str, bytes], *, runtime: str = "namespaces"
) -> Judgement:
    """Decide about the source files that a player has left.

    Source that has the syntax tree of the original is right without a run: its tests have passed.

    Args:
        prepared: The project.
        problem: Its problem.
        files: Source files by path; those that are missing count as deleted.
        runtime: Of the shells; see `open_shell`.
    """
    tree = {path: content for path, content in prepared.files.items() if path not in prepared.manifest.sources}
    sources = {path: files[path] for path in prepared.manifest.sources if path in files}
    changed = [path for path in prepared.manifest.sources if sources.get(path) != prepared.files[path]]
    if all(path in sources and _dump(sources[path]) == _dump(prepared.files[path]) for path in changed):
        return Judgement(True, "the source is the original")
    broken = prepared.mutated(problem)
    if all(path in sources and _dump(sources[path]) == _dump(broken[path]) for path in prepared.manifest.sources):
        return Judgement(False, "nothing was repaired")
    known = _words(prepared)
    for path in changed:
        if found := intrusions(prepared.files[path], sources.get(path, b""), known):
            return Judgement(False, f"{path} has new {', '.join(sorted(found)[:5])}")
    tests = set(prepared.manifest.tests)
    passed = _passed(prepared, tree | sources, runtime)
    if not tests <= passed:
        return Judgement(False, f"{len(tests - passed)} of {len(tests)} tests do not pass")
    undone = {path: _undone(content, path, broken[path], problem) for path, content in sources.items()}
    if set(problem.failing) <= _passed(prepared, tree | undone, runtime):
        return Judgement(False, "the tests pass with the mistakes in their functions")
    return Judgement(True, f"all {len(tests)} tests pass")


def intrusions(original: bytes, changed: bytes, known: Set[str] = frozenset()) -> set[str]:
    """Return the ways to the interpreter, the tests or the system that a change brings into a file.

    These are imports of modules that neither the original file nor `known` has, names of `_POWERS`, names with an
    underscore in front, attributes that are called like such a module, and attributes of imported modules that are not
    harmless and that the original file does not use.

    Args:
        original: The file.
        changed: The file with the change. One that does not parse brings none.
        known: The project's own modules, and its private names.
    """
    before, after = _traits(original), _traits(changed)
    modules = _imported(original) | _imported(changed)
    closed, found = sys.stdlib_module_names - _HARMLESS - known, set()
    for kind, name in after - before:
        if kind == "import":
            top = name.partition(".")[0]
            if top and top not in _HARMLESS and top not in known:
                found.add(f"import of {top}")
        elif name in _POWERS or (name.startswith("_") and name not in known) or (kind != "variable" and name in closed):
            found.add(name)
        elif kind.startswith("attribute of ") and kind.removeprefix("attribute of ") in modules - _HARMLESS - known:
            found.add(f"{kind.removeprefix('attribute of ')}.{name}")
    return found


def _traits(content: bytes) -> set[tuple[str, str]]:
    """Return what a file imports and names: (kind, name)."""
    found: set[tuple[str, str]] = set()
    for node in _walk(content):
        match node:
            case ast.Import(names=names):
                found |= {("import", alias.name) for alias in names}
            case ast.ImportFrom(module=module, level=level, names=names):
                found |= {("import", module or "")} if not level else set()
                found |= {("name", alias.name) for alias in names}
            case ast.Name(id=name) | ast.keyword(arg=str() as name):
                found.add(("variable", name))
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                found.add((f"attribute of {owner}", name))
            case ast.Attribute(attr=name):
                found.add(("name", name))
            case ast.Constant(value=str() as text):
                if text.startswith("__") and text.isidentifier():
                    found.add(("name", text))
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                found |= {("name", name)} if name.startswith("__") else set()
    return found


def _imported(content: bytes) -> set[str]:
    """Return the names that a file's imports of modules bind."""
    nodes = [node for node in _walk(content) if isinstance(node, ast.Import)]
    return {(alias.asname or alias.name).partition(".")[0] for node in nodes for alias in node.names}


def _walk(content: bytes) -> Iterator[ast.AST]:
    tree = _parse(content)
    yield from ast.walk(tree) if tree is not None else ()


def _parse(content: bytes) -> ast.Module | None:
    try:
        return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _dump(content: bytes) -> str:
    tree = _parse(content)
    return content.decode("utf-8", "replace") if tree is None else ast.dump(tree)


def _words(prepared: Prepared) -> set[str]:
    """Return the project's own modules, and the private names of one underscore in its sources."""
    found = set()
    for path in prepared.manifest.sources:
        found.add(path.removeprefix("src/").partition("/")[0].removesuffix(".py"))
        for _, name in _traits(prepared.files[path]):
            if name.startswith("_") and not name.startswith("__"):
                found.add(name)
    return found - _PRIVATE


def _passed(prepared: Prepared, files: Mapping[str, bytes], runtime: str) -> set[str]:
    manifest = prepared.manifest
    run = run_tests(
        files, manifest.framework, site=prepared.site, runtime=runtime, timeout_s=manifest.timeout_s,
        only=manifest.test_files, seed=1,
    )  # fmt: skip
    return run.passed


def _undone(content: bytes, path: str, broken: bytes, problem: RepositoryProblem) -> bytes:
    """Return a file in which the functions with mistakes are as before the repair."""
    names = {mutation.function for mutation in problem.mutations if mutation.path == path}
    tree = _parse(content)
    if not names or tree is None:
        return content
    wrong = functions(broken.decode())

    def restored(body: list[ast.stmt], prefix: str) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for node in body:
            if isinstance(node, ast.ClassDef):
                node.body = restored(node.body, f"{prefix}{node.name}.")
            name = f"{prefix}{getattr(node, 'name', '')}"
            made.append(wrong[name] if isinstance(node, FUNCTIONS) and name in names else node)
        return made

    tree.body = restored(tree.body, "")
    return ast.unparse(tree).encode()
