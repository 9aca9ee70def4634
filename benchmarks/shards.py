"""One process against shards side by side on this machine, and the time of the merge.

    python benchmarks/shards.py [--check] [--out FILE] [--rounds N] [--shards N] [--scale X]

Three works of three turns an episode: a tool of 50 ms with few and with many episodes at once, and steps that compute
for 20 ms. The shards together have as many episodes at once as the one process. Each shard is a process with a folder;
the time is that from a common start, with all modules loaded, until the last process has ended. Then `merge_runs` joins
the folders. The sides take turns; the gain is of one round, and the figure is their median. Episodes a second and the
gain include the merge.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401  # before the start, in every process; a writer loads it when it closes
from measuring import Column, Figure, Report, finish, make_parser
from ray_overhead import BusyEnv, at_once, waiting

from llm_envs.data.shards import Shard, merge_runs
from llm_envs.rollout.collect_run import collect_run
from llm_envs.testing import NumbersEnv

METHOD = (
    "Three turns an episode, scripted. *Tools*: turns that take 50 ms. *Processor*: steps that compute for 20 ms. The "
    "shards are processes side by side, and together have as many episodes at once as the one process. From a common "
    "start, modules loaded, to the end of the last process; then `merge_runs`, which *gain* and *episodes/s* include. "
    "Medians over the rounds. Held: 1.8 times for *processor*, with two shards on two processors."
)
COLUMNS = [
    Column("work", "work"),
    Column("at_once", "at once", ",d"),
    Column("side", "side"),
    Column("episodes", "episodes", ",d"),
    Column("seconds", "seconds", ".2f"),
    Column("merge_s", "merge, s", ".2f"),
    Column("per_s", "episodes/s", ",.0f"),
    Column("gain", "times as fast", ".2f"),
]


@dataclass(frozen=True)
class Work:
    """An environment, a policy, and how many episodes are played, how many of them at once."""

    name: str
    env: Callable[..., Any]
    player: Callable[[], Any]
    at_once: int
    episodes: int


WORKS = (
    Work("tools", NumbersEnv, waiting, 128, 3200),
    Work("tools", NumbersEnv, waiting, 2048, 8000),
    Work("processor", BusyEnv, at_once, 2, 128),
)


def play(start: Any, work: Work, n_groups: int, shard: Shard | None, out: Path, n_at_once: int) -> None:
    """Play a run or a shard, when all are ready."""
    policy, _ = work.player()
    start.wait()
    collect_run(
        work.env, policy, out=out, n_groups=n_groups, shard=shard, env_kwargs={"n_turns": 3}, max_concurrency=n_at_once
    )


def seconds(work: Work, n_groups: int, shards: list[Shard | None], out: Path) -> float:
    """Return the time that the processes take."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(len(shards) + 1)
    folders = [out if shard is None else shard.folder(out) for shard in shards]
    processes = [
        context.Process(target=play, args=(start, work, n_groups, shard, folder, work.at_once // len(shards)))
        for shard, folder in zip(shards, folders, strict=True)
    ]
    for process in processes:
        process.start()
    start.wait()
    started = time.perf_counter()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a process failed")
    return time.perf_counter() - started


def measure(work: Work, n_groups: int, n_shards: int, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of one process and of the shards."""
    alone, together, merges = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            alone.append(seconds(work, n_groups, [None], Path(folder) / "alone"))
            parts = Path(folder) / "parts"
            together.append(seconds(work, n_groups, [Shard(i, n_shards) for i in range(n_shards)], parts))
            started = time.perf_counter()
            n = merge_runs([parts], Path(folder) / "whole")
            merges.append(time.perf_counter() - started)
            assert n == n_groups
        print(f"{work.name}: {alone[-1]:.2f} s, {together[-1]:.2f} s, merge {merges[-1]:.2f} s", file=sys.stderr)
    shared = {"work": work.name, "at_once": work.at_once, "episodes": n_groups}
    one, parts_s, merge_s = map(statistics.median, (alone, together, merges))
    gain = statistics.median(a / (t + m) for a, t, m in zip(alone, together, merges, strict=True))
    return [
        shared | {"side": "one process", "seconds": one, "per_s": n_groups / one},
        shared
        | {"side": f"{n_shards} shards", "seconds": parts_s, "merge_s": merge_s}
        | {"per_s": n_groups / (parts_s + merge_s), "gain": gain},
    ]


def main() -> int:
    """Run the benchmark."""
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shards", type=int, default=os.cpu_count() or 2, help="default: one for each processor")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of episodes")
    options = parser.parse_args()
    rows, figures = [], []
    for work in WORKS:
        rows += measure(work, max(1, round(work.episodes * options.scale)), options.shards, options.rounds)
        held = {"at_least": 1.8} if work.name == "processor" and options.shards == 2 else {}
        name = f"{options.shards} shards over one process, {work.name}, {work.at_once} at once"
        figures.append(Figure(name, rows[-1]["gain"], "times its throughput", **held))
    return finish(Report("shards", "Shards", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
