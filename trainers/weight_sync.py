"""The trainer's weights into the policy that samples for it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl.generation.vllm_generation import VLLMGeneration

from llm_envs.policies.vllm_engine import VLLMEnginePolicy, load_engine

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["ColocatedEngine"]


class ColocatedEngine(VLLMGeneration):
    """TRL's colocated vLLM, with an engine of the trainer's dtype and seed, and a weight sync that works on CPUs too.

    TRL itself calls `sync_weights` before a rollout whose step is new; names of parameters under PEFT, FSDP and
    DeepSpeed are TRL's business, inherited here.

    Args:
        model: The model being trained. The engine reads its architecture and tokenizer from `model.name_or_path`, or
            from a temporary copy where that is not a place to load from.
        accelerator: The trainer's.
        processing_class: The tokenizer.
        seed: Seed of the engine.
        version: Says which version of the weights the trainer has now: its step.
        **kwargs: Those of TRL's `VLLMGeneration`.
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
        settings: dict[str, Any] = {
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "seed": self._seed + self.accelerator.process_index,
            "max_model_len": self.max_model_length,
            "max_num_seqs": self.max_num_seqs,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "model_impl": self.model_impl,
            "trust_remote_code": self.trust_remote_code,
        }
        if self.accelerator.num_processes > 1:
            settings["distributed_executor_backend"] = "external_launcher"
        with tempfile.TemporaryDirectory() as scratch:
            self.llm = load_engine(self._source(Path(scratch)), **settings)
        self.policy = VLLMEnginePolicy(self.llm, self._tokenizer)

    def _source(self, scratch: Path) -> str:
        """Return where the engine can load the architecture and tokenizer from."""
        base: Any = self.accelerator.unwrap_model(self.model)
        base = base.get_base_model() if hasattr(base, "get_base_model") else base
        if base.name_or_path:
            return str(base.name_or_path)
        base.config.save_pretrained(scratch)
        base.save_pretrained(scratch)
        self.processing_class.save_pretrained(scratch)
        return str(scratch)

    def sync_weights(self) -> None:
        """Hand the trainer's present weights to the engine. Called by TRL before a rollout whose step is new."""
        self.policy.update_weights(self._iter_named_params(), self._version())
