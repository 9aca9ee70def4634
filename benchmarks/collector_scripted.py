"""The collector's own cost: a scripted policy of 50 ms latency, 32 episodes at once, against the ideal.

    python benchmarks/collector_scripted.py [--check] [--out FILE] [--episodes N]

A single-turn task with an oracle that waits: N episodes cannot take less than ceil(N / concurrency) × latency. The
ideal at the default setting is 640 episodes/s. Each row is the best of a few rounds, the checked one of up to twelve
until the target is held: the clock is the wall's, and what else the machine does only slows a round down. (asyncio's
own timers, rounded up to a millisecond, cost about 1% of the ideal; they are in the numbers.) With a codec, token rows
are written as well; with a writer, every trajectory goes to disk. A last row without latency says what an episode costs
in CPU time. With `--check` the exit code is 1 if the default row is below 0.95 of the ideal.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from llm_envs.policies.scripted import OraclePolicy, with_latency
from llm_envs.rollout import Collector, TrajectoryWriter
from llm_envs.testing import ByteCodec

ENV_ID = "llm/Arithmetic-v0"
LATENCY_S = 0.05
CONCURRENCY = 32
TARGET = 0.95
ROUNDS = 3
MOST_ROUNDS = 12
"""Of the row that is checked: a machine that does other work meanwhile has a quiet moment sooner or later."""


def measure(
    n_episodes: int, *, concurrency: int = CONCURRENCY, tokens: bool = False, stored: bool = False, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Collect `n_episodes` with latency, and return rates and the share of the ideal."""
    ideal_s = math.ceil(n_episodes / concurrency) * LATENCY_S
    seconds = math.inf
    for index in range(rounds):
        seconds = min(seconds, _collect(n_episodes, LATENCY_S, concurrency, tokens, stored))
        if index + 1 >= ROUNDS and ideal_s / seconds >= TARGET:
            break
    return {
        "setting": f"{concurrency} at once" + ", tokens" * tokens + ", stored" * stored,
        "episodes": n_episodes,
        "seconds": round(seconds, 3),
        "episodes_per_s": round(n_episodes / seconds, 1),
        "ideal_per_s": round(n_episodes / ideal_s, 1),
        "share_of_ideal": round(ideal_s / seconds, 4),
    }


def measure_cost(n_episodes: int) -> dict[str, Any]:
    """Collect without latency; return the CPU time of an episode."""

    def once() -> float:
        started = time.process_time()
        _collect(n_episodes, 0.0, CONCURRENCY, True, False)
        return time.process_time() - started

    seconds = min(once() for _ in range(ROUNDS))
    return {
        "setting": "no latency, tokens",
        "episodes": n_episodes,
        "cpu_us_per_episode": round(1e6 * seconds / n_episodes, 1),
    }


def _collect(n_episodes: int, latency_s: float, concurrency: int, tokens: bool, stored: bool) -> float:
    policy = with_latency(OraclePolicy(), latency_s) if latency_s else OraclePolicy()
    with tempfile.TemporaryDirectory() as folder, TrajectoryWriter(Path(folder) / "run") as writer:
        with Collector(
            ENV_ID,
            policy,
            codec=ByteCodec() if tokens else None,
            max_concurrency=concurrency,
            progress=False,
            on_trajectory=writer.write if stored else None,
        ) as collector:
            started = time.perf_counter()
            collector.collect(n_episodes)
            seconds = time.perf_counter() - started
        stats = collector.stats
        if stats.successes != n_episodes:
            raise SystemExit(f"the oracle should always succeed: {stats.summary()}")
    return seconds


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'setting':28} {'episodes/s':>11} {'ideal':>8} {'share':>7}")
    for row in rows:
        if "cpu_us_per_episode" in row:
            print(f"{row['setting']:28} {row['cpu_us_per_episode']:>8} µs of CPU time an episode")
        else:
            rates = f"{row['episodes_per_s']:>11} {row['ideal_per_s']:>8} {row['share_of_ideal']:>7.3f}"
            print(f"{row['setting']:28} {rates}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help=f"fail below {TARGET} of the ideal")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/collector_scripted.json"))
    parser.add_argument("--episodes", type=int, default=1600)
    arguments = parser.parse_args()
    n = arguments.episodes
    rows = [
        measure(n, rounds=MOST_ROUNDS),
        measure(n, tokens=True, stored=True),
        measure(n // 4, concurrency=8),
        measure(4 * n, concurrency=256),
        measure_cost(n),
    ]
    print_table(rows)
    versions = {"python": platform.python_version(), "gymnasium": gym.__version__, "numpy": np.__version__}
    hardware = {"machine": platform.platform(), "cpus": os.cpu_count()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"hardware": hardware, "versions": versions, "rows": rows}, indent=2) + "\n")
    print(f"written to {arguments.out}")
    share = rows[0]["share_of_ideal"]
    if arguments.check and share < TARGET:
        print(f"MISSED: {share:.3f} of the ideal, {TARGET} wanted", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
