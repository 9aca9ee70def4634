"""The record of the targets of `make`: where and when all tests of each last passed.

    python -m proof.targets                    print the record, and how old each entry is
    python -m proof.targets write NAME         write an entry, at the end of a target (the Makefile does it)
    python -m proof.targets next --seconds N   print the target that is to run next in so many seconds; exit 1: none

CI runs all tests of the core, and of each other target the tests marked `smoke`. A target that ran without SMOKE and
ended without a failure writes its entry. The entry holds as long as nothing in the core, in the rooms that the target
tests, in their tests and in the constraints of its environments has changed. CI then runs all tests of targets whose
entry does not hold: first those whose own rooms have changed, then the oldest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.measuring import describe_hardware, find_commit

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_name("targets.json")
REPORTS = ROOT / "build" / "targets"
"""A folder for each target: the file `started`, and what each of its runs of pytest wrote (`--junitxml`)."""
SOURCES = ("llm_envs", "tasks", "trainers", "tests", "examples", "pyproject.toml", "constraints*.txt")
"""The files whose change may end an entry."""
PAGES = ("docs", "proof", "benchmarks", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
"""The other files that `test-docs` tests."""
CORE = ("test", "test-wall")
"""The targets of the core's tests, which CI runs in any case."""
ALLOWANCE = 1.3
"""How much longer than its entry a target may take on another machine."""
COUNTS = ("tests", "skipped")

sys.path.insert(0, str(ROOT / "tests" / "support"))
import wall  # noqa: E402


def environments(target: str, makefile: str) -> set[str]:
    """Return the constraints files of the environments that a target of the Makefile needs."""
    line = re.search(rf"^{target}:(.*)$", makefile, flags=re.MULTILINE)
    names = set(re.findall(r"\$\((VENV\w*)\)", line[1] if line else "")) | {"VENV"}
    names |= {"VENV_VLLM"} if "VENV_AGENTS" in names else set()  # which adds to it
    return {f"constraints{name.removeprefix('VENV').replace('_', '-').lower()}.txt" for name in names}


def is_in_core(name: str) -> bool:
    """Return whether a file is a source of the core, which any test may reach by an entry point or a child process."""
    path = ROOT / name
    if name.partition("/")[0] not in wall.FOLDERS:
        return name == "pyproject.toml"
    return path.suffix != ".py" or wall.outside_room(wall.module_name(path)) is None


def is_of(name: str, target: str, constraints: set[str]) -> bool:
    """Return whether a file outside the core's sources is of a target: of its rooms, its tests or its environments."""
    path, top = ROOT / name, name.partition("/")[0]
    if top.startswith("constraints"):
        return name in constraints
    if top in PAGES:
        return target == "test-docs" and not name.startswith("proof/targets.json")
    room_target = target.removeprefix("test-")
    rooms = () if target in CORE else wall.TARGETS.get(room_target)
    if rooms is None:
        return True  # a target of a mark, whose tests are of all rooms
    if top in wall.FOLDERS:
        return wall.outside_room(wall.module_name(path)) in rooms
    if top == "tests" and path.name.startswith("test_"):
        return name in wall.tests_of(room_target if rooms else "core")
    return top == "tests"


def fingerprints(target: str, root: Path = ROOT) -> dict[str, str]:
    """Return hashes of the names and contents of files, committed or not: of the core's, and of a target's own."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *SOURCES, *PAGES]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode().split("\0")
    makefile = root / "Makefile"
    constraints = environments(target, makefile.read_text(encoding="utf-8") if makefile.exists() else "")
    digests = {"core": hashlib.sha256(), "own": hashlib.sha256()}
    for name in sorted(set(listed) - {""}):
        path = root / name
        if not path.is_file():  # a deleted file is listed until its deletion is committed
            continue
        which = "core" if is_in_core(name) else "own" if is_of(name, target, constraints) else None
        if which is not None:
            digests[which].update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return {which: digest.hexdigest()[:16] for which, digest in digests.items()}


def count(folder: Path) -> dict[str, int]:
    """Return how many tests pytest ran and skipped, over all reports of a folder.

    Raises:
        ValueError: A report has a failure or an error: the target did not end well.
    """
    suites = [suite for path in sorted(folder.glob("*.xml")) for suite in ElementTree.parse(path).iter("testsuite")]
    if failed := sum(int(suite.get(name, 0)) for suite in suites for name in ("failures", "errors")):
        raise ValueError(f"{folder}: {failed} tests failed; only a target without a failure is recorded")
    return {name: sum(int(suite.get(name, 0)) for suite in suites) for name in COUNTS}


def entry_of(target: str) -> dict[str, Any]:
    """Return the entry of a target that has just ended well, from its reports."""
    folder = REPORTS / target
    hardware = describe_hardware()
    return {
        "sources": fingerprints(target),
        "commit": find_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{hardware['cpu']}, {hardware['cpus']} cores",
        "seconds": round(time.time() - (folder / "started").stat().st_mtime),
        **count(folder),
    }


def read() -> dict[str, dict[str, Any]]:
    """Return the record, by name of target."""
    record: dict[str, dict[str, Any]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return record


def age(entry: dict[str, Any], sources: dict[str, str], root: Path = ROOT) -> str:
    """Return in words how old an entry is: the same sources, or a number of commits."""
    if entry["sources"] == sources:
        return "the same sources and tests"
    commit = (entry["commit"] or "0" * 40).removesuffix("+")
    command = ["git", "rev-list", "--count", f"{commit}..HEAD"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return f"{done.stdout.strip()} commits old" if done.returncode == 0 else "of a commit that is not in this history"


def table(record: dict[str, dict[str, Any]]) -> str:
    """Return the record as text, a line for each target."""
    return "\n".join(
        f"{name:20} {entry['date']}  {entry['seconds']:5} s  {entry['tests']:6} tests, {entry['skipped']} skipped; "
        f"{age(entry, fingerprints(name))}; {entry['machine']}"
        for name, entry in sorted(record.items())
    )


def next_target(record: dict[str, dict[str, Any]], seconds: float, root: Path = ROOT) -> str | None:
    """Return the target to run in so many seconds; None: each entry holds, or the target would take longer."""
    due = []
    for name, entry in record.items():
        now = fingerprints(name, root)
        if name not in CORE and entry["sources"] != now and ALLOWANCE * entry["seconds"] <= seconds:
            due.append((entry["sources"]["own"] == now["own"], entry["date"], name))
    return min(due)[2] if due else None


def main() -> int:
    """Write an entry, print all, or name the next target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["print", "write", "next"], default="print")
    parser.add_argument("target", nargs="?", help="the target to write an entry of")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of `next`: how long it may take")
    given = parser.parse_args()
    if given.what == "print":
        print(table(read()))
    elif given.what == "next":
        target = next_target(read(), given.seconds)
        print(target or "")
        return int(target is None)
    elif given.target is None:
        parser.error("write: which target?")
    else:
        record = read() | {given.target: entry_of(given.target)}
        RECORD.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n")
        print(f"{given.target}: recorded in {RECORD.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
