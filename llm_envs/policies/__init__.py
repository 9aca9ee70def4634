"""Policies: what plays an environment. `base` has the protocols; each backend is a module of its own, imported on demand."""

from llm_envs.policies.base import ChatPolicy, EnvPolicy, Policy, TokenPolicy, UpdatablePolicy

__all__ = ["ChatPolicy", "EnvPolicy", "Policy", "TokenPolicy", "UpdatablePolicy"]
