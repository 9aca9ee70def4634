"""What the generators of pages share: write the pages, or with `--check` say how they would change."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 60
"""Lines of a difference that are printed."""


def main(about: str | None, pages: Callable[[], Mapping[Path, str]], *, source: str) -> int:
    """Write pages, or compare them, as the command line says; return the exit code.

    Args:
        about: What `--help` prints.
        pages: Returns the text of each page under its path.
        source: What the pages are made of, for the message that nothing has changed.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page would change")
    options = parser.parse_args()
    changed = False
    for path, text in pages().items():
        name = path.relative_to(ROOT)
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        changed |= text != old
        if options.check:
            changes = list(difflib.unified_diff(old.splitlines(), text.splitlines(), str(name), "as it would be", n=1))
            print("\n".join(changes[:LONGEST]) if text != old else f"{name} is what {source}.")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"{name}: {'as it was' if text == old else 'written'}")
    return int(options.check and changed)
