"""A run of many short episodes: collected, resumed, read, scored again, exported, reported; seconds and memory.

    python benchmarks/million.py [--check] [--out FILE] [--episodes N] [--folder DIR]

Scripted replies (the oracle) on `llm/Arithmetic-v0`. Every part is a process, whose highest resident set is given,
and is done with a tenth of the episodes too: memory must not grow with their number. The folder must have room: about
1 KB an episode for the run, and twice that for the exports, which are deleted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import Column, Figure, Report, finish, make_parser

TASK = "llm/Arithmetic-v0"
METHOD = (
    f"Episodes of one turn of `{TASK}`, played by the oracle. *Collect* plays 60% of them, *resume* the rest. *List* "
    "reads the keys of the finished ones, as a resumed run does. *Read* counts the successes, "
    "*score* gives them new rewards. Memory is the highest "
    "resident set of the process, in MiB; *growth* is against a tenth of the episodes. Held: 1.25 times."
)
COLUMNS = [
    Column("part", "part"),
    Column("episodes", "episodes", ",d"),
    Column("seconds", "seconds", ",.1f"),
    Column("per_s", "episodes/s", ",.0f"),
    Column("memory_mib", "memory, MiB", ",.0f"),
    Column("growth", "growth", ".2f"),
]
LIST = """
import sys
from llm_envs.data.writer import finished_keys
print(len(finished_keys(sys.argv[1])), "finished")
"""
READ = """
import sys
from llm_envs.rollout import iter_trajectories
n = sum(trajectory.is_success for trajectory in iter_trajectories(sys.argv[1]))
print(n, "right")
"""
SCORE = """
import sys
from itertools import islice
from llm_envs.rollout import iter_trajectories
from llm_envs.rewards import rescore

def brevity(trajectory):
    return float(-len(trajectory.messages[-1].content))

stored, total = iter_trajectories(sys.argv[1]), 0.0
while some := list(islice(stored, 1000)):
    total += sum(trajectory.reward for trajectory in rescore(some, brevity))
print(total)
"""
MAX_GROWTH = 1.25


def parts(run: Path, scratch: Path, n: int) -> dict[str, list[str]]:
    """Return the command of each part."""
    cli = [sys.executable, "-m", "llm_envs.cli"]
    collect = [*cli, "collect", TASK, "--policy", "oracle", "--out", str(run), "-n"]
    export = [*cli, "export", str(run)]
    return {
        "collect": [*collect, str(n * 6 // 10)],
        "resume": [*collect, str(n), "--resume"],
        "list": [sys.executable, "-c", LIST, str(run)],
        "read": [sys.executable, "-c", READ, str(run)],
        "score": [sys.executable, "-c", SCORE, str(run)],
        "export, messages": [*export, str(scratch / "messages.jsonl"), "--to", "messages"],
        "export, dataset": [*export, str(scratch / "dataset"), "--to", "dataset"],
        "report": [*cli, "report", str(run), "--out", str(scratch / "report.html")],
    }


def measure(command: list[str]) -> tuple[float, float]:
    """Return the seconds and the highest resident set of a process, in MiB."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def measure_all(folder: Path, n: int) -> dict[str, tuple[float, float]]:
    """Return the seconds and the memory of each part."""
    scratch = folder / f"scratch-{n}"
    scratch.mkdir()
    found = {}
    for name, command in parts(folder / f"run-{n}", scratch, n).items():
        found[name] = measure(command)
        print(f"{n:,} {name}: {found[name][0]:.1f} s, {found[name][1]:.0f} MiB", file=sys.stderr, flush=True)
    shutil.rmtree(scratch)
    return found


def main() -> int:
    """Run the benchmark."""
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the runs lie; default: a temporary folder")
    options = parser.parse_args()
    n = options.episodes
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        few, many = measure_all(Path(folder), n // 10), measure_all(Path(folder), n)
    rows: list[dict[str, Any]] = []
    for name, (seconds, memory) in many.items():
        n_done = {"collect": n * 6 // 10, "resume": n - n * 6 // 10}.get(name, n)
        rows.append({"part": name, "episodes": n_done, "seconds": seconds, "per_s": n_done / seconds})
        rows[-1] |= {"memory_mib": memory, "growth": memory / few[name][1]}
    most = max(row["growth"] for row in rows)
    figures = [Figure("memory over that of a tenth", most, "times", better="lower", at_most=MAX_GROWTH)]
    return finish(Report("million", "A million episodes", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
