"""Simulate what was measured on one machine, and 1 to 1,024 GPUs.

    python benchmarks/simulate.py [--check] [--out FILE] [--docs docs/results/scale.md]

Needs SimPy, and matplotlib for the plots of `--docs`. The model is in `benchmarks/simulation/`: `work` (what is
played), `parts` (engines and processes), `systems` (lock-step, a collector, a trainer with servers), `calibration`
(rates fitted to some rows of `benchmarks/baselines/`, and predictions of the others), `plan` (published rates of GPUs).
With `--check` the exit code is 1 if a predicted row is more than 15% off. One core takes two minutes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from measuring import Column, Figure, Report, finish, make_parser, markdown_table, read_results
from run_all import render
from simulation import calibration, figures, plan
from simulation.systems import Failure

MOST_ERROR = 0.15
METHOD = (
    "*Fitted* rows gave the rates, all others are predictions. Eight rates belong to the engine of 0.36 M parameters "
    "in the process that plays, one factor to that of 32 M, three rates to the scripted collector, and one factor and "
    "the time of a training step to the server beside a trainer. Times are those of whole calls; of servers and "
    "asynchronous training, of a step."
)
COLUMNS = [
    Column("name", "row"),
    Column("use", ""),
    Column("measured_s", "measured, s", ".2f"),
    Column("simulated_s", "simulated, s", ".2f"),
    Column("error", "error", "+.1%"),
]
SCALES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MODES = {
    "one after the other, whole weights": (0, "whole", 1.0),
    "one ahead, whole weights": (1, "whole", 1.0),
    "one ahead, delta": (1, "delta", 1.0),
    "one ahead, nccl": (1, "nccl", 1.0),
    "two ahead, nccl": (2, "nccl", 1.0),
    "partial rollouts, nccl": (0, "nccl", 1.5),
}
STEP_COLUMNS = [
    Column("step_s", "step, s", ",.0f"),
    Column("episodes_per_s", "episodes/s", ",.1f"),
    Column("engine", "engines busy", ".0%"),
    Column("trainer", "trainers busy", ".0%"),
    Column("player", "players busy", ".1%"),
    Column("dollars", "$ per 1,000 episodes", ",.2f"),
    Column("oldest", "oldest, steps"),
]
SCALE_COLUMNS = [Column("mode", "schedule, transport"), Column("gpus", "GPUs", ",d"), *STEP_COLUMNS]
GRID_COLUMNS = [
    Column("turns", "turns"),
    Column("tool_s", "tool, s", "g"),
    Column("still_per_s", "episodes/s", ",.1f"),
    Column("ahead_per_s", "one ahead", ",.1f"),
    Column("gain", "gain", ".2f"),
    Column("partial_per_s", "partial", ",.1f"),
    Column("engine", "engines busy", ".0%"),
    Column("preempted", "preempted", ",d"),
    Column("dollars", "$ per 1,000 episodes", ",.2f"),
]
TROUBLE_COLUMNS = [Column("what", "64 GPUs, one ahead, nccl"), *STEP_COLUMNS[:4], Column("replayed", "played again")]
ENGINE_COLUMNS = [
    Column("turns", "turns"),
    Column("turn_tokens", "tokens a turn"),
    Column("player", "engines of a player", ",.0f"),
    Column("writer", "engines of a writer", ",.0f"),
]
WEIGHT_COLUMNS = [
    Column("gpus", "GPUs", ",d"),
    *(Column(name, f"{name}, s", ",.1f") for name in ("whole", "delta", "nccl")),
]


def measured_rows() -> list[dict[str, Any]]:
    """Fit the rates, and return all measured rows beside the simulation's."""
    engine = calibration.engine_rows()
    values = calibration.fit([row for row in engine if row.is_fitted], calibration.FIRST)
    parts = [(engine, values)]
    scripted_first = {"turn_s": 1e-4, "thread_s": 3e-4, "crowd_s": 3e-7}
    others = (
        (calibration.larger_rows(values), {"factor": 10.0}),
        (calibration.scripted_rows(), scripted_first),
        (calibration.trainer_rows(), {"factor": 1.0}),
    )
    parts += [(rows, calibration.fit([r for r in rows if r.is_fitted], first)) for rows, first in others if rows]
    found = []
    for rows, fitted in parts:
        print({name: float(f"{value:.3g}") for name, value in fitted.items()}, file=sys.stderr)
        for row in rows:
            simulated = row.simulate(fitted)
            use = "fitted" if row.is_fitted else "predicted"
            found.append({"name": row.name, "use": use, "measured_s": row.measured_s, "simulated_s": simulated})
            found[-1]["error"] = simulated / row.measured_s - 1
    return found


def read_measured() -> plan.Measured:
    """Return the rates of our own code from `playing.json`: two points of each give a constant and a slope."""
    rows = calibration.read_rows("playing")
    turns, written = ([row for row in rows if row["part"] == part] for part in ("turns", "written"))
    rates = {row["part"]: row["mb_per_s"] / 1e3 for row in rows if row["part"].startswith("delta")}
    turn_s, token_s = _line(turns)
    write_s, write_token_s = _line(written)
    return plan.Measured(turn_s, token_s, write_s, write_token_s, rates["delta, made"], rates["delta, applied"])


def _line(rows: list[dict[str, Any]]) -> tuple[float, float]:
    (x, y), (u, v) = ((row["context"], row["cpu_us"] / 1e6) for row in rows)
    slope = (v - y) / (u - x)
    return y - slope * x, slope


