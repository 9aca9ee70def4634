"""Comparing our verdicts with those of a benchmark's own scorer, on outputs of all kinds, and recording the result."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["RESULTS", "Case", "compare", "write"]

RESULTS = Path(__file__).resolve().parents[1] / "results" / "fidelity"
_MOST_EXAMPLES = 3
"""Differences of one reason that a record quotes."""


@dataclass(frozen=True, slots=True)
class Case:
    """One output of a model, for one problem."""

    kind: str
    """"right", "wrong", "malformed" or "hostile"."""
    problem: Any
    output: Any


def compare(
    cases: Iterable[Case],
    ours: Callable[[Case], bool],
    official: Callable[[Case], bool],
    reason: Callable[[Case, bool, bool], str],
) -> dict[str, Any]:
    """Return the counts by kind and the differences by reason.

    Args:
        cases: The outputs.
        ours: Our verdict.
        official: The official scorer's verdict; an exception is the verdict "raises".
        reason: (case, ours, official) -> why they differ, in words.
    """
    n, equal, won = Counter[str](), Counter[str](), Counter[str]()
    reasons: dict[str, list[str]] = {}
    for case in cases:
        mine = ours(case)
        try:
            theirs: Any = official(case)
        except Exception as error:
            theirs = f"raises {type(error).__name__}"
        n[case.kind] += 1
        won[case.kind] += mine
        if mine == theirs:
            equal[case.kind] += 1
        else:
            why = reason(case, mine, theirs) if isinstance(theirs, bool) else "the official scorer raises; ours is 0"
            reasons.setdefault(why, []).append(f"{case.output!r:.160} ours {mine}, official {theirs}")
    return {
        "kinds": {kind: {"outputs": n[kind], "equal": equal[kind], "right by ours": won[kind]} for kind in sorted(n)},
        "outputs": sum(n.values()),
        "equal": sum(equal.values()),
        "differences": {
            why: {"outputs": len(found), "examples": found[:_MOST_EXAMPLES]} for why, found in sorted(reasons.items())
        },
    }


def write(name: str, scorer: str, result: dict[str, Any]) -> None:
    """Write the record of a benchmark, and print it.

    Args:
        name: The benchmark.
        scorer: The package that ours was compared with, which is recorded with its version; or where the rules are.
        result: Of `compare`.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    try:
        scorer = f"{scorer} {version(scorer)}"
    except (PackageNotFoundError, ValueError):
        scorer = f"the rules of {scorer}"
    record = {"benchmark": name, "official": scorer, **result}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1, ensure_ascii=True) + "\n")
    print(json.dumps(record, indent=1, ensure_ascii=True))
