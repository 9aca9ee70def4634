"""First names for the people in stories and puzzles; each is one word, with a first letter that is a capital."""

from __future__ import annotations

__all__ = ["PEOPLE"]

PEOPLE = (
    *("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Iris", "Jon", "Kira", "Leo", "Mona", "Nils"),
    *("Olga", "Pia", "Quinn", "Rosa", "Sam", "Tara", "Uma", "Vera", "Wim", "Yara", "Zeno"),
)
