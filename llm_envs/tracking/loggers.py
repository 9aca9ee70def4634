"""Loggers for metrics. A logger is any `(step, metrics) -> None`; these factories make some."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from llm_envs.data.files import own, read_text, regular, replacing
from llm_envs.data.json_files import NO_JSON, problem_of
from llm_envs.errors import StoreError
from llm_envs.types import Trajectory

__all__ = [
    "Logger",
    "console_logger",
    "csv_logger",
    "jsonl_logger",
    "multi_logger",
    "read_metrics",
    "trajectory_table",
    "visible_text",
]

Logger = Callable[[int, Mapping[str, float]], None]
"""Takes a step's number and its metrics. Called once per step, in order; an evaluation may come some steps later."""

_INVISIBLE: dict[int, str] = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {
    code: f"[U+{code:04X}]" for code in (*range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Characters that change how a terminal or browser shows a text: control characters, and those that reorder text."""


def visible_text(text: str) -> str:
    """Return text that is safe to show: control and reordering characters and lone surrogates become visible."""
    return text.translate(_INVISIBLE).encode("utf-8", errors="backslashreplace").decode("utf-8")


def console_logger(*, keys: Sequence[str] | None = None, stream: TextIO | None = None) -> Logger:
    """Make a logger that prints one line per step.

    Args:
        keys: Which metrics, in which order; None prints all. Metrics that a step lacks are left out of its line, and a
            line without any is not printed.
        stream: Output; None is the standard output at the time of printing.
    """

    def log(step: int, metrics: Mapping[str, float]) -> None:
        names = metrics if keys is None else [key for key in keys if key in metrics]
        if not names:
            return
        line = "  ".join(f"{name} {metrics[name]:.4g}" for name in names)
        print(f"step {step:>5}  {line}", file=stream or sys.stdout, flush=True)

    return log


def jsonl_logger(path: str | Path) -> Logger:
    """Make a logger that appends one line of strict JSON per step: `step`, then the metrics.

    NaN and infinities become null. Each line is on disk when the call returns, so a killed run keeps all its steps.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)

    def log(step: int, metrics: Mapping[str, float]) -> None:
        values = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        with open(target, "a", encoding="utf-8", opener=own) as file:
            file.write(json.dumps({"step": int(step)} | values, allow_nan=False) + "\n")

    return log


def csv_logger(path: str | Path) -> Logger:
    """Make a logger that appends one row per step to a table: `step`, then a column for each metric.

    A new metric adds a column; the file is then rewritten atomically. Missing values, NaN and infinities are empty
    cells. A last row that a kill cut short is removed.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)

    def log(step: int, metrics: Mapping[str, float]) -> None:
        row: dict[str, Any] = {"step": int(step)}
        row |= {name: float(value) if math.isfinite(value) else "" for name, value in metrics.items()}
        columns = _csv_columns(target)
        if columns is not None and row.keys() <= set(columns):
            with open(target, "a", encoding="utf-8", newline="", opener=own) as file:
                csv.DictWriter(file, columns).writerow(row)
            return
        rows: list[dict[str, Any]] = []
        if columns is not None:
            with open(target, encoding="utf-8", newline="", opener=regular) as file:
                rows = list(csv.DictReader(file))
        temporary = target.with_name(target.name + ".tmp")
        with open(temporary, "w", encoding="utf-8", newline="", opener=replacing) as file:
            writer = csv.DictWriter(file, list(dict.fromkeys([*(columns or []), *row])))
            writer.writeheader()
            writer.writerows([*rows, row])
        temporary.replace(target)

    return log


def _csv_columns(path: Path) -> list[str] | None:
    """Return the columns of a table, or None for a new file; remove an incomplete last row."""
    if not path.exists():
        return None
    with open(path, "r+b", opener=own) as file:
        content = file.read()
        if not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
    with open(path, encoding="utf-8", newline="", opener=regular) as file:
        return next(csv.reader(file), None)


def multi_logger(*loggers: Logger) -> Logger:
    """Make a logger that calls several, in order."""

    def log(step: int, metrics: Mapping[str, float]) -> None:
        for logger in loggers:
            logger(step, metrics)

    return log


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Read logged metrics, one mapping per step: from a `jsonl_logger`, a `csv_logger`, or a `trainer_state.json`.

    Null in JSON and an empty cell are NaN. A last line that a kill cut short is left out.

    Args:
        path: The file. Its suffix (`.csv`, `.json`, any other) decides the format.

    Raises:
        StoreError: If a line before the last cannot be read, or a `.json` has no `log_history`.
    """
    file = Path(path)
    if file.suffix == ".csv":
        return _read_csv(file)
    if file.suffix == ".json":
        return _read_trainer_state(file)
    lines = read_text(file).split("\n")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
        except NO_JSON as error:
            if number == len(lines):
                break
            raise StoreError(
                f"{path}, line {number} is not JSON ({problem_of(error)}); remove the line to read the rest."
            ) from error
        records.append({name: math.nan if value is None else value for name, value in record.items()})
    return records


def _read_csv(path: Path) -> list[dict[str, Any]]:
    text = read_text(path)
    rows = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    try:
        return [
            {name: float(cell) if cell else math.nan for name, cell in row.items()} | {"step": int(row["step"])}
            for row in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{path}, line {rows.line_num} is not a row of numbers with a `step` ({type(error).__name__}: {error})."
        ) from error


def _read_trainer_state(path: Path) -> list[dict[str, Any]]:
    try:
        history = json.loads(read_text(path))["log_history"]
        return [{name: math.nan if value is None else value for name, value in record.items()} for record in history]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise StoreError(f"{path} has no `log_history`: it is not a trainer_state.json of transformers.") from error


def trajectory_table(trajectories: Iterable[Trajectory], *, width: int = 40) -> str:
    """Return a table with a line for each episode: its origin, reward, end, and last words.

    Args:
        trajectories: Of any tasks.
        width: Characters of the policy's last message; 0 leaves the column out.
    """
    head = ["env", "seed", "member", "reward", "success", "turns", "tokens", "stop", "last words"]
    lines = [head[: 9 if width else 8]]
    for t in trajectories:
        success = "-" if t.is_success is None else "yes" if t.is_success else "no"
        reward = f"{t.reward:.3g}" if t.status == "ok" else t.status
        line = [t.env_id, str(t.seed), str(t.member), reward, success, str(len(t.turns)), str(t.n_sampled_tokens)]
        replies = [message.content for message in t.messages if message.role == "assistant"] if t.turns else []
        words = " ".join(visible_text(replies[-1]).split()) if replies else ""
        words = words if len(words) <= width else words[: max(width - 1, 0)].rstrip() + "…"
        lines.append([*line, t.stop_reason.value, *([words] if width else [])])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
