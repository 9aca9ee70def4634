"""Scripted policies: an oracle, a random agent, a constant, a replay; and added latency for any policy."""

from __future__ import annotations

import asyncio
import logging
import string
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from llm_envs.chat.context import render_reply
from llm_envs.errors import EnvContractError, InvalidConfigError
from llm_envs.policies.base import ChatPolicy, EnvPolicy, EpisodicPolicy, InterruptiblePolicy, Policy, TokenPolicy
from llm_envs.types import FinishReason, Message, Sampled, SamplingParams, Trajectory

__all__ = [
    "ConstantPolicy",
    "NoisePolicy",
    "OraclePolicy",
    "RandomPolicy",
    "ReplayPolicy",
    "before_turn",
    "with_latency",
]

logger = logging.getLogger(__name__)

Env = gym.Env[str, str]


class OraclePolicy:
    """Plays the actions of the environment's oracle."""

    def act(self, env: Env, observation: str) -> str:
        """Return the oracle's next action."""
        oracle = getattr(env.unwrapped, "oracle", None)
        if oracle is None:
            raise EnvContractError(f"{type(env.unwrapped).__name__} has no oracle: it needs a method oracle() -> str.")
        return str(oracle())


class ConstantPolicy:
    """Always plays the same action.

    Args:
        action: The action.
    """

    def __init__(self, action: str) -> None:
        self.action = action

    def act(self, env: Env, observation: str) -> str:
        """Return the action."""
        return self.action


class NoisePolicy:
    """Writes up to 20 random printable characters. Each episode has its own random stream.

    Args:
        seed: Seed of the stream, if the policy is not asked for one per episode.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._random = Random(seed)

    def for_episode(self, seed: int) -> NoisePolicy:
        """Return a policy with its own stream."""
        return NoisePolicy(seed=seed)

    def act(self, env: Env, observation: str) -> str:
        """Return random characters."""
        return "".join(self._random.choices(string.printable, k=self._random.randrange(21)))


class RandomPolicy:
    """Plays random actions. Each episode has its own random stream, so the order of play does not matter.

    Args:
        choices: The actions to choose from; None: the environment's `legal_answers`. Where it names none, it plays as
            `NoisePolicy`, and warns once.
        seed: Seed of the stream, if the policy is not asked for one per episode.
    """

    def __init__(self, choices: Sequence[str] | None = None, *, seed: int = 0) -> None:
        if choices is not None and not choices:
            raise InvalidConfigError("RandomPolicy: choices is empty; give at least one, or None.")
        self.choices = choices
        self._random, self._noise = Random(seed), NoisePolicy(seed=seed)

    def for_episode(self, seed: int) -> RandomPolicy:
        """Return a policy with its own stream."""
        return RandomPolicy(self.choices, seed=seed)

    def act(self, env: Env, observation: str) -> str:
        """Return a random action."""
        if self.choices is not None:
            return self._random.choice(self.choices)
        legal = getattr(env.unwrapped, "legal_answers", None)
        if legal is not None and (answers := legal()):
            return str(cast("Any", env.unwrapped).write_answer(self._random.choice(answers)))
        _warn_of_noise(str(getattr(env.spec, "id", None) or type(env.unwrapped).__name__))
        return self._noise.act(env, observation)


@cache
def _warn_of_noise(name: str) -> None:
    logger.warning("%s names no legal answers, so the random policy writes random characters (noise).", name)


class ReplayPolicy:
    """Plays given actions in order, from the first in every episode. Asking for more is an error.

    Args:
        actions: The actions.
    """

    def __init__(self, actions: Iterable[str]) -> None:
        self.actions = tuple(actions)
        self._position = 0

    @classmethod
    def of(cls, trajectory: Trajectory) -> ReplayPolicy:
        """Return the policy that repeats the agent's actions in a trajectory."""
        replies = [render_reply(message) for message in trajectory.messages_of_steps if message.role == "assistant"]
        return cls(replies[trajectory.n_example_replies :])

    def for_episode(self, seed: int) -> ReplayPolicy:
        """Return a policy at the start of the script."""
        return ReplayPolicy(self.actions)

    def act(self, env: Env, observation: str) -> str:
        """Return the next action of the script."""
        if self._position >= len(self.actions):
            raise IndexError(f"the script has {len(self.actions)} actions and the episode asks for another.")
        self._position += 1
        return self.actions[self._position - 1]


