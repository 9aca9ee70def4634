"""A folder of problems that were made from a project, as data.

    DIR/manifest.json    what the problems are of: see `Manifest`
    DIR/project/         the project, without version control
    DIR/site/            packages that its tests import, if there are any
    DIR/tried.jsonl      every set of mutations that was tried, and what came of it: the cache of the preparation
    DIR/problems.jsonl   those that are problems
    DIR/LICENSE...       the project's licences

`sample.json` holds a tiny project of ours in the same form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.tasks.repository.mutations import Mutation, apply

__all__ = ["MANIFEST", "Manifest", "Prepared", "RepositoryProblem", "load_prepared", "load_sample", "read_manifest"]

MANIFEST, PROBLEMS, TRIED, TREE_FOLDER, SITE = "manifest.json", "problems.jsonl", "tried.jsonl", "project", "site"
_SAMPLE = Path(__file__).with_name("sample.json")


@dataclass(frozen=True)
class Manifest:
    """The project of a folder's problems."""

    name: str
    source: str
    """Where the project is from."""
    digest: str
    """Of its files."""
    licence: str
    """As its metadata name it; it stays with the problems."""
    licence_files: tuple[str, ...]
    framework: str
    """"pytest" or "unittest"."""
    test_files: tuple[str, ...]
    tests: tuple[str, ...]
    """The tests that passed twice before any mutation."""
    sources: tuple[str, ...]
    """The files that a player may change."""
    timeout_s: float
    """Of one run of the tests."""


@dataclass(frozen=True)
class RepositoryProblem:
    """Mutations together, and the tests that fail with them."""

    mutations: tuple[Mutation, ...]
    split: str
    failing: Mapping[str, str]
    """Test -> the end of its message; only of tests in the manifest."""

    @property
    def key(self) -> str:
        """Its name in a folder."""
        return " + ".join(mutation.key for mutation in self.mutations)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> RepositoryProblem:
        """Read `to_json`."""
        made = tuple(Mutation(**mutation) for mutation in found["mutations"])
        return cls(made, found["split"], found["failing"])


@dataclass(frozen=True)
class Prepared:
    """A folder."""

    folder: Path
    manifest: Manifest
    files: Mapping[str, bytes] = field(repr=False)
    """The project as it is."""
    problems: Mapping[str, RepositoryProblem] = field(repr=False)

    @property
    def site(self) -> Path | None:
        """The packages that the tests import."""
        folder = self.folder / SITE
        return folder.resolve() if folder.is_dir() else None

    def mutated(self, problem: RepositoryProblem) -> dict[str, bytes]:
        """Return the project with a problem's mutations."""
        return mutated(self.files, problem.mutations)


def mutated(files: Mapping[str, bytes], made: tuple[Mutation, ...]) -> dict[str, bytes]:
    """Return a tree with mutations."""
    changed = dict(files)
    for path in {mutation.path for mutation in made}:
        here = [mutation for mutation in made if mutation.path == path]
        changed[path] = apply(files[path].decode(), *here).encode()
    return changed


def load_prepared(folder: str | Path) -> Prepared:
    """Read a folder that `prepare_repository` has written.

    Raises:
        InvalidConfigError: If it is none.
    """
    path = Path(folder)
    try:
        changed = max((path / name).stat().st_mtime_ns for name in (MANIFEST, PROBLEMS))
    except OSError:
        raise InvalidConfigError(
            f"{str(folder)!r} has no {MANIFEST} and {PROBLEMS}: make them with "
            f"`llm-envs repository prepare PROJECT --out {folder}`, which tells how many problems there are."
        ) from None
    return _load(path, changed)


@lru_cache(maxsize=8)
def _load(folder: Path, changed: int) -> Prepared:
    lines = (folder / PROBLEMS).read_text(encoding="utf-8").splitlines()
    problems = [RepositoryProblem.from_json(json.loads(line)) for line in lines]
    root = folder / TREE_FOLDER
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    return Prepared(folder, read_manifest(folder), files, {each.key: each for each in problems})


@lru_cache(maxsize=1)
def load_sample() -> Prepared:
    """Return a tiny project of ours with its problems."""
    found = json.loads(_SAMPLE.read_text(encoding="utf-8"))
    problems = [RepositoryProblem.from_json(each) for each in found["problems"]]
    files = {path: text.encode() for path, text in found["files"].items()}
    return Prepared(_SAMPLE, _manifest(found["manifest"]), files, {each.key: each for each in problems})


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder."""
    return _manifest(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))


def _manifest(found: Mapping[str, Any]) -> Manifest:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    return Manifest(**values)
