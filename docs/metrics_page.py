"""Writes `docs/reference/metrics.md`: every number that is logged, from the tables of names.

python docs/metrics_page.py            writes the page
python docs/metrics_page.py --check    says what would change, and exits with 1 if anything would
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import written
import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "metrics.md"

HEAD = """\
# Metrics

Every name that is logged by trainers, by the loop, by collections and evaluations. `python docs/metrics_page.py` writes
this page from `docs/metrics.yaml`, and
[a test](../../tests/docs/test_reference.py) runs everything that logs: each key that comes out is one row here, and
each row comes out.

## How to read a row

- **Name**: `<...>` stands for a text, see below. Behind it `TRL` or `transformers`, where the name is theirs and
  passed on as it is.
- **eval**: the trainers log the same of an evaluation, with `eval_` in front: `eval_env/success`.
- **over**: what the mean is over: the trained tokens, rows, pairs or scored episodes since the last entry
  (`logging_steps`), of all processes. It is the same however steps are cut into micro-batches. "generations", "steps",
  "rounds" and "iterations" are means of one number for each; a name that one lacks is averaged over those that have it.
- TRL's own `GRPOTrainer` (`stock_trl`) averages micro-batches and generations instead. Ratios are over rows with
  `importance_sampling_level="sequence"`.
- What the environment said is over scored episodes only. What failed is counted in `env/errored` and is in no mean: an
  outage never looks like a drop of `env/success`.
- A share is from 0 to 1.
- Where the numbers go, and which file or tracker has them: [logging](../guides/logging.md).
"""


@dataclass(frozen=True, slots=True)
class MetricName:
    """A name that is logged, or a family of names."""

    pattern: str
    """The name; `<placeholder>` stands for any text that `PLACEHOLDERS` allows there."""
    unit: str
    """Unit of the number: share (from 0 to 1), tokens, nats, s, ..."""
    meaning: str
    """The meaning of the number, in a sentence."""
    over: str = ""
    """The items of a trainer's mean: one of `OVER`; empty for collections and evaluations."""
    logged_by: tuple[str, ...] = ()
    """Keys of `LOGGERS`."""
    when: str = ""
    """The condition under which it is logged; empty: always."""
    maker: str = "llm-envs"
    """The library that names it: names of TRL and transformers are passed on unchanged."""
    is_evaluated: bool = False
    """Whether an evaluation of a trainer logs the same with `eval_` in front."""

    def matches(self, key: str) -> bool:
        """Return whether a logged key is this name, or `eval_` and this name."""
        parts = re.split(r"<(\w+)>", self.pattern)
        expression = "".join(
            f"(?:{PLACEHOLDERS[part][0]})" if place % 2 else re.escape(part) for place, part in enumerate(parts)
        )
        return re.fullmatch(("(?:eval_)?" if self.is_evaluated else "") + expression, key) is not None


def matching_names(key: str, names: Iterable[MetricName]) -> list[MetricName]:
    """Return the rows that a logged key belongs to: exactly one, if the key is known."""
    return [name for name in names if name.matches(key)]


def _row(data: Mapping[str, Any]) -> MetricName:
    """Return a row of `docs/metrics.yaml`."""
    return MetricName(
        data["name"],
        data["unit"],
        data["meaning"],
        data.get("over", ""),
        tuple(data.get("logged_by", "").split()),
        data.get("when", ""),
        data.get("maker", "llm-envs"),
        data.get("evaluated", False),
    )


_DATA = yaml.safe_load((ROOT / "docs" / "metrics.yaml").read_text(encoding="utf-8"))
PLACEHOLDERS: Mapping[str, tuple[str, str]] = {
    name: (entry["pattern"], entry["meaning"]) for name, entry in _DATA["placeholders"].items()
}
LOGGERS: Mapping[str, str] = _DATA["loggers"]
OVER = (
    *("tokens", "rows", "pairs", "episodes", "calls", "tokens, pairs, rows", "tasks, episodes"),
    *("generations", "steps", "rounds", "iterations", "the least", "the greatest", "the last value", "the whole"),
    "its own",
)
"""The items of a mean, or the kind of another number."""
EPISODE_METRICS = tuple(map(_row, _DATA["episode"]))
METRICS = {heading: tuple(map(_row, rows)) for heading, rows in _DATA["metrics"].items()}
ALL_METRICS = tuple(name for names in METRICS.values() for name in names)


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
    yield "| name | unit | over | what it is | logged by | there | eval |"
    yield "|---|---|---|---|---|---|---|"
    for name in names:
        maker = "" if name.maker == "llm-envs" else f" {name.maker}"
        columns = [name.unit, name.over, name.meaning, ", ".join(name.logged_by), name.when or "always"]
        mark = "yes" if name.is_evaluated else ""
        yield f"| `{name.pattern}`{maker} | {' | '.join(map(cell, columns))} | {mark} |"


def cell(text: str) -> str:
    """Return text that does not end a cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(written.main(__doc__, lambda: {PAGE: page()}, source="the tables say"))
