"""Masks and padding of (B, T) batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["trim_padding"]


def trim_padding(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Cut the columns of a batch in which every row is padding.

    A generation is padded to its longest row; a micro-batch of it seldom holds that row. Nothing that a mask lets
    through is cut, so losses stay as they were.

    Args:
        batch: `prompt_ids` and `prompt_mask`, shape (B, P), padded on the left; `completion_ids` and
            `completion_mask`, shape (B, T), padded on the right; and anything else. Every other tensor of shape (B, T)
            is cut like the completions.

    Returns:
        A new mapping, with P and T as small as the masks allow and at least 1.
    """
    prompt_mask, completion_mask = batch["prompt_mask"], batch["completion_mask"]
    n_prompt, n_completion = _longest(prompt_mask), _longest(completion_mask)
    out = dict(batch)
    for name, value in batch.items():
        if name in ("prompt_ids", "prompt_mask"):
            out[name] = value[:, value.shape[1] - n_prompt :]
        elif isinstance(value, torch.Tensor) and value.shape == completion_mask.shape:
            out[name] = value[:, :n_completion]
    return out


def _longest(mask: torch.Tensor) -> int:
    return max(int(mask.sum(dim=1).max()), 1)
