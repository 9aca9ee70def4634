"""Where numbers go. A logger is any `(step, metrics) -> None`; these factories make some."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from llm_envs.errors import StoreError

__all__ = ["Logger", "console_logger", "jsonl_logger", "multi_logger", "read_metrics", "visible_text"]

Logger = Callable[[int, Mapping[str, float]], None]
"""Takes a step's number and its metrics. Called once per step, in order."""

_INVISIBLE: dict[int, str] = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {
    code: f"[U+{code:04X}]" for code in (*range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""What a terminal or a browser obeys or drops: control characters, and those that reorder text."""


def visible_text(text: str) -> str:
    """Return text that is safe to show: control and reordering characters and lone surrogates become visible."""
    return text.translate(_INVISIBLE).encode("utf-8", errors="backslashreplace").decode("utf-8")


def console_logger(*, keys: Sequence[str] | None = None, stream: TextIO | None = None) -> Logger:
    """Make a logger that prints one line a step.

    Args:
        keys: Which metrics, in which order; None prints all. One that a step lacks is left out of its line.
        stream: Where to; None is standard output, as it is when the line is printed.
    """

    def log(step: int, metrics: Mapping[str, float]) -> None:
        names = metrics if keys is None else [key for key in keys if key in metrics]
        line = "  ".join(f"{name} {metrics[name]:.4g}" for name in names)
        print(f"step {step:>5}  {line}", file=stream or sys.stdout, flush=True)

    return log


def jsonl_logger(path: str | Path) -> Logger:
    """Make a logger that appends one line of strict JSON a step: `step`, then the metrics.

    NaN and infinities become null. Each line is on disk when the call returns, so a killed run keeps all its steps.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)

    def log(step: int, metrics: Mapping[str, float]) -> None:
        values = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        with target.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": int(step)} | values, allow_nan=False) + "\n")

    return log


def multi_logger(*loggers: Logger) -> Logger:
    """Make a logger that calls several, in order."""

    def log(step: int, metrics: Mapping[str, float]) -> None:
        for logger in loggers:
            logger(step, metrics)

    return log


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Read what `jsonl_logger` wrote; null comes back as NaN. A last line that a kill cut short is left out.

    Raises:
        StoreError: If a line before the last is not JSON.
    """
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise StoreError(
                f"{path}, line {number} is not JSON ({error}); remove the line to read the rest."
            ) from error
        records.append({name: math.nan if value is None else value for name, value in record.items()})
    return records
