"""The stand-in for an environment that runs in a worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import gymnasium as gym

from llm_envs.errors import EnvContractError
from llm_envs.rollout.workers.wire import Foreign

__all__ = ["RemoteEnv"]


class RemoteEnv(gym.Env[str, str]):
    """Stand-in for an environment in a worker process.

    Holds the attributes that `reset` and `step` set (`system_prompt`, `tools`, `tool_results`). It asks the worker for
    other public attributes and methods, such as `oracle()`, while the caller waits. Only plain data comes back.

    Args:
        ask: Makes a request to the worker and returns its result.
        is_base: Whether this is the environment inside all wrappers.
    """

    def __init__(self, ask: Callable[..., Any], *, is_base: bool = False) -> None:
        self._ask, self._is_base = ask, is_base
        self._shown: dict[str, Any] = {}

    def show(self, shown: Mapping[str, Any]) -> None:
        """Store the attributes that came with a reply."""
        self._shown.update(shown)

    @property
    def unwrapped(self) -> RemoteEnv:
        """The stand-in for the environment inside all wrappers."""
        return self if self._is_base else RemoteEnv(self._ask, is_base=True)

    @property  # type: ignore[misc]  # read-only on purpose
    def np_random(self) -> NoReturn:  # type: ignore[override]
        """Raise an error: drawing from a copy of the random stream would not advance the environment's."""
        self._refuse("np_random")

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the environment as its wrappers show it."""
        # These came with the last reply. Asking for them would block the event loop in every turn.
        if name in _SHOWN:
            if name in self._shown:
                return self._shown[name]
            raise AttributeError(f"the environment has no attribute {name!r}")
        # A blocking environment blocks only its worker process, so it needs no thread here.
        return False if name == "blocking" else self._look(name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> NoReturn:
        """Raise an error: the episode resets the environment."""
        self._refuse("reset")

    def step(self, action: str) -> NoReturn:
        """Raise an error: the episode steps the environment."""
        self._refuse("step")

    def render(self) -> Any:
        """Return what the environment renders."""
        return self._look("render")()

    def close(self) -> None:
        """Do nothing: the episode closes the environment."""

    def __getattr__(self, name: str) -> Any:
        """Ask the worker for any other attribute."""
        # Private names are never asked for. Without this, `copy` and `pickle` would recurse here: they look up
        # attributes before `_ask` exists.
        if name.startswith("_"):
            raise AttributeError(f"RemoteEnv has no attribute {name!r}")
        return self.get_wrapper_attr(name) if not self._is_base else self._look(name)

    def __str__(self) -> str:
        return "<RemoteEnv: an environment in a worker process>"

    __repr__ = __str__

    def _look(self, name: str) -> Any:
        kind, value = self._ask("look", name, self._is_base)
        if kind == "absent":
            raise AttributeError(f"the environment has no attribute {name!r}")
        if kind == "method":
            return lambda *args, **kwargs: self._plain(name, self._ask("ask", name, self._is_base, args, kwargs))
        return self._plain(name, value)

    def _plain(self, name: str, value: Any) -> Any:
        if isinstance(value, Foreign):
            self._refuse(name, f"is {value!r:.80}, and only plain data comes out of it")
        return value

    def _refuse(self, name: str, why: str = "cannot be used from outside") -> NoReturn:
        raise EnvContractError(
            f"the environment is in a worker process: its {name!r} {why}. Play a policy that needs it without workers."
        )


_SHOWN = frozenset({"system_prompt", "tools", "tool_results"})
