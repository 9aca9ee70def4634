"""Two folders of results against each other: the ratio of each figure, and which are worse.

    python benchmarks/compare.py benchmarks/baselines runs/benchmarks [--tolerance 0.1]

The ratio is new over old. A figure is marked that is worse than the old one by more than the tolerance (0.1: a tenth),
and the exit code is then 1. Rates depend on the machine: where the two were measured on different hardware that is said
first. Exit code 2: nothing could be compared.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from measuring import Column, Figure, ReportError, figures_of, read_results, text_table

COLUMNS = [
    Column("benchmark", "benchmark"),
    Column("figure", "figure"),
    Column("unit", "unit"),
    Column("old", "old", ",.5g"),
    Column("new", "new", ",.5g"),
    Column("ratio", "ratio", ".3f"),
    Column("mark", ""),
]


def compare(old: dict[str, Figure], new: dict[str, Figure], tolerance: float) -> list[dict[str, Any]]:
    """Return a row for each figure of either, in the order of the old ones."""
    rows = []
    for name in [*old, *(name for name in new if name not in old)]:
        before, after = old.get(name), new.get(name)
        figure = after or before
        row: dict[str, Any] = {"figure": name, "unit": figure.unit if figure else "", "mark": ""}
        row["old"], row["new"] = (None if one is None else one.value for one in (before, after))
        if before is None or after is None:
            row["mark"] = "new" if before is None else "gone"
        elif is_worse(before.value, after.value, after.better, tolerance):
            row["mark"] = "WORSE"
        if before is not None and after is not None and before.value:
            row["ratio"] = after.value / before.value
        rows.append(row)
    return rows


def is_worse(old: float, new: float, better: str, tolerance: float) -> bool:
    """Return whether `new` is worse than `old` by more than the tolerance, a share of the better of the two ways."""
    return new < old * (1 - tolerance) if better == "higher" else new > old * (1 + tolerance)


def read_folder(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results of a folder by name; what is none is said and left out."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        if path.stem == "all":
            continue
        try:
            found[path.stem] = read_results(path)
        except ReportError as error:
            print(f"left out: {error}", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="BASELINE_DIR")
    parser.add_argument("new", type=Path, metavar="NEW_DIR")
    parser.add_argument("--tolerance", type=float, default=0.1, help="share by which a figure may be worse")
    options = parser.parse_args()
    if not 0 <= options.tolerance < 1:
        parser.error(f"--tolerance is {options.tolerance}; it must be at least 0 and below 1")
    old, new = read_folder(options.old), read_folder(options.new)
    rows = []
    for name in [name for name in old if name in new]:
        if old[name]["hardware"] != new[name]["hardware"]:
            print(f"{name}: other hardware: {old[name]['hardware']} and {new[name]['hardware']}")
        if old[name]["settings"] != new[name]["settings"]:
            print(f"{name}: other settings: {old[name]['settings']} and {new[name]['settings']}")
        figures = compare(figures_of(old[name]), figures_of(new[name]), options.tolerance)
        rows += [{"benchmark": name, **row} for row in figures]
    for name in sorted(set(old) ^ set(new)):
        print(f"{name}: only in {options.old if name in old else options.new}")
    if not rows:
        print(f"{options.old} and {options.new} have no result in common", file=sys.stderr)
        return 2
    print(text_table(COLUMNS, rows))
    worse = [row for row in rows if row["mark"] == "WORSE"]
    if worse:
        print(f"{len(worse)} of {len(rows)} figures are worse by more than {options.tolerance:.0%}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
