"""A list of English words, to tell words from strings of letters."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

__all__ = ["english_words"]


@lru_cache(maxsize=1)
def english_words() -> frozenset[str]:
    """Return English words of 3 to 15 letters in lower case; the file names their sources and licences."""
    lines = Path(__file__).with_name("english_words.txt").read_text("ascii").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))
