"""Writes the tables of `docs/results/fidelity.md` from the certificates in `proof/results/fidelity/`.

python docs/fidelity.py            writes it
python docs/fidelity.py --check    prints what would change, and exits with 1 if anything would
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import written

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "fidelity.md"
RESULTS = ROOT / "proof" / "results" / "fidelity"
KINDS = ("right", "wrong", "malformed", "hostile")
FORMS = RESULTS / "forms" / "mathematics.json"
PART = r"(?<=<!-- proof {name} -->\n).*(?=<!-- end {name} -->)"


def lines(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table and of the list of differences."""
    yield "| benchmark | official scorer | outputs: right, wrong, malformed, hostile | equal verdicts | hostile paid |"
    yield "|---|---|---|---:|---:|"
    for record in records:
        counts = [record["kinds"][kind] for kind in KINDS]
        of_kinds = ", ".join(f"{count['outputs']:,}" for count in counts)
        yield (
            f"| {record['benchmark']} | {record['official']} | {record['outputs']:,}: {of_kinds} "
            f"| {record['equal']:,} | {counts[-1]['right by ours']} |"
        )
    yield ""
    for record in records:
        for why, found in record["differences"].items():
            yield f"- {record['benchmark']}, {found['outputs']:,} outputs: {why}."


def forms(record: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table of answers to mathematics, and why the verdicts differ."""
    yield "| task | right answers | refused | by math-verify | wrong answers | accepted | by math-verify |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for task, counts in record["tasks"].items():
        n_right, n_wrong = counts["right"], counts["wrong"]
        refused = [n_right - counts[f"right, accepted{by}"] for by in ("", " by math-verify")]
        accepted = [counts[f"wrong, accepted{by}"] for by in ("", " by math-verify")]
        cells = (n_right, *refused, n_wrong, *accepted)
        yield f"| {task} | {' | '.join(f'{cell:,}' for cell in cells)} |"
    yield ""
    for why, n in record["differences"].items():
        yield f"- {n:,} answers: {why}."


def pages() -> dict[Path, str]:
    """Return the page with its generated part."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    text = PAGE.read_text(encoding="utf-8")
    for name, written_lines in (
        ("fidelity", lines(records)),
        ("forms", forms(json.loads(FORMS.read_text(encoding="utf-8")))),
    ):
        part = "\n".join([*written_lines, ""])
        text = re.sub(PART.format(name=name), lambda found, part=part: part, text, flags=re.DOTALL)
    return {PAGE: text}


if __name__ == "__main__":
    sys.exit(written.main(__doc__, pages, source="the certificates say"))
