"""Writes the table of published agents in `docs/guides/train_your_agent.md` from the presets and from what was run.

python docs/agents_table.py            writes it
python docs/agents_table.py --check    prints what would change, and exits with 1 if anything would
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import written

from llm_envs.agents.presets import PRESETS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guides" / "train_your_agent.md"
RUN = ROOT / "tests" / "llm_envs" / "agents" / "episodes.json"
_TABLE = re.compile(r"(?<=<!-- table: begin -->\n).*?(?=<!-- table: end -->)", re.DOTALL)
_DIALECTS = {"chat": "chat completions", "responses": "responses", "messages": "Anthropic's messages"}


def lines() -> Iterator[str]:
    """Yield the table."""
    yield "| preset | package, version | speaks | run | first prompt | requests | tokens | processor |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, run in json.loads(RUN.read_text(encoding="utf-8")).items():
        preset = PRESETS[name]
        numbers = f"{run['first_prompt']:,} | {run['requests']} | {run['tokens']:,} | {run['cpu_s']} s"
        package = f"`{preset.package}` {preset.version} ({preset.registry})"
        yield f"| `{name}` | {package} | {_DIALECTS[preset.dialect]} | {run['what']} | {numbers} |"


def pages() -> Mapping[Path, str]:
    """Return the page with its table."""
    table = "\n".join([*lines(), ""])
    return {PAGE: _TABLE.sub(lambda _: table, PAGE.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    sys.exit(written.main(__doc__, pages, source="the presets and the episodes say"))
