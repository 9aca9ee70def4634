"""Counts constructions that make our English hard to read, and holds each file to its count of before.

    python docs/english.py            prints the rates per 1,000 words
    python docs/english.py --check    exits with 1 if a file has more of a construction than `docs/english.json` allows,
                                      or a folder is above `MAX_RATE`
    python docs/english.py --write    lowers the counts in `docs/english.json` to those of now

A new file may have none. Words are those of docstrings, comments and strings in code, and of the text of documents.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASELINE = ROOT / "docs" / "english.json"
PATTERNS = {
    "is said, are said, says": r"\b(?:is|are|was|were) said\b|\bsays\b",
    "a sentence that opens with What": r"(?:^|[.!?:]\s+|\"\"\"|# )What\b(?![^.\n]*\?)",
    "is no, are no": r"\b(?:is|are) no\b(?! longer)",
    "alone": r"\balone\b",
    "there is none, of none": r"\b(?:there is none|of none)\b",
    "of its own": r"\bof (?:its|their|our) own\b",
    "goes on": r"\bgo(?:es)? on\b",
    "of which, of whom": r"\bof wh(?:ich|om)\b",
    "that of, those of": r"\b(?:that|those) of\b",
    "at once": r"\bat once\b",
    "pay, paid": r"\b(?:pay|pays|paid|paying)\b",
    "whole": r"\bwhole\b",
    "beside": r"\bbeside\b",
    "anew": r"\banew\b",
    "nobody": r"\bnobody\b",
}
RARE = ("that of, those of", "at once", "pay, paid", "whole")
MAX_RATE = 0.3
"""Of each construction in `RARE`, per 1,000 words of each folder in `PLAIN`."""
PLAIN = ("llm_envs/", "trainers/", "docs/guides/")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FOLDERS = ("llm_envs", "trainers", "tasks", "docs", "examples", "tests", "proof", "benchmarks")
EXEMPT = (
    "proof/results/",
    "docs/reference/api/",
    "docs/reference/metrics.md",
    "docs/GALLERY.md",
    "docs/english.py",
    "llm_envs/tasks",
    "llm_envs/trainers",
)
"""Generated pages, this list, and links to folders that are listed themselves."""


def files() -> list[Path]:
    """Return the files of the repository whose text people read."""
    found = [ROOT / name for name in PAGES]
    for folder in FOLDERS:
        found += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".md")]
    ours = [path for path in found if "node_modules" not in path.parts]
    return [path for path in ours if not str(path.relative_to(ROOT)).startswith(EXEMPT)]


def prose(path: Path) -> str:
    """Return the text of a document, or the docstrings, comments and strings of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        generated = r"<!-- (?:proof|benchmark) (\w+) -->.*?<!-- end \1 -->|<!-- table: begin -->.*?<!-- table: end -->"
        return re.sub(rf"{generated}|```.*?```|`[^`\n]*`|<!--.*?-->", " ", text, flags=re.DOTALL)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(token.string for token in tokens if token.type in (tokenize.STRING, tokenize.COMMENT))


def count(path: Path) -> dict[str, int]:
    """Return how often a file has each construction, where it has it at all."""
    text = prose(path)
    found = {name: len(re.findall(pattern, text, flags=re.MULTILINE)) for name, pattern in PATTERNS.items()}
    return {name: n for name, n in found.items() if n}


def main() -> int:
    """Print, check or lower the counts, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="1 if a file has more than the baseline allows")
    parser.add_argument("--write", action="store_true", help="lower the baseline to the counts of now")
    options = parser.parse_args()
    found = {str(path.relative_to(ROOT)): count(path) for path in files()}
    known = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else None
    if options.write:
        kept = found if known is None else {name: _lower(counts, known.get(name, {})) for name, counts in found.items()}
        lines = [f"{json.dumps(name)}: {json.dumps(counts)}" for name, counts in sorted(kept.items()) if counts]
        BASELINE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    elif options.check:
        more = [
            f"{name}: {n} times {construction!r}, at most {(known or {}).get(name, {}).get(construction, 0)} allowed"
            for name, counts in found.items()
            for construction, n in counts.items()
            if n > (known or {}).get(name, {}).get(construction, 0)
        ]
        more += list(_frequent(found))
        print("\n".join([*more, "Write it plainly: subject, verb, object."]) if more else "no file has got worse.")
        return bool(more)
    total, n_words = Counter[str](), sum(len(prose(path).split()) for path in files())
    for counts in found.values():
        total.update(counts)
    for name in PATTERNS:
        print(f"{1000 * total[name] / n_words:6.2f} per 1,000 words  {name}")
    return 0


def _frequent(found: dict[str, dict[str, int]]) -> Iterator[str]:
    """Yield the constructions that are too frequent in a folder."""
    for folder in PLAIN:
        names = [name for name in found if name.startswith(folder)]
        n_words = sum(len(prose(ROOT / name).split()) for name in names)
        for construction in RARE:
            rate = 1000 * sum(found[name].get(construction, 0) for name in names) / max(n_words, 1)
            if rate > MAX_RATE:
                yield f"{folder}: {construction!r} {rate:.2f} times per 1,000 words, at most {MAX_RATE} allowed"


def _lower(counts: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: min(n, before.get(name, 0)) for name, n in counts.items() if min(n, before.get(name, 0))}


if __name__ == "__main__":
    sys.exit(main())
