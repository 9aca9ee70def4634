"""Several processes that work together: ranks of a training, Ray's actors, and model servers; any of them is killed.

python -m proof.chaos.clusters OUT     a start of a collection on Ray
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from llm_envs.processes import children_of
from llm_envs.rollout import EnvChoice, RolloutLimits, collect_run, read_trajectories
from llm_envs.testing import ByteCodec, HashingTokenPolicy
from proof.chaos.collection import GROUP_SIZE, N_GROUPS, play, same_episodes
from proof.chaos.faults import ChaosEnv, kill
from proof.chaos.rounds import Broken, Ended, Outcome, in_child

__all__ = ["ranks", "ray", "servers"]

ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 400.0
"""A start takes up to a minute where it loads torch or starts an engine, longer on a busy machine."""
_SERVED_GROUPS = 20


def run_program(command: Sequence[str], log: Path, actions: Sequence[Any] = (), **env: str) -> Ended:
    """Run a program of this interpreter as `in_child` runs a function."""
    variables = os.environ | env
    work = partial(os.execve, sys.executable, [sys.executable, *command], variables)
    return in_child(work, log, limit_s=_LIMIT_S, actions=actions)


def kill_one(random: Random, named: str, outcome: Outcome) -> Callable[[int], None]:
    """Return an action that kills a random descendant whose command line has a text, if there is one."""

    def act(pid: int) -> None:
        found = [child for child in children_of(pid) if named in _command_line(child)]
        if found:
            with suppress(ProcessLookupError):
                kill(random.choice(found))
                outcome.add("kills")

    return act


def after_first_episodes(run: Path, act: Callable[[int], None]) -> Callable[[int], None]:
    """Return an action that waits for the first stored episodes, or the end of the process, before it acts."""

    def wait(pid: int) -> None:
        until_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < until_s and Path(f"/proc/{pid}/exe").exists():
            if any(path.stat().st_size for path in run.glob("log-*.jsonl")):
                return act(pid)
            time.sleep(0.01)
        return None

    return wait


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def ranks(seed: int, folder: Path) -> Outcome:
    """A training by GRPO or PPO on two ranks, of which one is killed, or their launcher, twice."""
    from proof.chaos.training import make_model, same_training

    random, outcome = Random(seed), Outcome()
    kind = random.choice(["grpo", "ppo"])
    in_child(partial(make_model, folder / "model"), folder / "log", limit_s=_LIMIT_S)
    config = ROOT / "examples" / "accelerate" / "multi_cpu.yaml"
    launcher = ["-m", "accelerate.commands.launch", "--config-file", str(config), "--num-processes", "2"]

    def run(out: Path, actions: Sequence[Any] = ()) -> Ended:
        program = ["-m", "proof.chaos.training", kind, str(folder / "model"), str(out)]
        ended = run_program([*launcher, *program], folder / "log", actions)
        outcome.add(ended.how)
        if ended.how == "hung" or (ended.how != "done" and not actions):
            outcome.problems.append(f"{kind}, {outcome.faults[-1:]}: {ended.how}: {ended.message[-2500:]}")
        return ended

    usual_s = run(folder / "whole").seconds
    for _ in range(2):
        outcome.faults.append(random.choice(["kill of a rank", "kill of a rank", "kill of the launcher"]))
        act = kill if outcome.faults[-1].endswith("launcher") else kill_one(random, "proof.chaos.training", outcome)
        run(folder / "run", [(random.uniform(0.5, 1.0) * usual_s, act)])
    if run(folder / "run").how == "done":
        ended = in_child(partial(same_training, folder / "run", folder / "whole"), folder / "log", limit_s=_LIMIT_S)
        if ended.how != "done":
            outcome.problems.append(f"{kind}: not as the undisturbed training: {ended.message[-2500:]}")
    return outcome


def _player() -> Any:
    return HashingTokenPolicy(ByteCodec(), [str(digit) for digit in range(10)], latency_s=0.05), ByteCodec()


def collect_on_ray(out: Path) -> None:
    """Play a run of `collection.play` on a cluster of this machine, or what is missing of it."""
    from llm_envs.rollout.ray_collector import RayCollector

    collect_run(
        EnvChoice("chaos", factory=ChaosEnv),
        _player,
        out=out,
        n_groups=N_GROUPS,
        group_size=GROUP_SIZE,
        resume=True,
        limits=RolloutLimits(max_step_s=5.0),
        max_concurrency=4,
        max_log_bytes=20_000,
        settings={"policy": "HashingTokenPolicy"},
        make_collector=partial(RayCollector, n_actors=2),
    )


def ray(seed: int, folder: Path) -> Outcome:
    """A collection on Ray, with kills of actors and of the driver.

    Ray's own agents are spared: without them the only node dies, and a run without any node waits for another one.
    """
    random, outcome = Random(seed), Outcome()
    in_child(partial(play, folder / "whole", 0, must_finish=True), folder / "log", limit_s=_LIMIT_S)
    for fault in random.choices(["kills of actors", "kill of the driver"], k=2):
        outcome.faults.append(fault)
        act = kill if fault == "kill of the driver" else kill_one(random, "ray::_Actor", outcome)
        delayed = after_first_episodes(folder / "run", lambda pid, act=act: (time.sleep(random.random()), act(pid))[1])
        actions = [(0.0, delayed)] if act is kill else [(0.0, delayed), (1.0, act)]
        ended = run_program(["-m", "proof.chaos.clusters", str(folder / "run")], folder / "log", actions)
        outcome.add(ended.how)
        if ended.how not in (("killed", "done") if act is kill else ("done",)):
            outcome.problems.append(f"{fault}: {ended.how}: {ended.message[-2500:]}")
    ended = run_program(["-m", "proof.chaos.clusters", str(folder / "run")], folder / "log")
    if ended.how == "done":
        ended = in_child(partial(same_episodes, folder / "run", folder / "whole"), folder / "log", limit_s=_LIMIT_S)
    if ended.how != "done":
        outcome.problems.append(f"not as the undisturbed run: {ended.how}: {ended.message[-2500:]}")
    outcome.add("episodes", N_GROUPS * GROUP_SIZE)
    return outcome


def servers(seed: int, folder: Path) -> Outcome:
    """A collection on two `vllm serve` processes that it starts; a server is killed, then the collection."""
    from proof.chaos.training import make_model

    random, outcome = Random(seed), Outcome()
    in_child(partial(make_model, folder / "model", 1024), folder / "log", limit_s=_LIMIT_S)
    run = folder / "run"
    command = ["-m", "llm_envs.cli", "collect", "llm/GuessNumber-v0", "-n", str(_SERVED_GROUPS), "--group-size", "2"]
    command += ["--model", str(folder / "model"), "--serve", "2", "--max-turn-tokens", "16", "--max-concurrency", "4"]
    command += ["--server-args", "--max-model-len 1024", "--out", str(run), "--resume"]

    def begin(*actions: Any) -> Ended:
        ended = run_program(command, folder / "log", actions, VLLM_CPU_KVCACHE_SPACE="1")
        outcome.add(ended.how)
        return ended

    outcome.faults += ["kill of a server", "kill of the collection"]
    kill_server = kill_one(random, "vllm", outcome)
    for act in random.sample([kill_server, kill], 2):
        ended = begin((0.0, after_first_episodes(run, act)))
        if ended.how not in (("done", "killed") if act is kill else ("done",)):
            outcome.problems.append(f"{ended.how}: {ended.message[-2500:]}")
    if (ended := begin()).how != "done":
        outcome.problems.append(f"the run cannot be completed: {ended.how}: {ended.message[-2500:]}")
    ended = in_child(partial(each_once, run, _SERVED_GROUPS, 2), folder / "log", limit_s=_LIMIT_S)
    if ended.how != "done":
        outcome.problems.append(f"the episodes: {ended.message[-1000:]}")
    outcome.add("episodes", 2 * _SERVED_GROUPS)
    return outcome


def each_once(run: Path, n_groups: int, group_size: int) -> None:
    """Check that a run has each of its episodes once, without an error.

    Raises:
        Broken: If not.
    """
    read = read_trajectories(run)
    keys = sorted((t.group_id, t.member) for t in read)
    if keys != sorted((f"0-{index:06d}", member) for index in range(n_groups) for member in range(group_size)):
        raise Broken(f"{len(keys)} episodes, {len(set(keys))} of them different")
    if errors := [t.error for t in read if t.error is not None]:
        raise Broken(f"{len(errors)} failed, the first with {errors[0]}")


if __name__ == "__main__":
    collect_on_ray(Path(sys.argv[1]))