def scale_rows(measured: plan.Measured) -> Iterator[dict[str, Any]]:
    """Yield a row for each mode and number of GPUs. One GPU cannot sample while it trains, and needs no transport."""
    for mode, (bound, transport, over_sampling) in MODES.items():
        for n_gpus in SCALES:
            if n_gpus == 1 and (bound or over_sampling > 1):
                continue
            setting = plan.Setting(n_gpus, bound, transport, over_sampling)
            yield {"mode": mode} | plan.describe(setting, plan.simulate(setting, plan.BASE, measured))


def grid_rows(measured: plan.Measured) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of turns and tool, on 64 GPUs."""
    for n_turns in (1, 4, 16, 50):
        for tool_s in (0.01, 1.0, 10.0, 60.0) if n_turns > 1 else (0.0,):
            work = replace(plan.BASE, n_turns=n_turns, tool_s=tool_s)
            settings = [plan.Setting(64, bound, "nccl", over) for bound, over in ((0, 1.0), (1, 1.0), (0, 1.5))]
            still, ahead, partial = (plan.describe(s, plan.simulate(s, work, measured, n_steps=4)) for s in settings)
            yield ahead | {
                "turns": n_turns,
                "tool_s": tool_s,
                "still_per_s": still["episodes_per_s"],
                "ahead_per_s": ahead["episodes_per_s"],
                "partial_per_s": partial["episodes_per_s"],
                "gain": ahead["episodes_per_s"] / still["episodes_per_s"],
            }


def trouble_rows(measured: plan.Measured) -> Iterator[dict[str, Any]]:
    """Yield rows with stragglers and failures."""
    setting = plan.Setting(64, 1, "nccl")
    equal, slow = replace(plan.BASE, spread=0.0), replace(plan.BASE, slow_share=0.05, tool_s=5.0)
    engine, player = Failure(100.0, 0, 120.0), Failure(100.0, 0, 60.0, "player")
    cases: dict[str, tuple[plan.Workload, tuple[Failure, ...]]] = {
        "turns of equal length": (equal, ()),
        "log-normal turns (spread 0.8)": (plan.BASE, ()),
        "the same, tools of 5 s": (replace(plan.BASE, tool_s=5.0), ()),
        "the same, 5% of the calls ten times as slow": (slow, ()),
        "log-normal turns, an eighth of the engines dead for two minutes": (plan.BASE, (engine,)),
        "log-normal turns, an eighth of the players lost for a minute": (plan.BASE, (player,)),
    }
    for what, (work, failures) in cases.items():
        yield {"what": what} | plan.describe(setting, plan.simulate(setting, work, measured, failures=failures))


def put_into(document: Path, parts: dict[str, str]) -> None:
    """Put generated parts between their marks.

    Raises:
        SystemExit: If the document lacks a mark.
    """
    text = document.read_text(encoding="utf-8")
    for name, body in parts.items():
        marks = re.compile(f"(<!-- benchmark {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        text, n_found = marks.subn(lambda match, body=body: f"{match[1]}\n{body}\n\n{match[2]}", text)
        if not n_found:
            raise SystemExit(f"{document} has no lines <!-- benchmark {name} --> and <!-- end {name} -->: add them.")
    document.write_text(text, encoding="utf-8")


def main() -> int:
    """Run all simulations."""
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--docs", type=Path, metavar="FILE", help="put tables and plots into this document")
    options = parser.parse_args()
    rows, measured = measured_rows(), read_measured()
    predicted = [row for row in rows if row["use"] == "predicted"]
    worst = max(abs(row["error"]) for row in predicted)
    n_within = sum(abs(row["error"]) <= MOST_ERROR for row in predicted)
    found = [
        Figure("greatest error of a prediction", worst, better="lower", at_most=MOST_ERROR),
        Figure("predictions within 15%", n_within / len(predicted)),
    ]
    scale, weights = list(scale_rows(measured)), [plan.limits(n, measured) for n in SCALES[1:]]
    works = [replace(plan.BASE, n_turns=t, n_tokens=k) for t in (1, 4, 16) for k in (64, 256, 1024)]
    tables = {
        "simulated_scale": markdown_table(SCALE_COLUMNS, scale),
        "simulated_grid": markdown_table(GRID_COLUMNS, list(grid_rows(measured))),
        "simulated_trouble": markdown_table(TROUBLE_COLUMNS, list(trouble_rows(measured))),
        "simulated_engines": markdown_table(ENGINE_COLUMNS, [plan.most_engines(work, measured) for work in works]),
        "simulated_weights": markdown_table(WEIGHT_COLUMNS, weights),
    }
    for name, table in tables.items():
        print(f"\n{name}\n{table}")
    if options.docs is not None:
        note = f"{METHOD} {n_within} of {len(predicted)} predictions are within 15%; the worst is {worst:.1%} off."
        tables |= {"simulate": f"{note}\n\n{markdown_table(COLUMNS, rows)}"}
        tables |= {"playing": render("playing", read_results(calibration.BASELINES / "playing.json"))}
        put_into(options.docs, tables)
        images = options.docs.parents[1] / "images"
        figures.plot_scale(scale, weights, images / "scale.svg")
        figures.plot_measured(rows, images / "scale-measured.svg")
    return finish(Report("simulate", "Simulated", METHOD, COLUMNS, rows, found), options)


if __name__ == "__main__":
    sys.exit(main())
