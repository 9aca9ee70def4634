"""Writes the tables of settings in `docs/grpo.md` and `docs/ppo.md` from the fields of the configs.

python docs/settings_table.py            writes them
python docs/settings_table.py --check    prints what would change, and exits with 1 if anything would
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path

import written
from trl import GRPOConfig

from llm_envs.trainers import EnvGRPOConfig, EnvPPOConfig

DOCS = Path(__file__).resolve().parent
OWN = {"grpo.md": (EnvGRPOConfig, GRPOConfig), "ppo.md": (EnvPPOConfig, EnvGRPOConfig)}
"""Page -> the config, and the one that it extends."""
_TABLE = re.compile(r"(?<=<!-- table: begin -->\n).*?(?=<!-- table: end -->)", re.DOTALL)


def lines(kind: type, base: type) -> Iterator[str]:
    """Yield the table of the fields that a config adds, or whose default it changes."""
    inherited = {field.name: field.default for field in fields(base)}  # type: ignore[arg-type]
    yield "| setting | default | meaning |"
    yield "|---|---|---|"
    for field in fields(kind):  # type: ignore[arg-type]
        if field.init and field.default != inherited.get(field.name, MISSING):
            text = str(field.metadata["help"]).replace("|", "\\|")
            yield f"| `{field.name}` | `{field.default!r}` | {text} |"


def pages() -> Mapping[Path, str]:
    """Return the pages with their tables."""
    tables = {DOCS / page: "\n".join([*lines(*kinds), ""]) for page, kinds in OWN.items()}
    return {
        page: _TABLE.sub(lambda _, table=table: table, page.read_text(encoding="utf-8"))
        for page, table in tables.items()
    }


if __name__ == "__main__":
    sys.exit(written.main(__doc__, pages, source="the fields of the configs say"))
