"""Policies: what plays an environment. `base` has the protocols; each backend is a module, imported on demand."""

from llm_envs.policies.base import ChatPolicy, EnvPolicy, EpisodicPolicy, Policy, TokenPolicy, UpdatablePolicy

__all__ = ["ChatPolicy", "EnvPolicy", "EpisodicPolicy", "Policy", "TokenPolicy", "UpdatablePolicy"]
