"""Writes `docs/reference/metrics.md`: every number that is logged, from the tables of names.

python docs/metrics_page.py            writes the page
python docs/metrics_page.py --check    says what would change, and exits with 1 if anything would
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import written

from llm_envs.metric_names import PLACEHOLDERS, MetricName
from llm_envs.trainers.metric_names import LOGGERS, METRICS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "metrics.md"

HEAD = """\
# Metrics

Every name that is logged by trainers, by the loop, by collections and evaluations. `python docs/metrics_page.py` writes
this page from `llm_envs/metric_names.py` and `trainers/metric_names.py`, and
[a test](../../tests/docs/test_reference.py) runs everything that logs: each key that comes out is one row here, and
each row comes out.

## How to read a row

- **Name**: `<...>` stands for a text, see below. Behind it `TRL` or `transformers`, where the name is theirs and
  passed on as it is.
- **eval**: the trainers log the same of an evaluation, with `eval_` in front: `eval_env/success`.
- A number is the mean over everything since the last entry (`logging_steps`), on all processes. A count is of one
  generation, and the entry has the mean over generations. A name that a generation lacks is averaged over those that
  have it.
- What the environment said is over scored episodes only. What failed is counted in `env/errored` and is in no mean: an
  outage never looks like a drop of `env/success`.
- A share is from 0 to 1.
- Where the numbers go, and which file or tracker has them: [logging](../logging.md).
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, *placeholders(), *loggers()]
    for heading, names in METRICS.items():
        parts += [f"## {heading}\n", *table(names), ""]
    return "\n".join(parts).rstrip("\n") + "\n"


def placeholders() -> Iterator[str]:
    """Yield what stands between `<` and `>`."""
    yield "| in a name | stands for |"
    yield "|---|---|"
    for name, (_, meaning) in PLACEHOLDERS.items():
        yield f"| `<{name}>` | {cell(meaning)} |"
    yield ""


def loggers() -> Iterator[str]:
    """Yield who logs."""
    yield "| logged by | who that is |"
    yield "|---|---|"
    for name, meaning in LOGGERS.items():
        yield f"| {name} | {cell(meaning)} |"
    yield ""


def table(names: tuple[MetricName, ...]) -> Iterator[str]:
    """Yield a table of names."""
    yield "| name | unit | what it is | logged by | there | eval |"
    yield "|---|---|---|---|---|---|"
    for name in names:
        maker = "" if name.maker == "llm-envs" else f" {name.maker}"
        columns = [name.unit, name.meaning, ", ".join(name.logged_by), name.when or "always"]
        mark = "yes" if name.is_evaluated else ""
        yield f"| `{name.pattern}`{maker} | {' | '.join(map(cell, columns))} | {mark} |"


def cell(text: str) -> str:
    """Return text that does not end a cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(written.main(__doc__, lambda: {PAGE: page()}, source="the tables say"))
