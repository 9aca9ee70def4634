"""New weights for a vLLM model, in this process or in a server's worker.

On a CPU, vLLM packs the weights of a layer after loading. `reload_weights` packs most of them again, and `repacking`
makes it pack the others. After a load that broke off, vLLM would count the tensors that came as loaded, and leave out
others of the next load.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import vllm

__all__ = ["load_weights", "repacking"]


def load_weights(llm: vllm.LLM, named_parameters: Iterable[tuple[str, Any]]) -> None:
    """Replace the weights of an in-process engine by (name, tensor) pairs and empty its prefix cache.

    Uses `reload_weights` on a CPU, and the model's `load_weights` on other devices.
    """
    runner: Any = llm.llm_engine.model_executor.driver_worker.model_runner
    undo_broken_load(runner.model)
    if is_on_cpu(runner.model):
        # Copies: some layers are packed only after all weights have arrived, when a merged adapter is unmerged again.
        copies = [(name, value.detach().clone()) for name, value in named_parameters]
        with repacking(runner.model):
            runner.reload_weights(weights_iterator=iter(copies))
    else:
        runner.model.load_weights(named_parameters)
    llm.reset_prefix_cache()


def is_on_cpu(model: Any) -> bool:
    """Return whether a model's weights are on a CPU."""
    return bool(next(model.parameters()).device.type == "cpu")


def undo_broken_load(model: Any) -> None:
    """Give the layers that a load has not finished the tensors back that they had before; nothing if there are none."""
    layerwise = sys.modules.get("vllm.model_executor.model_loader.reload.layerwise")
    if layerwise is None:  # no load has begun
        return
    for layer in model.modules():
        info = layerwise.LAYERWISE_INFO.get(layer)
        if info is None or not info.can_load():
            continue
        if info.kernel_tensors is not None:
            layerwise._place_kernel_tensors(layer, info)
        info.reset()


@contextmanager
def repacking(model: Any) -> Iterator[None]:
    """Make `reload_weights` inside the block pack every layer; nothing on other devices than a CPU.

    Experts are packed only together with their kernel, which is made once. A tied output layer is not among the layers
    that are loaded. Both would keep weights that the kernels misread, without an error.
    """
    undo_broken_load(model)
    if not is_on_cpu(model):
        yield
        return
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None
    yield
    for owner in model.modules():  # a wrapped model has the layer inside its text model, with that model's config
        head: Any = owner._modules.get("lm_head")
        if getattr(getattr(owner, "config", None), "tie_word_embeddings", False) and hasattr(head, "quant_method"):
            head.quant_method.process_weights_after_loading(head)
