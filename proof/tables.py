"""The tables of `docs/results/learning.md`, made from the results and nothing else.

python -m proof.run --docs docs/results/learning.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.measuring import Column, markdown_table
from llm_envs.checker.catalogue import family_of
from llm_envs.evaluation import Interval, mean_interval
from proof.runs import CREDIT, DISTILLATION, LONG, LONG_TASKS, RUNS, SUMMARIES
from proof.tasks import TASKS

__all__ = ["RESULTS", "compare", "put_into", "read_result", "render"]

RESULTS = Path("proof/results")

Outcomes = Mapping[str, Sequence[float]]
Results = Mapping[str, Mapping[str, Any]]


def read_result(path: Path) -> dict[str, Any] | None:
    """Return what a file of results holds; None if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def compare(before: Outcomes, after: Outcomes, key: str) -> tuple[float, Interval]:
    """Return the mean of after less before with its 95% interval, paired episode by episode.

    Raises:
        ValueError: If the two did not play the same episodes.
    """
    if before["seeds"] != after["seeds"]:
        raise ValueError("the two were not measured on the same test episodes.")
    differences = [b - a for a, b in zip(before[key], after[key], strict=True)]
    return fmean(differences), mean_interval(differences)


def render(results: Results) -> dict[str, str]:
    """Return the tables by their names."""
    tables = {
        "grpo": _render_rises(results, "grpo", ["engine"]),
        "suite": _render_suite(results),
        "algorithms": _render_rises(results, "algorithms", ["algorithm"]),
        "ppo": _render_rises(results, "ppo", ["algorithm", "engine"]),
        "long": _render_long(results),
        "dpo": _render_rises(results, "dpo", ["algorithm", "engine"]),
        "credit": _render_credit(results),
        "real": _render_rises(results, "real", ["algorithm", "engine", "weights"]),
        "summaries": _render_summaries(results),
        "agents": _render_rises(results, "agents", ["agent", "engine"]),
        "distillation": _render_distillation(results),
    }
    for table in tables:
        missing = [name for name, run in RUNS.items() if run.table == table and name not in results]
        if missing:
            tables[table] += f"\n\nNot run yet: {', '.join(missing)}."
    return {**tables, "machine": _render_machine(results)}


