"""Writes the tables of `docs/results/bridges.md` from the registered ids and the records in `proof/results/bridges/`.

python docs/bridges.py            writes them
python docs/bridges.py --check    prints what would change, and exits with 1 if anything would
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import written

from llm_envs.bridges.ids import FLAWED, TEXTARENA, suite_ids

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "bridges.md"
RESULTS = ROOT / "proof" / "results" / "bridges"
SUITES = {
    "reasoning_gym": ("reasoning-gym", "`llm-envs[suites]`"),
    "textarena": ("TextArena", "`llm-envs[suites]`"),
    "gymnasium": ("Gymnasium: toy text, classic control", "none"),
}
"""Namespace -> the suite, and its extra."""
KINDS = (
    (r"OpenRouter", "needs a model behind OpenRouter, and a key"),
    (r"Resource '?words|Resource '?averaged", "needs words that NLTK downloads"),
    (r"SyntaxError", "its source needs Python 3.12"),
    (r"FileNotFoundError|ImportError|No module named", "a file or package is missing from the wheel"),
    (r"more than two players|Assertion", "for more than two players"),
    (r"moves in a row|over \d+ s", "does not end, or a puzzle takes over a minute to make"),
    (r"", "its code fails in play"),
)
"""Pattern of a reason in the record -> the reason as the page has it."""


def measured(suite: str) -> dict[str, dict[str, Any]]:
    """Return what `python -m proof.bridges` measured: environment -> its result."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / f"{suite}.json").read_text(encoding="utf-8"))["measured"]
    return found


def suites() -> Iterator[str]:
    """Yield the table of suites."""
    yield "| suite | ids | environments | extra |"
    yield "|---|---|---:|---|"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ours = project["entry-points"]["llm_envs.tasks"].keys() - {"bridges"}
    yield f"| our tasks and benchmarks | `llm/Calculator-v0` | {len(ours)} | |"
    total = len(ours)
    for namespace, ids in suite_ids().items():
        name, extra = SUITES[namespace]
        off = len(FLAWED) if namespace == "reasoning_gym" else 0
        total += len(ids) - off
        count = f"{len(ids) - off}" + (f" (and {off} that are off)" if off else "")
        yield f"| {name} | `{ids[0]}` | {count} | {extra} |"
    yield f"| all | | {total} | |"


def flawed() -> Iterator[str]:
    """Yield the table of scorers that pay for garbage."""
    yield "| data set | why | the text with full credit, and on which share of the items |"
    yield "|---|---|---|"
    for name, result in measured("reasoning-gym").items():
        if name in FLAWED:
            yield f"| `{name}` | {FLAWED[name]} | `{result['garbage']}`, {result['garbage_paid']:.0%} |"


def left_out() -> Iterator[str]:
    """Yield the table of TextArena's games that are left out."""
    groups: dict[str, list[str]] = {}
    for game, result in measured("textarena").items():
        if game in TEXTARENA:
            continue
        kind = next(text for pattern, text in KINDS if re.search(pattern, result.get("left_out", "")))
        groups.setdefault(kind, []).append(game)
    yield f"{len(TEXTARENA)} of {len(TEXTARENA) + sum(map(len, groups.values()))} variants play. Left out:"
    yield ""
    yield "| why | games |"
    yield "|---|---|"
    for kind, games in sorted(groups.items()):
        bases = dict.fromkeys(game.partition("-v0")[0] for game in games)
        whole = [base for base in bases if not any(name.startswith(f"{base}-v0") for name in TEXTARENA)]
        some = [game for game in games if game.partition("-v0")[0] not in whole]
        yield f"| {kind} | {', '.join([*whole, *some])} |"


def pages() -> dict[Path, str]:
    """Return the page with its generated parts."""
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in (("suites", suites()), ("flawed", flawed()), ("left_out", left_out())):
        part = "\n".join([*lines, ""])
        pattern = rf"(?<=<!-- proof {name} -->\n).*(?=<!-- end {name} -->)"
        text = re.sub(pattern, lambda found, part=part: part, text, flags=re.DOTALL)  # type: ignore[misc]
    return {PAGE: text}


if __name__ == "__main__":
    sys.exit(written.main(__doc__, pages, source="the ids and the records say"))
