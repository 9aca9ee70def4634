"""Writes the table of docs/guides/models.md: `python tests/support/models_table.py`. A test checks it."""

from __future__ import annotations

from pathlib import Path

from families import NAMES, family_tokenizer

from llm_envs.chat import ChatCodec
from llm_envs.doctor import Diagnosis, diagnose

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "guides" / "models.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
CASES = ("an answer", "thinking and an answer", "a call", "thinking and a call")


def table() -> str:
    """Return the table: a line for each template that TRL ships, its training version beside it."""
    header = [
        "| template | system, tool roles | tools' schemas | calls | thinking | user after an answer | "
        "user after thinking | tool after a call | tool after thinking | TRL's training template |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = [_row(name) for name in NAMES if not name.endswith("_training")]
    return "\n".join([*header, *rows]) + "\n"


def _row(name: str) -> str:
    found = _diagnosis(name)
    training = f"{name}_training"
    roles = " ".join("yes" if role in found.roles else "no" for role in ("system", "tool"))
    cells = [
        name,
        roles.replace(" ", ", "),
        "own" if found.tools else "system prompt",
        found.call_format or "-",
        found.thinking,
        *_forks(found),
        _in_words(_diagnosis(training)) if training in NAMES else "-",
    ]
    return "| " + " | ".join(cells) + " |"


def _forks(found: Diagnosis) -> list[str]:
    by_case = {case.after: "forks" if case.forks else "keeps" for case in found.cases}
    return [by_case.get(case, "-") for case in CASES]


def _in_words(found: Diagnosis) -> str:
    forks = [f"{case.role} after {case.after}" for case in found.cases if case.forks]
    return "forks: " + ", ".join(forks) if forks else "keeps all"


def _diagnosis(name: str) -> Diagnosis:
    return diagnose(ChatCodec(family_tokenizer(name)))


if __name__ == "__main__":
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    DOCUMENT.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
