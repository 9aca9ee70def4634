"""Positions in padded batches: a row's tokens count from its first one, wherever the padding is.

Otherwise models with absolute positions (GPT-2, GPT-Neo, BioGPT) use a token's column as its position, and the same
tokens get other log-probabilities when the padding in front of them changes.
"""

from __future__ import annotations

import inspect
from typing import Any

from llm_envs.errors import ModelError, extra_needed

with extra_needed("positions of tokens need torch: pip install 'llm-envs[train]'."):
    import torch

__all__ = ["accepts_positions", "check_positions", "pass_positions", "position_ids", "position_problem"]

_FREE_OF_POSITIONS = ("bloom", "falcon_mamba", "mamba", "mamba2", "mpt")
"""Model types without `position_ids` that need none: they have relative positions, or a state that ignores padding. A
test compares padded and single rows for each."""


def position_ids(attention_mask: torch.Tensor) -> torch.Tensor:
    """Return each token's position in its row, shape (B, T), int64; 0 on padding before the first token."""
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def position_problem(model_class: type, model_type: str) -> str | None:
    """Return why rows of different lengths cannot share a batch of such a model, or None if they can.

    Args:
        model_class: A causal language model of transformers.
        model_type: From its configuration.
    """
    if model_type in _FREE_OF_POSITIONS or accepts_positions(model_class):
        return None
    return (
        f"{model_class.__name__} takes no position_ids, so a token's log-probability depends on the padding of its "
        "batch. Use a decoder-only model whose forward takes position_ids, as nearly all do."
    )


def check_positions(model: Any) -> None:
    """Raise for a model whose log-probabilities depend on the padding of a batch.

    Raises:
        ModelError: If its forward takes no `position_ids` and it is not known to work without them.
    """
    causal = _causal(model)
    config = getattr(causal, "config", None)
    problem = None if config is None else position_problem(type(causal), config.get_text_config().model_type)
    if problem is not None:
        raise ModelError(problem)


def pass_positions(model: Any) -> Any:
    """Make a model's forward compute its tokens' positions whenever the caller does not pass them.

    TRL passes only input ids and an attention mask. A second call changes nothing.

    Args:
        model: A causal language model, perhaps with a PEFT adapter; not one wrapped for several processes.

    Returns:
        The language model without its adapter.
    """
    causal = _causal(model)
    if accepts_positions(type(causal)) and _add_positions not in causal._forward_pre_hooks.values():
        causal.register_forward_pre_hook(_add_positions, with_kwargs=True)
    return causal


def _add_positions(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    mask, cache = kwargs.get("attention_mask"), kwargs.get("cache", kwargs.get("past_key_values"))
    if mask is None or mask.ndim != 2 or cache is not None or kwargs.get("position_ids") is not None:
        return None
    return args, kwargs | {"position_ids": position_ids(mask)}


def accepts_positions(model_class: Any) -> bool:
    """Return whether the forward of a class of models takes `position_ids`."""
    return "position_ids" in inspect.signature(model_class.forward).parameters


def cache_argument(model: Any, cache: Any) -> dict[str, Any]:
    """Return a cache as the argument of a model's forward; transformers 5.24 renamed `past_key_values` to `cache`."""
    causal = _causal(getattr(model, "module", model))
    forward = getattr(type(causal), "forward", None)
    is_new = forward is not None and "cache" in inspect.signature(forward).parameters
    return {"cache" if is_new else "past_key_values": cache}


def output_cache(output: Any) -> Any:
    """Return the cache in a model's output; None: it has none."""
    # Reading an old name from an output of transformers 5.24 prints a warning.
    return getattr(output, "cache" if hasattr(output, "cache") else "past_key_values", None)


def _causal(model: Any) -> Any:
    """Return the language model inside a PEFT adapter."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
