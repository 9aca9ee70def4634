"""Copies the trainer's weights, or its adapter, to the sampling engine, and checks first that it can have them."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import is_peft_model
from trl.generation.vllm_generation import VLLMGeneration

from llm_envs.errors import InvalidConfigError, LLMEnvsError, ModelError, ProcessFailedError
from llm_envs.policies.vllm.adapters import RANKS
from llm_envs.policies.vllm.checkpoints import check_same_tensors, find_checkpoint, tensor_shapes
from llm_envs.policies.vllm.engine import VLLMEnginePolicy, load_engine
from llm_envs.rollout.sync import SyncRunner
from llm_envs.trainers.engines.adapter_sync import (
    SLOTS,
    LoraSync,
    adapter_rank,
    adapter_tensors,
    has_base,
    unmerged_base,
    why_merged,
)
from llm_envs.trainers.engines.engine_weights import (
    base_weights,
    cannot_merge,
    check_mergeable,
    checkpoint_weights,
    kept_base,
    merged_layers,
)
from llm_envs.trainers.engines.probe import check_engine_follows

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["NO_IMAGES", "ColocatedEngine"]


NO_IMAGES = {"image": 0, "video": 0, "audio": 0}
"""vLLM's limits for a model of text and images: turns are tokens, so it needs no memory and no processor for others."""


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
        lora_sync: "merged": the engine gets weights with the adapter merged; "adapter": the adapter, if vLLM can have
            it.
        **kwargs: Arguments of TRL's `VLLMGeneration`.

    Raises:
        InvalidConfigError: If the model has an adapter that cannot be merged into weights, or has none and
            `lora_sync` is "adapter".
    """

    processing_class: Any

    def __init__(
        self,
        model: PreTrainedModel,
        accelerator: Accelerator,
        processing_class: PreTrainedTokenizerBase,
        *,
        seed: int,
        version: Callable[[], int],
        lora_sync: LoraSync = "merged",
        **kwargs: Any,
    ) -> None:
        self._seed, self._version = seed, version
        self.policy: VLLMEnginePolicy
        self._served: Mapping[str, tuple[int, ...]] | None = None
        """Names and shapes of the checkpoint that the engine was started on; None if it has no safetensors here."""
        self._is_checked, self._has_base = False, False
        bare = accelerator.unwrap_model(model)
        check_mergeable(bare)
        if lora_sync == "adapter" and not is_peft_model(bare):
            raise InvalidConfigError(f"lora_sync={lora_sync!r} has no effect: no adapter is trained. Leave it out.")
        self._sends_adapter = lora_sync == "adapter"
        super().__init__(model, accelerator, processing_class, mode="colocate", **kwargs)

    @property
    def sends_adapter(self) -> bool:
        """Whether the engine gets an adapter as such."""
        return self._sends_adapter

    def _init_vllm(self) -> None:
        """Start the engine in this process."""
        self._check_adapter()
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
            "limit_mm_per_prompt": NO_IMAGES,
        }
        if self._sends_adapter:
            settings |= {"enable_lora": True, "max_lora_rank": self._rank_setting(), "max_loras": SLOTS}
        is_one_of_many = self.accelerator.num_processes > 1
        if is_one_of_many:
            settings["distributed_executor_backend"] = "external_launcher"
        with tempfile.TemporaryDirectory() as scratch:
            source = self._source(Path(scratch))
            if (folder := find_checkpoint(source)) is not None:
                with suppress(ModelError):
                    self._served = tensor_shapes(folder)
            self._has_base = self._sends_adapter and has_base(
                folder, unmerged_base(self.accelerator.unwrap_model(self.model))
            )
            self.llm = load_engine(source, **settings)
        if is_one_of_many and (finalizer := getattr(self.llm.llm_engine.engine_core, "_finalizer", None)):
            finalizer.detach()  # otherwise the engine's end would destroy the trainer's process groups
        group = None
        if n_shards > 1:
            n_processes = self.accelerator.num_processes
            ranks = [list(range(first, first + n_shards)) for first in range(0, n_processes, n_shards)]
            group, _ = torch.distributed.new_subgroups_by_enumeration(ranks, backend="gloo")
        self.policy = VLLMEnginePolicy(self.llm, self.processing_class, group=group)

    def _source(self, scratch: Path) -> str:
        """Return where the engine can load the architecture and tokenizer from."""
        base: Any = self.accelerator.unwrap_model(self.model)
        base = base.get_base_model() if hasattr(base, "get_base_model") else base
        if base.name_or_path:
            return str(base.name_or_path)
        base.config.save_pretrained(scratch)
        weights = dict(self._iter_merged()) if is_peft_model(self.model) else None  # without an adapter's names
        if self._sends_adapter:
            model: Any = self.model
            weights = dict(base_weights(model.named_parameters(), model.prefix))
        base.save_pretrained(scratch, state_dict=weights)
        self.processing_class.save_pretrained(scratch)
        return str(scratch)

    def sync_weights(self) -> None:
        """Copy the trainer's current weights to the engine. TRL calls this before the first rollout of a step.

        Raises:
            ModelError: The first time, if the engine's checkpoint has other names or shapes.
            InvalidConfigError: The first time, if the engine cannot have what an adapter trains.
        """
        if not self._is_checked:
            self._check()
            self._is_checked = True
        self._send()

    def _send(self) -> None:
        if not self._sends_adapter:
            self._send_weights(self._iter_named_params())
            return
        model = self.accelerator.unwrap_model(self.model)
        if not self._has_base:  # once: what is trained is not the checkpoint that the engine was started on
            self._send_weights(unmerged_base(model))
            self._has_base = True
        self._send_adapter(adapter_tensors(model))

    def _send_weights(self, named_parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.policy.update_weights(named_parameters, self._version())

    def _send_adapter(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.policy.update_adapter(tensors, self._version())

    def _check_adapter(self) -> None:
        """Merge from the start if it is known that vLLM cannot have the adapter."""
        if self._sends_adapter:
            sharded = "FSDP" if self._dist.is_fsdp else "ZeRO-3" if self._dist.is_zero3 else None
            model = self.accelerator.unwrap_model(self.model)
            if why := why_merged(model, sharded=sharded, n_shards=self.tensor_parallel_size):
                self._merge_instead(why)

    def _merge_instead(self, why: str) -> None:
        self._sends_adapter = False
        warnings.warn(f"lora_sync='merged' is used: {why}.", stacklevel=2)

    def _rank_setting(self) -> int:
        rank = adapter_rank(self.accelerator.unwrap_model(self.model))
        return next(value for value in RANKS if value >= rank)

    def _check(self) -> None:
        """Check the names and shapes that the engine would get, and, on full weights, that an adapter has its effect.

        vLLM ignores, or fails at, what it does not know, and keeps its own weights for what it does not get.
        """
        model = self.accelerator.unwrap_model(self.model)
        is_adapted = is_peft_model(model)
        try:
            sent = {name: tuple(value.shape) for name, value in self._iter_named_params()}
        except LLMEnvsError:
            raise
        except Exception as error:
            if not is_adapted:
                raise
            raise cannot_merge(model, error) from error
        if self._served is not None:
            # The engine keeps tensors that the model lacks (the image part, buffers).
            check_same_tensors({**self._served, **sent}, self._served, f"the trained {type(model).__name__}")
        if self._sends_adapter:
            try:
                check_engine_follows(model, self._send, self._score)
            except (InvalidConfigError, ModelError, ProcessFailedError) as error:
                self._merge_instead(str(error))
        if is_adapted and not (self._sends_adapter or self._dist.is_fsdp or self._dist.is_zero3):
            check_engine_follows(model, self._send, self._score)

    def _score(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Return the engine's log-probabilities of ids, shape (T,)."""
        runner = SyncRunner()
        (logps,) = runner.run(lambda: self.policy.token_logps([ids]))
        runner.close()
        return logps

    def close(self) -> None:
        """End the engine, whose cache would otherwise stay in memory. With several processes only the policy ends."""
        if self.accelerator.num_processes == 1:  # otherwise it would destroy the trainer's process groups
            self.llm.llm_engine.engine_core.shutdown()

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Iterate over the weights as the model's checkpoint has them, with adapters merged."""
        return checkpoint_weights(self.accelerator.unwrap_model(self.model), self._iter_merged())

    def _iter_merged(self) -> Iterator[tuple[str, torch.Tensor]]:
        model: Any = self.model
        if not is_peft_model(model):
            yield from super()._iter_named_params()
        elif self._dist.is_zero3:  # merges into gathered copies, and drops them
            yield from base_weights(super()._iter_named_params(), model.prefix)
        elif self._dist.is_fsdp:
            with kept_base(model):  # the shards of this process
                yield from base_weights(super()._iter_named_params(), model.prefix)
        else:
            yield from merged_layers(model)
