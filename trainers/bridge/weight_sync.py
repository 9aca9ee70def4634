"""Copies the trainer's weights to the sampling engine.

An adapter is merged for the engine, and afterwards the base weights are restored bit for bit. Subtracting the adapter
again would not do: W + BA - BA is not W in floating point, and the base would drift with every sync.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import is_peft_model
from transformers.core_model_loading import revert_weight_conversion
from trl.generation.vllm_generation import VLLMGeneration

from llm_envs.policies.vllm.engine import VLLMEnginePolicy, load_engine

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["ColocatedEngine", "merged_layers", "single_experts"]


class ColocatedEngine(VLLMGeneration):
    """TRL's colocated vLLM, with an engine of the trainer's dtype and seed, and a weight sync that works on CPUs too.

    TRL calls `sync_weights` before the first rollout of a step. TRL's base class handles parameter names under FSDP and
    DeepSpeed.

    Args:
        model: The trained model. The engine loads its architecture and tokenizer from `model.name_or_path`, or from a
            temporary copy if that is empty.
        accelerator: The trainer's accelerator.
        processing_class: The tokenizer.
        seed: Seed of the engine.
        version: Returns the version of the trainer's current weights: its step.
        **kwargs: Arguments of TRL's `VLLMGeneration`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        accelerator: Accelerator,
        processing_class: PreTrainedTokenizerBase,
        *,
        seed: int,
        version: Callable[[], int],
        **kwargs: Any,
    ) -> None:
        self._seed, self._version, self._tokenizer = seed, version, processing_class
        self.policy: VLLMEnginePolicy
        super().__init__(model, accelerator, processing_class, mode="colocate", **kwargs)

    def _init_vllm(self) -> None:
        """Start the engine in this process."""
        n_shards = self.tensor_parallel_size
        settings: dict[str, Any] = {
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "seed": self._seed + self.accelerator.process_index // n_shards,
            "max_model_len": self.max_model_length,
            "max_num_seqs": (self.max_num_seqs or 256) * n_shards,  # the turns of all processes of the group
            "tensor_parallel_size": n_shards,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "model_impl": self.model_impl,
            "trust_remote_code": self.trust_remote_code,
            "enable_sleep_mode": self.enable_sleep_mode,
        }
        is_one_of_many = self.accelerator.num_processes > 1
        if is_one_of_many:
            settings["distributed_executor_backend"] = "external_launcher"
        with tempfile.TemporaryDirectory() as scratch:
            self.llm = load_engine(self._source(Path(scratch)), **settings)
        if is_one_of_many and (finalizer := getattr(self.llm.llm_engine.engine_core, "_finalizer", None)):
            finalizer.detach()  # otherwise the engine's end would destroy the trainer's process groups
        group = None
        if n_shards > 1:
            n_processes = self.accelerator.num_processes
            ranks = [list(range(first, first + n_shards)) for first in range(0, n_processes, n_shards)]
            group, _ = torch.distributed.new_subgroups_by_enumeration(ranks, backend="gloo")
        self.policy = VLLMEnginePolicy(self.llm, self._tokenizer, group=group)

    def _source(self, scratch: Path) -> str:
        """Return where the engine can load the architecture and tokenizer from."""
        base: Any = self.accelerator.unwrap_model(self.model)
        base = base.get_base_model() if hasattr(base, "get_base_model") else base
        if base.name_or_path:
            return str(base.name_or_path)
        base.config.save_pretrained(scratch)
        weights = dict(self._iter_merged()) if is_peft_model(self.model) else None  # without an adapter's names
        base.save_pretrained(scratch, state_dict=weights)
        self.processing_class.save_pretrained(scratch)
        return str(scratch)

    def sync_weights(self) -> None:
        """Copy the trainer's current weights to the engine. TRL calls this before the first rollout of a step."""
        self.policy.update_weights(self._iter_named_params(), self._version())

    def close(self) -> None:
        """End the engine, whose cache would otherwise stay in memory. With several processes only the policy ends."""
        if self.accelerator.num_processes == 1:  # otherwise it would destroy the trainer's process groups
            self.llm.llm_engine.engine_core.shutdown()

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Iterate over the weights under the engine's names, with adapters merged and experts apart."""
        return single_experts(self.accelerator.unwrap_model(self.model), self._iter_merged())

    def _iter_merged(self) -> Iterator[tuple[str, torch.Tensor]]:
        model: Any = self.model
        if not is_peft_model(model) or self._dist.is_zero3:  # ZeRO-3 merges into gathered copies, and drops them
            yield from super()._iter_named_params()
        elif self._dist.is_fsdp:
            with _kept(model):  # the shards of this process
                yield from super()._iter_named_params()
        else:
            for name, value in merged_layers(model):
                if "original_module" not in name:  # the untrained copy of a fully trained module
                    yield self._fix_param_name_to_vllm(name, extra_prefixes=["modules_to_save.default."]), value


def single_experts(
    model: Any, named_parameters: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters as the checkpoints of a mixture of experts have them: each expert for itself, under its name."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not any(".experts." in name for name, _ in base.named_parameters()):
        yield from named_parameters
        return
    for name, value in named_parameters:
        yield from revert_weight_conversion(base, {name: value}).items()


def merged_layers(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a PEFT model under its base model's names, merging one adapted layer at a time.

    The model itself is unchanged whenever a pair is yielded.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted: dict[str, Any] = {
        name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)
    }
    outer = [name for name in adapted if not any(name[:at] in adapted for at, sign in enumerate(name) if sign == ".")]
    # If two layers share a weight, the first one owns it, as in `named_parameters`.
    owner = {id(parameter): name for name in reversed(outer) for parameter in adapted[name].parameters()}
    merged: dict[str, dict[str, torch.Tensor]] = {}
    for name, parameter in model.named_parameters():
        if model.prefix in name:
            continue
        layer = owner.get(id(parameter))
        if layer is None:
            yield _base_name(name), parameter.data
            continue
        if layer not in merged:
            merged = {layer: _merged(adapted[layer], model.prefix)}
        yield _base_name(name), merged[layer][name.removeprefix(f"{layer}.")]


def _base_name(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".base_layer", "")


def _merged(layer: Any, prefix: str) -> dict[str, torch.Tensor]:
    """Return copies of an adapted layer's weights with the adapter merged; the layer itself is unchanged."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    parts = [module for module in layer.modules() if isinstance(module, BaseTunerLayer)]
    with _kept(layer, prefix):
        for part in parts:
            part.merge()
        copies = {name: value.detach().clone() for name, value in layer.named_parameters() if prefix not in name}
        for part in reversed(parts):
            part.unmerge()
    return copies


@contextmanager
def _kept(module: Any, prefix: str | None = None) -> Iterator[None]:
    """Restore the base weights of a module's adapted layers after the block."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    prefix = prefix or module.prefix
    layers: list[Any] = [part for part in module.modules() if isinstance(part, BaseTunerLayer)]
    base = {id(p): p for layer in layers for name, p in layer.named_parameters() if prefix not in name}
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
