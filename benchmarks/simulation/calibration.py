"""The machine's rates, fitted to some measured rows, and predictions of the others.

Two engines were measured in the process that plays: one of 0.36 M and one of 32 M parameters; and a server beside a
trainer. The rates of each are fitted to the rows in `fitted` of its list; all other rows are predictions. Each side
(ours, TRL's) has one set of rates for all of its rows.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .parts import EngineRates
from .systems import PlayerRates, Schedule, System, Training, TrainingRates, collect, lock_step
from .work import Episodes, pages

BASELINES = Path(__file__).parents[1] / "baselines"
MAX_ROWS = 512
Values = dict[str, float]


@dataclass(frozen=True)
class Row:
    """A measured time, and how it is simulated."""

    name: str
    measured_s: float
    simulate: Callable[[Values], float] = field(compare=False)
    is_fitted: bool = False


def read_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a benchmark's baseline; none if it has not been run."""
    path = BASELINES / f"{name}.json"
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def fit(rows: Sequence[Row], first: Values, *, n_rounds: int = 15) -> Values:
    """Return positive values under which the rows' times are nearest to the measured ones, in logarithms.

    Levenberg and Marquardt's method, with differences of 5%: a simulation is no smooth function.

    Args:
        rows: At least as many as there are values.
        first: Where to begin, by name.
        n_rounds: Steps.
    """
    names = list(first)

    def residuals(x: Any) -> Any:
        values = dict(zip(names, np.exp(x).tolist(), strict=True))
        return np.array([math.log(row.simulate(values) / row.measured_s) for row in rows])

    x, damping = np.log(list(first.values())), 1e-2
    found = residuals(x)
    for _ in range(n_rounds):
        slopes = np.array([(residuals(x + step) - found) / 0.05 for step in 0.05 * np.eye(len(x))]).T
        normal = slopes.T @ slopes + damping * np.eye(len(x))
        tried = x + np.clip(np.linalg.solve(normal, -slopes.T @ found), -1.0, 1.0)
        there = residuals(tried)
        if (there**2).sum() < (found**2).sum():
            x, found, damping = tried, there, damping / 3
        else:
            damping *= 5
    return dict(zip(names, np.exp(x).tolist(), strict=True))


def engine_of(values: Values) -> EngineRates:
    """Return the rates of the engine in the process."""
    k = values.get("factor", 1.0)
    names = ("step_s", "row_s", "begin_s", "mixed_s")
    return EngineRates(**{name: k * values[name] for name in names}, max_rows=MAX_ROWS)


def ours(values: Values, episodes: Episodes, width: int) -> float:
    """Return the seconds of our collector with its engine in the process."""
    player = PlayerRates(turn_s=values["turn_s"], thread_s=values["thread_s"])
    return collect(System(engine_of(values), player, width=width, is_in_process=True), episodes).seconds


def trl(values: Values, episodes: Episodes) -> float:
    """Return the seconds of TRL's lock-step loop; each turn costs more, the longer its conversation is."""
    player = PlayerRates(turn_s=values["trl_turn_s"], token_s=values["trl_token_s"])
    return lock_step(System(engine_of(values), player, is_in_process=True), episodes).seconds


def engine_rows() -> list[Row]:
    """Return the rows of the engine of 0.36 M parameters: eight rates for eight fitted rows and 17 predicted."""
    rows = []
    for r in read_rows("concurrency"):
        if r["policy"] == "vllm":
            episodes, width = pages(r["episodes"], 3, 0.05), r["width"]
            name, is_fitted = f"continuous, 3 tools of 50 ms, {width} at once", width in (1, 8, 64, 256)
            seconds = r["episodes"] / r["episodes_per_s"]
            rows.append(Row(name, seconds, lambda v, e=episodes, w=width: ours(v, e, w), is_fitted))  # type: ignore[misc]
    for r in read_rows("rollout_vs_trl"):
        episodes, n = pages(r["rollouts"], r["turns"], r["latency_ms"] / 1e3), r["rollouts"]
        name = f"{r['turns']} tools of {r['latency_ms']} ms, {n} at once"
        is_fitted = (r["turns"], r["latency_ms"]) == (3, 0)
        rows.append(Row(f"continuous, {name}", r["ours_s"], lambda v, e=episodes, w=n: ours(v, e, w), is_fitted))  # type: ignore[misc]
        is_fitted = (r["turns"], r["latency_ms"]) in ((1, 0), (8, 0))
        rows.append(Row(f"lock-step, {name}", r["trl_s"], lambda v, e=episodes: trl(v, e), is_fitted))  # type: ignore[misc]
    return rows


