"""Maps each index to a part and an item: weighted mixtures, epochs, deterministic shuffling.

Everything is computed from (seed, index), so every rank and every resumed run gets the same result. In an epoch of a
finite part, each item occurs exactly once; each epoch has its own order.
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

# A double holds 53 bits exactly, so a seed survives JSON readers in every language.
_SEED_BITS = 53


def derive_seed(*parts: int | str) -> int:
    """Hash the parts to a seed of 53 bits: unrelated for any two different tuples, equal on every machine."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


def derive_fraction(*parts: int | str) -> float:
    """Hash the parts to a number in [0, 1), evenly spread."""
    return derive_seed(*parts) / 2**_SEED_BITS


def is_weight(value: Any) -> bool:
    """Return whether this is a valid share: a finite number above 0."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf


def choose(fraction: float, cumulative: Sequence[float]) -> int:
    """Return the index for a number in [0, 1), by shares given as cumulative weights, the last above 0."""
    return min(bisect_right(cumulative, fraction * cumulative[-1]), len(cumulative) - 1)


@lru_cache(maxsize=8)
def permutation(n: int, seed: int) -> tuple[int, ...] | array[int]:
    """Return the numbers 0, ..., n − 1 in an order decided by the seed, the same on every machine."""
    order = array("q", range(n))
    # Implemented here, because of `random` only the stream of `random()` is guaranteed to stay the same.
    draw = Random(seed).random
    for last in range(n - 1, 0, -1):
        other = int(draw() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order


class Place(NamedTuple):
    """The item of an index."""

    part: int
    """Index of the part."""
    item: int
    """Item of the part, from 0; for an endless part, the index itself."""
    epoch: int
    """Number of completed epochs of the part; 0 for an endless part."""


class Schedule:
    """A weighted mixture of parts, each played in epochs.

    Args:
        seed: Decides parts and orders.
        weights: Share of each part, above 0.
        lengths: Items of each part, at least 1; None means endless.
        shuffle: Whether each epoch has its own order; otherwise all have the order of the items.

    Raises:
        InvalidConfigError: If no part is given, or one has a wrong weight or length.
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
        self._earlier = array("q")  # for each index so far, how many earlier ones have the same part
        self._seen = [0] * len(weights)

    def part(self, index: int) -> int:
        """Return the part of an index."""
        if len(self.lengths) == 1:
            return 0
        return choose(derive_fraction(self.seed, "env", index), self._cumulative)

    def at(self, index: int) -> Place:
        """Return the item of an index, from 0.

        In a mixture with finite parts, this counts the items of each part from index 0 on, once: 2 µs per index.
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
        """Return the number of completed epochs of each part below `index`; 0 for endless parts."""
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
        # The place in an epoch depends on how often the part was drawn before, so all earlier indices are counted once.
        while len(self._earlier) <= index:
            part = self.part(len(self._earlier))
            self._earlier.append(self._seen[part])
            self._seen[part] += 1
        return self._earlier[index]
