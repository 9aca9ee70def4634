"""The rounds as JSON, and the table of `docs/results/chaos.md`, which is made from them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["RESULTS", "Round", "put_into_page", "read_rounds", "render", "write_rounds"]

RESULTS = Path("proof/results/chaos/rounds.json")
_PART = re.compile(r"(?<=<!-- proof chaos -->\n).*(?=<!-- end chaos -->)", re.DOTALL)


@dataclass(frozen=True)
class Round:
    """A round that was played."""

    scenario: str
    seed: int
    seconds: float
    faults: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def read_rounds(path: Path) -> list[Round]:
    """Return the rounds of a file; none if it is missing."""
    if not path.exists():
        return []
    return [Round(**found) for found in json.loads(path.read_text(encoding="utf-8"))["rounds"]]


def write_rounds(path: Path, rounds: Sequence[Round]) -> None:
    """Write rounds to a file, in order; of two with one scenario and seed, the later one counts."""
    last = {(one.scenario, one.seed): one for one in rounds}
    lines = ",\n".join(json.dumps(dataclasses.asdict(last[key])) for key in sorted(last))
    path.write_text(f'{{"rounds": [\n{lines}\n]}}\n', encoding="utf-8")


def render(rounds: Sequence[Round]) -> str:
    """Return the table: for each scenario, its rounds, those with a problem, seconds, and its faults by kind."""
    lines = ["| scenario | rounds | with a problem | seconds a round | faults |", "|---|---|---|---|---|"]
    for scenario in dict.fromkeys(one.scenario for one in rounds):
        own = [one for one in rounds if one.scenario == scenario]
        faults = Counter(fault for one in own for fault in one.faults)
        shown = ", ".join(f"{fault} {n}" for fault, n in sorted(faults.items()))
        n_bad = sum(bool(one.problems) for one in own)
        mean_s = sum(one.seconds for one in own) / len(own)
        lines.append(f"| {scenario} | {len(own)} | {n_bad} | {mean_s:.0f} | {shown} |")
    return "\n".join(lines) + "\n"


def put_into_page(page: Path, rounds: Sequence[Round]) -> None:
    """Write the table between its marks in a page."""
    page.write_text(_PART.sub(lambda _: render(rounds), page.read_text(encoding="utf-8")), encoding="utf-8")
