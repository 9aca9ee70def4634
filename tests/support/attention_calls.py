"""What PyTorch's attention is called with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.integrations import sdpa_attention


def by_a_view(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    """Repeat heads as transformers does, whose own function may have been replaced in this process."""
    batch, heads, length, size = hidden_states.shape
    return hidden_states[:, :, None].expand(batch, heads, n_rep, length, size).reshape(batch, -1, length, size)


@contextmanager
def masked_attention() -> Iterator[list[int]]:
    """Keep, for each call with a mask, how many of its keys and values are one view for several heads.

    It begins as transformers does it, before anything of ours is called.
    """
    repeat_kv, sdpa_attention.repeat_kv = sdpa_attention.repeat_kv, by_a_view
    original, found = torch.nn.functional.scaled_dot_product_attention, list[int]()

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, **kwargs: Any
    ) -> Any:
        if attn_mask is not None:
            found.append(sum(part.shape[1] > 1 and part.stride(1) == 0 for part in (key, value)))
        return original(query, key, value, attn_mask=attn_mask, **kwargs)

    torch.nn.functional.scaled_dot_product_attention = attend
    try:
        yield found
    finally:
        torch.nn.functional.scaled_dot_product_attention = original
        sdpa_attention.repeat_kv = repeat_kv
