"""Writes the table of shells' runtimes in `docs/guides/sandbox.md` from what each runtime holds and from the attacks.

python docs/shell_table.py            writes it
python docs/shell_table.py --check    prints what would change, and exits with 1 if anything would
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import written

from llm_envs.shell.confined import HOLDS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guides" / "sandbox.md"
ATTACKS = ROOT / "tests" / "llm_envs" / "shell" / "shell_attacks.py"
_TABLE = re.compile(r"(?<=<!-- table: begin -->\n).*?(?=<!-- table: end -->)", re.DOTALL)


def lines() -> Iterator[str]:
    """Yield the tables."""
    yield f"| | {' | '.join(f'`{name}`' for name in HOLDS)} |"
    yield "|---|" + "---|" * len(HOLDS)
    for subject in next(iter(HOLDS.values())):
        yield f"| {subject} | {' | '.join(held[subject] for held in HOLDS.values())} |"
    yield from ("", "| attacks | | among them |", "|---|---|---|")
    for kind, attacks in runpy.run_path(str(ATTACKS))["ATTACKS"].items():
        yield f"| shell: {kind} | {len(attacks)} | {', '.join(list(attacks)[:6])} |"


def pages() -> Mapping[Path, str]:
    """Return the page with its table."""
    table = "\n".join([*lines(), ""])
    return {PAGE: _TABLE.sub(lambda _: table, PAGE.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    sys.exit(written.main(__doc__, pages, source="the runtimes and the attacks say"))
