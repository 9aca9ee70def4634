"""Rewards as pure functions of what was written and what was right."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["MAX_DIGITS", "exact_match", "parse_integer", "weighted_sum"]

MAX_DIGITS = 400
"""Digits that a whole number in an answer may have."""

_INTEGER = re.compile(rf"[-+]?(?:[0-9]{{1,{MAX_DIGITS}}}|[0-9]{{1,3}}(?:,[0-9]{{3}}){{1,130}})(?:\.0{{1,20}})?")


def weighted_sum(components: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the sum of `weights[name] * components[name]` over the weights' names.

    Args:
        components: A value for each name in `weights`.
        weights: The declared weights.
    """
    total = 0.0
    for name, weight in weights.items():
        total += weight * components[name]
    return total


def exact_match(answer: str, target: str) -> float:
    """Return 1.0 if the two texts are the same but for white space around and runs of it inside, else 0.0."""
    return float(answer == target or answer.split() == target.split())


def parse_integer(text: str) -> int | None:
    """Read a whole number: an optional sign, digits (with or without thousands separators), perhaps `.0`; else None.

    Only ASCII digits count, at most `MAX_DIGITS` of them.
    """
    if text.isdigit() and text.isascii() and len(text) <= 18:
        return int(text)
    text = text.strip()
    if _INTEGER.fullmatch(text) is None:
        return None
    return int(text.partition(".")[0].replace(",", ""))
