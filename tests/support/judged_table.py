"""Writes the comparison with vLLM's parsers in docs/reference/agreement.md.

    .venv-vllm/bin/python tests/support/judged_table.py

A test holds its classes of differences (`tests/llm_envs/parsers/test_parsers_judged.py`).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from family_replies import FAMILIES, Call, Case, generate_replies, write_reply
from reply_judges import CLASSES, PARSERS, difference, ours, theirs, written

from llm_envs.parsers import detect_format, parse_reply

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "agreement.md"
BEGIN, END = "<!-- judged: begin -->\n", "<!-- judged: end -->\n"
N_REPLIES = 2000


class Verdict(NamedTuple):
    """The result of comparing a family's replies."""

    n: int
    equal_calls: int
    equal_thinking: int
    uncut: int
    """Replies that were not cut."""
    ours_as_written: int
    """Of the uncut replies, those that ours read as they were written."""
    theirs_as_written: int
    classes: Counter[str]


def judge(name: str, n: int) -> Verdict:
    """Compare `n` replies of a family."""
    counts, classes = Counter[str](), Counter[str]()
    for case, reply in generate_replies(name, n):
        mine, yours, truth = ours(parse_reply(reply)), theirs(name, case, reply), written(case)
        counts["calls"] += mine.calls == yours.calls
        counts["thinking"] += mine.thinking == yours.thinking
        if case.kind != "cut":
            counts["uncut"] += 1
            counts["ours"] += mine == truth
            counts["theirs"] += yours == truth
        if (found := difference(case, mine, yours, truth)) is not None:
            classes[found] += 1
    return Verdict(n, *(counts[key] for key in ("calls", "thinking", "uncut", "ours", "theirs")), classes)


def format_read(name: str) -> str | None:
    """Return the format in which ours reads a family's plain call, or None if it does not read it."""
    case = Case("call", None, "", (Call("look_up", {"count": 7}),), "", frozenset())
    reply = write_reply(FAMILIES[name], case)
    return detect_format(reply) if ours(parse_reply(reply)).calls == written(case).calls else None


def table() -> str:
    """Return the table and the list of classes."""
    lines = [
        "| family | ours | vLLM's parsers | equal calls | equal thinking | as written: ours, vLLM | differences |",
        "|---|---|---|---|---|---|---|",
        *map(_row, FAMILIES),
        "",
        *(f"{number}. *{name}*: {argument}" for number, (name, argument) in enumerate(CLASSES.items(), 1)),
    ]
    return "\n".join(lines) + "\n"


def _row(name: str) -> str:
    parsers = ", ".join(filter(None, dict.fromkeys(PARSERS[name])))
    read = format_read(name)
    if read is None:
        return f"| {name} | not read | {parsers} | - | - | - | - |"
    found = judge(name, N_REPLIES)
    numbers = {number: found.classes[key] for number, key in enumerate(CLASSES, 1) if found.classes[key]}
    cells = [
        name,
        read,
        parsers,
        f"{found.equal_calls:,}",
        f"{found.equal_thinking:,}",
        f"{found.ours_as_written:,}, {found.theirs_as_written:,} of {found.uncut:,}",
        "; ".join(f"{number}: {count}" for number, count in numbers.items()) or "none",
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    DOCUMENT.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
