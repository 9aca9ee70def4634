"""An adapter as such for the sampling engine, instead of weights with it merged: its tensors, and whether vLLM can."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from llm_envs.errors import ModelError
from llm_envs.policies.vllm.adapters import RANKS
from llm_envs.policies.vllm.checkpoints import read_tensors
from llm_envs.trainers.engines.engine_weights import active_adapter, base_weights, checkpoint_weights
from llm_envs.trainers.engines.probe import trained_kinds

__all__ = [
    "SLOTS",
    "LoraSync",
    "adapter_rank",
    "adapter_tensors",
    "has_base",
    "unmerged_base",
    "why_merged",
]

LoraSync = Literal["merged", "adapter"]
"""How an engine or servers get an adapter that is trained."""
SLOTS = 4
"""Adapters in one batch of an engine: the present one, older ones of running turns, past versions in self-play. Turns
of further ones wait."""


def why_merged(model: Any, *, sharded: str | None = None, n_shards: int = 1) -> str | None:
    """Return why vLLM cannot have a PEFT model's adapter as such; None if nothing that is known here speaks against it.

    Args:
        model: The PEFT model.
        sharded: Name of the method that shards the weights over the processes.
        n_shards: Processes that share an engine by tensor parallelism.
    """
    from peft.tuners.lora import Linear
    from peft.tuners.tuners_utils import BaseTunerLayer

    config, active = model.peft_config[active_adapter(model)], active_adapter(model)
    if config.peft_type != "LORA":
        return f"the adapter is {config.peft_type.value}, and vLLM has LoRA only"
    if config.use_dora:
        return "use_dora=True, which vLLM lacks"
    if others := sorted(trained_kinds(model).keys() - {"the adapter"}):
        return f"{', '.join(others)} is trained with the adapter, and vLLM adapts layers only"
    for name, layer in model.named_modules():
        if not isinstance(layer, BaseTunerLayer) or active not in getattr(layer, "r", {active: 0}):
            continue
        if type(layer) is not Linear or getattr(layer, "lora_bias", {}).get(active) or layer.lora_variant.get(active):
            return f"{name} is adapted as {type(layer).__name__} of another form than B A x, the one that vLLM has"
    if (rank := adapter_rank(model)) > RANKS[-1]:
        return f"the rank {rank} is above vLLM's largest, {RANKS[-1]}"
    if sharded is not None:
        return f"{sharded} shards the weights"
    return None if n_shards == 1 else f"{n_shards} processes share an engine"


def adapter_rank(model: Any) -> int:
    """Return the largest rank of a LoRA model's layers."""
    active = active_adapter(model)
    return max(layer.r[active] for _, layer in _lora_layers(model, active))


def adapter_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return a LoRA model's adapter for `update_adapter`: for each layer A (r, in), and B times its scale (out, r)."""
    active = active_adapter(model)
    tensors = {}
    for name, layer in _lora_layers(model, active):
        tensors[f"{name}.lora_A.weight"] = layer.lora_A[active].weight.detach()
        tensors[f"{name}.lora_B.weight"] = layer.lora_B[active].weight.detach() * layer.scaling[active]
    return tensors


def _lora_layers(model: Any, active: str) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer) and active in layer.r:
            yield name, layer


def unmerged_base(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a PEFT model's base as its checkpoint has them."""
    return checkpoint_weights(model, base_weights(model.named_parameters(), model.prefix))


def has_base(folder: Path | None, base: Iterable[tuple[str, torch.Tensor]]) -> bool:
    """Return whether a checkpoint has these tensors, bit for bit in their dtype; False if it is not on this machine."""
    tensors = dict(base)
    try:
        kept = {} if folder is None else dict(read_tensors(folder, tensors))
    except (OSError, ModelError):
        return False
    return kept.keys() == tensors.keys() and all(
        torch.equal(kept[name].to(value.dtype), value.detach().cpu()) for name, value in tensors.items()
    )
