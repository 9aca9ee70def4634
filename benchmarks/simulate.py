"""Simulate what was measured on one machine, and 1 to 1,024 GPUs.

    python benchmarks/simulate.py [--check] [--out FILE] [--docs docs/results/scale.md]

Needs SimPy, and matplotlib for the plots of `--docs`. The model is in `benchmarks/simulation/`: `work` (what is
played), `parts` (engines and processes), `systems` (lock-step, a collector, a trainer with servers), `calibration`
(rates fitted to some rows of `benchmarks/baselines/`, and predictions of the others), `plan` (published rates of GPUs).
With `--check` the exit code is 1 if a predicted row is more than 15% off. One core takes four minutes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Column, Figure, Report, finish, make_parser, markdown_table, read_results
from run_all import render
from simulation import calibration, figures, plan
from simulation.systems import Failure

MAX_ERROR = 0.15
METHOD = (
    "*Fitted* rows gave the rates, all others are predictions. Eight rates belong to the engine of 0.36 M parameters "
    "in the process that plays, one factor to that of 32 M, three rates to the scripted collector. A server beside a "
    "trainer has a factor and the time of a training step from one row, and from another what its engine costs the "
    "trainer on the next core; turns and pushed weights cost there what other benchmarks measured (`playing`, "
    "`beside`). Times are those of whole calls; of servers and asynchronous training, of a step."
)
COLUMNS = [
    Column("name", "row"),
    Column("use", ""),
    Column("measured_s", "measured, s", ".2f"),
    Column("simulated_s", "simulated, s", ".2f"),
    Column("error", "error", "+.1%"),
]
SCALES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SHOWN = (1, 2, 8, 64, 128, 512, 1024)
"""In the table; the plot and the JSON have all."""
GRID_SCALES = (8, 64, 512)
SHORT = replace(plan.BASE, n_turns=1, n_tokens=64, tool_s=0.01)
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
    Column("dollars", "$ per 1,000 episodes", ",.2f"),
    Column("oldest", "oldest, steps"),
]
SCALE_COLUMNS = [Column("mode", "schedule, transport"), Column("gpus", "GPUs", ",d"), *STEP_COLUMNS]
GRID_COLUMNS = [
    Column("turns", "turns"),
    Column("tool_s", "tool, s", "g"),
    *(
        Column(f"{n_gpus} {key}", f"{n_gpus} GPUs: {title}" if key == "still" else title, form)
        for n_gpus in GRID_SCALES
        for key, title, form in (
            ("still", "episodes/s", ",.1f"),
            ("ahead", "ahead", ".1f"),
            ("partial", "partial", ".1f"),
        )
    ),
    Column("engine", "engines busy", ".0%"),
    Column("preempted", "preempted", ",d"),
]
TROUBLE_COLUMNS = [Column("what", "64 GPUs, one ahead, nccl"), *STEP_COLUMNS[:4], Column("replayed", "played again")]
LIMIT_COLUMNS = [
    Column("limit", "limit"),
    Column("turns", "turns"),
    *(Column(str(n_gpus), f"{n_gpus:,} GPUs", ".0%") for n_gpus in plan.LIMIT_SCALES),
]


def measured_rows(rates: Sequence[calibration.Values] = ()) -> tuple[list[dict[str, Any]], list[calibration.Values]]:
    """Return all measured rows beside the simulation's, and the rates of each of the four parts.

    Args:
        rates: Those of an earlier call; none: they are fitted, which takes minutes.
    """
    known, parts = iter(rates), list[tuple[list[calibration.Row], calibration.Values]]()

    def fit(rows: list[calibration.Row], first: calibration.Values) -> calibration.Values:
        fitted = [row for row in rows if row.is_fitted]
        values = next(known, None) or (calibration.fit(fitted, first) if rows else first)
        parts.append((rows, values))
        return values

    engine = fit(calibration.engine_rows(), calibration.FIRST)
    fit(calibration.larger_rows(engine), {"factor": 10.0})
    scripted = fit(calibration.scripted_rows(), {"turn_s": 1e-4, "thread_s": 3e-4, "crowd_s": 3e-7})
    fit(calibration.trainer_rows(scripted), {"factor": 1.0, "shared": 0.3})
    found = []
    for rows, values in parts:
        for row in rows:
            simulated = row.simulate(values)
            use = "fitted" if row.is_fitted else "predicted"
            found.append({"name": row.name, "use": use, "measured_s": row.measured_s, "simulated_s": simulated})
            found[-1]["error"] = simulated / row.measured_s - 1
    return found, [values for _, values in parts]


def read_measured() -> plan.Measured:
    """Return the rates of our own code from `playing.json`, and the bytes of a turn from `beside.json`."""
    rows = calibration.read_rows("playing")
    turns, written = (calibration.line(row for row in rows if row["part"] == part) for part in ("turns", "written"))
    rates = {row["part"]: row["mb_per_s"] / 1e3 for row in rows if row["part"].startswith("delta")}
    sizes = [row for row in calibration.read_rows("beside") if row["part"] == "bytes of a turn"]
    equations = [[1, row["prompt"], row["sampled"]] for row in sizes]
    sent = np.linalg.solve(equations, [row["request_bytes"] + row["reply_bytes"] for row in sizes])
    return plan.Measured(*turns, *written, rates["delta, made"], rates["delta, applied"], *sent.tolist())


def scale_rows(measured: plan.Measured) -> Iterator[dict[str, Any]]:
    """Yield a row for each mode and number of GPUs. One GPU cannot sample while it trains, and needs no transport."""
    for mode, (bound, transport, over_sampling) in MODES.items():
        for n_gpus in SCALES:
            if n_gpus == 1 and (bound or over_sampling > 1):
                continue
            setting = plan.Setting(n_gpus, bound, transport, over_sampling)
            yield {"mode": mode} | plan.describe(setting, plan.simulate(setting, plan.BASE, measured))


def grid_rows(measured: plan.Measured) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of turns and tool. With one turn, the tool is its judge."""
    for n_turns in (1, 4, 16, 50):
        for tool_s in (0.01, 1.0, 10.0, 60.0):
            work, row = replace(plan.BASE, n_turns=n_turns, tool_s=tool_s), {"turns": n_turns, "tool_s": tool_s}
            for n_gpus in GRID_SCALES:
                settings = [plan.Setting(n_gpus, bound, "nccl", over) for bound, over in ((0, 1.0), (1, 1.0), (0, 1.5))]
                found = [plan.describe(s, plan.simulate(s, work, measured, n_steps=4)) for s in settings]
                still, ahead, partial = (one["episodes_per_s"] for one in found)
                row |= {
                    f"{n_gpus} still": still,
                    f"{n_gpus} ahead": ahead / still,
                    f"{n_gpus} partial": partial / still,
                }
                if n_gpus == 64:
                    row |= {"engine": found[1]["engine"], "preempted": found[1]["preempted"]}
            yield row


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
    (rows, rates), measured = measured_rows(), read_measured()
    for values in rates:
        print({name: float(f"{value:.3g}") for name, value in values.items()}, file=sys.stderr)
    predicted = [row for row in rows if row["use"] == "predicted"]
    worst = max(abs(row["error"]) for row in predicted)
    n_within = sum(abs(row["error"]) <= MAX_ERROR for row in predicted)
    found = [
        Figure("greatest error of a prediction", worst, better="lower", at_most=MAX_ERROR),
        Figure("predictions within 15%", n_within / len(predicted)),
    ]
    planned = {
        "rates": rates,
        "scale": list(scale_rows(measured)),
        "grid": list(grid_rows(measured)),
        "trouble": list(trouble_rows(measured)),
        "limits": [row for work in (plan.BASE, SHORT) for row in plan.limits(work, measured)],
        "weights": [plan.pause_s(n_gpus, measured) for n_gpus in SCALES[1:]],
    }
    shown = [row for row in planned["scale"] if row["gpus"] in SHOWN]
    tables = {
        "simulated_scale": markdown_table(SCALE_COLUMNS, shown),
        "simulated_grid": markdown_table(GRID_COLUMNS, planned["grid"]),
        "simulated_trouble": markdown_table(TROUBLE_COLUMNS, planned["trouble"]),
        "simulated_limits": markdown_table(LIMIT_COLUMNS, planned["limits"]),
    }
    for name, table in tables.items():
        print(f"\n{name}\n{table}")
    if options.docs is not None:
        note = f"{METHOD} {n_within} of {len(predicted)} predictions are within 15%; the worst is {worst:.1%} off."
        tables |= {"simulate": f"{note}\n\n{markdown_table(COLUMNS, rows)}"}
        tables |= {
            name: render(name, read_results(calibration.BASELINES / f"{name}.json")) for name in ("playing", "beside")
        }
        put_into(options.docs, tables)
        images = options.docs.parents[1] / "images"
        figures.plot_scale(planned["scale"], planned["weights"], images / "scale.svg")
        figures.plot_measured(rows, images / "scale-measured.svg")
    return finish(Report("simulate", "Simulated", METHOD, COLUMNS, rows, found, planned), options)


if __name__ == "__main__":
    sys.exit(main())
