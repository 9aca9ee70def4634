"""Reads a folder of Harbor's tasks, and decides which of them need only a shell and Python."""

from __future__ import annotations

import io
import re
import shlex
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

from llm_envs.errors import BridgeError, InvalidConfigError

__all__ = ["WRITABLE", "HarborTask", "pack", "read_folder"]

WRITABLE = ("/app", "/tests", "/logs", "/solution")
"""The places of Harbor's layout. A task's files are below the first."""
_PYTHON = re.compile(r"(docker\.io/)?(library/)?python(:[\w.-]+)?")
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml", ".dockerignore")
_DOWNLOADS = re.compile(r"(?m)^[^#\n]*?(?<![\w./-])(apt-get|apt|curl|wget|uvx?|pip3?|conda|npm|git clone)\s")
_PLAIN = re.compile(r"[\w./ -]+")
_MANY = ("cpus", "memory_mb", "storage_mb", "build_timeout_sec", "os", "workdir", "allow_internet", "network_mode")
"""Settings of an environment that are looked at, or that are only amounts."""
_MOST_BYTES = 128 << 20


@dataclass(frozen=True)
class HarborTask:
    """A task that can be played in a shell."""

    root: Path
    instruction: str
    workdir: str
    copies: tuple[tuple[str, str], ...]
    """A path in `environment/` and the absolute place of its copy."""
    folders: tuple[str, ...]
    """Absolute places of folders that the environment makes."""
    is_pytest: bool
    """Whether the tests are a pytest file, without a script."""
    verifier_timeout_s: float

    @property
    def test_command(self) -> str:
        """The command that runs the tests."""
        return "pytest -q -p no:cacheprovider /tests" if self.is_pytest else "bash /tests/test.sh"

    def environment(self) -> bytes:
        """Return an archive of the environment's files, to be unpacked in the home of a shell."""
        copied = {place.lstrip("/"): self.root / "environment" / source for source, place in self.copies}
        return pack(copied, folders=[self.workdir, *self.folders])


