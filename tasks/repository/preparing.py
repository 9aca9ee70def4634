"""Makes problems from a real project: mutations of its functions that some of its tests notice, but not all.

Every run of the tests is kept in `tried.jsonl`, so a preparation that was stopped can continue, and one that is
asked for more problems tries only new mutations.
"""

from __future__ import annotations

import ast
import compileall
import hashlib
import importlib.metadata
import json
import py_compile
import random
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.problems import split_of
from llm_envs.shell import open_shell
from llm_envs.tasks.repository.mutations import Mutation, functions, mutations
from llm_envs.tasks.repository.prepared import (
    MANIFEST,
    PROBLEMS,
    SITE,
    TREE_FOLDER,
    TRIED,
    Manifest,
    RepositoryProblem,
    mutated,
    read_manifest,
)
from llm_envs.tasks.repository.project import Project, is_source, is_test, licences, read_project
from llm_envs.tasks.repository.running import TestRun, bound, run_tests

__all__ = ["Yield", "prepare_repository"]

_DETAIL = 2_000
"""Characters of a test's message that a problem keeps."""
_SLOWEST, _LEAST_S = 5.0, 30.0
"""A run of a mutant may take so many times as long as one without, and so many seconds more."""
_BASELINE_S = 1_800.0
_PAIR_SHARE = 0.5
"""Problems of two mutations, per problem of one."""


@dataclass(frozen=True)
class Yield:
    """The counts of a preparation, with the runs of earlier calls."""

    functions: int
    """Functions and methods in the source."""
    tests: int
    """Tests that pass."""
    tried: int
    """Sets of mutations whose tests were run."""
    killed: int
    """Those that made a test fail."""
    kept: int
    """Problems: those that made some fail, and not all."""
    of_two: int
    """Problems that have two mutations."""
    train: int
    test: int
    """Problems in each split."""
    seconds: float
    """Of this call."""


def prepare_repository(
    project: str | Path,
    out: str | Path,
    *,
    problems: int = 50,
    needs: Sequence[str] = (),
    runtime: str = "namespaces",
    seed: int = 0,
    report: Callable[[str], None] = lambda line: None,
) -> Yield:
    """Make problems of one mutation, and half as many of two, in a folder that `llm/Repository-v0` reads.

    Args:
        project: A folder, a git repository, or `name==version`; see `read_project`.
        out: A new folder, or one that an earlier call has begun.
        problems: Problems of one mutation.
        needs: Distributions, installed in this environment, that the tests import. pytest is added where it is used.
        runtime: Of the shells that run the tests; see `open_shell`.
        seed: Of the order in which mutations are tried.
        report: Takes lines about the progress.

    Raises:
        InvalidConfigError: If the project has no test that passes, `out` is of another project, or a name is unknown.
        SandboxError: If no shell starts on this machine.
    """
    started, out = time.perf_counter(), Path(out)
    if problems < 1:
        raise InvalidConfigError(f"problems is {problems!r}; it must be at least 1.")
    found = read_project(project)
    manifest = _begin(found, out, needs, runtime, report)
    attempts = _Attempts(found, manifest, out, runtime, report)
    singles = attempts.collect(([mutation] for mutation in _order(found, manifest.sources, seed)), problems)
    pairs = attempts.collect(_pairs(found.name, singles, seed), max(int(len(singles) * _PAIR_SHARE), 1))
    made = [*singles, *pairs]
    text = "".join(json.dumps(each.to_json()) + "\n" for each in made)
    (out / PROBLEMS).write_text(text, encoding="utf-8")
    return Yield(
        functions=sum(len(functions(_text(found, path))) for path in manifest.sources),
        tests=len(manifest.tests),
        tried=len(attempts.known),
        killed=sum(bool(entry["failing"]) or not entry["complete"] for entry in attempts.known.values()),
        kept=len(made),
        of_two=len(pairs),
        train=sum(each.split == "train" for each in made),
        test=sum(each.split == "test" for each in made),
        seconds=round(time.perf_counter() - started, 1),
    )


