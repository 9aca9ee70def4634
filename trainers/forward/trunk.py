"""The part of a language model below its head, and its last hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from llm_envs.errors import ModelError
from llm_envs.trainers.forward.tree_attention import tree_of

__all__ = ["captured_states", "trunk_of"]


def trunk_of(model: Any) -> nn.Module:
    """Return the part of a model below its head, also for a PEFT model.

    Raises:
        ModelError: If the model has no such part.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    trunk = getattr(base, "base_model", base)
    if isinstance(decoder := getattr(trunk, "decoder", None), PreTrainedModel):
        trunk = decoder  # OPT's and BART's heads call it, past the model around it
    if trunk is base:
        raise ModelError(
            f"{type(base).__name__} has no trunk below its head whose hidden states could be read: its rows are "
            "padded, and PPO takes a separate critic (`critic=` a folder, a name or a model)."
        )
    assert isinstance(trunk, nn.Module)
    return trunk


@contextmanager
def captured_states(model: Any, *, as_rows: bool = True) -> Iterator[list[torch.Tensor]]:
    """Collect the trunk's last hidden states of every forward pass inside the block, each (B, T, H), with gradient.

    A pass through a head that does not return its logits returns no hidden states either. `reads_tree` may try a model
    by several passes, so it is called before.

    Args:
        model: The model, without a wrapper.
        as_rows: Whether the states of a prefix tree, (1, N, H), are returned by row, (B, T, H).
    """
    states: list[torch.Tensor] = []

    def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        found = output[0] if isinstance(output, tuple) else output.last_hidden_state
        tree = tree_of(kwargs.get("attention_mask"))
        states.append(found if tree is None or not as_rows else tree.rows_of(found[0]))

    handle = trunk_of(model).register_forward_hook(keep, with_kwargs=True)
    try:
        yield states
    finally:
        handle.remove()
