"""Factories that play their episodes themselves: agents, and games of several seats."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from llm_envs.chat.context import Codec, ContextFn
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.base import Policy
from llm_envs.rollout.workers.pool import WorkerPool
from llm_envs.sources.source import EnvFactory, EpisodeSpec
from llm_envs.types import Trajectory

__all__ = ["EpisodePlayer", "own_player"]


@runtime_checkable
class EpisodePlayer(Protocol):
    """A factory that plays its episodes itself (`AgentEnv`, `MultiplayerEnv`); the collector calls it instead.

    Calling it still makes an environment, whose declarations the trainers read.
    """

    def check_play(
        self, policy: Policy, codec: Codec | None, context_fn: ContextFn | None, workers: WorkerPool | None
    ) -> None:
        """Raise an `InvalidConfigError` if these cannot play it. `workers` is None without worker processes."""
        ...

    async def play_episode(self, spec: EpisodeSpec, policy: Policy, **settings: Any) -> Trajectory:
        """Play one episode to its end. A failure is in the trajectory's `error`; only `CancelledError` is raised.

        It gets the settings of `rollout.play_episode`, with `context_fn` only if `check_play` accepted one.
        """
        ...


def own_player(factory: EnvFactory | None, spec: EpisodeSpec) -> Any:
    """Return the factory's `play_episode`; None if it has none.

    Raises:
        InvalidConfigError: If it has one, and the episode should continue from a stored turn.
    """
    own = getattr(factory, "play_episode", None)
    if own is not None and spec.fork is not None:
        raise InvalidConfigError(f"{spec.env_id} plays its episodes itself, so none can continue from a stored turn.")
    return own