class _Attempts:
    """Runs mutations, and remembers what came of them."""

    def __init__(
        self, project: Project, manifest: Manifest, out: Path, runtime: str, report: Callable[[str], None]
    ) -> None:
        self._project, self._manifest, self._out = project, manifest, out
        self._runtime, self._report = runtime, report
        self.known: dict[str, dict[str, Any]] = {}
        path = out / TRIED
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            entry = json.loads(line)
            self.known[entry["key"]] = entry

    def collect(self, sets: Iterable[Sequence[Mutation]], most: int) -> list[RepositoryProblem]:
        """Try sets of mutations until so many are problems."""
        made: list[RepositoryProblem] = []
        for each in sets:
            if len(made) >= most:
                break
            problem = self._try(RepositoryProblem(tuple(each), _split(self._manifest.name, each[0]), {}))
            if problem is not None:
                made.append(problem)
                self._report(f"problem {len(made)} of {most}: {problem.key}: {len(problem.failing)} tests fail")
        return made

    def _try(self, problem: RepositoryProblem) -> RepositoryProblem | None:
        entry = self.known.get(problem.key)
        if entry is None:
            files = mutated(self._project.files, problem.mutations)
            if not all(_compiles(files[mutation.path]) for mutation in problem.mutations):
                return None
            run = _run(files, self._manifest, self._out, self._runtime)
            failing = {test: run.details.get(test, "") for test in self._manifest.tests if test not in run.passed}
            entry = {"key": problem.key, "complete": run.is_complete, "failing": failing if run.is_complete else {}}
            self.known[problem.key] = entry
            with (self._out / TRIED).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        failing = entry["failing"]
        is_kept = 0 < len(failing) < len(self._manifest.tests)
        return replace(problem, failing=failing) if is_kept else None


def _run(files: Mapping[str, bytes], manifest: Manifest, out: Path, runtime: str, seed: int = 0) -> TestRun:
    site = out / SITE
    return run_tests(
        files,
        manifest.framework,
        site=site.resolve() if site.is_dir() else None,
        runtime=runtime,
        timeout_s=manifest.timeout_s,
        only=manifest.test_files,
        detail=_DETAIL,
        seed=seed,
    )


def _begin(project: Project, out: Path, needs: Sequence[str], runtime: str, report: Callable[[str], None]) -> Manifest:
    """Return the manifest of the folder, after a first look at the tests if it has no manifest."""
    digest = hashlib.sha256()
    for path, content in sorted(project.files.items()):
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    if (out / MANIFEST).exists():
        manifest = read_manifest(out)
        if manifest.digest != digest.hexdigest():
            raise InvalidConfigError(f"{out} has problems of {manifest.source!r}, with other files: choose another.")
        return manifest
    tests = tuple(path for path in sorted(project.files) if is_test(path) and path.endswith(".py"))
    tests = tuple(path for path in tests if re.match(r"test|.*tests?\.py", PurePosixPath(path).name))
    if not tests:
        raise InvalidConfigError(f"{project.source!r} has no tests: take its source distribution or its repository.")
    framework = _framework(project, tests)
    sources = tuple(path for path in sorted(project.files) if is_source(path) and _compiles(project.files[path]))
    _copy_site(out / SITE, [*(["pytest"] if framework == "pytest" else []), *needs], project)
    manifest = Manifest(
        project.name, project.source, digest.hexdigest(), _licence(project), tuple(licences(project.files)), framework,
        tests, (), sources, _BASELINE_S,
    )  # fmt: skip
    runs = [_run(project.files, manifest, out, runtime, seed) for seed in (1, 2)]
    passed = runs[0].passed & runs[1].passed
    if not passed:
        said = next(iter(runs[0].details.values()), "") or runs[0].said
        raise InvalidConfigError(
            f"no test of {project.source!r} passes with {framework}. Does it need --needs NAME? {said[-700:]}"
        )
    slowest = max(run.seconds for run in runs)
    report(f"{len(passed)} tests pass in {slowest:.1f} s, with {framework}")
    for place in _copies(sources, out, runtime):
        report(f"warning: {place} has the name of the project, and players can read it: is it a copy?")
    manifest = replace(manifest, tests=tuple(sorted(passed)), timeout_s=round(_SLOWEST * slowest + _LEAST_S, 1))
    for path, content in project.files.items():
        target = out / TREE_FOLDER / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    for path in manifest.licence_files:
        (out / PurePosixPath(path).name).write_bytes(project.files[path])
    (out / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1), encoding="utf-8")
    return manifest


