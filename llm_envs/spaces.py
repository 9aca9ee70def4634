"""The space of texts, and its support in the shared memory of Gymnasium's vector environments.

`gymnasium.spaces.Text` builds a lookup table of its alphabet; for all of Unicode that takes a second and 160 MB.
`TextSpace` has the same interface with a virtual alphabet. Importing this module registers the space with the three
functions of `gymnasium.vector.utils.shared_memory`, which otherwise return zeros for a text.
"""

from __future__ import annotations

import multiprocessing
import struct
import sys
from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np
from gymnasium.spaces import Space, Text
from gymnasium.vector.utils.shared_memory import (
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

from llm_envs.errors import InvalidConfigError

__all__ = ["MAX_TEXT_LENGTH", "TextSpace", "encodable"]

MAX_TEXT_LENGTH = 2**20
"""Length of the longest text in characters. It is the same for every task, because environments with different spaces
cannot share a vector environment. About 250,000 tokens. In an `AsyncVectorEnv`'s memory each environment reserves four
bytes per character (4 MiB; the system allocates only the written part)."""

_ALPHABET_SIZE = sys.maxunicode + 1
_SAMPLE_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n.,:;!?+-*/=<>()[]{}\"'äßñ中🙂"
_SAMPLE_MAX_LENGTH = 32
_LENGTH_PREFIX = struct.Struct("<q")
_MAX_CHARACTER_BYTES = 4


class _Alphabet(Sequence[str], Set[str]):
    """Every code point in order, including lone surrogates, without storing them."""

    def __len__(self) -> int:
        return _ALPHABET_SIZE

    def __contains__(self, character: object) -> bool:
        return isinstance(character, str) and len(character) == 1

    def __iter__(self) -> Iterator[str]:
        return map(chr, range(_ALPHABET_SIZE))

    def __getitem__(self, index: Any) -> Any:
        chosen = range(_ALPHABET_SIZE)[index]
        return tuple(map(chr, chosen)) if isinstance(chosen, range) else chr(chosen)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alphabet)

    def __hash__(self) -> int:
        return hash(_Alphabet)


_EVERY_CHARACTER = _Alphabet()


class TextSpace(Text):
    """Every Unicode text of at most `max_length` characters.

    Membership is checked in constant time. A sample is short. Two spaces are equal when their `max_length` is.

    Args:
        max_length: Characters of the longest text, at least 1.
        seed: Seed of `sample`.
    """

    def __init__(self, max_length: int = MAX_TEXT_LENGTH, *, seed: int | np.random.Generator | None = None) -> None:
        if isinstance(max_length, bool) or not isinstance(max_length, int | np.integer) or max_length < 1:
            raise InvalidConfigError(f"TextSpace: max_length is {max_length!r}; it must be an integer of at least 1.")
        self.min_length: int = 0
        self.max_length: int = int(max_length)
        Space.__init__(self, dtype=str, seed=seed)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a string of allowed length."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short random text of letters, digits, punctuation, line breaks and a few characters beyond ASCII."""
        if mask is not None or probability is not None:
            raise InvalidConfigError(
                "TextSpace.sample takes neither `mask` nor `probability`: its alphabet is all of Unicode."
            )
        length = int(self.np_random.integers(0, min(_SAMPLE_MAX_LENGTH, self.max_length) + 1))
        indices = self.np_random.integers(0, len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[index] for index in indices.tolist())

    @property
    def character_set(self) -> Any:
        """A virtual set of all code points, which is also a sequence of them in order."""
        return _EVERY_CHARACTER

    character_list = characters = character_set  # in `Text`, the latter is a string

    def character_index(self, char: str) -> np.int32:
        """Return the code point of `char`."""
        return np.int32(ord(char))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and self.max_length == other.max_length

    def __repr__(self) -> str:
        return f"TextSpace({self.max_length})"


def encodable(text: str) -> str:
    """Return the text with lone surrogates, which tokenizers reject, replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _SharedTexts(Sequence[str]):
    """The texts in a shared buffer, decoded on access; `copy.deepcopy` gives a plain tuple."""

    def __init__(self, buffer: Any, slot_bytes: int, n: int) -> None:
        self._buffer = buffer
        self._slot_bytes = slot_bytes
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(self._n)[index])
        start = range(self._n)[index] * self._slot_bytes
        view = memoryview(self._buffer.get_obj()).cast("B")
        (n_bytes,) = _LENGTH_PREFIX.unpack_from(view, start)
        start += _LENGTH_PREFIX.size
        return bytes(view[start : start + n_bytes]).decode("utf-8", "surrogatepass")

    def __deepcopy__(self, memo: Any) -> tuple[str, ...]:
        return tuple(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))


def _slot_bytes(space: TextSpace) -> int:
    """Return the bytes that any text of the space needs: its length, then UTF-8 of at most four bytes per character."""
    return _LENGTH_PREFIX.size + _MAX_CHARACTER_BYTES * space.max_length


@create_shared_memory.register(TextSpace)
def _create_text_memory(space: TextSpace, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array("c", n * _slot_bytes(space))


@read_from_shared_memory.register(TextSpace)
def _read_text_memory(space: TextSpace, shared_memory: Any, n: int = 1) -> _SharedTexts:
    return _SharedTexts(shared_memory, _slot_bytes(space), n)


@write_to_shared_memory.register(TextSpace)
def _write_text_memory(space: TextSpace, index: int, value: str, shared_memory: Any) -> None:
    if value not in space:
        given = f"{len(value)} characters" if isinstance(value, str) else f"type {type(value).__name__}"
        raise ValueError(
            f"an observation of {given} is outside {space}: shorten it in the environment, or make the vector "
            "environment with vector_kwargs={'shared_memory': False}."
        )
    encoded = value.encode("utf-8", "surrogatepass")
    start = index * _slot_bytes(space)
    view = memoryview(shared_memory.get_obj()).cast("B")
    _LENGTH_PREFIX.pack_into(view, start, len(encoded))
    start += _LENGTH_PREFIX.size
    view[start : start + len(encoded)] = encoded
