"""The rooms outside the core, which the core never imports, the tests of each, and a checkout without them.

    python tests/support/wall.py tests NAME     print the test files of the core, or of the rooms that a target tests
    python tests/support/wall.py copy FOLDER    write a copy of the checkout without these rooms and their tests

A test is of the room that its source in the mirrored folder is in. `make test-wall` runs the core's tests in the copy.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from mirror import source_of

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"llm_envs": "llm_envs", "tasks": "llm_envs.tasks", "trainers": "llm_envs.trainers"}
"""Folder at the top of the repository: the name it is imported under."""
OUTSIDE: dict[str, tuple[str, ...]] = {
    "bridges": ("llm_envs.bridges", "llm_envs.cli.mcp"),
    "agents": ("llm_envs.agents", "llm_envs.cli.agent_option", "llm_envs.cli.serve"),
    "benchmarks": ("llm_envs.tasks.benchmarks",),
    "certify": ("llm_envs.cli.certify", "llm_envs.checker.certification", "llm_envs.report.certificate"),
    "audit": ("llm_envs.cli.audit", "llm_envs.trainers.cli.audit"),
    "alarm": ("llm_envs.evaluation.hacking", "llm_envs.trainers.grpo.alarm"),
    "ray": (
        "llm_envs.cli.ray_options",
        "llm_envs.rollout.ray_cluster",
        "llm_envs.rollout.ray_collector",
        "llm_envs.rollout.ray_training",
    ),
    "storage": ("llm_envs.data.remote_writer",),
}
"""Room: its packages and modules."""
TARGETS = {
    "bridges": ("bridges",),
    "agents": ("agents",),
    "benchmarks": ("benchmarks",),
    "trust": ("certify", "audit", "alarm"),
    "scale": ("ray", "storage", "servers"),
}
"""NAME of `make test-NAME`: its rooms. "servers" has tests only: the servers of environments are in the core."""
TESTS_ELSEWHERE = {
    "tests/llm_envs/chat/test_renderer.py": "bridges",
    "tests/llm_envs/checker/test_check_suites.py": "benchmarks",
    "tests/llm_envs/evaluation/test_standard.py": "benchmarks",
    "tests/llm_envs/rollout/workers/test_server.py": "servers",
    "tests/llm_envs/sources/test_mixture_text.py": "benchmarks",
    "tests/trainers/cli/test_commands_agents.py": "agents",
    "tests/trainers/grpo/test_grpo_agents.py": "agents",
    "tests/trainers/grpo/test_grpo_ray.py": "ray",
}
"""Tests of a room together with a part of the core, in that part's folder, and of what needs a room's library."""


def outside_room(module: str) -> str | None:
    """Return the room outside the core that a module is in; None: the core."""
    rooms = (room for room, parts in OUTSIDE.items() for part in parts if f"{module}.".startswith(f"{part}."))
    return next(rooms, None)


def module_name(path: Path, root: Path = ROOT) -> str:
    """Return the import name of a file of the repository."""
    folder, *rest = path.relative_to(root).with_suffix("").parts
    return ".".join([FOLDERS[folder], *(part for part in rest if part != "__init__")])


def source_files(root: Path = ROOT) -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py") if "_template" not in path.parts)


def paths_of(room: str, root: Path) -> list[Path]:
    """Return the files and folders of a room."""
    longest = sorted(FOLDERS.items(), key=lambda item: -len(item[1]))
    found = []
    for part in OUTSIDE[room]:
        folder, package = next(item for item in longest if part.startswith(f"{item[1]}."))
        path = root / folder / part.removeprefix(f"{package}.").replace(".", "/")
        found.append(path if path.is_dir() else path.with_suffix(".py"))
    return found


def write_metadata(folder: Path) -> None:
    """Write the metadata of an installed distribution: its version, and all entry points of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / "llm_envs.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = {"console_scripts": project["scripts"]} | project["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in groups[group].items()) for group in groups
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def room_of_test(test: Path) -> str | None:
    """Return the room outside the core that a test file is of; None: the core's, or of no source."""
    if room := TESTS_ELSEWHERE.get(str(test.relative_to(ROOT))):
        return room
    source = source_of(test)
    if source is None or source.relative_to(ROOT).parts[0] not in FOLDERS:
        return None
    return outside_room(module_name(source))


@cache
def tests_of(name: str) -> tuple[str, ...]:
    """Return the test files of "core", or of the rooms of a target: their paths from the top of the repository."""
    if name != "core" and name not in TARGETS:
        raise ValueError(f"{name!r} must be core or a target of rooms: {', '.join(TARGETS)}")
    rooms = TARGETS.get(name, (None,))
    folders = [ROOT / "tests" / folder for folder in FOLDERS]
    files = [path for folder in folders for path in folder.rglob("test_*.py")]
    files += (ROOT / "tests").glob("test_*.py") if name == "core" else []
    return tuple(sorted(str(path.relative_to(ROOT)) for path in files if room_of_test(path) in rooms))


def copy(folder: Path) -> None:
    """Write the copy without rooms and tests."""
    shutil.rmtree(folder, ignore_errors=True)
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in listed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    for path in (path for room in OUTSIDE for path in paths_of(room, folder)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_metadata(folder)
    for name in (name for target in TARGETS for name in tests_of(target)):
        (folder / name).unlink()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["tests", name]:
            print("\n".join(tests_of(name)))
        case ["copy", name]:
            copy(Path(name).resolve())
        case _:
            sys.exit(__doc__)
