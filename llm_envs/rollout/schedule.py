"""Which item of which part each index falls to: weighted mixtures, epochs, deterministic shuffling.

Everything is worked out from (seed, index), so any rank and any resumed run comes to the same. In an epoch of a finite
part each of its items comes exactly once; each epoch has an order of its own.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from numbers import Real
from random import Random
from typing import Any, NamedTuple

from llm_envs.errors import InvalidConfigError

__all__ = ["Place", "Schedule", "choose", "derive_fraction", "derive_seed", "is_weight", "permutation"]

# A double holds 53 bits exactly, so a seed survives JSON readers of every language.
_SEED_BITS = 53


def derive_seed(*parts: int | str) -> int:
    """Hash the parts to a seed of 53 bits: unrelated for any two different tuples, equal on every machine."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


def derive_fraction(*parts: int | str) -> float:
    """Hash the parts to a number in [0, 1), evenly spread."""
    return derive_seed(*parts) / 2**_SEED_BITS


def is_weight(value: Any) -> bool:
    """Say whether this is a share: a finite number above 0."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf


def choose(fraction: float, cumulative: Sequence[float]) -> int:
    """Return the index that a number in [0, 1) falls to, by shares given as cumulative weights, the last above 0."""
    return min(bisect_right(cumulative, fraction * cumulative[-1]), len(cumulative) - 1)


@lru_cache(maxsize=8)
def permutation(n: int, seed: int) -> tuple[int, ...] | array[int]:
    """Return the numbers 0, ..., n − 1 in the order that the seed decides, the same on every machine."""
    order = array("q", range(n))
    # Written out, since of `random` only the stream of `random()` is promised to stay what it is.
    draw = Random(seed).random
    for last in range(n - 1, 0, -1):
        other = int(draw() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order


class Place(NamedTuple):
    """What an index falls to."""

    part: int
    """Index of the part."""
    item: int
    """Item of the part, from 0; of a part without end, the index itself."""
    epoch: int
    """How often the part was gone through before; 0 for one without end."""


class Schedule:
    """A weighted mixture of parts, each of which is gone through in epochs.

    Args:
        seed: Decides parts and orders.
        weights: Share of each part, above 0.
        lengths: Items of each part, at least 1; None is without end.
        shuffle: Whether each epoch has an order of its own; else all have that of the items.

    Raises:
        InvalidConfigError: If there is no part, or one has a wrong weight or length.
    """

    def __init__(
        self, seed: int, weights: Sequence[float], lengths: Sequence[int | None], *, shuffle: bool = True
    ) -> None:
        if not weights or len(weights) != len(lengths):
            raise InvalidConfigError(f"Schedule: {len(weights)} weights and {len(lengths)} lengths; give one of each.")
        for weight, length in zip(weights, lengths, strict=True):
            if not is_weight(weight) or (length is not None and length < 1):
                raise InvalidConfigError(f"Schedule: a part of weight {weight!r} and length {length!r}.")
        if not math.isfinite(sum(weights)):
            raise InvalidConfigError(f"Schedule: the weights {list(weights)!r:.200} have no finite sum.")
        self.seed, self.lengths, self.shuffle = seed, tuple(lengths), shuffle
        self._cumulative = list(accumulate(weights))
        self._earlier = array("q")  # for each index so far, how many before it fell to the same part
        self._seen = [0] * len(weights)

    def part(self, index: int) -> int:
        """Return the part that an index falls to."""
        if len(self.lengths) == 1:
            return 0
        return choose(derive_fraction(self.seed, "env", index), self._cumulative)

    def at(self, index: int) -> Place:
        """Return what an index, from 0, falls to.

        In a mixture with finite parts it is counted from index 0 what fell to each: once, 2 µs an index.
        """
        part = self.part(index)
        length = self.lengths[part]
        if length is None:
            return Place(part, index, 0)
        epoch, position = divmod(self._earlier_of_part(index), length)
        if not self.shuffle:
            return Place(part, position, epoch)
        return Place(part, permutation(length, derive_seed(self.seed, "epoch", part, epoch))[position], epoch)

    def epochs(self, index: int) -> tuple[int, ...]:
        """Return how often each part was gone through by the indices below `index`; 0 for those without end."""
        if len(self.lengths) == 1:
            counts = [index]
        else:
            counts = [0] * len(self.lengths)
            for earlier in range(index):
                counts[self.part(earlier)] += 1
        return tuple(
            0 if length is None else count // length for count, length in zip(counts, self.lengths, strict=True)
        )

    def _earlier_of_part(self, index: int) -> int:
        if len(self.lengths) == 1:
            return index
        while len(self._earlier) <= index:
            part = self.part(len(self._earlier))
            self._earlier.append(self._seen[part])
            self._seen[part] += 1
        return self._earlier[index]
