"""Runs one stage of the kit: a list of cases, whose numbers are written case by case.

    python benchmarks/gpu/stages.py NAME --out FILE [--tiny] [--model FOLDER]

measures one stage in this process; `run.py` starts it so. A case that the file has with its numbers is not measured
again. A case that cannot run here, or fails, leaves a note in place of numbers and is tried again the next time.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from measuring import Column, Report, ReportError, describe_hardware, read_results, to_data

MODULES = {
    "step": "steps",
    "profile": "steps",
    "engine": "engines",
    "learning": "learning",
    "adapters": "engines",
    "transfer": "transfer",
}
"""Stage -> the module that has it, in the order in which they run."""
NOTE = Column("note", "")


class SkippedError(Exception):
    """A case cannot run here; the message has the reason."""


@dataclass(frozen=True)
class Plan:
    """Settings of the cases."""

    is_tiny: bool
    """Whether to try everything at the smallest size, which a CPU can do."""
    model: Path
    """Folder of a pretrained model; it may be missing."""
    folder: Path
    """Where a stage keeps models and metrics."""


@dataclass(frozen=True)
class Stage:
    """One table."""

    title: str
    method: str
    columns: Sequence[Column]
    cases: Callable[[Plan], Mapping[str, Callable[[], dict[str, Any]]]]
    """Name -> a function that measures it and returns the columns of its row."""
    compare: Callable[[list[dict[str, Any]]], None] = lambda rows: None
    """Adds to the rows what follows from several of them."""


def load_stage(name: str) -> Stage:
    """Return a stage by name."""
    stage: Stage = importlib.import_module(MODULES[name]).STAGES[name]
    return stage


def measure(name: str, plan: Plan, out: Path) -> bool:
    """Measure the cases of a stage that the file has not; return whether all have their numbers.

    Raises:
        ReportError: If the file has results of other settings or of another machine.
    """
    stage, settings = load_stage(name), {"tiny": plan.is_tiny, "model": plan.model.name}
    rows, cases = _earlier_rows(out, settings), stage.cases(plan)
    for case, run in cases.items():
        if any(row["case"] == case for row in rows):
            continue
        try:
            row = {"case": case, **run()}
        except SkippedError as reason:
            row = {"case": case, "note": f"skipped: {reason}"}
        except (Exception, SystemExit) as error:  # the other cases are worth their minutes
            row = {"case": case, "note": f"failed: {type(error).__name__}: {' '.join(str(error).split())[-300:]}"}
        free_memory()
        rows.append(row)
        stage.compare(rows)
        noted = settings | {"cases": list(cases)}
        _write(
            Report(f"gpu_{name}", stage.title, stage.method, [*stage.columns, NOTE], rows, settings=noted), name, out
        )
        print({key: value for key, value in row.items() if not isinstance(value, list)}, flush=True)
    return is_done(out)


def is_done(out: Path) -> bool:
    """Return whether a stage's file has the numbers of all its cases."""
    if not out.exists():
        return False
    data = read_results(out)
    return {row["case"] for row in data["rows"] if "note" not in row} == {*data["settings"]["cases"]}


def free_memory() -> None:
    """Return what ended cases have held."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _earlier_rows(out: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not out.exists():
        return []
    data, here = read_results(out), describe_hardware()
    there = data["hardware"] | data["settings"]
    if other := [f"{key} {there.get(key)}" for key, value in (here | settings).items() if there.get(key) != value]:
        raise ReportError(f"{out} was measured with {', '.join(other)}. Give another --out.")
    return [row for row in data["rows"] if "note" not in row]


def _write(report: Report, name: str, out: Path) -> None:
    """Write atomically: the process may be killed at any time."""
    options = " --tiny" if report.settings["tiny"] else ""
    data = to_data(report, f"python benchmarks/gpu/run.py --stages {name}{options}")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    part.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=MODULES)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--model", type=Path, default=Path("build/smollm2-135m"))
    options = parser.parse_args()
    import torch  # noqa: F401 - so that the hardware has the card's name

    plan = Plan(options.tiny, options.model, options.out.parent / options.name)
    return 0 if importlib.import_module("stages").measure(options.name, plan, options.out) else 3


if __name__ == "__main__":
    sys.exit(main())
