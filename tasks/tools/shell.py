"""A tree of files in memory, and a subset of a shell that works on it.

The commands are those of `COMMANDS`: one command a line, without pipes, redirections, variables or scripts.
Patterns (`*.log`) are expanded as a shell does. `grep` looks for the text itself, so that no pattern takes long. A
command that fails changes nothing and raises `InvalidActionError` with a message as a shell's.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from llm_envs.errors import InvalidActionError

__all__ = ["COMMANDS", "Shell"]

MAX_COMMAND_CHARACTERS = 2_000
MAX_ENTRIES = 500
"""Files and folders of a tree; no command makes more."""
MAX_NAME_CHARACTERS = 100
_OPERATORS = "|;&<>"


class Shell:
    """A tree of files and a place in it.

    Args:
        files: Contents by absolute path; the folders above them exist.
        folders: Further folders.
    """

    def __init__(self, files: Mapping[str, str], folders: Iterable[str] = ()) -> None:
        self.files = dict(files)
        self.folders = {"/", *folders}
        for path in [*self.files, *folders]:
            while path != "/":
                path = posixpath.dirname(path)
                self.folders.add(path)
        self.place = "/"

    def run(self, line: str) -> str:
        """Run one command and return what it prints."""
        if len(line) > MAX_COMMAND_CHARACTERS:
            raise InvalidActionError(
                f"the command has {len(line)} characters; at most {MAX_COMMAND_CHARACTERS} are run"
            )
        lexer = shlex.shlex(line, posix=True, punctuation_chars=_OPERATORS)
        lexer.whitespace_split, lexer.commenters = True, ""
        try:
            words = list(lexer)
        except ValueError as error:
            raise InvalidActionError(f"the command cannot be read: {error}") from error
        if not words:
            raise InvalidActionError("the command is empty")
        if any(word and set(word) <= set(_OPERATORS) for word in words):
            raise InvalidActionError("one command a line: pipes, redirections and ; are not supported")
        if words[0] not in COMMANDS:
            raise InvalidActionError(f"{words[0][:40]!r} is no command here; there are {', '.join(COMMANDS)}")
        output = COMMANDS[words[0]](self, words[1:])
        if self.place not in self.folders:  # it was moved or removed
            self.place = "/"
        return output

    # Paths.

    def resolve(self, path: str) -> str:
        """Return an absolute path without dots."""
        return "/" + posixpath.normpath(posixpath.join(self.place, path)).lstrip("/")

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder at an absolute path."""
        return path in self.files or path in self.folders

    def below(self, folder: str) -> list[str]:
        """Return all files and folders under a folder, sorted, without itself."""
        start = folder.rstrip("/") + "/"
        return sorted(path for path in [*self.files, *self.folders] if path.startswith(start) and path != "/")

    def inside(self, folder: str) -> list[str]:
        """Return the files and folders that stand in a folder, sorted."""
        return [path for path in self.below(folder) if posixpath.dirname(path) == folder]

    def expand(self, words: Iterable[str], command: str) -> list[str]:
        """Return absolute paths of what exists; patterns become all that they match."""
        paths: list[str] = []
        for word in words:
            path = self.resolve(word)
            if not self.exists(path) and any(sign in word for sign in "*?["):
                parts = path.split("/")
                found = sorted(entry for entry in [*self.files, *self.folders] if _fits(entry.split("/"), parts))
                if found:
                    paths += found
                    continue
            if not self.exists(path):
                raise InvalidActionError(f"{command}: {word[:100]}: No such file or directory")
            paths.append(path)
        return list(dict.fromkeys(paths))

    # Changes. Each is checked whole before anything is changed.

    def put(self, changes: Mapping[str, str | None], command: str) -> None:
        """Add files (their contents) and folders (None)."""
        for path in changes:
            name = posixpath.basename(path)
            if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
                raise InvalidActionError(f"{command}: a name may have {MAX_NAME_CHARACTERS} printable characters")
            if posixpath.dirname(path) not in self.folders and posixpath.dirname(path) not in changes:
                raise InvalidActionError(f"{command}: {posixpath.dirname(path)}: No such file or directory")
        if len({*self.files, *self.folders, *changes}) > MAX_ENTRIES:
            raise InvalidActionError(f"{command}: no space left: a tree may have {MAX_ENTRIES} entries")
        for path, content in changes.items():
            if content is None:
                self.folders.add(path)
            else:
                self.files[path] = content

    def drop(self, path: str) -> None:
        """Remove a file, or a folder with all below it."""
        for entry in [path, *self.below(path)] if path in self.folders else [path]:
            self.files.pop(entry, None)
            self.folders.discard(entry)


