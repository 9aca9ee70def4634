"""The record of checked tasks: which levels passed `check_task`, with which effort, as their files are now.

    python -m proof.checked [--thorough] [--jobs N] [ENV_ID ...]

Checks each level of each `llm/` task whose files have changed since its record, or whose record is of a smaller effort,
and writes `proof/checked.json`. Checking everything takes half an hour, or some hours with `--thorough`, which is too
long for CI: `make check-tasks` checks the default levels, and CI some of them and that no record is out of date.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

import llm_envs
from llm_envs.checker import QUICK, THOROUGH, check_task
from llm_envs.checker.catalogue import describe, needs_project
from llm_envs.errors import MissingExtraError, TaskCheckError
from llm_envs.registration import task_spec

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_name("checked.json")
_PACKAGE = "llm_envs.tasks"
EFFORTS = {"quick": QUICK, "thorough": THOROUGH}
"""From the smaller to the greater."""


def levels() -> list[tuple[str, str]]:
    """Return (task, level) of every task of this repository whose package is installed.

    Repairs of a user's project take minutes to check; tests/tasks/repository/test_environment.py does so.
    """
    ids = [id for id in llm_envs.task_ids() if id.startswith("llm/") and not needs_project(id)]
    found = []
    for env_id in ids:
        with contextlib.suppress(MissingExtraError):  # its package is only in another environment
            found += [(env_id, level) for level in describe(env_id).levels]
    return found


def fingerprint(env_id: str) -> str:
    """Return a hash of the files in `tasks/` that a task is made of: its module and those that it imports."""
    entry_point = task_spec(env_id).entry_point
    name = entry_point.partition(":")[0] if isinstance(entry_point, str) else entry_point.__module__
    files = sorted(_reached(name))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


@cache
def _reached(module: str) -> frozenset[Path]:
    """Return the file of a module of `tasks/`, the files it imports, and the data files beside them that it names."""
    seen: dict[str, set[Path]] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        path = ROOT.joinpath("tasks", *name.split(".")[2:])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in seen or not name.startswith(f"{_PACKAGE}.") or not path.exists():
            continue
        tree = ast.parse(path.read_bytes())
        texts = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        beside = {path.parent / text for text in texts if len(text) < 100 and text.endswith((".txt", ".json", ".md"))}
        seen[name] = {path, *(file for file in beside if file.is_file())}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                pending += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                pending += [alias.name for alias in node.names]
    return frozenset(path for paths in seen.values() for path in paths)


def out_of_date(record: dict[str, dict[str, str]], effort: str = "quick") -> Iterator[tuple[str, str]]:
    """Yield the levels whose files have changed since their record, or whose record is of a smaller effort."""
    ranks = list(EFFORTS)
    for env_id, level in levels():
        entry = record.get(f"{env_id} {level}")
        if entry is None or entry["files"] != fingerprint(env_id) or ranks.index(entry["effort"]) < ranks.index(effort):
            yield env_id, level


def read() -> dict[str, dict[str, str]]:
    """Return the record: by task and level, the effort and the fingerprint."""
    found: dict[str, dict[str, str]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return found


def _check(env_id: str, level: str, effort: str) -> str | None:
    try:
        check_task(env_id, effort=EFFORTS[effort], difficulty=level)
    except TaskCheckError as error:
        return str(error)
    return None


def main() -> int:
    """Check what is out of date; return 1 if a level fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="ENV_ID", help="only these tasks")
    parser.add_argument("--thorough", action="store_true", help="more seeds and replies")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    effort = "thorough" if given.thorough else "quick"
    work = [item for item in out_of_date(read(), effort) if not given.tasks or item[0] in given.tasks]
    found, n_failed = levels(), 0
    known, here = {f"{env_id} {level}" for env_id, level in found}, {env_id for env_id, _ in found}
    known |= {key for key in read() if key.partition(" ")[0] in set(llm_envs.task_ids()) - here}
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        started = time.perf_counter()
        waiting = {pool.submit(_check, env_id, level, effort): (env_id, level) for env_id, level in work}
        for future in as_completed(waiting):
            (env_id, level), failure = waiting[future], future.result()
            label, n_failed = f"{env_id} {level}", n_failed + (failure is not None)
            print(f"{time.perf_counter() - started:6.0f} s  {label}: {failure or 'ok'}", flush=True)
            record = {key: value for key, value in read().items() if key in known - {label}}
            if failure is None:
                record[label] = {"effort": effort, "files": fingerprint(env_id)}
            RECORD.write_text(json.dumps(dict(sorted(record.items())), indent=0) + "\n")
    print(f"{len(work) - n_failed} of {len(work)} levels passed ({effort})")
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
