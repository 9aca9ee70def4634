"""The policy that a trainer samples with: its own model, a vLLM engine in its process, or vLLM servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.transformers import TransformersPolicy
from llm_envs.rollout.concurrency import most_of
from llm_envs.trainers.engines.servers import ServerEngines, ServerSettings
from llm_envs.trainers.engines.weight_sync import ColocatedEngine

if TYPE_CHECKING:
    from trl import DPOTrainer, GRPOTrainer

__all__ = ["colocated_engine", "evaluation_servers", "sharding_of", "tokenizer_of", "trainer_policy"]


def sharding_of(trainer: GRPOTrainer | DPOTrainer) -> str | None:
    """Return the name of what shards the model's weights over the processes; None if each has all of them."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if trainer.is_fsdp_enabled:
        return "FSDP"
    return "DeepSpeed's ZeRO-3" if plugin is not None and plugin.zero_stage == 3 else None


def tokenizer_of(trainer: GRPOTrainer) -> Any:
    """Return the trainer's tokenizer, also of a model that has a processor."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def trainer_policy(trainer: GRPOTrainer, max_concurrency: int | None = None) -> TransformersPolicy:
    """Return the policy that samples with the trainer's own model, by default `args.max_concurrency` turns at a time.

    Raises:
        InvalidConfigError: If FSDP or DeepSpeed's ZeRO-3 shards the model's weights over the processes.
    """
    if (where := sharding_of(trainer)) is not None:
        raise InvalidConfigError(
            f"the transformers policy cannot sample under {where}, where every forward pass is a collective and "
            "episodes end at different turns: set use_vllm=True (one engine a process), or train with DDP or ZeRO-2, "
            "where every process has the full model."
        )
    args: Any = trainer.args
    most = most_of(args.max_concurrency) if max_concurrency is None else max_concurrency
    model = trainer.accelerator.unwrap_model(trainer.model)
    return TransformersPolicy(model, tokenizer_of(trainer), max_batch_size=most)


def colocated_engine(trainer: GRPOTrainer) -> ColocatedEngine:
    """Return a vLLM engine in this process, or servers, that sample with the trainer's weights."""
    args: Any = trainer.args
    model: Any = trainer.model
    tokenizer: Any = trainer.processing_class
    if args.vllm_mode == "server":
        return _servers(trainer, args)
    return ColocatedEngine(
        model,
        trainer.accelerator,
        tokenizer,
        **_common(trainer),
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
        max_model_length=args.vllm_max_model_length,
        max_num_seqs=most_of(args.max_concurrency),
        model_impl=args.vllm_model_impl,
        enable_sleep_mode=args.vllm_enable_sleep_mode,
        tensor_parallel_size=args.vllm_tensor_parallel_size,
        trust_remote_code=args.trust_remote_code,
    )


def evaluation_servers(trainer: GRPOTrainer) -> ServerEngines:
    """Return the servers of `eval_server_urls`, which get the trainer's weights as the training's servers do."""
    args: Any = trainer.args
    settings = ServerSettings(
        vllm_server_urls=args.eval_server_urls,
        vllm_exchange_dir=args.vllm_exchange_dir,
        vllm_transport=args.vllm_transport,
        vllm_transfer_address=args.vllm_transfer_address,
    )
    return _servers(trainer, settings)


def _servers(trainer: GRPOTrainer, settings: ServerSettings) -> ServerEngines:
    args: Any = trainer.args
    return ServerEngines(
        cast("Any", trainer.model),
        trainer.accelerator,
        cast("Any", trainer.processing_class),
        **_common(trainer),
        settings=settings,
        max_concurrency=most_of(args.max_concurrency),
        max_model_length=args.vllm_max_model_length,
    )


def _common(trainer: GRPOTrainer) -> dict[str, Any]:
    args: Any = trainer.args
    return {"seed": args.seed, "version": lambda: trainer.state.global_step, "lora_sync": args.lora_sync}
