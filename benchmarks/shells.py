"""Shells by runtime: start, a command, a snapshot, a return to it; 64 open together; and leftovers of many episodes.

    python benchmarks/shells.py [--check] [--out FILE] [--rounds N] [--together N] [--episodes N]
        [--container CLIENT IMAGE]

*Start*: with the first command. *Snapshot* and *restore*: of 100 files of 10 kB. *Together*: so many shells
are open, and each runs five commands. *Episodes*: start, three commands, one process left behind, close, by
eight threads; then processes, mounts, descriptors and temporary folders are compared with those before.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measuring import Column, Figure, Report, finish, make_parser

from llm_envs.errors import SandboxError
from llm_envs.processes import children_of
from llm_envs.shell import CLIENTS, RUNTIMES, ShellLimits, open_shell

METHOD = (
    "*Start*: with the first command. *Snapshot*, *restore*: of 100 files of 10 kB. *Open*: shells together, "
    "five commands each. *Episodes*: start, three commands, a detached process left behind, close, by eight threads; "
    "*left*: processes, mounts, descriptors, temporary folders more than before. Medians; other work ran meanwhile."
)
COLUMNS = [
    Column("runtime", "runtime"),
    Column("start_ms", "start, ms", ",.0f"),
    Column("command_ms", "command, ms", ",.1f"),
    Column("snapshot_ms", "snapshot, ms", ",.0f"),
    Column("restore_ms", "restore, ms", ",.0f"),
    Column("close_ms", "close, ms", ",.0f"),
    Column("together", "open", ",d"),
    Column("commands_per_s", "commands/s", ",.0f"),
    Column("episodes", "episodes", ",d"),
    Column("episodes_per_s", "episodes/s", ",.1f"),
    Column("left", "left", ",d"),
]
LIMITS = ShellLimits(timeout_s=120.0)
THREADS = 8


def steps(given: dict[str, Any], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each step of one shell."""
    times: dict[str, list[float]] = {}

    def timed(name: str, call: Any, *given: Any) -> Any:
        started = time.perf_counter()
        result = call(*given)
        times.setdefault(f"{name}_ms", []).append(1e3 * (time.perf_counter() - started))
        return result

    for _ in range(rounds):
        shell = open_shell(**given, limits=LIMITS)
        timed("start", shell.run, "true")
        for _ in range(10):
            timed("command", shell.run, "true")
        shell.run("for i in $(seq 100); do head -c 10000 /dev/zero > f$i; done")
        kept = timed("snapshot", shell.snapshot)
        timed("restore", shell.restore, kept)
        timed("close", shell.close)
    return {name: statistics.median(each) for name, each in times.items()}


def rate(given: dict[str, Any], n_shells: int) -> float:
    """Return the commands a second of many shells that are open together."""
    shells = [open_shell(**given, limits=LIMITS) for _ in range(n_shells)]
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda shell: shell.start(), shells))
            started = time.perf_counter()
            for number in range(5):
                said = list(pool.map(lambda shell: shell.run("i=$((i + 1)); echo $i").output, shells))
                assert said == [str(number + 1)] * n_shells
            return 5 * n_shells / (time.perf_counter() - started)
    finally:
        for shell in shells:
            shell.close()


def leftovers() -> int:
    """Return how many processes, mounts, descriptors and temporary folders of shells there are."""
    folders = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("shell-")]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    sleeping = [path for path in Path("/proc").glob("[0-9]*/cmdline") if "4321.5" in _text(path)]
    return len(children_of(os.getpid())) + len(mounts) + len(os.listdir("/proc/self/fd")) + len(folders) + len(sleeping)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def episodes(given: dict[str, Any], n: int) -> tuple[float, int]:
    """Play episodes; return how many a second, and how much more is there than before."""

    def play(number: int) -> None:
        shell = open_shell(**given, limits=LIMITS)
        try:
            assert (said := shell.run("ls -A").output) == "", said
            shell.run(f"echo {number} > f; setsid nohup sleep 4321.5 > /dev/null 2>&1 &")
            assert shell.run("cat f").output == str(number)
        finally:
            shell.close()

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(play, range(THREADS)))  # the threads exist before we count
        before, started = leftovers(), time.perf_counter()
        list(pool.map(play, range(n)))
        return n / (time.perf_counter() - started), leftovers() - before


def main() -> int:
    """Run the benchmark."""
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--together", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--container", nargs=2, metavar=("CLIENT", "IMAGE"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    places: list[dict[str, Any]] = [{"runtime": runtime} for runtime in RUNTIMES if runtime not in CLIENTS]
    if options.container:
        places.append(dict(zip(("runtime", "image"), options.container, strict=True)))
    for given in places:
        runtime = given["runtime"]
        try:
            row = {"runtime": runtime, **steps(given, options.rounds)}
        except SandboxError as error:
            print(f"{runtime}: {error}", file=sys.stderr)
            continue
        row |= {"together": options.together, "commands_per_s": rate(given, options.together)}
        n = options.episodes if runtime == "namespaces" else max(1, options.episodes // 10)
        per_s, left = episodes(given, n)
        rows.append(row | {"episodes": n, "episodes_per_s": per_s, "left": left})
    figures = [Figure(f"start of a shell, {row['runtime']}", row["start_ms"], "ms", "lower") for row in rows]
    for row in rows:
        name = f"left of {row['episodes']} shells, {row['runtime']}"
        figures.append(Figure(name, row["left"], "", "lower", at_most=0))
    return finish(Report("shells", "Shells", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
