"""Writes the tables of docs/guides/models.md: `python tests/support/models_table.py`. Tests check them.

The second one needs the templates of `python -m proof.templates`; without them it stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from families import NAMES, family_tokenizer
from published_templates import SERVED, UNREADABLE, codec_of

from llm_envs.chat import ChatCodec
from llm_envs.doctor import Diagnosis, diagnose

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "guides" / "models.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
PUBLISHED = "<!-- published: begin -->\n", "<!-- published: end -->\n"
AGREEMENT = DOCUMENT.parents[1] / "reference" / "agreement.md"
PUBLISHED_CASES = {
    "user after an answer": "an answer",
    "user after thinking": "thinking and an answer",
    "tool after a call": "a call",
}
CASES = ("an answer", "thinking and an answer", "a call", "thinking and a call")


def table() -> str:
    """Return the table: a line for each template that TRL ships, its training version beside it."""
    header = [
        "| template | system, tool roles | tools' schemas | calls | thinking | user after an answer | "
        "user after thinking | tool after a call | tool after thinking | judged against | TRL's training template |",
        "|" + "---|" * 11,
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
        _judges(found.call_format, name),
        _in_words(_diagnosis(training)) if training in NAMES else "-",
    ]
    return "| " + " | ".join(cells) + " |"


def published_table() -> str:
    """Return the table of published templates that show tools: a line for each."""
    rows = ["| template | calls | thinking | " + " | ".join(PUBLISHED_CASES) + " | judged against | ends of a turn |"]
    rows.append("|---" * 8 + "|")
    for name in SERVED:
        codec = codec_of(name)
        if codec.template.traits.tools:
            found = diagnose(codec)
            calls = f"not read: {UNREADABLE[name]}" if name in UNREADABLE else found.call_format or "canonical"
            ends = " ".join(f"`{token}`" for token in found.stop_tokens).replace("|", "\\|")
            forks, judges = _forks(found, PUBLISHED_CASES.values()), _judges(found.call_format, name.partition("/")[2])
            cells = [name.partition("/")[2], calls, found.thinking, *forks, judges, ends]
            rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _forks(found: Diagnosis, cases: Iterable[str] = CASES) -> list[str]:
    by_case = {case.after: "forks" if case.forks else "keeps" for case in found.cases}
    return [by_case.get(case, "-") for case in cases]


def _judges(call_format: str | None, template: str) -> str:
    """Return the parsers of vLLM that the format was compared with, and `renderers` if its trial has the template."""
    trial = (AGREEMENT.parents[2] / "benchmarks" / "renderers_trial.py").read_text(encoding="utf-8")
    trial = trial.replace('f"gemma4{version}"', '"gemma4"')
    lines = [line.split(" | ") for line in AGREEMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    parsers = [cells[2].partition(", ")[0] for cells in lines if cells[1] == call_format]
    vllm = [f"vLLM ({', '.join(dict.fromkeys(parsers))})"] if parsers else []
    version = template.partition("_v")[0] if template.startswith("gemma4") else template
    return ", ".join([*vllm, *(["renderers"] if f'Pair("{version}", ' in trial else [])]) or "-"


def _in_words(found: Diagnosis) -> str:
    forks = [f"{case.role} after {case.after}" for case in found.cases if case.forks]
    return "forks: " + ", ".join(forks) if forks else "keeps all"


def _diagnosis(name: str) -> Diagnosis:
    return diagnose(ChatCodec(family_tokenizer(name)))


def _write(marks: tuple[str, str], table: str) -> None:
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(marks[0])
    DOCUMENT.write_text(before + marks[0] + table + marks[1] + rest.partition(marks[1])[2], encoding="utf-8")


if __name__ == "__main__":
    _write((BEGIN, END), table())
    if SERVED:
        _write(PUBLISHED, published_table())
