"""Writes the table of `docs/guides/audit.md` from the corruptions that its test injects.

python docs/audit_table.py            writes it
python docs/audit_table.py --check    prints what would change, and exits with 1 if anything would
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import written

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from audit_corruptions import CORRUPTIONS  # noqa: E402  # after its folder is known

from llm_envs.trainers.cli.audit.parts import PARTS  # noqa: E402  # after the line above

PAGE = ROOT / "docs" / "guides" / "audit.md"
_TABLE = re.compile(r"(?<=<!-- table: begin -->\n).*?(?=<!-- table: end -->)", re.DOTALL)


def table() -> str:
    """Return the table: each part, what it computes again, and the corruptions that it finds."""
    lines = ["| part | what is computed again | corruptions that it finds |", "|---|---|---|"]
    for part, about in PARTS.items():
        names = "; ".join(corruption.name for corruption in CORRUPTIONS if corruption.part == part)
        lines.append(f"| {part} | {about} | {names} |")
    return "\n".join(lines) + "\n"


def pages() -> Mapping[Path, str]:
    """Return the page with its table."""
    return {PAGE: _TABLE.sub(lambda _: table(), PAGE.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    sys.exit(written.main(__doc__, pages, source="in the list of the test"))
