"""Linking the modules of a small package into one program, for a sandbox that imports nothing of ours.

Each module becomes a function that returns what it defines: names of one module do not meet those of another. Modules
import each other by `from package.module import name` or `from .module import name`, at their top level.
"""

from __future__ import annotations

import ast
import posixpath
import threading
from collections.abc import Mapping, Sequence

__all__ = ["LinkError", "link"]

MAX_MODULE_CHARACTERS = 20_000
_PARSER = threading.Lock()
_MAX_TRIES = 100


class LinkError(Exception):
    """Modules that cannot be linked; the message reads as Python's own."""


def link(files: Mapping[str, str], names: Mapping[str, Sequence[str]]) -> str:
    """Return a program in which each name of some modules is a global variable.

    Args:
        files: Modules by path, such as "/harbor/rules.py".
        names: The names that are wanted, by the path of their module.

    Returns:
        The program. It also defines names that begin with an underscore.

    Raises:
        LinkError: If a module does not exist or cannot be read, a name is not defined, or imports go round in circles.
    """
    linker = _Linker(files)
    for path in names:
        linker.load(path, ())
    exports = [f"{name} = {linker.export(path, name, 'the tests')}" for path in names for name in names[path]]
    return "\n".join([*linker.program(), *exports, "None"])


class _Linker:
    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._trees: dict[str, ast.Module] = {}
        """Modules in the order in which they are run."""
        self._needed: dict[str, set[str]] = {}
        self._numbers: dict[str, int] = {}

    def load(self, path: str, importing: tuple[str, ...]) -> None:
        """Read a module, and those it imports before it."""
        if path in self._trees:
            return
        if path in importing:
            raise LinkError(f"ImportError: {path} imports itself by way of {importing[-1]}")
        tree = self._read(path)
        self._needed.setdefault(path, set())
        self._numbers[path] = len(self._numbers)
        inner = {id(node) for node in tree.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and self._path_of(path, node) is not None and id(node) not in inner:
                raise LinkError(f"ImportError: {path}, line {node.lineno}: import modules at the top level only")
        body: list[ast.stmt] = []
        for statement in tree.body:
            other = self._path_of(path, statement) if isinstance(statement, ast.ImportFrom) else None
            if other is None or not isinstance(statement, ast.ImportFrom):
                body.append(statement)
                continue
            self.load(other, (*importing, path))
            for alias in statement.names:
                value = self.export(other, alias.name, f"{path}, line {statement.lineno}")
                body += _parse(f"{alias.asname or alias.name} = {value}").body
        tree.body = body
        self._trees[path] = tree

    def export(self, path: str, name: str, where: str) -> str:
        """Return the expression of a module's name, as another module writes it."""
        if name not in _bound(self._trees[path]):
            raise LinkError(f"ImportError: {where}: cannot import name {name!r} from {path}")
        self._needed[path].add(name)
        return f"_module_{self._numbers[path]}[{name!r}]"

    def program(self) -> list[str]:
        """Return the modules as functions, each called once."""
        blocks = []
        for path, tree in self._trees.items():
            number = self._numbers[path]
            for node in ast.walk(tree):
                if isinstance(node, ast.Global):
                    node.__class__ = ast.Nonlocal  # type: ignore[assignment]  # they are the function's variables
            names = ", ".join(f"{name!r}: {name}" for name in sorted(self._needed[path]))
            block = _parse(f"def _load_{number}():\n    return {{{names}}}\n_module_{number} = _load_{number}()")
            assert isinstance(block.body[0], ast.FunctionDef)
            block.body[0].body[:0] = tree.body
            try:
                blocks.append(ast.unparse(block))
            except (RecursionError, ValueError) as error:  # nested too deeply, or a number that is too long
                raise LinkError(f"SyntaxError: {path} cannot be read: {error}") from error
        return blocks

    def _read(self, path: str) -> ast.Module:
        text = self._files.get(path)
        if text is None:
            raise LinkError(f"ModuleNotFoundError: there is no file {path}")
        if len(text) > MAX_MODULE_CHARACTERS:
            raise LinkError(f"{path} has {len(text)} characters; a module may have {MAX_MODULE_CHARACTERS}")
        try:
            return _parse(text)
        except SyntaxError as error:
            raise LinkError(f"{type(error).__name__}: {path}, line {error.lineno}: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise LinkError(f"SyntaxError: {path} cannot be read: {error}") from error

    def _path_of(self, path: str, node: ast.ImportFrom) -> str | None:
        """Return the path of the module that is imported from; None if it is none of ours."""
        parts = (node.module or "").split(".") if node.module else []
        if node.level:
            folder = posixpath.dirname(path)
            for _ in range(node.level - 1):
                folder = posixpath.dirname(folder)
            return posixpath.join(folder, *parts) + ".py"
        found = "/" + "/".join(parts) + ".py"
        is_ours = found in self._files or any(other.startswith(f"/{parts[0]}/") for other in self._files)
        return found if is_ours else None


def _parse(text: str) -> ast.Module:
    """Parse a module.

    Python 3.11 counts the depth of the tree for all threads together. If garbage collection gives another thread its
    turn, and that one parses too, `ast.parse` raises SystemError.
    """
    with _PARSER:
        for _ in range(_MAX_TRIES):  # a thread that does not take the lock may parse too
            try:
                return ast.parse(text)
            except SystemError:
                continue
        return ast.parse(text)


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that a module binds at its top level."""
    names: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(statement.name)
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
            continue
        names |= {
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
    return names