def _framework(project: Project, tests: Sequence[str]) -> str:
    """Return "unittest" if nothing in the tests needs pytest."""
    texts = [_text(project, path) for path in tests]
    needs_pytest = any(
        re.search(r"\bpytest\b|^(async )?def test|^class Test\w*:", text, re.MULTILINE) for text in texts
    )
    return "pytest" if needs_pytest or any(path.endswith("conftest.py") for path in project.files) else "unittest"


def _order(project: Project, sources: Sequence[str], seed: int) -> Iterator[Mutation]:
    """Yield all mutations: one of each function, in a random order, then a second one of each."""
    generator = random.Random(seed)
    by_function: dict[tuple[str, str], list[Mutation]] = {}
    for path in sources:
        for mutation in mutations(path, _text(project, path)):
            by_function.setdefault((path, mutation.function), []).append(mutation)
    groups = list(by_function.values())
    for group in groups:
        generator.shuffle(group)
    generator.shuffle(groups)
    for rank in zip_longest(*groups):
        yield from (mutation for mutation in rank if mutation is not None)


def _pairs(name: str, singles: Sequence[RepositoryProblem], seed: int) -> list[list[Mutation]]:
    """Return pairs of mutations of different functions of one split, in turn from each split."""
    pairs = []
    for a, b in combinations(singles, 2):
        [first], [second] = a.mutations, b.mutations
        if a.split == b.split and (first.path, first.function) != (second.path, second.function):
            pairs.append(sorted((first, second), key=lambda mutation: mutation.key))
    random.Random(seed).shuffle(pairs)
    by_split = [[pair for pair in pairs if (_split(name, pair[0]) == "test") is is_test] for is_test in (False, True)]
    return [pair for rank in zip_longest(*by_split) for pair in rank if pair is not None]


def _split(name: str, mutation: Mutation) -> str:
    return split_of([name, mutation.path, mutation.function])


def _licence(project: Project) -> str:
    """Return the name of the licence in the project's metadata."""
    for path in ("PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py"):
        text = project.files.get(path, b"").decode("utf-8", "replace")
        pattern = r"^\s*(?:License(?:-Expression)?:|license\s*=)\s*(?:\{[^}\"']*)?[\"']?([^\"'}\n]+)"
        if found := re.search(pattern, text, re.MULTILINE):
            return found[1].strip()
    return "see its files" if licences(project.files) else "not named"


def _copy_site(folder: Path, names: Sequence[str], project: Project) -> None:
    """Copy installed distributions and what they require."""
    left, seen = list(names), set[str]()
    tops = {PurePosixPath(path).parts[0] for path in project.files} | {project.name}
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name in names:
                raise InvalidConfigError(f"{name!r} is not installed: pip install {name}.") from None
            continue  # for another system or version of Python
        if name in tops or name.replace("-", "_") in tops:
            raise InvalidConfigError(f"the tests need {name!r}, which is the project itself: a player could read it.")
        for file in distribution.files or ():
            source, target = Path(str(distribution.locate_file(file))), folder / str(file)
            if ".." not in file.parts and file.suffix != ".pyc" and source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        left += [found[0] for text in distribution.requires or () if "extra ==" not in text
                 if (found := re.match(r"[A-Za-z0-9._-]+", text))]  # fmt: skip
    if folder.is_dir():
        compileall.compile_dir(folder, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def _copies(sources: Sequence[str], out: Path, runtime: str) -> list[str]:
    """Return files and folders named like the project's modules that a player could read in a shell."""
    tops = {PurePosixPath(path.removeprefix("src/")).parts[0] for path in sources}
    names = " -o ".join(f"-name '{name}'" for name in sorted(tops) if re.fullmatch(r"[\w.]+", name))
    site = (out / SITE).resolve()
    shell = open_shell(runtime, folders=bound(site) if site.is_dir() else [])
    try:
        found = shell.run(rf"""python3 -c 'import sys; print(*sys.path, sep="\n")' | sort -u | while read folder; do
            [[ $folder == /* && -d $folder && $folder != /workspace* ]] && find "$folder" \( {names} \)
            done | sort -u""")
    finally:
        shell.close()
    return found.output.splitlines()


def _compiles(content: bytes) -> bool:
    try:
        ast.parse(content.decode())
    except (SyntaxError, ValueError):
        return False
    return True


def _text(project: Project, path: str) -> str:
    return project.files[path].decode("utf-8", "replace")
