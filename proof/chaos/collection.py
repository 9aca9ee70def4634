"""Collections of episodes under faults, inline and with environments in worker processes.

A round plays an undisturbed run, then the same run in several starts. Each start but the last meets a fault drawn from
the seed. In the end the disturbed run must have exactly the episodes of the undisturbed one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from llm_envs.data.folder import MANIFEST_NAME
from llm_envs.data.lock import LOCK_NAME
from llm_envs.rollout import EnvChoice, RolloutLimits, collect_run, read_trajectories
from llm_envs.testing import ByteCodec, HashingTokenPolicy
from llm_envs.types import Trajectory
from proof.chaos.faults import (
    DEED_VARIABLE,
    DEEDS,
    ChaosEnv,
    Disk,
    damage,
    jump_clocks,
    kill,
    kill_a_child,
)
from proof.chaos.rounds import Action, Broken, Ended, Outcome, in_child

__all__ = ["collection", "same_episodes", "workers"]

N_GROUPS, GROUP_SIZE = 40, 2
START_LIMIT_S = 90.0
"""A start takes about a second; after this time it has hung."""
_MAX_STARTS = 6
"""Starts without faults until a run must be complete. Episodes that failed are played again by the next start."""


@dataclass
class Run:
    """A run under faults."""

    folder: Path
    log: Path
    """What a start prints; not on the disk that may be full."""
    random: Random
    disk: Disk
    n_workers: int
    outcome: Outcome
    usual_s: float = 1.0
    """Seconds that an undisturbed start takes."""

    def start(
        self,
        before: Callable[[], object] | None = None,
        actions: Sequence[Action] = (),
        allowed: Sequence[str] = ("done",),
        words: Sequence[str] = (),
    ) -> Ended:
        """Start or resume the run in a child; note what is not as it must be.

        Args:
            before: Called in the child first.
            actions: See `in_child`.
            allowed: How the child may end.
            words: If the run is refused, the error must have one of these.
        """

        def work() -> None:
            if before is not None:
                before()
            play(self.folder, self.n_workers)

        ended = in_child(work, self.log, limit_s=START_LIMIT_S, actions=actions)
        fault = self.outcome.faults[-1] if self.outcome.faults else "no fault"
        if ended.how not in allowed:
            self.outcome.problems.append(f"{fault}: the start {ended.how}: {ended.message[-1500:]}")
        elif ended.how == "refused" and not any(word in ended.message for word in words):
            self.outcome.problems.append(f"{fault}: the error has none of {list(words)}: {ended.message[-600:]}")
        self.outcome.add(ended.how)
        return ended


def play(folder: Path, n_workers: int, *, must_finish: bool = False) -> None:
    """Play a run, or what is missing of it, with small logs so that shards are written meanwhile."""
    done = collect_run(
        EnvChoice("chaos", factory=ChaosEnv),
        HashingTokenPolicy(ByteCodec(), [str(digit) for digit in range(10)], latency_s=0.01),
        out=folder,
        n_groups=N_GROUPS,
        group_size=GROUP_SIZE,
        resume=True,
        codec=ByteCodec(),
        limits=RolloutLimits(max_step_s=5.0),
        max_concurrency=8,
        max_retries=0,
        max_log_bytes=20_000,
        workers=n_workers,
    )
    if must_finish and done.n_finished != done.n_episodes:
        raise Broken(f"{done.n_failed} episodes failed: {done.first_error}")


def plain_text(trajectory: Trajectory) -> str:
    """Return what must not change, whatever happened meanwhile: all but times and the number of tries."""
    metadata = {name: value for name, value in trajectory.metadata.items() if name != "retries"}
    return replace(trajectory, metadata=metadata).to_json(timings=False)


def same_episodes(folder: Path, whole: Path) -> None:
    """Check that a run has the episodes of another, each once and with the same content.

    Raises:
        Broken: If not.
    """
    read = read_trajectories(folder)
    there = Counter((t.group_id, t.member) for t in read)
    if doubled := [key for key, n in there.items() if n > 1]:
        raise Broken(f"doubled: {doubled[:5]}")
    texts, expected = ({(t.group_id, t.member): plain_text(t) for t in ts} for ts in (read, read_trajectories(whole)))
    if missing := sorted(expected.keys() - texts.keys()):
        raise Broken(f"lost: {missing[:5]} of {len(expected)}")
    if others := sorted(texts.keys() - expected.keys()):
        raise Broken(f"nobody asked for: {others[:5]}")
    if changed := [key for key, text in texts.items() if text != expected[key]]:
        raise Broken(f"changed: {texts[changed[0]][:1000]}, undisturbed: {expected[changed[0]][:1000]}")
    if left := [path.name for path in folder.glob("*.tmp")]:
        raise Broken(f"left behind: {left}")


# The faults: each takes a run, and lets it meet one.


def killed(run: Run) -> None:
    """A kill of the collecting process at a random moment."""
    at_s = run.random.uniform(0.0, run.usual_s)
    run.start(actions=[(at_s, kill)], allowed=("killed", "done"))


def killed_workers(run: Run) -> None:
    """Kills of worker processes at random moments.

    If two come in a row while the collector checks that the environment can be made, it is refused: it may be the one
    that kills its process.
    """
    moments = sorted(run.random.uniform(0.0, run.usual_s) for _ in range(3))
    actions = [(at_s, kill_a_child(run.random)) for at_s in moments]
    run.start(actions=actions, allowed=("done", "refused"), words=("killed by SIGKILL",))


def full_disk(run: Run) -> None:
    """A disk with a little room, at first or later."""
    room = run.random.choice([1, 4_096, 20_000, 60_000, 150_000])
    run.start(
        partial(run.disk.limit, room), allowed=("done", "refused"), words=("No space left on device", "File too large")
    )
    run.disk.limit(None)


def clock(run: Run) -> None:
    """Clocks that jump; perhaps a step then seems to have taken too long, and its episode is played again."""
    run.start(partial(jump_clocks, Random(run.random.random())))


def second_writer(run: Run) -> None:
    """A second process that writes to the same folder while the first one does."""

    def begin(pid: int) -> None:
        if not (run.folder / LOCK_NAME).exists():
            return
        log = run.log.with_name("second.log")
        ended = in_child(partial(play, run.folder, 0), log, limit_s=START_LIMIT_S)
        if not (ended.how == "done" or (ended.how == "refused" and "is being written by process" in ended.message)):
            run.outcome.problems.append(f"a second writer {ended.how}: {ended.message[-600:]}")

    run.start(
        actions=[(run.random.uniform(0.1, 0.9) * run.usual_s, begin)],
        allowed=("done", "refused"),
        words=("is being written by process",),
    )


def torn_log(run: Run) -> None:
    """A kill, and a last log that has lost its end, as after a power cut: cut off, zeros, or half a line."""
    killed(run)
    logs = sorted(path for path in run.folder.glob("log-*.jsonl") if path.stat().st_size)
    if logs:
        kind = run.random.choice(["cut", "zeros at the end", "half a line"])
        if kind == "cut":
            damage(logs[-1], run.random, ("cut",))
        else:
            with open(logs[-1], "ab") as file:
                file.write(bytes(run.random.randint(1, 5_000)) if kind == "zeros at the end" else b'{"group_id": "0-')
    run.start()


def damaged_shard(run: Run) -> None:
    """A last shard that is damaged. As the error says, it is removed from the run, whose episodes are played again."""
    run.start()
    shards = sorted(run.folder.glob("shard-*.parquet"))
    if not shards:
        return
    damage(shards[-1], run.random)
    ended = run.start(allowed=("done", "refused"), words=[str(shards[-1])])
    if ended.how == "refused":
        if f'remove "{shards[-1].name}"' not in ended.message:
            run.outcome.problems.append(f"a damaged shard: the error does not say what to do: {ended.message[-600:]}")
        drop_shard(shards[-1])
        run.outcome.add("shards dropped")


def drop_shard(shard: Path) -> None:
    """Do what the error about a damaged shard says."""
    manifest = shard.with_name(MANIFEST_NAME)
    data = json.loads(manifest.read_text())
    del data["shards"][shard.name]
    manifest.write_text(json.dumps(data))
    shutil.rmtree(shard) if shard.is_dir() else shard.unlink()


def damaged_line(run: Run) -> None:
    """A line in the middle of a log that is no trajectory any more. As the error says, it is removed."""
    killed(run)
    logs = sorted(path for path in run.folder.glob("log-*.jsonl") if path.read_bytes().count(b"\n") > 1)
    if not logs:
        return
    lines = logs[-1].read_bytes().splitlines(keepends=True)
    place = run.random.randrange(len(lines) - 1)
    broken = bytes(run.random.randrange(32, 127) for _ in range(50)) + b"\n"
    logs[-1].write_bytes(b"".join([*lines[:place], broken, *lines[place + 1 :]]))
    ended = run.start(allowed=("refused",), words=[f"{logs[-1]}, line {place + 1}"])
    if "Remove the line" not in ended.message:
        run.outcome.problems.append(f"a damaged line: the error does not say what to do: {ended.message[-600:]}")
    logs[-1].write_bytes(b"".join([*lines[:place], *lines[place + 1 :]]))


def unreadable_file(run: Run) -> None:
    """A file of the run that cannot be read, and is put back later."""
    killed(run)
    files = sorted(path for path in run.folder.glob("*") if path.is_file()) if run.folder.exists() else []
    if not files:
        return
    path = run.random.choice(files)
    kept = path.read_bytes()
    damage(path, run.random, ("a folder", "a dangling link"))
    run.start(allowed=("done", "refused"), words=[str(path)])
    if path.is_symlink() or path.is_dir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if path.name != LOCK_NAME and not path.name.endswith(".tmp"):
            path.write_bytes(kept)


def misbehaving(run: Run) -> None:
    """Environments that hang, die, are killed, leak until there is no memory left, or raise."""
    deed = run.random.choice([name for name in DEEDS if run.n_workers or name in ("hang", "raise")])
    run.outcome.faults[-1] = f"environments that {deed}"
    run.start(partial(os.environ.__setitem__, DEED_VARIABLE, deed))


FAULTS: dict[str, Callable[[Run], None]] = {
    "kill": killed,
    "full disk": full_disk,
    "clocks jump": clock,
    "second writer": second_writer,
    "torn log": torn_log,
    "damaged shard": damaged_shard,
    "damaged line": damaged_line,
    "unreadable file": unreadable_file,
    "environments": misbehaving,
}
WORKER_FAULTS = FAULTS | {"killed workers": killed_workers}


def collection(seed: int, folder: Path) -> Outcome:
    """A collection in one process, and 4 to 7 faults."""
    return _play_round(seed, folder, FAULTS, 0)


def workers(seed: int, folder: Path) -> Outcome:
    """A collection whose environments are in two worker processes."""
    return _play_round(seed, folder, WORKER_FAULTS, 2)


def _play_round(seed: int, folder: Path, faults: dict[str, Callable[[Run], None]], n_workers: int) -> Outcome:
    random, outcome = Random(seed), Outcome()
    disk = Disk(folder / "disk")
    whole = Run(folder / "whole", folder / "start.log", random, disk, 0, outcome)
    run = Run(disk.folder / "run", folder / "start.log", random, disk, n_workers, outcome)
    run.usual_s = whole.start().seconds * (1.5 if n_workers else 1.0)
    _complete(whole)
    for name in random.choices(list(faults), k=random.randint(4, 7)):
        outcome.faults.append(name)
        faults[name](run)
    outcome.faults.append("none")
    _complete(run)
    outcome.faults.pop()
    ended = in_child(partial(same_episodes, run.folder, whole.folder), folder / "check.log", limit_s=START_LIMIT_S)
    if ended.how != "done":
        outcome.problems.append(f"the episodes differ from those of the undisturbed run: {ended.message}")
    outcome.counts |= {"episodes": N_GROUPS * GROUP_SIZE, "tmpfs": int(disk.is_mounted)}
    return outcome


def _complete(run: Run) -> None:
    """Resume a run until nothing is missing."""
    for _ in range(_MAX_STARTS):
        ended = in_child(partial(play, run.folder, run.n_workers, must_finish=True), run.log, limit_s=START_LIMIT_S)
        if ended.how == "done":
            return
        if not (ended.how == "refused" and ended.message.startswith(Broken.__name__)):
            break
    run.outcome.problems.append(f"the run cannot be completed ({ended.how}): {ended.message[-1500:]}")