def read_folder(folder: Path) -> tuple[dict[str, HarborTask], dict[str, str]]:
    """Return the tasks in a folder by name, and the reason why each other one is refused.

    Raises:
        InvalidConfigError: If it is not a folder.
    """
    if not folder.is_dir():
        raise InvalidConfigError(
            f"{str(folder)!r} was given; it must be a folder that has a folder for each of Harbor's tasks."
        )
    tasks, refused = dict[str, HarborTask](), dict[str, str]()
    for root in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        try:
            tasks[root.name] = _read_task(root.resolve())
        except (BridgeError, OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as reason:
            refused[root.name] = str(reason)
    return tasks, refused


def pack(sources: Mapping[str, Path], *, folders: Sequence[str] = (), follows_links: bool = False) -> bytes:
    """Return a tar archive of files and folders of the host, by their place, without dates and owners.

    Args:
        sources: File or folder by its place.
        folders: Absolute places of folders to make.
        follows_links: Whether a link is packed as the file that it leads to.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=follows_links) as archive:
        for place in folders:
            entry = tarfile.TarInfo(place.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for place, source in sources.items():
            archive.add(source, place, filter=_plain)
    return packed.getvalue()


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return None if entry.name.endswith("/__pycache__") else entry


def _read_task(root: Path) -> HarborTask:
    """Read a task, or raise `BridgeError` with the reason why it cannot be played."""
    settings = tomllib.loads((root / "task.toml").read_text(encoding="utf-8"))
    _check_settings(settings)
    workdir, copies, folders = _read_image(root / "environment")
    tests = root / "tests"
    is_pytest = not (tests / "test.sh").is_file()
    if is_pytest and not [*tests.glob("test_*.py")]:
        raise BridgeError("tests/ has neither test.sh nor a test_*.py")
    if (tests / "Dockerfile").is_file():
        _check_test_image(tests / "Dockerfile")
    for script in (tests / "test.sh", root / "solution" / "solve.sh"):
        if script.is_file() and (found := _DOWNLOADS.search(script.read_text(encoding="utf-8"))):
            raise BridgeError(f"{script.parent.name}/{script.name} calls {found[1]!r}, and a shell has no network")
    if sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) > _MOST_BYTES:
        raise BridgeError(f"its files have more than {_MOST_BYTES >> 20} MiB")
    instruction = (root / "instruction.md").read_text(encoding="utf-8").strip()
    limit_s = float(settings.get("verifier", {}).get("timeout_sec", 600.0))
    return HarborTask(root, instruction, workdir, copies, folders, is_pytest, limit_s)


def _check_settings(settings: Mapping[str, Any]) -> None:
    environment, verifier = settings.get("environment", {}), settings.get("verifier", {})
    network = environment.get("network_mode")
    if settings.get("steps"):
        raise BridgeError("task.toml has several steps")
    if environment.get("gpus"):
        raise BridgeError(f"task.toml asks for {environment['gpus']} GPU")
    if environment.get("allow_internet") or network not in (None, "none", "no-network"):
        raise BridgeError("task.toml asks for a network")
    if environment.get("os", "linux").lower() != "linux":
        raise BridgeError(f"task.toml asks for {environment['os']}")
    others = [key for key, value in environment.items() if value and key not in _MANY]
    others += [f"verifier.{key}" for key in ("env", "docker_image") if verifier.get(key)]
    if others or environment.get("workdir"):
        raise BridgeError(f"task.toml has {', '.join(others or ['workdir'])}, which is not supported")


def _instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile and the rest of their lines; the first is a Python image."""
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n?", "", path.read_text(encoding="utf-8")))
    lines = [line.strip().partition(" ") for line in text.splitlines() if line.strip()]
    found = [(word.upper(), rest.strip()) for word, _, rest in lines]
    where = f"{path.parent.name}/Dockerfile"
    if not found or found[0][0] != "FROM":
        raise BridgeError(f"{where} does not begin with FROM")
    if _PYTHON.fullmatch(found[0][1]) is None:
        raise BridgeError(f"{where} is made from the image {found[0][1]!r}; only python:... is played")
    return found[1:]


def _read_image(folder: Path) -> tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the working folder of an environment, its copies and its new folders."""
    if compose := [name for name in _COMPOSE if (folder / name).exists()]:
        raise BridgeError(f"environment/ has {compose[0]}")
    workdir, copies, made = "", list[tuple[str, str]](), list[str]()
    for word, rest in _instructions(folder / "Dockerfile"):
        words = shlex.split(rest) if _PLAIN.fullmatch(rest) or word == "RUN" else []
        if word == "WORKDIR":
            workdir = _place(rest, workdir)
        elif word == "COPY" and len(words) >= 2 and not words[0].startswith("-"):
            copies += _copied(folder, words, workdir)
        elif word == "RUN" and words[:2] == ["mkdir", "-p"] and re.search(r"[;&|<>$`(){}*?]", rest) is None:
            made += [_place(path, workdir) for path in words[2:]]
        else:
            raise BridgeError(
                f"environment/Dockerfile has `{word} {rest:.60}`; only WORKDIR, COPY and mkdir are played"
            )
    if not workdir:
        raise BridgeError(f"environment/Dockerfile has no WORKDIR below {WRITABLE[0]}")
    return workdir, tuple(copies), tuple(made)


def _copied(folder: Path, words: Sequence[str], workdir: str) -> list[tuple[str, str]]:
    """Return the copies of a COPY: the content of a folder, or files."""
    *sources, target = words
    place, found = _place(target, workdir), []
    for source in sources:
        path = (folder / source.lstrip("/")).resolve()
        if not path.exists() or not path.is_relative_to(folder):
            raise BridgeError(f"environment/ has no {source!r}, which its Dockerfile copies")
        is_into = path.is_file() and (target.endswith(("/", ".")) or len(sources) > 1)
        found.append((str(path.relative_to(folder)), f"{place}/{path.name}" if is_into else place))
    return found


def _place(path: str, workdir: str) -> str:
    """Return the absolute place of a path in a Dockerfile."""
    parts = PurePosixPath(workdir or "/", path.strip("\"'")).parts
    if parts[:2] != ("/", WRITABLE[0][1:]) or ".." in parts or _PLAIN.fullmatch(path) is None:
        raise BridgeError(f"environment/Dockerfile uses {path!r}; only places below {WRITABLE[0]} are played")
    return "/" + "/".join(parts[1:])


def _check_test_image(path: Path) -> None:
    """Refuse tests that need more than packages of Python which are installed here."""
    for word, rest in _instructions(path):
        if word == "WORKDIR" or (word == "COPY" and rest in (". /tests/", ". /tests")):
            continue
        words = shlex.split(rest)
        if word != "RUN" or words[:2] != ["pip", "install"]:
            raise BridgeError(
                f"tests/Dockerfile has `{word} {rest:.60}`; only pip install and COPY . /tests are played"
            )
        for package in (each for each in words[2:] if not each.startswith("-")):
            name, _, wanted = package.partition("==")
            try:
                here = version(name.partition("[")[0])
            except (PackageNotFoundError, ValueError):
                raise BridgeError(f"tests/Dockerfile installs {package!r}, which is not installed here") from None
            if wanted not in ("", here):
                raise BridgeError(f"tests/Dockerfile installs {package!r}, and here is {here}")
