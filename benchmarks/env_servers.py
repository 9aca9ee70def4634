"""A step of an environment in this process, in a worker process, and at an environment server on this machine.

    python benchmarks/env_servers.py [--check] [--out FILE] [--steps N] [--rounds N]

Two steps: one that answers at once, which shows what the way costs, and one that computes for 20 ms. *Latency*: one
environment, step after step. *Steps/s*: eight environments at once, with a process for each in a worker pool and at the
server, which `llm-envs serve-envs` runs. The three places take turns. A network adds its own round trip.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from measuring import Column, Figure, Report, finish, make_parser
from ray_overhead import BusyEnv

from llm_envs.rollout.workers.pool import WorkerPool
from llm_envs.rollout.workers.remote import TOKEN_VARIABLE, EnvServers
from llm_envs.rollout.workers.runner import EnvRunner, Runner
from llm_envs.testing import NumbersEnv

AT_ONCE = 8
PLACES = ("this process", "worker process", "server, loopback")
METHOD = (
    "A step that answers at once, and one that computes for 20 ms. *Latency*: one environment, step after step. "
    f"*Steps/s*: {AT_ONCE} environments at once, each worker with its process. The server is `llm-envs serve-envs` on "
    "this machine; a network adds its round trip. Medians over the rounds, in which the places take turns."
)
COLUMNS = [
    Column("step", "step"),
    Column("place", "environment in"),
    Column("latency_us", "median latency, µs", ",.0f"),
    Column("late_us", "99th percentile, µs", ",.0f"),
    Column("steps_per_s", "steps/s", ",.0f"),
]
MakeRunner = Callable[[Callable[[], Any]], Runner]


async def latencies(make: MakeRunner, env: Callable[[], Any], n_steps: int) -> list[float]:
    """Return the seconds of each step of one environment, after some that do not count."""
    runner, times = make(env), []
    await runner.open()
    await runner.reset(0, None)
    for _ in range(n_steps + n_steps // 10):
        started = time.perf_counter()
        await runner.step("1")
        times.append(time.perf_counter() - started)
    runner.close()
    return times[n_steps // 10 :]


async def rate(make: MakeRunner, env: Callable[[], Any], n_steps: int) -> float:
    """Return the steps a second of several environments at once, so many of each."""
    runners = [make(env) for _ in range(AT_ONCE)]
    await asyncio.gather(*(runner.open() for runner in runners))
    await asyncio.gather(*(runner.reset(0, None) for runner in runners))

    async def play(runner: Runner) -> None:
        for _ in range(n_steps):
            await runner.step("1")

    started = time.perf_counter()
    await asyncio.gather(*map(play, runners))
    seconds = time.perf_counter() - started
    for runner in runners:
        runner.close()
    return AT_ONCE * n_steps / seconds


def measure(places: dict[str, MakeRunner], n_steps: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each step and place."""
    rows = []
    for step, kind, n in (("at once", NumbersEnv, n_steps), ("20 ms", BusyEnv, max(10, n_steps // 40))):
        env = partial(kind, n_turns=2 * n)
        steps: dict[str, list[float]] = {place: [] for place in places}
        rates: dict[str, list[float]] = {place: [] for place in places}
        for _ in range(rounds):
            for place, make in places.items():
                steps[place] += asyncio.run(latencies(make, env, n))
                rates[place].append(asyncio.run(rate(make, env, max(5, n // 4))))
        for place in places:
            late = statistics.quantiles(steps[place], n=100)[98]
            rows.append({"step": step, "place": place, "latency_us": 1e6 * statistics.median(steps[place])})
            rows[-1] |= {"late_us": 1e6 * late, "steps_per_s": statistics.median(rates[place])}
    return rows


def measure_all(n_steps: int, rounds: int) -> list[dict[str, Any]]:
    """Start a server and a pool, and measure the three places."""
    os.environ[TOKEN_VARIABLE] = secrets.token_hex(16)
    known = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}  # where the server finds `BusyEnv`
    command = [sys.executable, "-m", "llm_envs.cli", "serve-envs", "--port", "0", "--workers", str(AT_ONCE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=known) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split(" at ")[1].partition(";")[0]
            with WorkerPool(AT_ONCE) as pool, WorkerPool(0, EnvServers([address])) as remote:
                makers = (lambda env: EnvRunner(env, None)), *(partial(p.runner, limit_s=None) for p in (pool, remote))
                return measure(dict(zip(PLACES, makers, strict=True)), n_steps, rounds)
        finally:
            server.terminate()


def main() -> int:
    """Run the benchmark."""
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = measure_all(options.steps, options.rounds)
    figures = [
        Figure(f"a step that answers at once, {row['place']}", row["latency_us"], "µs", "lower")
        for row in rows
        if row["step"] == "at once"
    ]
    return finish(Report("env_servers", "Environment servers", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
