"""Random choices for generators, made of `self.np_random.random` alone: quicker than numpy's own for single draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["Random", "between", "pick", "sample", "shuffled"]

Random = Callable[[], float]
"""Returns a number in [0, 1): `self.np_random.random`."""
T = TypeVar("T")


def between(random: Random, low: int, high: int) -> int:
    """Draw a whole number from low to high, both included."""
    return low + int(random() * (high - low + 1))


def pick(random: Random, items: Sequence[T]) -> T:
    """Draw one of the items."""
    return items[int(random() * len(items))]


def sample(random: Random, items: Sequence[T], n: int) -> list[T]:
    """Draw `n` of the items, none twice, in random order."""
    pool = list(items)
    size = len(pool)
    for i in range(n):
        j = i + int(random() * (size - i))
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:n]


def shuffled(random: Random, items: Sequence[T]) -> list[T]:
    """Return the items in random order."""
    return sample(random, items, len(items))
