"""Key-value caches of padded batches: drop columns at the left, and put the rows of two caches together.

Rows end at the same column, so the padding is at the left, and a layer that keeps only a window of the last columns
needs no special case: it has the same last columns as any other. States of recurrent layers have no columns.
"""

from __future__ import annotations

from typing import Any

from llm_envs.errors import MissingExtraError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("a key-value cache needs torch: pip install 'llm-envs[train]'.") from error

__all__ = ["join_caches", "join_problem", "widen_cache"]

_WITH_COLUMNS = ("DynamicLayer", "DynamicSlidingWindowLayer")
_WITH_STATES = ("LinearAttentionLayer",)
_WITH_BOTH = ("LinearAttentionAndFullAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer")
_STATES = {"conv_states": "is_conv_states_initialized", "recurrent_states": "is_recurrent_states_initialized"}


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
