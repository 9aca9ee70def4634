"""Policies that follow a script: an oracle, a random agent, a constant, a replay; and latency around any policy."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from llm_envs.errors import EnvContractError, InvalidConfigError
from llm_envs.policies.base import ChatPolicy, EnvPolicy, EpisodicPolicy, InterruptiblePolicy, Policy, TokenPolicy
from llm_envs.rollout.context import render_reply
from llm_envs.types import FinishReason, Message, Sampled, SamplingParams, Trajectory

__all__ = ["ConstantPolicy", "OraclePolicy", "RandomPolicy", "ReplayPolicy", "before_turn", "with_latency"]

Env = gym.Env[str, str]


class OraclePolicy:
    """Plays what the environment's own oracle says."""

    def act(self, env: Env, observation: str) -> str:
        """Return the oracle's next action."""
        oracle = getattr(env.unwrapped, "oracle", None)
        if oracle is None:
            raise EnvContractError(f"{type(env.unwrapped).__name__} has no oracle: it needs a method oracle() -> str.")
        return str(oracle())


class ConstantPolicy:
    """Always says the same.

    Args:
        action: What it says.
    """

    def __init__(self, action: str) -> None:
        self.action = action

    def act(self, env: Env, observation: str) -> str:
        """Return the action."""
        return self.action


class RandomPolicy:
    """Says something random; each episode has a random stream of its own, so that the order of play does not matter.

    Args:
        choices: What to choose from; None: up to 20 printable characters.
        seed: Seed of the stream, where nobody asks for an episode's own.
    """

    def __init__(self, choices: Sequence[str] | None = None, *, seed: int = 0) -> None:
        if choices is not None and not choices:
            raise InvalidConfigError("RandomPolicy: choices is empty; give at least one, or None.")
        self.choices = choices
        self._random = Random(seed)

    def for_episode(self, seed: int) -> RandomPolicy:
        """Return a policy with a stream of its own."""
        return RandomPolicy(self.choices, seed=seed)

    def act(self, env: Env, observation: str) -> str:
        """Return a random action."""
        if self.choices is not None:
            return self._random.choice(self.choices)
        return "".join(self._random.choices(string.printable, k=self._random.randrange(21)))


class ReplayPolicy:
    """Says given actions one after another, from the first in every episode; asking for more is an error.

    Args:
        actions: What it says.
    """

    def __init__(self, actions: Iterable[str]) -> None:
        self.actions = tuple(actions)
        self._position = 0

    @classmethod
    def of(cls, trajectory: Trajectory) -> ReplayPolicy:
        """Return the policy that says what the agent of a trajectory said."""
        return cls(render_reply(message) for message in trajectory.messages if message.role == "assistant")

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
"""Awaited before a turn, with a random stream that depends on the episode and turn alone. May sleep; may raise."""


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
        jitter: Share by which this varies: 0.5 draws evenly from half to one and a half of it.
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
    """Its turns can be interrupted while the hook is awaited, too: they have no token yet."""

    def __init__(self, policy: TokenPolicy, hook: Hook) -> None:
        super().__init__(policy, hook)
        self._hooks: dict[str, set[asyncio.Future[None]]] = {}  # of each session whose hook is awaited
        self._interrupted: set[asyncio.Future[None]] = set()

    def interrupt(self, session: str) -> None:
        """Have a session's turn end with what it has."""
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
            return Sampled(np.zeros(0, np.int32), np.zeros(0, np.float32), FinishReason.ABORT)
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
