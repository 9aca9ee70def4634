"""The cost of taking a reply apart: microseconds a reply of each format, by `parse_reply`, which finds the format.

    python benchmarks/parsing.py [--check] [--out FILE]

The replies are the sound ones of tests/llm_envs/parsers/corpus/, written by hand: one or two calls, thinking, an
answer, some hundred characters. Each number is the CPU time of a reply, the mean over a format's replies, the best of
many rounds. With `--check` the exit code is 1 if a reply of any format takes over 50 microseconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import Column, Figure, Report, finish, make_parser

from llm_envs.parsers import PARSERS, Parser, parse_reply

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "llm_envs" / "parsers" / "corpus"
ROUNDS, REPEATS = 30, 20
MAX_US = 50.0
METHOD = (
    "The CPU time of `parse_reply`, which finds the format itself: the mean over hand-written sound replies of a "
    "format, the best of 30 rounds. *own*: by the parser of that format."
)
COLUMNS = [
    Column("format", "format"),
    Column("replies", "replies"),
    Column("characters", "characters", ".0f"),
    Column("auto_us", "parse_reply, us", ".1f"),
    Column("own_us", "own, us", ".1f"),
]


def sound_replies(path: Path) -> Iterator[str]:
    """Yield the replies of a file of the corpus in which nothing is broken, and that any parser may read."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("=== "):
            lines = []
        elif line.startswith("--- "):
            expected = json.loads(line[4:])
            if not {"problem", "only", "auto_only"} & expected.keys():
                yield "\n".join(lines)
        else:
            lines.append(line)


def microseconds(parse: Parser, replies: list[str]) -> float:
    """Return the CPU time of a reply, in microseconds."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.thread_time()
        for _ in range(REPEATS):
            for reply in replies:
                parse(reply)
        best = min(best, time.thread_time() - started)
    return 1e6 * best / REPEATS / len(replies)


def main() -> int:
    options = make_parser(__file__, __doc__).parse_args()
    rows = []
    for path in sorted(CORPUS.glob("*.txt")):
        replies = list(sound_replies(path))
        if path.stem in ("react", "xml", "fenced", "boxed", "last_number"):  # forms that are never guessed
            continue
        rows.append(
            {
                "format": path.stem,
                "replies": len(replies),
                "characters": sum(map(len, replies)) / len(replies),
                "auto_us": round(microseconds(parse_reply, replies), 2),
                "own_us": round(microseconds(PARSERS[path.stem], replies), 2) if path.stem in PARSERS else None,
            }
        )
    worst = max(row["auto_us"] for row in rows)
    figures = [Figure("slowest format", worst, "us a reply", better="lower", at_most=MAX_US)]
    return finish(Report("parsing", "Taking a reply apart", METHOD, COLUMNS, rows, figures), options)


if __name__ == "__main__":
    sys.exit(main())
