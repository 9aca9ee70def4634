"""Runs the tests of a tree of files in a new shell, and returns the outcome of each.

1. The shell is new, without network, and ends with the run: nothing that a player has left in another one is there.
2. The results are in a file whose name and lines have a random number. A line without it, a second result of a test,
   or a missing end make the run count for nothing.
3. The tests run in one process with the code that they test. That code could find the number in the memory of its
   process: `judging` has the countermeasures.
"""

from __future__ import annotations

import io
import json
import secrets
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from llm_envs.errors import InvalidActionError
from llm_envs.shell import HOME, Shell, ShellLimits, open_shell
from llm_envs.tasks.repository.project import search_path

__all__ = ["TREE", "TestRun", "bound", "lay_out", "python_path", "run_tests"]

TREE = f"{HOME}/project"
"""Where a project is in a shell."""
_SITE = f"{HOME}/site"
_RUNNER = Path(__file__).with_name("runner.py")
_ALL_AT_ONCE = 200_000
"""Most characters of results that are not read: more than enough for a million tests."""


@dataclass(frozen=True)
class TestRun:
    """The outcomes of tests."""

    outcomes: Mapping[str, str]
    """By test: "passed", "failed" or "skipped"."""
    details: Mapping[str, str]
    """By failed test: the end of its message."""
    is_complete: bool
    """Whether the run came to its end, and nothing in its results is forged."""
    seconds: float
    said: str
    """The printed output, cut."""

    @property
    def passed(self) -> set[str]:
        """The tests that passed; none if the run is not complete."""
        return {test for test, outcome in self.outcomes.items() if outcome == "passed"} if self.is_complete else set()


TestRun.__test__ = False  # type: ignore[attr-defined]  # for pytest: no test


def lay_out(shell: Shell, files: Mapping[str, bytes], site: Path | None = None) -> None:
    """Write a project into a shell and go to its folder; also its packages, if they are where a shell has its own."""
    _unpack(shell, TREE, _packed(files))
    if site is not None and not bound(site):
        _unpack(shell, _SITE, _packed_site(site))
    shell.run(f"cd {TREE}")


def bound(site: Path | None) -> list[str]:
    """Return the folders of the host that a shell with the project shows: none if they would be hidden in it."""
    return [] if site is None or f"{site}/".startswith(("/tmp/", "/dev/", "/proc/", f"{HOME}/")) else [str(site)]


def python_path(files: Mapping[str, bytes], site: Path | None) -> str:
    """Return PYTHONPATH for a project in a shell."""
    folders = [f"{TREE}/{folder}".rstrip("/") for folder in search_path(files)]
    return ":".join(folders + ([] if site is None else bound(site) or [_SITE]))


def _packed(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@lru_cache(maxsize=2)
def _packed_site(site: Path) -> bytes:
    paths = [path for path in site.rglob("*") if path.is_file()]
    return _packed({path.relative_to(site).as_posix(): path.read_bytes() for path in paths})


def _unpack(shell: Shell, folder: str, packed: bytes) -> None:
    shell.write("/tmp/packed.tar", packed)
    made = shell.run(f"mkdir -p {folder} && tar -C {folder} -xf /tmp/packed.tar && rm /tmp/packed.tar")
    if made.exit_code:
        raise InvalidActionError(f"the project does not fit into a shell: {made.output[-300:]}")


def run_tests(
    files: Mapping[str, bytes],
    framework: str,
    *,
    site: Path | None,
    runtime: str = "namespaces",
    timeout_s: float = 600.0,
    only: Sequence[str] = (),
    detail: int = 0,
    seed: int = 0,
) -> TestRun:
    """Run a project's tests.

    Args:
        files: The project.
        framework: "pytest" or "unittest".
        site: Folder of the host with the packages that the tests import; visible in the shell, read-only.
        runtime: Of the shell.
        timeout_s: Seconds after which the run is stopped, and is not complete.
        only: Files or tests to run, as pytest takes them; () for all. For unittest, its files.
        detail: Characters to keep of each failure.
        seed: Of Python's hashes.
    """
    nonce = secrets.token_hex(16)
    results = f"/tmp/{nonce}"
    config = {"framework": framework, "results": results, "nonce": nonce, "detail": detail, "only": list(only)}
    shell = open_shell(
        runtime,
        limits=ShellLimits(timeout_s=timeout_s, output_characters=_ALL_AT_ONCE),
        seed=seed,
        folders=bound(site),
    )
    try:
        lay_out(shell, files, site)
        variables = f"PYTHONPATH={shlex.quote(python_path(files, site))} PYTHONDONTWRITEBYTECODE=1"
        shell.write("/tmp/runner.py", _RUNNER.read_bytes())
        program = f"{variables} python3 <(cat /tmp/runner.py; rm /tmp/runner.py)"
        done = shell.run(f"printf %s {shlex.quote(json.dumps(config))} | {program}", timeout_s)
        try:
            content = shell.read(results).decode("utf-8", "replace")
        except InvalidActionError:
            content = ""
    finally:
        shell.close()
    return _read(content, nonce, done.seconds, done.output, is_ended=done.stopped is None)


def _read(content: str, nonce: str, seconds: float, said: str, *, is_ended: bool) -> TestRun:
    outcomes, details = dict[str, str](), dict[str, str]()
    is_honest, has_end = is_ended, False
    for line in content.splitlines():
        try:
            mark, test, outcome, detail = json.loads(line)
        except ValueError:
            is_honest = False
            continue
        if mark != nonce or test in outcomes or has_end:
            is_honest = False
        elif test == "":
            has_end = True
        else:
            outcomes[test] = outcome
            if detail:
                details[test] = detail
    return TestRun(outcomes, details, is_honest and has_end, seconds, said)
