"""Attention in padded batches: a copy of the one key-value head of a multi-query model for each of its query heads.

transformers passes one view of that head, whose stride over the heads is 0, to PyTorch's kernels. With a mask, the
memory-efficient kernel on CUDA then computes single tokens wrongly, by up to nine nats in our tests on an H200 with
torch 2.11 (pytorch/pytorch issues 191937, 191984 and 192138). Gemma 3 270 M and 1 B are such models.
"""

from __future__ import annotations

from llm_envs.errors import extra_needed

with extra_needed("attention needs torch: pip install 'llm-envs[train]'."):
    import torch

__all__ = ["copy_single_heads"]


def copy_single_heads() -> None:
    """Have transformers' SDPA attention copy keys and values where it would pass one view for all heads.

    It holds for all models of this process. A second call changes nothing. Models with several key-value heads, and
    turns of one token in recent versions of transformers, are computed as before.
    """
    from transformers.integrations import sdpa_attention

    sdpa_attention.repeat_kv = _repeat_kv


def _repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    """Repeat each head of (B, H, T, D), as the function that it replaces; the result is contiguous."""
    return hidden_states.repeat_interleave(n_rep, dim=1) if n_rep > 1 else hidden_states
