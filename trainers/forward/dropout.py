"""Dropout in training.

One rule for GRPO, PPO, DPO and the plain loop: dropout is off, in adapters too, unless `disable_dropout=False`. With it
the trained policy is not the one that sampled, and log-probabilities of two passes differ by their masks. Supervised
fine-tuning compares no log-probabilities and keeps the model's dropout.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["describe_dropout", "disable_dropout"]


def disable_dropout(model: torch.nn.Module) -> None:
    """Switch all dropout of a model off, in place; in an adapter that is added later, it is on."""
    for _, holder, key in _rates(model):
        holder[key] = 0.0
    # Some layers (Falcon, Persimmon) read rates from the model's config. It is saved with the model, so give them a
    # copy of it.
    copies: dict[int, PreTrainedConfig] = {}
    for module in model.modules():
        config = vars(module).get("config")
        if isinstance(config, PreTrainedConfig) and not isinstance(module, PreTrainedModel):
            module.config = copies.setdefault(id(config), copy.copy(config))  # type: ignore[assignment]
    for config in copies.values():
        vars(config).update({key: 0.0 for key, value in vars(config).items() if "drop" in key and _is_rate(value)})


def describe_dropout(model: torch.nn.Module) -> str:
    """Return where a model has dropout, such as "0.1 in transformer.drop and 24 more places"; "" if nowhere."""
    rates = [(where, holder[key]) for where, holder, key in _rates(model)]
    more = "" if len(rates) < 2 else f" and {len(rates) - 1} more place{'s' if len(rates) > 2 else ''}"
    return f"{rates[0][1]:g} in {rates[0][0]}{more}" if rates else ""


def _rates(model: torch.nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield each dropout rate above 0: its place, and the dictionary and key that hold it."""
    for name, module in model.named_modules():
        is_layer = "Dropout" in type(module).__name__
        for key, value in list(vars(module).items()):
            # Models hold the rates of attention and of skipped layers as numbers; PEFT some by the adapter's name.
            if "drop" in key and isinstance(value, dict):
                yield from ((f"{name}.{key}", value, part) for part, rate in list(value.items()) if _is_rate(rate))
            elif _is_rate(value) and ("drop" in key or (is_layer and key == "p")):
                yield name if is_layer else f"{name}.{key}", vars(module), key


def _is_rate(value: object) -> bool:
    return isinstance(value, float) and value > 0.0
