"""Collections that are killed, for `test_writer_kills.py`: one process, which forks, so that each costs little.

    python killed_collection.py random FOLDER SEED KILLS     at random moments, through whole collections
    python killed_collection.py steps FOLDER SEED KILLS      before each of its steps on the file system, then a pair

It prints one JSON object of what happened. Every check is made in a fork too: a process that has used pyarrow's threads
is not one to fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pyarrow.parquet

from llm_envs.data.parquet import read_shard
from llm_envs.policies import OraclePolicy, with_latency
from llm_envs.rollout import Collector, TrajectoryWriter, collect_run, finished, read_run, read_trajectories
from llm_envs.testing import ByteCodec, NumbersEnv, with_failures
from llm_envs.types import Trajectory

pyarrow.array([{"a": [1]}])  # loads what pyarrow loads late, once for all forks

N_GROUPS, GROUP_SIZE = 150, 2


def collect(folder: Path) -> None:
    """Play a run, or what is missing of it. One turn in ten fails, and small logs are compacted as it goes on."""
    done = collect_run(
        NumbersEnv,
        with_failures(with_latency(OraclePolicy(), 0.004, jitter=0.5), 0.1),
        out=folder,
        n_groups=N_GROUPS,
        group_size=GROUP_SIZE,
        resume=True,
        codec=ByteCodec(),
        env_kwargs={"n_turns": 2},
        max_concurrency=8,
        max_retries=0,
        max_log_bytes=60_000,
    )
    assert done.n_episodes == N_GROUPS * GROUP_SIZE


def check(folder: Path) -> None:
    """Every episode is there once, with its own seed, and every shard can be read."""
    read = read_trajectories(folder)
    counts = Counter((t.group_id, t.member) for t in read)
    assert set(counts.values()) == {1}, counts.most_common(3)
    assert set(counts) == {(f"0-{index:06d}", member) for index in range(N_GROUPS) for member in range(GROUP_SIZE)}
    with Collector(NumbersEnv, OraclePolicy(), env_kwargs={"n_turns": 2}) as collector:
        seeds = {spec.group_id: spec.seed for spec in collector.source.take(N_GROUPS)}
    assert all(t.seed == seeds[t.group_id] for t in read)
    assert all((t.status == "errored") == (t.error is not None) for t in read)
    shards = sorted(folder.glob("shard-*.parquet"))
    assert shards and sum(1 for shard in shards for _ in read_shard(shard)) >= len(read)
    assert not list(folder.glob("*.tmp")) and not list(folder.glob("log-*"))


def fork(function: Callable[[], None], kill_after_s: float | None = None) -> int:
    """Run a function in a child; return how it ended as `os.waitpid` says it, in the form of `subprocess`."""
    pid = os.fork()
    if pid == 0:
        try:
            warnings.simplefilter("error")
            function()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def must(status: int, what: str) -> None:
    if status != 0:
        sys.exit(f"{what} ended with {status}")


def at_random_moments(folder: Path, random: Random, n_kills: int) -> dict[str, Any]:
    """Kill and resume until there were so many kills; a run that is complete is checked, and another one begun."""
    kills = runs = 0
    where: Counter[str] = Counter()
    started = time.perf_counter()
    must(fork(lambda: collect(folder / "whole")), "a collection")
    half_s = (time.perf_counter() - started) / 2  # of a collection, on this machine as busy as it is
    while kills < n_kills:
        run = folder / f"run-{runs}"
        status = fork(lambda run=run: collect(run), kill_after_s=random.uniform(0.0, half_s))
        if status == -signal.SIGKILL:
            kills += 1
            where[_state(run)] += 1
            if "log" not in _state(run):  # nothing to lose: the machine has become busier
                half_s *= 1.5
            continue
        must(status, "a collection")
        half_s *= 0.8  # it ended before its kill: the machine may have become quicker
        must(fork(lambda run=run: collect(run)), "another one of the same run")
        must(fork(lambda run=run: check(run)), "the check")
        runs += 1
    last = folder / f"run-{runs}"
    must(fork(lambda: collect(last)), "the last collection")
    must(fork(lambda: check(last)), "the last check")
    return {"kills": kills, "runs": runs + 1, "where": where}


def _state(run: Path) -> str:
    names = {entry.name.split("-")[0].split(".")[0] for entry in run.iterdir()} if run.exists() else set()
    return "+".join(sorted(names & {"manifest", "log", "shard"}))


def kill_before_step(n: int, folder: Path) -> list[str]:
    """Kill this process before the n-th thing that it does to a file of the folder; return the list of what it did."""
    done: list[str] = []
    steps = {"open", "os.rename", "os.remove", "os.mkdir", "os.truncate"}

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in steps and any(isinstance(a, str | os.PathLike) and str(folder) in str(a) for a in arguments):
            done.append(f"{event} {Path(str(arguments[0])).name}")
            if len(done) == n:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return done


def made(n: int) -> list[Trajectory]:
    with Collector(NumbersEnv, OraclePolicy(), codec=ByteCodec(), env_kwargs={"n_turns": 2}) as collector:
        (group,) = collector.collect(1)
    return [replace(group.trajectories[0], member=member) for member in range(n)]


def before_each_step(folder: Path, random: Random, n_pairs: int) -> dict[str, Any]:
    """Kill a writer before each of its steps; resume it, also with a second kill; nothing is lost or repeated."""
    trajectories = made(6)
    half = 4 * len(trajectories[0].to_json())

    def write(run: Path, log: Path, kill_at: int) -> None:
        done = kill_before_step(kill_at, run)
        with TrajectoryWriter(run, resume=True, max_log_bytes=half) as writer:
            there = finished(run)
            for trajectory in trajectories:
                if (trajectory.group_id, trajectory.member) not in there:
                    writer.write(trajectory)
                    with open(log, "a") as file:
                        file.write(f"{trajectory.member}\n")
            for thread in writer._threads:
                thread.join()
        if kill_at > 0:
            log.with_suffix(".steps").write_text(json.dumps(done))

    def whole(run: Path, log: Path) -> None:
        written = [int(line) for line in log.read_text().split()] if log.exists() else []
        read = [t.member for t in read_run(run).trajectories] if (run / "manifest.json").exists() else []
        assert sorted(read) == sorted(set(read)), read
        assert set(written) <= set(read), (written, read)  # whatever was written is there

    def complete(run: Path) -> None:
        assert sorted(read_trajectories(run), key=lambda t: t.member) == trajectories
        assert all(entry.suffix == ".parquet" for entry in run.iterdir() if entry.name[:4] not in ("mani", "writ"))

    def end(run: Path, log: Path) -> None:
        if run.exists():
            whole(run, log)
        write(run, log, 0)
        complete(run)

    def play(name: str, kills: list[int]) -> bool:
        """Say whether the first kill came before the writer had ended."""
        run, log = folder / name, folder / f"{name}.log"
        statuses = [fork(lambda kill_at=kill_at: write(run, log, kill_at)) for kill_at in kills]
        if any(status not in (0, -signal.SIGKILL) for status in statuses):
            sys.exit(f"{name}: the writers ended with {statuses}")
        must(fork(lambda: end(run, log)), f"{name}: what kills at {kills} left")
        return statuses[0] != 0

    n_steps = 0
    while play(f"step-{n_steps + 1}", [n_steps + 1]):
        n_steps += 1
    for pair in range(n_pairs):
        play(f"pair-{pair}", [random.randint(1, n_steps), random.randint(1, n_steps)])
    steps = json.loads((folder / f"step-{n_steps + 1}.steps").read_text())
    return {"n_steps": n_steps, "steps": steps}


def main() -> None:
    what, folder, seed, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    folder.mkdir(parents=True, exist_ok=True)
    play = {"random": at_random_moments, "steps": before_each_step}[what]
    print(json.dumps(play(folder, Random(seed), kills)))


if __name__ == "__main__":
    main()
