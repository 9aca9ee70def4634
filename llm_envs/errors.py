"""The one exception tree of the suite.

Every class also inherits the standard exception that fits, so `except ValueError` keeps working, and every one pickles:
errors cross process boundaries. Inside a rollout errors become data (`types.RolloutError`); everywhere else they are
raised.
"""

from __future__ import annotations

__all__ = [
    "BridgeError",
    "ContextFullError",
    "DuplicateTaskError",
    "EnvContractError",
    "InvalidActionError",
    "InvalidConfigError",
    "JudgeError",
    "LLMEnvsError",
    "MissingExtraError",
    "ModelError",
    "ProcessFailedError",
    "ResetNeededError",
    "RolloutFailedError",
    "SandboxError",
    "StoreError",
    "TaskCheckError",
    "UnknownTaskError",
    "WorkerDiedError",
]


class LLMEnvsError(Exception):
    """Base of every exception that this package raises on purpose."""


class InvalidConfigError(LLMEnvsError, ValueError):
    """An argument or setting has a value outside what was documented. The message names both."""


class EnvContractError(LLMEnvsError, TypeError):
    """An environment broke the contract of `llm_envs.env` (a wrong type in `info`, undeclared components, ...)."""


class ResetNeededError(LLMEnvsError, RuntimeError):
    """`step`, `render` or `oracle` was called before `reset`, or `step` after the episode's end."""


class InvalidActionError(LLMEnvsError, ValueError):
    """A tool or a task refuses what the agent wrote. Caught by the environment and answered with its message."""


class UnknownTaskError(LLMEnvsError, LookupError):
    """No environment is registered under the id that was asked for."""


class DuplicateTaskError(LLMEnvsError, ValueError):
    """A second task was registered under an id that is taken."""


class TaskCheckError(LLMEnvsError, AssertionError):
    """A task fails one or more clauses of `llm_envs.checker.check_task`."""


class MissingExtraError(LLMEnvsError, ImportError):
    """A package of one of the optional extras is not installed; the message names the extra."""


class ModelError(LLMEnvsError, ValueError):
    """A model or tokenizer cannot be used as asked (no chat template, no end-of-turn token, ...)."""


class ProcessFailedError(LLMEnvsError, RuntimeError):
    """Another of the processes that train together failed. The message says which and why."""


class RolloutFailedError(LLMEnvsError, RuntimeError):
    """Rollouts fail so often that going on makes no sense. The message has the commonest failure."""


class ContextFullError(LLMEnvsError, RuntimeError):
    """A prompt leaves no room for a single new token in the model's context."""


class SandboxError(LLMEnvsError, RuntimeError):
    """A sandbox is closed, cannot be started, or cannot keep code in as it was asked to."""


class JudgeError(LLMEnvsError, RuntimeError):
    """What was asked to judge (a reward model, a chat model) gave no judgement: the episode is unscored, not bad."""


class BridgeError(LLMEnvsError, ConnectionError):
    """Another system that something here relies on (an MCP server) cannot be reached, or has gone away."""


class StoreError(LLMEnvsError, OSError):
    """A trajectory store cannot be read or written as asked."""


class WorkerDiedError(LLMEnvsError, RuntimeError):
    """The worker process of an environment ended in the middle of a call (a fault, `os._exit`, out of memory)."""