def _fits(entry: list[str], pattern: list[str]) -> bool:
    return len(entry) == len(pattern) and all(map(fnmatchcase, entry, pattern))


def _options(words: list[str], known: str, command: str) -> tuple[set[str], list[str]]:
    """Return the letters of the options, and the other words."""
    letters: set[str] = set()
    others: list[str] = []
    for word in words:
        if word.startswith("-") and len(word) > 1:
            if not set(word[1:]) <= set(known):
                raise InvalidActionError(
                    f"{command}: the option {word[:20]} is not supported; known: {known or 'none'}"
                )
            letters |= set(word[1:])
        else:
            others.append(word)
    return letters, others


def _need(words: list[str], count: int, command: str, usage: str) -> None:
    if len(words) < count:
        raise InvalidActionError(f"{command}: missing operand; usage: {usage}")


def _shown(shell: Shell, path: str) -> str:
    return posixpath.basename(path) + ("/" if path in shell.folders else "")


def _pwd(shell: Shell, words: list[str]) -> str:
    return shell.place


def _ls(shell: Shell, words: list[str]) -> str:
    letters, others = _options(words, "alR1", "ls")
    blocks = []
    paths = shell.expand(others, "ls") if others else [shell.place]
    for path in paths:
        if path in shell.files:
            blocks.append(path)
            continue
        found = shell.below(path) if "R" in letters else shell.inside(path)
        names = [f"{entry}/" if entry in shell.folders else entry for entry in found]
        lines = names if "R" in letters else [_shown(shell, entry) for entry in found]
        text = "\n".join(lines) or "(empty)"
        blocks.append(f"{path}:\n{text}" if len(paths) > 1 else text)
    return "\n".join(blocks)


def _cd(shell: Shell, words: list[str]) -> str:
    path = shell.resolve(words[0]) if words else "/"
    if path not in shell.folders:
        raise InvalidActionError(f"cd: {words[0][:100]}: No such directory")
    shell.place = path
    return path


def _cat(shell: Shell, words: list[str]) -> str:
    _need(words, 1, "cat", "cat FILE...")
    return "\n".join(shell.files[path] for path in _files(shell, words, "cat")) or "(empty)"


def _files(shell: Shell, words: list[str], command: str) -> list[str]:
    paths = shell.expand(words, command)
    for path in paths:
        if path in shell.folders:
            raise InvalidActionError(f"{command}: {path}: Is a directory")
    return paths


def _grep(shell: Shell, words: list[str]) -> str:
    letters, others = _options(words, "rRlinc", "grep")
    _need(others, 1, "grep", "grep [-r] [-l] [-i] [-n] [-c] TEXT PATH...")
    text, *paths = others
    is_recursive = bool({"r", "R"} & letters)
    searched: list[str] = []
    for path in shell.expand(paths, "grep") if paths else [shell.place]:
        if path in shell.files:
            searched.append(path)
        elif is_recursive:
            searched += [entry for entry in shell.below(path) if entry in shell.files]
        else:
            raise InvalidActionError(f"grep: {path}: Is a directory; use -r")
    lines: list[str] = []
    for path in dict.fromkeys(searched):
        hits = [
            (number, line)
            for number, line in enumerate(shell.files[path].splitlines(), start=1)
            if (text.lower() in line.lower() if "i" in letters else text in line)
        ]
        if "c" in letters:
            lines.append(f"{path}:{len(hits)}")
        elif hits and "l" in letters:
            lines.append(path)
        else:
            lines += [f"{path}:{number}:{line}" if "n" in letters else f"{path}:{line}" for number, line in hits]
    return "\n".join(lines) or "(no match)"


def _find(shell: Shell, words: list[str]) -> str:
    places: list[str] = []
    tests: list[Callable[[str], bool]] = []
    left = iter(words)
    for word in left:
        if word in ("-name", "-type"):
            value = next(left, "")
            if word == "-name":
                tests.append(lambda path, pattern=value: fnmatchcase(posixpath.basename(path), pattern))  # type: ignore[misc]
            elif value in ("f", "d"):
                kept = shell.files if value == "f" else shell.folders
                tests.append(lambda path, kept=kept: path in kept)  # type: ignore[misc]
            else:
                raise InvalidActionError("find: -type is f or d")
        elif word.startswith("-"):
            raise InvalidActionError(f"find: {word[:20]} is not supported; known: -name PATTERN, -type f, -type d")
        else:
            places.append(word)
    found: list[str] = []
    for path in shell.expand(places, "find") if places else [shell.place]:
        found += [path, *(shell.below(path) if path in shell.folders else ())]
    kept_paths = [path for path in dict.fromkeys(found) if all(test(path) for test in tests)]
    return "\n".join(kept_paths) or "(nothing found)"


