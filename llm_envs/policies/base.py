"""What a policy is: three small protocols, told apart in `rollout/episode.py` alone."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from llm_envs.types import Message, Sampled, SamplingParams

__all__ = [
    "ChatPolicy",
    "EnvPolicy",
    "EpisodicPolicy",
    "InterruptiblePolicy",
    "Policy",
    "TokenPolicy",
    "UpdatablePolicy",
]


@runtime_checkable
class TokenPolicy(Protocol):
    """Token ids in, sampled token ids out. The only kind that can be trained on.

    One that has an attribute `max_model_len`, its context in tokens, gets rows that fit it: a last observation that
    nobody answers is cut there.
    """

    async def sample(
        self,
        prompt_ids: npt.NDArray[np.int32],
        params: SamplingParams,
        *,
        seed: int,
        session: str,
    ) -> Sampled:
        """Sample one turn.

        Args:
            prompt_ids: Shape (T,), everything the model has seen so far, exactly.
            params: How to sample; `max_new_tokens` is already what the budgets leave.
            seed: Seed of this turn alone: the same seed and prompt give the same turn.
            session: One string for all turns of an episode, for routing and prefix caches.

        Raises:
            ContextFullError: If the prompt leaves no room for a new token.
        """
        ...


@runtime_checkable
class ChatPolicy(Protocol):
    """Messages in, a message out: any chat API. Plays; cannot be trained on."""

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> Message:
        """Return the assistant's next message. `params.seed` is the seed of this turn alone."""
        ...


@runtime_checkable
class EnvPolicy(Protocol):
    """Sees the environment itself: an oracle, a random agent, a script, a person."""

    def act(self, env: gym.Env[str, str], observation: str) -> str | Awaitable[str]:
        """Return the next action, or an awaitable of it. Must not step the environment."""
        ...


Policy = TokenPolicy | ChatPolicy | EnvPolicy


@runtime_checkable
class EpisodicPolicy(Protocol):
    """A policy that keeps something from turn to turn: a position in a script, a random stream."""

    def for_episode(self, seed: int) -> Policy:
        """Return the policy that plays one episode; the same seed gives the same play."""
        ...


@runtime_checkable
class InterruptiblePolicy(Protocol):
    """A token policy that can be asked for what it has of a turn, which then goes on later, under other weights maybe.

    The turn's next piece is a new call of `sample`, whose prompt ends with the tokens of the pieces before. What a
    policy bases on the turn's own tokens alone (a penalty for their frequency, a least number of them) begins anew
    with each piece; stop strings are looked for across the seam by the collector.
    """

    def interrupt(self, session: str) -> None:
        """Have the turns of a session that are under way end soon, with the tokens they have and `FinishReason.ABORT`.

        One that ends by itself first is whole. Harmless when nothing is under way, and when repeated. Called in the
        event loop that called `sample`.
        """
        ...


@runtime_checkable
class UpdatablePolicy(Protocol):
    """A policy whose weights we own."""

    def update_weights(self, named_parameters: Iterable[tuple[str, Any]], version: int) -> None:
        """Replace the weights by `named_parameters` (name, tensor); what is sampled afterwards carries `version`."""
        ...