def put_into(document: Path, folder: Path = RESULTS) -> list[str]:
    """Put the tables between their marks in a document.

    Returns:
        The names of tables that have no place there.
    """
    found = {name: read_result(folder / f"{name}.json") for name in RUNS}
    text, missing = document.read_text(encoding="utf-8"), []
    for name, body in render({name: result for name, result in found.items() if result is not None}).items():
        marks = re.compile(f"(<!-- proof {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        text, n_found = marks.subn(lambda match, body=body: f"{match[1]}\n{body}\n\n{match[2]}", text)
        if not n_found:
            missing.append(name)
    document.write_text(text, encoding="utf-8")
    return missing


def _render_rises(results: Results, table: str, told_by: Sequence[str]) -> str:
    """Return a row for each run and seed: test success before and after, and the difference."""
    rows = []
    for run in RUNS.values():
        if run.table != table or run.name not in results:
            continue
        result = results[run.name]
        before = result["warm"]["outcomes"]
        for seed, trained in result["seeds"].items():
            difference, interval = compare(before, trained["outcomes"], "successes")
            rows.append(
                {
                    **{name: getattr(run, name) for name in told_by},
                    "env": result["env"],
                    "seed": seed,
                    "before": f"{fmean(before['successes']):.1%}",
                    "after": f"{fmean(trained['outcomes']['successes']):.1%}",
                    "difference": _points(difference, interval),
                    "clear": "yes" if interval.low > 0 else "no",
                    "steps": trained["steps"],
                    "seconds": trained["cpu_seconds"],
                    "command": f"`python -m proof.run {run.name}`",
                }
            )
    columns = [
        Column("env", "task"),
        *(Column(name, name) for name in told_by),
        Column("seed", "seed"),
        Column("before", "before"),
        Column("after", "after"),
        Column("difference", "difference (95%)"),
        Column("clear", "clear of 0"),
        Column("steps", "steps"),
        Column("seconds", "CPU s", ".0f"),
        Column("command", "command"),
    ]
    return markdown_table(columns, rows) if rows else "(not run)"


def _render_suite(results: Results) -> str:
    """Return a row for each task that plain GRPO is trained on with transformers: rewards and successes, by family."""
    rows = []
    for run in RUNS.values():
        if run.table not in ("grpo", "suite") or run.engine != "transformers" or run.name not in results:
            continue
        result = results[run.name]
        before = result["warm"]["outcomes"]
        for seed, trained in result["seeds"].items():
            after = trained["outcomes"]
            gain, gain_interval = compare(before, after, "rewards")
            difference, interval = compare(before, after, "successes")
            rows.append(
                {
                    "family": family_of(result["env"]),
                    "env": result["env"],
                    "level": TASKS[run.task].env_kwargs.get("difficulty", "own data"),
                    "seed": seed,
                    "reward": f"{_mean(before)} → {_mean(after)}",
                    "gain": f"{gain:+.3f} ({gain_interval.low:+.3f} to {gain_interval.high:+.3f})",
                    "success": f"{fmean(before['successes']):.1%} → {fmean(after['successes']):.1%}",
                    "difference": _points(difference, interval),
                    "clear": "yes" if gain_interval.low > 0 else "no",
                    "parameters": f"{result['warm']['parameters']:,}",
                    "seconds": trained["cpu_seconds"],
                    "command": f"`python -m proof.run {run.name}`",
                }
            )
    columns = [
        Column("family", "family"),
        Column("env", "task"),
        Column("level", "level"),
        Column("seed", "seed"),
        Column("reward", "reward"),
        Column("gain", "difference (95%)"),
        Column("success", "success"),
        Column("difference", "difference (95%)"),
        Column("clear", "reward clear of 0"),
        Column("parameters", "parameters"),
        Column("seconds", "CPU s", ".0f"),
        Column("command", "command"),
    ]
    return markdown_table(columns, sorted(rows, key=lambda row: row["family"])) if rows else "(not run)"


def _render_long(results: Results) -> str:
    """Return a row for each task and seed: test success with a lambda of tokens and with one of turns."""
    columns = [
        Column("env", "task"),
        Column("seed", "seed"),
        Column("before", "before"),
        Column("token", "lambda of tokens"),
        Column("turn", "lambda of turns"),
        Column("difference", "difference (95%)"),
        Column("steps", "steps"),
        Column("seconds", "CPU s"),
        Column("command", "commands"),
    ]
    rows = []
    for task in LONG_TASKS:
        names = [f"{kind}-{task}" for kind in LONG]
        if any(name not in results for name in names):
            continue
        token, turn = (results[name]["seeds"] for name in names)
        for seed in [seed for seed in token if seed in turn]:
            difference, interval = compare(token[seed]["outcomes"], turn[seed]["outcomes"], "successes")
            rows.append(
                {
                    "env": results[names[0]]["env"],
                    "seed": seed,
                    "before": f"{fmean(results[names[0]]['warm']['outcomes']['successes']):.1%}",
                    "token": f"{fmean(token[seed]['outcomes']['successes']):.1%}",
                    "turn": f"{fmean(turn[seed]['outcomes']['successes']):.1%}",
                    "difference": _points(difference, interval),
                    "steps": turn[seed]["steps"],
                    "seconds": " and ".join(f"{runs[seed]['cpu_seconds']:.0f}" for runs in (token, turn)),
                    "command": " and ".join(f"`python -m proof.run {name}`" for name in names),
                }
            )
    return markdown_table(columns, rows) if rows else "(not run)"


def _render_credit(results: Results) -> str:
    """Return a row for each seed: the reward on the test split with each credit, against the baseline's."""
    base, *others = [name for name in CREDIT if name in results] or [CREDIT[0]]
    if base != CREDIT[0] or base not in results:
        return "(not run)"
    seeds = [seed for seed in results[base]["seeds"] if all(seed in results[name]["seeds"] for name in others)]
    columns = [Column("seed", "seed"), Column("warm", "before"), Column(base, RUNS[base].algorithm)]
    for name in others:
        columns += [Column(name, RUNS[name].algorithm), Column(f"{name} less", "difference (95%)")]
    rows: list[dict[str, Any]] = []
    gains: dict[str, list[float]] = {name: [] for name in others}
    for seed in seeds:
        whole = _outcomes(results, base, seed)
        row = {"seed": seed, "warm": _mean(results[base]["warm"]["outcomes"]), base: _mean(whole)}
        for name in others:
            own = _outcomes(results, name, seed)
            difference, interval = compare(whole, own, "rewards")
            gains[name].append(difference)
            row |= {
                name: _mean(own),
                f"{name} less": f"{difference:+.3f} ({interval.low:+.3f} to {interval.high:+.3f})",
            }
        rows.append(row)
    if len(seeds) > 1:
        last: dict[str, Any] = {"seed": f"mean of {len(seeds)}"}
        for name in (base, *others):
            last[name] = f"{fmean(fmean(_outcomes(results, name, seed)['rewards']) for seed in seeds):.3f}"
        for name in others:
            n_better = sum(gain > 0 for gain in gains[name])
            last[f"{name} less"] = f"{fmean(gains[name]):+.3f}, better on {n_better} of {len(seeds)}"
        rows.append(last)
    return markdown_table(columns, rows)


def _render_summaries(results: Results) -> str:
    """Return a row for each seed: test success without and with the gradient of summaries; then the mean of seeds."""
    if any(name not in results for name in SUMMARIES):
        return "(not run)"
    before = results[SUMMARIES[0]]["warm"]["outcomes"]
    seeds = [seed for seed in results[SUMMARIES[0]]["seeds"] if seed in results[SUMMARIES[1]]["seeds"]]
    pairs = {seed: [_outcomes(results, name, seed) for name in SUMMARIES] for seed in seeds}
    if len(seeds) > 1:  # each test episode's mean over the seeds
        means = [
            [fmean(values) for values in zip(*(pairs[s][i]["successes"] for s in seeds), strict=True)] for i in (0, 1)
        ]
        pairs[f"mean of {len(seeds)}"] = [{"seeds": before["seeds"], "successes": values} for values in means]
    rows = []
    for seed, (untrained, trained) in pairs.items():
        difference, interval = compare(untrained, trained, "successes")
        runs = [results[name]["seeds"].get(seed) for name in SUMMARIES]
        rows.append(
            {
                "seed": seed,
                "before": f"{fmean(before['successes']):.1%}",
                "untrained": f"{fmean(untrained['successes']):.1%}",
                "trained": f"{fmean(trained['successes']):.1%}",
                "difference": _points(difference, interval),
                "clear": "yes" if interval.low > 0 else "no",
                "seconds": " and ".join(f"{run['cpu_seconds']:.0f}" for run in runs if run is not None),
            }
        )
    columns = [
        Column("seed", "seed"),
        Column("before", "before"),
        Column("untrained", "summaries not trained"),
        Column("trained", "summaries trained"),
        Column("difference", "difference (95%)"),
        Column("clear", "clear of 0"),
        Column("seconds", "CPU s"),
    ]
    return markdown_table(columns, rows)


def _render_distillation(results: Results) -> str:
    """Return a row for each seed: test success by GRPO and from the teacher, and the episodes that each needed."""
    if any(name not in results for name in DISTILLATION):
        return "(not run)"
    alone, taught = (results[name] for name in DISTILLATION)
    teacher = RUNS[DISTILLATION[1]].teacher
    assert teacher is not None
    (lesson,) = results[teacher]["seeds"].values()
    rows = []
    for seed in [seed for seed in alone["seeds"] if seed in taught["seeds"]]:
        pair = [result["seeds"][seed] for result in (alone, taught)]
        difference, interval = compare(pair[0]["outcomes"], pair[1]["outcomes"], "successes")
        goal = fmean(pair[0]["outcomes"]["successes"])
        rows.append(
            {
                "seed": seed,
                "teacher": f"{fmean(lesson['outcomes']['successes']):.1%}",
                "before": f"{fmean(alone['warm']['outcomes']['successes']):.1%}",
                "alone": f"{fmean(pair[0]['outcomes']['successes']):.1%}",
                "taught": f"{fmean(pair[1]['outcomes']['successes']):.1%}",
                "difference": _points(difference, interval),
                "episodes": " and ".join(_episodes_until(goal, run, alone["settings"]) for run in pair),
                "seconds": " and ".join(f"{run['cpu_seconds']:.0f}" for run in pair),
            }
        )
    columns = [
        Column("seed", "seed"),
        Column("teacher", "teacher"),
        Column("before", "before"),
        Column("alone", "GRPO"),
        Column("taught", "from the teacher"),
        Column("difference", "difference (95%)"),
        Column("episodes", "episodes until GRPO's success"),
        Column("seconds", "CPU s"),
    ]
    return markdown_table(columns, rows)


def _episodes_until(goal: float, run: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return after how many training episodes a measurement on the test episodes first reached the goal."""
    reached = [int(step) for step, successes in run["curve"].items() if fmean(successes) >= goal]
    n_episodes = settings["per_device_train_batch_size"]
    return f"{min(reached) * n_episodes:,}" if reached else f"not in {run['steps'] * n_episodes:,}"


def _outcomes(results: Results, name: str, seed: str) -> Outcomes:
    return results[name]["seeds"][seed]["outcomes"]


def _mean(outcomes: Outcomes) -> str:
    return f"{fmean(outcomes['rewards']):.3f}"


def _points(difference: float, interval: Interval) -> str:
    return f"{100 * difference:+.1f} points ({100 * interval.low:+.1f} to {100 * interval.high:+.1f})"


def _render_machine(results: Results) -> str:
    """Return what the numbers were measured on, one line for each machine and set of versions."""
    lines: dict[str, list[str]] = {}
    for name, result in results.items():
        for trained in result["seeds"].values():
            versions = ", ".join(f"{key} {number}" for key, number in trained["versions"].items() if key != "llm-envs")
            hardware = trained["hardware"]
            names = lines.setdefault(f"{hardware['cpu']}, {hardware['cpus']} cores; {versions}", [])
            if name not in names:
                names.append(name)
    return "\n".join(f"- {text} ({', '.join(names)})" for text, names in lines.items()) or "(not run)"