def _mkdir(shell: Shell, words: list[str]) -> str:
    letters, others = _options(words, "p", "mkdir")
    _need(others, 1, "mkdir", "mkdir [-p] FOLDER...")
    made: dict[str, None] = {}
    for word in others:
        path = shell.resolve(word)
        if shell.exists(path) and not ("p" in letters and path in shell.folders):
            raise InvalidActionError(f"mkdir: {word[:100]}: File exists")
        for folder in _upwards(path) if "p" in letters else [path]:
            if folder in shell.files:
                raise InvalidActionError(f"mkdir: {folder}: Not a directory")
            if folder not in shell.folders:
                made[folder] = None
    shell.put(made, "mkdir")
    return ""


def _upwards(path: str) -> Iterator[str]:
    while path != "/":
        yield path
        path = posixpath.dirname(path)


def _targets(shell: Shell, words: list[str], command: str) -> list[tuple[str, str]]:
    """Return (from, to) of each thing that is moved or copied to the last of the words."""
    _need(words, 2, command, f"{command} FROM... TO")
    *sources, goal = words
    paths, target = shell.expand(sources, command), shell.resolve(goal)
    if target in shell.folders:
        pairs = [(path, f"{target.rstrip('/')}/{posixpath.basename(path)}") for path in paths]
    elif len(paths) > 1 or goal.endswith("/"):
        raise InvalidActionError(f"{command}: {goal[:100]}: No such directory")
    else:
        pairs = [(paths[0], target)]
    for path, new in pairs:
        if path == new:
            raise InvalidActionError(f"{command}: {path} and {new} are the same file")
        if path in shell.folders and (new + "/").startswith(path.rstrip("/") + "/"):
            raise InvalidActionError(f"{command}: cannot put {path} into itself")
        if new in shell.folders or (path in shell.folders and new in shell.files):
            raise InvalidActionError(f"{command}: {new}: File exists")
    if len({new for _, new in pairs}) < len(pairs):
        raise InvalidActionError(f"{command}: two of them have one name")
    return pairs


def _copied(shell: Shell, path: str, new: str) -> dict[str, str | None]:
    entries = [path, *(shell.below(path) if path in shell.folders else ())]
    return {new + entry.removeprefix(path): shell.files.get(entry) for entry in entries}


def _mv(shell: Shell, words: list[str]) -> str:
    _, others = _options(words, "fv", "mv")
    pairs = _targets(shell, others, "mv")
    changes: dict[str, str | None] = {}
    for path, new in pairs:
        changes |= _copied(shell, path, new)
    shell.put(changes, "mv")
    for path, _ in pairs:
        shell.drop(path)
    return ""


def _cp(shell: Shell, words: list[str]) -> str:
    letters, others = _options(words, "rRfv", "cp")
    changes: dict[str, str | None] = {}
    for path, new in _targets(shell, others, "cp"):
        if path in shell.folders and not {"r", "R"} & letters:
            raise InvalidActionError(f"cp: {path} is a directory; use -r")
        changes |= _copied(shell, path, new)
    shell.put(changes, "cp")
    return ""


def _rm(shell: Shell, words: list[str]) -> str:
    letters, others = _options(words, "rRfv", "rm")
    _need(others, 1, "rm", "rm [-r] PATH...")
    paths = shell.expand(others, "rm")
    for path in paths:
        if path == "/":
            raise InvalidActionError("rm: refuses to remove /")
        if path in shell.folders and not {"r", "R"} & letters:
            raise InvalidActionError(f"rm: {path}: Is a directory; use -r")
    for path in paths:
        shell.drop(path)
    return ""


def _rmdir(shell: Shell, words: list[str]) -> str:
    _need(words, 1, "rmdir", "rmdir FOLDER...")
    paths = shell.expand(words, "rmdir")
    for path in paths:
        if path not in shell.folders or path == "/" or shell.below(path):
            raise InvalidActionError(f"rmdir: {path}: not an empty directory")
    for path in paths:
        shell.drop(path)
    return ""


COMMANDS: dict[str, Callable[[Shell, list[str]], str]] = {
    "ls": _ls,
    "cd": _cd,
    "pwd": _pwd,
    "cat": _cat,
    "grep": _grep,
    "find": _find,
    "mkdir": _mkdir,
    "mv": _mv,
    "cp": _cp,
    "rm": _rm,
    "rmdir": _rmdir,
}
