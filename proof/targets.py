"""The record of whole targets of `make`: where and when each last ended without a failure.

    python -m proof.targets                 print the record, and how old each entry is
    python -m proof.targets write NAME      write an entry, at the end of a target (the Makefile does it)

CI runs all of lint and of the core's tests, and of each other target the tests marked `smoke`. The whole of a target is
run by hand (`make check`). It writes its entry when it ends without a failure, and CI prints the record.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
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
"""The files whose change makes an entry one of other sources."""
COUNTS = ("tests", "skipped")


def fingerprint(root: Path = ROOT) -> str:
    """Return a hash of the names and contents of all sources and tests, committed or not."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *SOURCES]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.split(b"\0")
    digest = hashlib.sha256()
    for name in sorted(set(listed) - {b""}):
        path = root / name.decode()
        if path.is_file():  # a deleted file is listed until its deletion is committed
            digest.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def count(folder: Path) -> dict[str, int]:
    """Return how many tests pytest ran and skipped, over all reports of a folder.

    Raises:
        ValueError: A report has a failure or an error: the target did not end well.
    """
    suites = [suite for path in sorted(folder.glob("*.xml")) for suite in ElementTree.parse(path).iter("testsuite")]
    if failed := sum(int(suite.get(name, 0)) for suite in suites for name in ("failures", "errors")):
        raise ValueError(f"{folder}: {failed} tests failed; only a target without a failure is recorded")
    return {name: sum(int(suite.get(name, 0)) for suite in suites) for name in COUNTS}


def entry_of(folder: Path) -> dict[str, Any]:
    """Return the entry of a target that has just ended well, from the folder of its reports."""
    hardware = describe_hardware()
    return {
        "sources": fingerprint(),
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


def age(entry: dict[str, Any], sources: str, root: Path = ROOT) -> str:
    """Return in words how old an entry is: the same sources, or a number of commits."""
    if entry["sources"] == sources:
        return "the same sources and tests"
    commit = (entry["commit"] or "0" * 40).removesuffix("+")
    command = ["git", "rev-list", "--count", f"{commit}..HEAD"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return f"{done.stdout.strip()} commits old" if done.returncode == 0 else "of a commit that is not in this history"


def table(record: dict[str, dict[str, Any]]) -> str:
    """Return the record as text, a line for each target."""
    sources = fingerprint()
    return "\n".join(
        f"{name:20} {entry['date']}  {entry['seconds']:5} s  {entry['tests']:6} tests, {entry['skipped']} skipped; "
        f"{age(entry, sources)}; {entry['machine']}"
        for name, entry in sorted(record.items())
    )


def main() -> None:
    """Write an entry, or print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["print", "write"], default="print")
    parser.add_argument("target", nargs="?", help="the target to write an entry of")
    given = parser.parse_args()
    if given.what == "print":
        print(table(read()))
        return
    if given.target is None:
        parser.error("write: which target?")
    record = read() | {given.target: entry_of(REPORTS / given.target)}
    RECORD.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n")
    print(f"{given.target}: recorded in {RECORD.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
