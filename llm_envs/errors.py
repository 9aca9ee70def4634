"""The exception tree of the package.

Every class also inherits from the standard exception that fits, so `except ValueError` keeps working, and from
Gymnasium's, so `except gymnasium.error.ResetNeeded` catches it with wrappers and without. All can be pickled, because
errors cross process boundaries. Inside a rollout, errors become data (`types.RolloutError`); everywhere else they are
raised.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gymnasium.error import InvalidAction, NameNotFound, ResetNeeded

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
    "NoEnvServerError",
    "NoOracleError",
    "ProcessFailedError",
    "ReplayError",
    "ResetNeededError",
    "RolloutFailedError",
    "SandboxError",
    "StoreError",
    "TaskCheckError",
    "TimeLimitError",
    "UnknownTaskError",
    "WorkerDiedError",
    "counted",
    "did_you_mean",
    "extra_needed",
    "public_address",
]


class LLMEnvsError(Exception):
    """Base of every exception that this package raises on purpose."""


class InvalidConfigError(LLMEnvsError, ValueError):
    """An argument or setting has a value outside the documented range. The message names both."""


class EnvContractError(LLMEnvsError, TypeError):
    """An environment broke the contract of `llm_envs.env` (a wrong type in `info`, undeclared components, ...)."""


class NoOracleError(EnvContractError):
    """The environment has no oracle: it is another suite's, which has no solutions."""


class ResetNeededError(LLMEnvsError, ResetNeeded, RuntimeError):
    """`step`, `render` or `oracle` was called before `reset`, or `step` after the episode's end."""


class InvalidActionError(LLMEnvsError, InvalidAction, ValueError):
    """A tool or a task rejects the agent's input. The environment catches it and answers with its message."""


class UnknownTaskError(LLMEnvsError, NameNotFound, LookupError):
    """No environment is registered under the requested id."""


class DuplicateTaskError(LLMEnvsError, ValueError):
    """A second task was registered under an id that is already in use."""


class TaskCheckError(LLMEnvsError, AssertionError):
    """A task fails one or more clauses of `llm_envs.check_task`."""


class MissingExtraError(LLMEnvsError, ImportError):
    """A package of one of the optional extras is not installed; the message names the extra."""


@contextmanager
def extra_needed(message: str) -> Iterator[None]:
    """Turn an `ImportError` inside the block into a `MissingExtraError`.

    Args:
        message: Says who needs which package, and how to install it.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(message) from error


class ModelError(LLMEnvsError, ValueError):
    """A model or tokenizer cannot be used as asked (no chat template, no end-of-turn token, ...)."""


class ProcessFailedError(LLMEnvsError, RuntimeError):
    """Another of the training processes failed. The message names it and the cause."""


class TimeLimitError(LLMEnvsError, TimeoutError):
    """A function of the user (a reward, a filter, a selector) took too long. The message names it and its input."""


class RolloutFailedError(LLMEnvsError, RuntimeError):
    """Rollouts fail too often to continue. The message has the most common failure."""


class ContextFullError(LLMEnvsError, RuntimeError):
    """A prompt leaves no room for a single new token in the model's context."""


class SandboxError(LLMEnvsError, RuntimeError):
    """A sandbox is closed, cannot be started, or cannot confine code as requested."""


class JudgeError(LLMEnvsError, RuntimeError):
    """A judge (a reward model, a chat model) gave no judgement. The episode is unscored; it does not count as bad."""


class BridgeError(LLMEnvsError, ConnectionError):
    """An external system (an MCP server) cannot be reached, or its connection was lost."""


class NoEnvServerError(BridgeError):
    """No environment server answers any more. This ends a run, because every episode would fail."""


class ReplayError(LLMEnvsError, RuntimeError):
    """A stored episode cannot be played again: an observation or reward differs. The message names the turn.

    Args:
        message: The message.
        part: The part that differs: "observation", "tool results", "reward" or "end".
        turn: The turn; None before the first.
        found: The environment's answer now.
        stored: The stored answer.
    """

    def __init__(
        self, message: str, *, part: str = "", turn: int | None = None, found: object = None, stored: object = None
    ) -> None:
        super().__init__(message)
        self.part, self.turn, self.found, self.stored = part, turn, found, stored


class StoreError(LLMEnvsError, OSError):
    """A trajectory store cannot be read or written as requested."""


class WorkerDiedError(LLMEnvsError, RuntimeError):
    """The worker process of an environment died during a call (a fault, `os._exit`, out of memory)."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return " Did you mean NAME?" with the known name closest to the given one, or "" if none is close.

    Dashes and underscores are equal, and so are `NAME` and `--NAME=VALUE`, and `Name` and `llm/Name-v0`: two task ids
    are not alike because they share a namespace and a version.
    """
    names: dict[str, str] = {}
    for name in known:  # of two spellings, show the first
        names.setdefault(_plain(name), name)
    found = difflib.get_close_matches(_plain(given), names, n=1, cutoff=0.6)
    return f" Did you mean {names[found[0]]}?" if found else ""


def counted(n: float, noun: str) -> str:
    """Return a number with its noun: "1 episode", "2 episodes", "2 processes", "1.5 steps"."""
    shown = f"{n:g}" if isinstance(n, float) else str(n)
    return f"{shown} {noun}" if n == 1 else f"{shown} {noun}{'es' if noun.endswith('s') else 's'}"


def public_address(url: str) -> str:
    """Return an address without user, password, query and fragment: these may be secrets, and errors are stored."""
    return re.sub(r"^([A-Za-z0-9+.-]*://)?[^/]*@", r"\1", re.sub(r"[?#].*", "", url, flags=re.DOTALL))


def _plain(name: str) -> str:
    name = name.partition("=")[0].lstrip("-").replace("_", "-").lower()
    return re.sub(r"^.*/|-v[0-9]+$", "", name)