FIRST = {
    "step_s": 3e-3,
    "row_s": 5e-5,
    "begin_s": 1e-3,
    "mixed_s": 2e-3,
    "turn_s": 2e-4,
    "thread_s": 5e-4,
    "trl_turn_s": 1e-4,
    "trl_token_s": 1e-7,
}
"""Where the fit of the engine in the process begins, in seconds."""


def larger_rows(values: Values) -> list[Row]:
    """Return the rows of the engine of 32 M parameters, which is slower by one fitted factor."""
    rows = []
    for r in read_rows("latency"):
        for key, tool_s in (("still_s", 0.0), ("waiting_s", 0.05)):
            episodes, n = pages(r["rollouts"], r["turns"], tool_s), r["rollouts"]
            name = f"continuous, 32 M parameters, 3 tools of {1e3 * tool_s:.0f} ms, {n} at once"
            rows.append(Row(name, r[key], lambda v, e=episodes, w=n: ours(values | v, e, w), not tool_s))  # type: ignore[misc]
    return rows


def scripted_rows() -> list[Row]:
    """Return the rows of the collector without an engine: what the process itself can do."""
    rows = []
    for r in read_rows("concurrency"):
        if r["policy"] == "scripted":
            episodes, width = pages(r["episodes"], 3, 0.05), r["width"]

            def simulate(v: Values, e: Episodes = episodes, w: int = width) -> float:
                instant = EngineRates(1e-6, 0.0, max_rows=MAX_ROWS)
                return collect(System(instant, PlayerRates(**v), width=w), e).seconds

            name = f"scripted, 3 tools of 50 ms, {width} at once"
            rows.append(Row(name, r["episodes"] / r["episodes_per_s"], simulate, width in (32, 64, 256)))
    return rows


def _overlapped(v: Values, r: dict[str, Any], rates: TrainingRates, player: PlayerRates) -> float:
    """Return the seconds of a step of `overlap.py`: a server beside a trainer, each with a core."""
    rates = replace(rates, shared=v["shared"])
    n_steps, bound, n = round(r["steps"]), int(r["bound"]), 64
    n_drawn = (n_steps + bound) * n  # the last steps play ahead too
    engine = EngineRates(v["factor"] * 3e-3, v["factor"] * 7e-5, max_rows=256)
    schedule = Schedule(n_steps, bound=bound, n_groups=n // 8)
    found = []
    for seed in range(3):
        # It waits before each of its two steps, the members of a group equally long: the seed is theirs together.
        tools = np.random.default_rng(seed).exponential(r["tool_ms"] / 1e3, (n_drawn // 8, 2)).repeat(8, axis=0)
        episodes = Episodes(np.full((n_drawn, 2), 20), tools, 300, 40)
        found.append(Training(System(engine, player, width=256), episodes, rates, schedule).run().seconds / n_steps)
    return statistics.median(found)


def trainer_rows(scripted: Values) -> list[Row]:
    """Return the rows of `overlap.py`: from two of its shortest tools, without and with overlap, all others.

    The first gives the engine's factor and, directly, the time of training: its step less the trainer's waiting, in
    which the idle server gets the weights. The second gives what the two cost each other (`shared`). `playing.py`,
    `beside.py` and the scripted collector's fit give the other rates.

    Args:
        scripted: The rates of the collector without an engine.
    """
    found = read_rows("overlap")
    if not found:
        return []
    first, second = sorted(found, key=lambda r: (r["tool_ms"], r["bound"]))[:2]
    turn_s, token_s = line(row for row in read_rows("playing") if row["part"] == "turns")
    player = PlayerRates(turn_s, token_s=token_s, thread_s=scripted["thread_s"], crowd_s=scripted["crowd_s"])
    beside = {row["part"]: row for row in read_rows("beside")}
    idle, playing = beside["push, idle"], beside["push, playing"]
    rates = TrainingRates(
        first["step_s"] * (1 - first["waiting"]) - idle["seconds"],
        idle["seconds"] - idle["paused_s"],
        idle["paused_s"],
        playing=playing["seconds"] / idle["seconds"],
    )
    rows = []
    for r in found:
        name = f"{'asynchronous' if r['bound'] else 'servers'}, tools of {r['tool_ms']:.0f} ms, bound {r['bound']}"
        rows.append(Row(name, r["step_s"], lambda v, r=r: _overlapped(v, r, rates, player), r in (first, second)))  # type: ignore[misc]
    return rows


def line(rows: Iterable[dict[str, Any]]) -> tuple[float, float]:
    """Return the seconds of a part of `playing.json` for no tokens, and for each token, from its two rows."""
    (x, y), (u, v) = ((row["context"], row["cpu_us"] / 1e6) for row in rows)
    slope = (v - y) / (u - x)
    return y - slope * x, slope
