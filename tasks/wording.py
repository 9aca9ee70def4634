"""Words that several tasks write: a count with its noun."""

from __future__ import annotations

__all__ = ["in_words"]

_PLURALS = {"reply": "replies", "guess": "guesses"}


def in_words(count: int, noun: str) -> str:
    """Return a count with its noun: "1 move", "3 moves"."""
    return f"{count} {noun if count == 1 else _PLURALS.get(noun, f'{noun}s')}"
