"""A real Python project as files: from a folder, a git repository, or a package and its version."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from llm_envs.errors import InvalidConfigError

__all__ = ["Project", "is_source", "is_test", "licences", "read_project", "search_path"]

PACKAGE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.+!_-]+)")
_LEFT_OUT = {".git", ".hg", ".svn", ".tox", ".nox", ".venv", "venv", ".eggs", "build", "dist", "node_modules"}
_LEFT_OUT |= {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".coverage", "htmlcov"}
_NO_SOURCE = {"doc", "docs", "example", "examples", "bench", "benchmark", "benchmarks", "tools", "scripts", "ci"}
_NO_SOURCE_FILES = {"setup.py", "noxfile.py", "tasks.py", "fabfile.py", "versioneer.py", "sitecustomize.py"}
_NO_SOURCE_FILES |= {"usercustomize.py", "conftest.py"}
_TEST_FOLDERS = {"test", "tests", "testing"}
_TEST_FILE = re.compile(r"test_.*\.py|.*_tests?\.py|tests?\.py")
_LICENCE = re.compile(r"(?i)(licen[cs]e|copying|notice)([-_.].*)?")
_MOST_FILES, _MOST_BYTES = 5_000, 64 << 20
_FETCH_S = 600.0


@dataclass(frozen=True)
class Project:
    """A project."""

    name: str
    source: str
    """Where it is from, as the user has named it, with the commit of a git repository."""
    files: Mapping[str, bytes] = field(repr=False)
    """By path from the project's root, without version control, caches and builds."""


def read_project(project: str | Path) -> Project:
    """Read a project.

    Args:
        project: A folder, a git repository (its address, or a folder that has only `.git`), or `name==version`, whose
            source distribution (else its wheel) `pip download` fetches. For a source distribution pip runs the build
            of the package on this machine.

    Raises:
        InvalidConfigError: If it is none of these, cannot be fetched, or is too large.
    """
    text = str(project)
    if Path(text).is_dir() and not (Path(text) / "HEAD").is_file():
        return _read_folder(Path(text), Path(text).resolve().name, text)
    with tempfile.TemporaryDirectory(prefix="repository-") as folder:
        if found := PACKAGE.fullmatch(text):
            return _read_folder(_download(text, Path(folder)), found[1], text)
        if re.match(r"[a-z+]+://|git@", text) or Path(text).is_dir():
            target = Path(folder) / "clone"
            _call(["git", "clone", "--quiet", "--depth", "1", "--", text, str(target)], text)
            commit = _call(["git", "-C", str(target), "rev-parse", "HEAD"], text).strip()
            name = re.sub(r"\.git$", "", text.rstrip("/")).rpartition("/")[2]
            return _read_folder(target, name, f"{text} at {commit}")
    raise InvalidConfigError(
        f"the project is {text!r}; it must be a folder, a git repository, or a package with its version (toolz==1.0.0)."
    )


def is_test(path: str) -> bool:
    """Return whether a file is a test or belongs to tests."""
    *folders, name = PurePosixPath(path).parts
    return bool(_TEST_FOLDERS & set(folders)) or _TEST_FILE.fullmatch(name) is not None or name == "conftest.py"


def is_source(path: str) -> bool:
    """Return whether a file is source that a player may change: no test, no configuration, no document."""
    *folders, name = PurePosixPath(path).parts
    if not name.endswith(".py") or name in _NO_SOURCE_FILES or is_test(path):
        return False
    return not (folders and folders[0] in _NO_SOURCE) and "_vendor" not in folders


def licences(files: Mapping[str, bytes]) -> list[str]:
    """Return the paths of a project's licences."""
    return sorted(path for path in files if _LICENCE.fullmatch(PurePosixPath(path).name) and not path.endswith(".py"))


def search_path(files: Mapping[str, bytes]) -> list[str]:
    """Return the folders from which a project's modules are imported: its root, and `src` if it has one."""
    return ["src", ""] if any(path.startswith("src/") and path.endswith(".py") for path in files) else [""]


def _read_folder(root: Path, name: str, source: str) -> Project:
    files, size = dict[str, bytes](), 0
    for path in sorted(root.rglob("*")):
        inner = path.relative_to(root)
        if _LEFT_OUT & set(inner.parts) or path.suffix in (".pyc", ".pyo") or path.is_symlink() or not path.is_file():
            continue
        size += path.stat().st_size
        if len(files) >= _MOST_FILES or size > _MOST_BYTES:
            raise InvalidConfigError(
                f"the project {source!r} has over {_MOST_FILES} files or {_MOST_BYTES >> 20} MiB: name less."
            )
        files[inner.as_posix()] = path.read_bytes()
    if not any(is_source(path) for path in files):
        raise InvalidConfigError(f"the project {source!r} has no Python source.")
    return Project(name, source, files)


def _download(requirement: str, folder: Path) -> Path:
    """Fetch a distribution and unpack it; return its root."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    try:
        _call([*command, "--no-binary", ":all:", requirement], requirement)
    except InvalidConfigError:
        _call([*command, requirement], requirement)
    [archive] = [path for path in folder.iterdir() if path.is_file()]
    target = folder / "unpacked"
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(target)
    else:
        with tarfile.open(archive) as packed_tar:
            packed_tar.extractall(target, filter="data")
    inner = list(target.iterdir())
    return inner[0] if len(inner) == 1 and inner[0].is_dir() else target


def _call(command: list[str], what: str) -> str:
    if shutil.which(command[0]) is None:
        raise InvalidConfigError(f"{what!r} needs the program {command[0]}: install it, or name a folder.")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise InvalidConfigError(f"{what!r} was not fetched in {_FETCH_S:g} s.") from None
    if done.returncode:
        raise InvalidConfigError(f"{what!r} cannot be fetched: {done.stderr.strip()[-500:]}")
    return done.stdout
