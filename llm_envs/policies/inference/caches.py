"""Key-value caches of padded batches: append tokens, drop columns at the left, and join the rows of two caches.

Rows end at the same column, so the padding is at the left, and a layer that keeps only a window of the last columns
needs no special case: it has the same last columns as any other. States of recurrent layers have no columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from llm_envs.errors import extra_needed
from llm_envs.types import IdArray

with extra_needed("a key-value cache needs torch: pip install 'llm-envs[train]'."):
    import torch
    from transformers.cache_utils import DynamicCache, DynamicLayer

__all__ = [
    "Prefix",
    "RoomyLayer",
    "cache_of",
    "has_all_tokens",
    "join_caches",
    "join_problem",
    "make_room",
    "take_prefix",
    "widen_cache",
]

_WITH_COLUMNS = ("DynamicLayer", "DynamicSlidingWindowLayer", "RoomyLayer")
_WITH_STATES = ("LinearAttentionLayer",)
_WITH_BOTH = ("LinearAttentionAndFullAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer")
_STATES = {"conv_states": "is_conv_states_initialized", "recurrent_states": "is_recurrent_states_initialized"}


_ROOM = 64
"""Columns."""


class RoomyLayer(DynamicLayer):
    """The keys and values of all tokens, with room for further ones, so that a new token does not copy all others."""

    _buffers: tuple[torch.Tensor, ...]
    _in_buffer: torch.Tensor | None = None  # the keys, until something else replaces them

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values (B, H, n, D); return all of them, (B, H, T, D)."""
        keys, values = self.keys, self.values
        assert keys is not None and values is not None  # `make_room` has seen them
        start, stop = keys.shape[-2], keys.shape[-2] + key_states.shape[-2]
        if self._in_buffer is not keys or self._buffers[0].shape[-2] < stop:
            self._buffers = _with_room(keys, stop), _with_room(values, stop)
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., start:stop, :] = new
        self.keys, self.values = (buffer[..., :stop, :] for buffer in self._buffers)
        self._in_buffer = self.keys
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Keep these rows, and release the room that the others had."""
        self._buffers, self._in_buffer = (), None
        super().reorder_cache(cast("torch.LongTensor", beam_idx))


def make_room(cache: Any) -> None:
    """Give the plain layers of a filled cache room for further tokens. For sampling: gradients are not kept."""
    for layer in getattr(cache, "layers", ()):
        if type(layer) is DynamicLayer and layer.is_initialized:
            layer.__class__ = RoomyLayer


def _with_room(values: torch.Tensor, n_columns: int) -> torch.Tensor:
    """Return a copy of keys or values (B, H, T, D) with more than `n_columns` columns; the new ones are not set."""
    n_rows, n_heads, width, size = values.shape
    copy = values.new_empty(n_rows, n_heads, n_columns + _ROOM, size)
    copy[..., :width, :] = values
    return copy


def join_problem(cache: Any) -> str | None:
    """Return why the rows of such a cache cannot be joined with others, or None if they can.

    Args:
        cache: A cache of transformers; None for a model without one.
    """
    if cache is None:
        return None
    if type(cache).__name__ != "DynamicCache" or getattr(cache, "offloading", False):
        return f"its key-value cache is a {type(cache).__name__}, not a DynamicCache in the model's own memory"
    for layer in cache.layers:
        name = type(layer).__name__
        has_states = name in (*_WITH_STATES, *_WITH_BOTH)
        if name not in (*_WITH_COLUMNS, *_WITH_STATES, *_WITH_BOTH):
            return f"its key-value cache has layers of type {name}, which are not known to be joinable"
        if has_states and not all(isinstance(getattr(layer, states), dict) for states in _STATES):
            return f"the states of its layers of type {name} have an unknown form"
    return None


def widen_cache(cache: Any, n_columns: int) -> None:
    """Add columns of zeros at the left of a cache, or drop columns there if the number is negative."""
    for layer in cache.layers:
        if not n_columns or type(layer).__name__ in _WITH_STATES or not layer.is_initialized:
            continue
        width = layer.get_seq_length() + n_columns
        window = getattr(layer, "sliding_window", None)
        stored = width if window is None else min(width, window - 1)
        layer.keys, layer.values = _widened(layer.keys, stored), _widened(layer.values, stored)
        if window is not None:
            layer.cumulative_length = width


def join_caches(cache: Any, other: Any) -> None:
    """Append the rows of `other`, a cache of the same width and model, to `cache`."""
    for one, two in zip(cache.layers, other.layers, strict=True):
        name = type(one).__name__
        if name not in _WITH_STATES and one.is_initialized:
            one.keys, one.values = torch.cat([one.keys, two.keys]), torch.cat([one.values, two.values])
        if name in (*_WITH_STATES, *_WITH_BOTH):
            for states, flags in _STATES.items():
                own = getattr(one, states)
                for index, is_initialized in getattr(one, flags).items():
                    if is_initialized:
                        own[index] = torch.cat([own[index], getattr(two, states)[index]])


def _widened(values: torch.Tensor, width: int) -> torch.Tensor:
    """Return keys or values (B, H, T, D) with `width` columns: the last ones, behind zeros if there are fewer."""
    missing = width - values.shape[-2]
    return torch.nn.functional.pad(values, (0, 0, missing, 0)) if missing > 0 else values[..., -missing:, :]


@dataclass(frozen=True)
class Prefix:
    """Tokens (T,), and for each layer the keys and values (H, T, D) of them all."""

    ids: IdArray
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]]

    n_bytes: int = field(init=False)
    """Memory of the keys and values."""

    def __post_init__(self) -> None:
        n_bytes = sum(part.numel() * part.element_size() for layer in self.layers for part in layer)
        object.__setattr__(self, "n_bytes", n_bytes)

    def first(self, n: int) -> Prefix:
        """Return its first `n` tokens, in the same memory."""
        return Prefix(self.ids[:n], [(keys[:, :n], values[:, :n]) for keys, values in self.layers])


def has_all_tokens(cache: Any) -> bool:
    """Return whether each layer of a filled cache has the keys and values of all tokens, and nothing else."""
    layers = getattr(cache, "layers", ())
    return bool(layers) and all(type(layer) is RoomyLayer for layer in layers)


def take_prefix(cache: Any, place: int, ids: IdArray) -> Prefix:
    """Copy the end of a row of such a cache, whose tokens are `ids`, shape (T,)."""
    n = len(ids)
    layers = [(layer.keys[place, :, -n:].clone(), layer.values[place, :, -n:].clone()) for layer in cache.layers]
    return Prefix(ids, layers)


def cache_of(prefixes: Sequence[Prefix | None]) -> DynamicCache:
    """Return a cache with a row for each prefix, padded on the left; at least one is not None."""
    known = [prefix for prefix in prefixes if prefix is not None]
    width = max(len(prefix.ids) for prefix in known)
    cache = DynamicCache()
    for index, layer in enumerate(known[0].layers):
        keys, values = (part.new_zeros(len(prefixes), part.shape[0], width, part.shape[2]) for part in layer)
        for row, prefix in enumerate(prefixes):
            if prefix is not None:
                for part, own in zip((keys, values), prefix.layers[index], strict=True):
                    part[row, :, width - len(prefix.ids) :] = own
        cache.update(keys, values, index)
    return cache
