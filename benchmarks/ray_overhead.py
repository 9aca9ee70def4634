"""Ray actors against the plain collector, on one machine.

    python benchmarks/ray_overhead.py [--check] [--out FILE] [--rounds N]

Needs Ray (`make test-scale` installs it). "tools": a scripted policy calls a tool of 50 ms three times,
64 episodes at once, in one actor and without Ray. "processor": environments that compute for 20 ms in each of three
steps, in one actor and in two. The sides take turns; ratios are of one round, and the figure is their median.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from measuring import Column, Figure, Report, finish, make_parser

from llm_envs.policies import ConstantPolicy
from llm_envs.policies.scripted import with_latency
from llm_envs.rollout import Collector
from llm_envs.testing import NumbersEnv

METHOD = (
    "*Tools*: a scripted policy whose turns take 50 ms, three turns an episode, 64 episodes at once; one actor against "
    "the plain collector. *Processor*: three steps that compute for 20 ms; two actors against one. Whole calls of "
    "`collect`, actors running; medians over the rounds. Held: at most 1.05 times the plain collector's time, and at "
    "least 1.8 times one actor's throughput on two processors."
)
COLUMNS = [
    Column("work", "work"),
    Column("side", "side"),
    Column("episodes", "episodes"),
    Column("seconds", "seconds", ".2f"),
    Column("per_s", "episodes/s", ".0f"),
]
STEP_S, WAIT_S = 0.02, 0.05
N_WAITING, N_COMPUTING = 3200, 128


class BusyEnv(NumbersEnv):
    """Computes for `STEP_S` in each step."""

    def step(self, action: str) -> Any:
        """Compute, then step."""
        end = time.process_time() + STEP_S
        while time.process_time() < end:
            pass
        return super().step(action)


def waiting() -> Any:
    """Return a policy whose turns take 50 ms."""
    return with_latency(ConstantPolicy("1"), WAIT_S), None


def at_once() -> Any:
    """Return a policy that answers at once."""
    return ConstantPolicy("1"), None


def seconds(collector: Collector, n: int) -> float:
    """Return the time of a call."""
    started = time.perf_counter()
    collector.collect(n)
    return time.perf_counter() - started


def main() -> int:
    """Run the benchmark."""
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    import ray

    from llm_envs.rollout.ray_collector import RayCollector

    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    three: dict[str, Any] = {"env_kwargs": {"n_turns": 3}, "progress": False}
    free = {"num_cpus": 0.5}
    sides: dict[tuple[str, str], tuple[Collector, int]] = {
        ("tools", "plain"): (Collector(NumbersEnv, waiting()[0], max_concurrency=64, **three), N_WAITING),
        ("tools", "one actor"): (
            RayCollector(NumbersEnv, waiting, n_actors=1, actor_options=free, max_concurrency=64, **three),
            N_WAITING,
        ),
        ("processor", "one actor"): (
            RayCollector(BusyEnv, at_once, n_actors=1, actor_options=free, **three),
            N_COMPUTING,
        ),
        ("processor", "two actors"): (
            RayCollector(BusyEnv, at_once, n_actors=2, actor_options=free, **three),
            N_COMPUTING,
        ),
    }
    times: dict[tuple[str, str], list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, (collector, n) in sides.items():
            times[name].append(seconds(collector, n))
            print(f"{' '.join(name)}: {times[name][-1]:.2f} s", file=sys.stderr)
    for collector, _ in sides.values():
        collector.close()
    rows = [
        {"work": w, "side": s, "episodes": sides[w, s][1], "seconds": (t := statistics.median(times[w, s]))}
        | {"per_s": sides[w, s][1] / t}
        for w, s in sides
    ]

    def ratio(one: tuple[str, str], other: tuple[str, str]) -> float:
        return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))

    over = ratio(("tools", "one actor"), ("tools", "plain"))
    gain = ratio(("processor", "one actor"), ("processor", "two actors"))
    figures = [
        Figure("Ray over the plain collector, tools of 50 ms", over, "times its time", "lower", at_most=1.05),
        Figure("two actors over one, on two processors", gain, "times its throughput", at_least=1.8),
    ]
    return finish(Report("ray_overhead", "Ray", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
