"""An evaluation as a table for a terminal. Control characters in untrusted text are made visible; no colours."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llm_envs.errors import counted
from llm_envs.evaluation.comparison import Comparison, Difference
from llm_envs.evaluation.results import Measure, Results, TaskResult
from llm_envs.tracking.loggers import visible_text
from llm_envs.tracking.reasons import describe_unscored

__all__ = ["show_comparison", "show_results"]


def show_results(results: Results) -> str:
    """Return the tables of an evaluation: scores, conduct, reward components, and how episodes ended."""
    tasks = results.tasks
    ks = sorted({task.k for task in tasks if task.k > 1})
    head = ["task", "problems", "samples", "success", f"{results.confidence:.0%} interval", "bootstrap"]
    head += [f"{name}{k}" for k in ks for name in ("pass@", "pass^")] + ["reward", f"{results.confidence:.0%} interval"]
    rows = [head, *(_scores(task, ks) for task in tasks)]
    if len(tasks) > 1:
        levels = results.by_difficulty if len(results.by_difficulty) > 1 else {}
        shown = {"mean of the tasks": results.success, **{f"  {level}": found for level, found in levels.items()}}
        rows += [[name, str(found.n_problems), "", *_rate(found)] for name, found in shown.items()]
    conduct = [["task", "turns", "tokens", "seconds", "malformed", "truncated", "errors", "unscored", "ended by"]]
    conduct += [_conduct(task) for task in tasks]
    parts = [_table(rows), _table(conduct)]
    components = [[task.name, name, *_value(found)] for task in tasks for name, found in task.components.items()]
    if components:
        parts.append(_table([["task", "reward component", "mean", f"{results.confidence:.0%} interval"], *components]))
    failures = [
        f"{task.name}: {describe_unscored(task.n_errored, task.n_unscored, task.errors)}"
        for task in tasks
        if task.errors
    ]
    return visible_text("\n\n".join([*parts, *(["without a score\n" + "\n".join(failures)] if failures else [])]))


def show_comparison(comparison: Comparison) -> str:
    """Return the tables of a comparison: the difference with its interval, and the win/loss table of each task."""
    this, that = "this", "that"
    confidence = f"{comparison.confidence:.0%} interval"
    head = ["task", "problems", this, that, "difference", confidence, "bootstrap", "p", "reward difference", confidence]
    rows = [head]
    for task in comparison.tasks:
        rows.append([task.name, str(task.n_problems), *_paired(task.success), f"{task.p_value:.3g}"])
        rows[-1] += [f"{task.reward.value:+.3g}", _span(task.reward.interval, "{:+.3g}")]
    if len(comparison.tasks) > 1:
        rows.append(["mean of the tasks", "", *_paired(comparison.success)])
    wins = [["task", "wins", "losses", "ties", "both solve", "only this", "only that", "neither"]]
    for task in comparison.tasks:
        counts = (task.wins, task.losses, task.ties, task.both, task.only_this, task.only_that, task.neither)
        wins.append([task.name, *map(str, counts)])
    settings = [f"{name}: {ours} against {theirs}" for name, (ours, theirs) in comparison.settings.items()]
    lines = [f"this: {comparison.this}", f"that: {comparison.that}", *settings, "", _table(rows), "", _table(wins)]
    if comparison.has_other_rewards:
        lines.append("WARNING: the two have different reward functions (llm-envs rescore gives both the same).")
    lines += [
        f"{task.name}: {counted(task.left_out, 'problem')} left out, without a scored sample of both"
        for task in comparison.tasks
        if task.left_out
    ]
    return visible_text("\n".join(lines))


def _scores(task: TaskResult, ks: Sequence[int]) -> list[str]:
    samples = round(task.n_episodes / max(task.n_problems, 1), 2)
    cells = [task.name, str(task.n_problems), f"{samples:g}", *_rate(task.success)]
    for k in ks:
        cells += [_percent(found[k].value) if k in found else "-" for found in (task.pass_at, task.pass_hat)]
    return [*cells, *_value(task.reward)]


def _conduct(task: TaskResult) -> list[str]:
    ends = " ".join(f"{reason}={count}" for reason, count in task.stop_reasons.items())
    rates = (task.malformed_turns, task.truncated, task.error_rate, task.unscored_rate)
    tokens = "-" if task.tokens == 0 else _number(task.sampled_tokens, ".0f")
    return [
        task.name,
        _number(task.turns, ".1f"),
        tokens,
        _number(task.seconds, ".2g"),
        *(_percent(rate) for rate in rates),
        ends,
    ]


def _rate(found: Measure) -> list[str]:
    return [_percent(found.value), _span(found.interval, "{:.1%}"), _span(found.bootstrap, "{:.1%}")]


def _value(found: Measure) -> list[str]:
    return [_number(found.value, ".3g"), _span(found.interval, "{:.3g}")]


def _paired(found: Difference) -> list[str]:
    spans = [_span(found.interval, "{:+.1%}"), _span(found.bootstrap, "{:+.1%}")]
    return [
        _percent(found.this),
        _percent(found.that),
        "-" if math.isnan(found.value) else f"{found.value:+.1%}",
        *spans,
    ]


def _span(interval: Sequence[float], form: str) -> str:
    return f"{form.format(interval[0])} to {form.format(interval[1])}" if math.isfinite(interval[0]) else "-"


def _percent(value: float) -> str:
    return _number(value, ".1%")


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Align columns: the first one, and the last one if it is text, to the left; numbers to the right."""
    n = max(map(len, rows))
    padded = [[*row, *[""] * (n - len(row))] for row in rows]
    widths = [max(len(row[column]) for row in padded) for column in range(n)]
    is_text = [column == 0 or rows[0][column] in ("ended by", "reward component") for column in range(n)]
    lines = (
        "  ".join(
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(row, widths, is_text, strict=True)
        )
        for row in padded
    )
    return "\n".join(line.rstrip() for line in lines)
