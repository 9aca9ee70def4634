"""Policies choose the actions in environments. `base` has the protocols; the backends are loaded on demand."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from llm_envs.policies.base import ChatPolicy, EnvPolicy, EpisodicPolicy, Policy, TokenPolicy, UpdatablePolicy

if TYPE_CHECKING:
    from llm_envs.policies.chat_api import ChatAPIPolicy
    from llm_envs.policies.scripted import (
        ConstantPolicy,
        NoisePolicy,
        OraclePolicy,
        RandomPolicy,
        ReplayPolicy,
        with_latency,
    )
    from llm_envs.policies.transformers import TransformersPolicy
    from llm_envs.policies.vllm.engine import VLLMEnginePolicy, load_engine
    from llm_envs.policies.vllm.launcher import start_servers
    from llm_envs.policies.vllm.server import VLLMServerPolicy

__all__ = [
    "ChatAPIPolicy",
    "ChatPolicy",
    "ConstantPolicy",
    "EnvPolicy",
    "EpisodicPolicy",
    "NoisePolicy",
    "OraclePolicy",
    "Policy",
    "RandomPolicy",
    "ReplayPolicy",
    "TokenPolicy",
    "TransformersPolicy",
    "UpdatablePolicy",
    "VLLMEnginePolicy",
    "VLLMServerPolicy",
    "load_engine",
    "start_servers",
    "with_latency",
]

# Loaded when first asked for: each needs torch, TRL or a server's client.
_LAZY = {
    "ChatAPIPolicy": "llm_envs.policies.chat_api",
    "ConstantPolicy": "llm_envs.policies.scripted",
    "NoisePolicy": "llm_envs.policies.scripted",
    "OraclePolicy": "llm_envs.policies.scripted",
    "RandomPolicy": "llm_envs.policies.scripted",
    "ReplayPolicy": "llm_envs.policies.scripted",
    "TransformersPolicy": "llm_envs.policies.transformers",
    "VLLMEnginePolicy": "llm_envs.policies.vllm.engine",
    "VLLMServerPolicy": "llm_envs.policies.vllm.server",
    "load_engine": "llm_envs.policies.vllm.engine",
    "start_servers": "llm_envs.policies.vllm.launcher",
    "with_latency": "llm_envs.policies.scripted",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
