"""How the policy of the loop gets the trained weights, or the trained adapter."""

from __future__ import annotations

from typing import Any, cast

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.base import Policy, UpdatablePolicy
from llm_envs.policies.transformers import TransformersPolicy
from llm_envs.trainers.engines.adapter_sync import adapter_tensors, why_merged
from llm_envs.trainers.engines.engine_weights import engine_weights
from llm_envs.trainers.loop.state import TrainingState

__all__ = ["share_adapter", "share_weights"]


def share_weights(policy: Policy, state: TrainingState) -> None:
    """Give a policy the current weights. If it samples from the trained model itself, only set its version number.

    Raises:
        InvalidConfigError: If the policy cannot take weights.
    """
    if getattr(policy, "model", None) is state.model:
        cast(TransformersPolicy, policy).weight_version = state.step
    elif isinstance(policy, UpdatablePolicy):
        is_model = isinstance(policy, TransformersPolicy)  # a copy of the model; engines read checkpoints
        policy.update_weights(state.model.named_parameters() if is_model else engine_weights(state.model), state.step)
    else:
        raise InvalidConfigError(
            f"{type(policy).__name__} neither samples from the trained model nor has update_weights: give "
            "TransformersPolicy(model, tokenizer), or a weight_sync_fn."
        )


def share_adapter(policy: Any, state: TrainingState) -> None:
    """Give a policy on vLLM the trained LoRA adapter and nothing else: a `weight_sync_fn`.

    The engine or the servers must have been started on the model's base, with `enable_lora=True`.

    Raises:
        InvalidConfigError: If the policy takes no adapters, or vLLM cannot have this one.
        ModelError: If vLLM refuses it.
    """
    why = f"{type(policy).__name__} has no update_adapter" if not hasattr(policy, "update_adapter") else None
    if why := why or why_merged(state.model):
        raise InvalidConfigError(f"share_adapter: {why}. Leave out weight_sync_fn: the adapter is then sent merged.")
    policy.update_adapter(adapter_tensors(state.model), state.step)
