"""The kinds of policy: three small protocols, which `rollout.episode.policy_kind` distinguishes."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from llm_envs.errors import InvalidConfigError
from llm_envs.types import Message, Sampled, SamplingParams

__all__ = [
    "ChatPolicy",
    "EnvPolicy",
    "EpisodicPolicy",
    "InterruptiblePolicy",
    "Policy",
    "TokenPolicy",
    "UpdatablePolicy",
    "refuse_keep_mask",
]


@runtime_checkable
class TokenPolicy(Protocol):
    """Token ids in, sampled token ids out. The only kind that can be trained on.

    An attribute `max_model_len` is its context in tokens. Rows never exceed it: a final observation, which gets no
    reply, is cut there.
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
            prompt_ids: Shape (T,), exactly what the model has seen so far.
            params: How to sample; `max_new_tokens` is already the remaining budget.
            seed: Seed of this turn only: the same seed and prompt give the same turn.
            session: The same string for all turns of an episode, for routing and prefix caches.

        Raises:
            ContextFullError: If the prompt leaves no room for a new token.
        """
        ...


@runtime_checkable
class ChatPolicy(Protocol):
    """Messages in, a message out: any chat API. It can play but cannot be trained on."""

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> Message:
        """Return the assistant's next message. `params.seed` is the seed of this turn only."""
        ...


@runtime_checkable
class EnvPolicy(Protocol):
    """Acts on the environment itself: an oracle, a random agent, a script, a person."""

    def act(self, env: gym.Env[str, str], observation: str) -> str | Awaitable[str]:
        """Return the next action, or an awaitable of it. Must not step the environment."""
        ...


Policy = TokenPolicy | ChatPolicy | EnvPolicy


@runtime_checkable
class EpisodicPolicy(Protocol):
    """A policy with state from turn to turn: a position in a script, a random stream."""

    def for_episode(self, seed: int) -> Policy:
        """Return the policy for one episode; the same seed gives the same play."""
        ...


@runtime_checkable
class InterruptiblePolicy(Protocol):
    """A token policy that can stop in the middle of a turn and continue it later, perhaps with other weights.

    The next piece of the turn is a new call of `sample` with a prompt that ends with the tokens of the earlier pieces.
    Anything that counts only the turn's own tokens (a frequency penalty, a minimum length) starts again with each
    piece. The collector searches for stop strings across pieces.
    """

    def interrupt(self, session: str) -> None:
        """End a session's running turns soon, with the tokens so far and `FinishReason.ABORT`.

        A turn that ends by itself first is complete. Harmless if nothing is running, and when repeated. Called in the
        event loop that called `sample`.
        """
        ...


@runtime_checkable
class UpdatablePolicy(Protocol):
    """A policy with weights that we can replace."""

    def update_weights(self, named_parameters: Iterable[tuple[str, Any]], version: int) -> None:
        """Replace the weights by `named_parameters` (name, tensor); later samples carry `version`."""
        ...


def refuse_keep_mask(params: SamplingParams, backend: str) -> None:
    """Raise if a mask of kept tokens is requested from a backend that does not report it.

    Raises:
        InvalidConfigError: If `params.keep_mask` is set.
    """
    if params.keep_mask:
        raise InvalidConfigError(
            f"keep_mask=True: {backend} does not report which tokens its filters kept. Sample with the transformers "
            "policy (use_vllm=False), or leave keep_mask (the trainers' keep_sampling_mask) out."
        )
