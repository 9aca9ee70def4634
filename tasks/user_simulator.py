"""The player of a user: a policy of any kind on the other side of a conversation, asked again if it fails."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from llm_envs.chat.context import Codec
from llm_envs.errors import BridgeError, InvalidConfigError, MissingExtraError
from llm_envs.policies.base import ChatPolicy, EnvPolicy, EpisodicPolicy, Policy, TokenPolicy
from llm_envs.policies.inference.seeds import turn_seed
from llm_envs.rollout.episode import policy_kind
from llm_envs.tools.background_loop import LimitReached, wait_for_outcome
from llm_envs.types import Message, SamplingParams

__all__ = ["UserSimulator"]

T = TypeVar("T")
_N_ATTEMPTS = 3


class UserSimulator:
    """A policy that plays the user.

    Args:
        task: Name of the task, for errors.
        policy: A chat policy, a token policy, or an env policy; or "module:name" of one, or of a function that makes
            one. It is called on the process's background event loop.
        codec: Messages to token ids, for a token policy.
        sampling: How it is sampled.
        timeout_s: Seconds that one attempt may take.

    Raises:
        InvalidConfigError: If an argument is wrong.
    """

    def __init__(
        self, task: str, policy: Policy | str, codec: Codec | None, sampling: SamplingParams, timeout_s: float
    ) -> None:
        if not timeout_s > 0:
            raise InvalidConfigError(f"{task}: user_timeout_s is {timeout_s!r}; it must be above 0.")
        self.policy: Policy = _named(task, policy) if isinstance(policy, str) else policy
        self._task = task
        self._kind = policy_kind(self.policy, codec)
        self._codec, self._sampling, self._timeout_s = codec, sampling, timeout_s

    def start(self, seed: int) -> None:
        """Start an episode.

        Args:
            seed: Of the user's turns.
        """
        policy: Any = self.policy
        self._seed = seed
        self._user: Policy = (
            cast("EpisodicPolicy", policy).for_episode(seed) if hasattr(policy, "for_episode") else policy
        )

    def reply(
        self,
        env: Any,
        heard: str,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        read: Callable[[Message], T],
    ) -> T:
        """Return the user's next reply.

        Args:
            env: The environment, for an env policy.
            heard: The agent's words, for an env policy.
            messages: The conversation, in which the user is the assistant, for a model.
            tools: JSON Schemas of the user's tools.
            read: Makes the result of a reply, or raises if it cannot be used: then the player is asked again.

        Raises:
            BridgeError: If the player fails three times.
        """
        last = ""
        for attempt in range(_N_ATTEMPTS):
            try:
                return read(self._ask(env, heard, messages, tools, attempt))
            except (InvalidConfigError, MissingExtraError):
                raise  # another attempt would not help
            except LimitReached:
                last = f"it took longer than {self._timeout_s:g} s"
            except Exception as error:
                last = f"{type(error).__name__}: {error}"
        raise BridgeError(f"{self._task}: the player of the user failed {_N_ATTEMPTS} times; at last: {last}.")

    def _ask(
        self, env: Any, heard: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], attempt: int
    ) -> Message:
        is_env_policy = self._kind == "env"
        value: Any = (
            cast("EnvPolicy", self._user).act(env, heard)
            if is_env_policy
            else self._ask_model(messages, tools, attempt)
        )
        if inspect.isawaitable(value):
            value = wait_for_outcome(value, self._timeout_s)
        return value if isinstance(value, Message) else Message("assistant", str(value))

    def _ask_model(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], attempt: int
    ) -> Awaitable[Message]:
        params = replace(self._sampling, seed=self._seed + attempt)

        async def ask() -> Message:
            if self._kind == "chat":
                return await cast("ChatPolicy", self._user).reply(messages, tools, params)
            assert self._codec is not None  # `policy_kind` saw to it
            prompt_ids = self._codec.encode_prompt(messages, tools)
            seed = turn_seed(params, prompt_ids, attempt)
            policy = cast("TokenPolicy", self._user)
            sampled = await policy.sample(prompt_ids, params, seed=seed, session=f"user-{self._seed}")
            return Message("assistant", self._codec.decode_reply(sampled.token_ids))

        return ask()


def _named(task: str, text: str) -> Policy:
    """Return the policy that "module:name" names, or that the function of this name makes."""
    module, _, name = text.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfigError(
            f"{task}: user_policy is {text!r}; a text must be module:name of a policy, or of a function that makes "
            f"one: {error}."
        ) from error
    is_policy = any(hasattr(found, method) for method in ("sample", "reply", "act")) and not isinstance(found, type)
    return cast("Policy", found if is_policy else found())
