"""A model's weights under the names and in the form of its checkpoint, which is what a sampling engine reads.

An adapter is merged for the engine, and afterwards the base weights are restored bit for bit. Subtracting the adapter
again would not do: W + BA - BA is not W in floating point, and the base would drift with every sync.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import is_peft_model
from transformers.core_model_loading import revert_weight_conversion

from llm_envs.errors import InvalidConfigError

__all__ = [
    "active_adapter",
    "base_weights",
    "cannot_merge",
    "check_mergeable",
    "checkpoint_weights",
    "describe_adapter",
    "engine_weights",
    "kept_base",
    "merged_layers",
]

NamedTensors = Iterable[tuple[str, torch.Tensor]]

_NOT_TOLD = {"peft_type", "task_type", "base_model_name_or_path", "peft_version", "inference_mode"}
_NOT_WEIGHTS = ("trainable_tokens_", "ranknum")
"""Beside a tuner's own prefix, parts of names of what adapters add to a layer."""


def engine_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a model's weights as its checkpoint has them, with adapters merged. The model stays as it is.

    Raises:
        InvalidConfigError: If its adapter cannot be merged.
    """
    if not is_peft_model(model):
        return checkpoint_weights(model, model.named_parameters())
    check_mergeable(model)
    return checkpoint_weights(model, merged_layers(model))


def describe_adapter(model: Any) -> str:
    """Return a PEFT model's settings that are not the default, as `LoraConfig(bias='all', ...)`."""
    config = model.peft_config[active_adapter(model)]
    told = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if field.name not in _NOT_TOLD and value not in (default, None):
            told.append(f"{field.name}={sorted(value) if isinstance(value, set) else value!r}")
    return f"{type(config).__name__}({', '.join(told)})"


def check_mergeable(model: Any) -> None:
    """Check that an adapter changes weights: not the prompt or the layers' code, and the same for all rows and tokens.

    Raises:
        InvalidConfigError: If it does not: no engine can have it, and TRL scores its rows at other positions than the
            model that samples.
    """
    if not is_peft_model(model):
        return
    config = model.peft_config[active_adapter(model)]
    depends = config.peft_type in ("POLY", "XLORA") or getattr(config, "alora_invocation_tokens", None)
    if depends or not hasattr(model.base_model, "merge_adapter"):
        raise InvalidConfigError(
            f"peft_config={describe_adapter(model)}: this adapter has no form as weights. Sampling and training would "
            "differ, and vLLM cannot have it. Take LoRA, or another adapter that PEFT can merge."
        )


def cannot_merge(model: Any, error: Exception) -> InvalidConfigError:
    """Return the error of a PEFT model whose merge raised `error`: each kind of adapter raises its own."""
    return InvalidConfigError(
        f"peft_config={describe_adapter(model)}: the adapter cannot be merged into the weights that vLLM samples with "
        f"({type(error).__name__}: {error}). Leave that setting out, or set use_vllm=False."
    )


def active_adapter(model: Any) -> str:
    """Return the name of a PEFT model's trained adapter."""
    active = model.active_adapter
    return str(active if isinstance(active, str) else active[0])


def checkpoint_weights(model: Any, named_parameters: NamedTensors) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters as the checkpoint has them that the model was loaded from.

    Each expert of a mixture comes separately, and the text part of a larger model under its name there.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    for name, value in named_parameters:
        yield from revert_weight_conversion(base, {name: value}).items()


def merged_layers(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a PEFT model under its base model's names, merging one adapted layer at a time.

    The model itself is unchanged whenever a pair is yielded.

    Raises:
        InvalidConfigError: If PEFT cannot merge a layer.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted: dict[str, Any] = {
        name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)
    }
    outer = [name for name in adapted if not any(name[:at] in adapted for at, sign in enumerate(name) if sign == ".")]
    # If two layers share a weight, the first one owns it, as in `named_parameters`.
    owner = {id(parameter): name for name in reversed(outer) for parameter in adapted[name].parameters()}
    merged: dict[str, dict[str, torch.Tensor]] = {}
    active = active_adapter(model)
    for name, parameter in model.named_parameters():
        # Of a module that is trained in full there are an untrained copy, and one of each adapter.
        name = name.replace(f"modules_to_save.{active}.", "")
        if _is_adapters(name, model.prefix) or "original_module" in name or "modules_to_save." in name:
            continue
        layer = owner.get(id(parameter))
        if layer is None:
            yield _base_name(name), parameter.data
            continue
        if layer not in merged:
            try:
                merged = {layer: _merged(adapted[layer], model.prefix)}
            except Exception as error:
                raise cannot_merge(model, error) from error
        yield _base_name(name), merged[layer][name.removeprefix(f"{layer}.")]


def base_weights(named_parameters: NamedTensors, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a merged PEFT model that are weights of its base model, under their names there."""
    for name, value in named_parameters:
        if not (_is_adapters(name, prefix) or "original_module" in name or "modules_to_save." in name):
            yield _base_name(name), value


def _base_name(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".token_adapter", "")


def _is_adapters(name: str, prefix: str) -> bool:
    return any(part in name for part in (prefix, *_NOT_WEIGHTS))


def _merged(layer: Any, prefix: str) -> dict[str, torch.Tensor]:
    """Return copies of an adapted layer's weights with the adapter merged; the layer itself is unchanged."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    parts = [module for module in layer.modules() if isinstance(module, BaseTunerLayer)]
    with kept_base(layer, prefix):
        for part in parts:
            part.merge()
        copies = {
            name: value.detach().clone() for name, value in layer.named_parameters() if not _is_adapters(name, prefix)
        }
        for part in reversed(parts):
            part.unmerge()
    return copies


@contextmanager
def kept_base(module: Any, prefix: str | None = None) -> Iterator[None]:
    """Restore the base weights of a module's adapted layers after the block."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    prefix = prefix or module.prefix
    layers: list[Any] = [part for part in module.modules() if isinstance(part, BaseTunerLayer)]
    base = {id(p): p for layer in layers for name, p in layer.named_parameters() if not _is_adapters(name, prefix)}
    before = {key: parameter.detach().clone() for key, parameter in base.items()}
    try:
        yield
    finally:
        for layer in layers:
            if layer.merged:  # the iteration was stopped early
                layer.unmerge()
        with torch.no_grad():
            for key, parameter in base.items():
                parameter.copy_(before[key])