Hook = Callable[[Random], Awaitable[None]]
"""Awaited before a turn, with a random stream that depends only on the episode and the turn. May sleep; may raise."""


def before_turn(policy: Policy, hook: Hook) -> Policy:
    """Return a policy of the same kind that awaits `hook` before each of its turns: for tests and benchmarks."""
    if isinstance(policy, TokenPolicy):
        return (_HookedInterruptible if hasattr(policy, "interrupt") else _HookedTokenPolicy)(policy, hook)
    if isinstance(policy, ChatPolicy):
        return _HookedChatPolicy(policy, hook)
    return _HookedEnvPolicy(policy, hook)


def with_latency(policy: Policy, seconds: float, *, jitter: float = 0.0) -> Policy:
    """Return a policy of the same kind that takes longer.

    Args:
        policy: Any policy.
        seconds: Added to each turn.
        jitter: Relative variation: 0.5 draws uniformly from half to one and a half of `seconds`.
    """

    async def sleep(random: Random) -> None:
        await asyncio.sleep(seconds * (1 + jitter * random.uniform(-1, 1)) if jitter else seconds)

    return before_turn(policy, sleep)


class _HookedTokenPolicy:
    def __init__(self, policy: TokenPolicy, hook: Hook) -> None:
        self.policy, self._hook = policy, hook

    async def sample(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, *, seed: int, session: str
    ) -> Sampled:
        await self._hook(Random(seed))
        return await self.policy.sample(prompt_ids, params, seed=seed, session=session)


class _HookedInterruptible(_HookedTokenPolicy):
    """Its turns can also be interrupted while the hook is awaited; they have no tokens yet."""

    def __init__(self, policy: TokenPolicy, hook: Hook) -> None:
        super().__init__(policy, hook)
        self._hooks: dict[str, set[asyncio.Future[None]]] = {}  # of each session whose hook is awaited
        self._interrupted: set[asyncio.Future[None]] = set()

    def interrupt(self, session: str) -> None:
        """End a session's turn with the tokens so far."""
        for hook in self._hooks.get(session, ()):
            self._interrupted.add(hook)
            hook.cancel()
        cast("InterruptiblePolicy", self.policy).interrupt(session)

    async def sample(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, *, seed: int, session: str
    ) -> Sampled:
        hook = asyncio.ensure_future(self._hook(Random(seed)))
        self._hooks.setdefault(session, set()).add(hook)
        try:
            await hook
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if hook not in self._interrupted or (current is not None and current.cancelling()):
                raise
            return Sampled.empty(FinishReason.ABORT)
        finally:
            hook.cancel()
            self._interrupted.discard(hook)
            self._hooks[session].remove(hook)
            if not self._hooks[session]:
                del self._hooks[session]
        return await self.policy.sample(prompt_ids, params, seed=seed, session=session)


class _HookedChatPolicy:
    def __init__(self, policy: ChatPolicy, hook: Hook) -> None:
        self.policy, self._hook = policy, hook

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> Message:
        await self._hook(Random(repr(messages)))
        return await self.policy.reply(messages, tools, params)


class _HookedEnvPolicy:
    def __init__(self, policy: EnvPolicy, hook: Hook, seed: int = 0) -> None:
        self.policy, self._hook = policy, hook
        self._random = Random(seed)

    def for_episode(self, seed: int) -> _HookedEnvPolicy:
        policy: Policy = self.policy
        if hasattr(policy, "for_episode"):
            policy = cast("EpisodicPolicy", policy).for_episode(seed)
        return _HookedEnvPolicy(cast("EnvPolicy", policy), self._hook, seed)

    async def act(self, env: Env, observation: str) -> str:
        await self._hook(self._random)
        action = self.policy.act(env, observation)
        return action if isinstance(action, str) else await action
