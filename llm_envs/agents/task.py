"""An environment as an agent's task: its first messages, its tools, and a step for each reply."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from llm_envs.agents.session import PolicySession
from llm_envs.chat.context import observed_messages, render_reply
from llm_envs.errors import InvalidConfigError, ResetNeededError
from llm_envs.rollout.chat_logs import LogEntry, read_entry
from llm_envs.rollout.checks import check_components, check_results, check_success, check_tools
from llm_envs.rollout.workers.runner import Env, EnvMaker, check_reset, check_step, env_attribute
from llm_envs.types import Message

__all__ = ["EnvTask"]


class EnvTask:
    """An episode of an environment, for an agent that acts in it. Made for the agent by `AgentEnv`.

    All its calls must come from one thread at a time.

    Args:
        maker: Makes the environment.
        session: Records the agent's requests; the rewards go to its last turn.
    """

    def __init__(self, maker: EnvMaker, session: PolicySession) -> None:
        self.messages: list[dict[str, Any]] = []
        """System prompt and first observation, as a request takes them."""
        self.tools: list[dict[str, Any]] = []
        """JSON Schemas of the environment's tools."""
        self.is_over = False
        self.is_success = False
        self.is_truncated = False
        """Whether a limit of the environment ended it."""
        self.failure: tuple[BaseException, str] | None = None
        """The exception that the environment raised, and where."""
        self._maker, self._session = maker, session
        self._env: Env | None = None
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Make the environment and begin its episode."""
        spec, where = self._session.spec, "env.make"
        try:
            self._env = self._maker()
            where = "env.reset"
            options = None if spec.options is None else dict(spec.options)
            observation, info = check_reset(self._env.reset(seed=spec.seed, options=options))
            system_prompt = env_attribute(self._env, "system_prompt", None)
            first = [Message("system", system_prompt)] if system_prompt else []
            self.messages = [_to_api(message, None) for message in (*first, *observed_messages(observation, info))]
            tools = check_tools(env_attribute(self._env, "tools", ()) or ())
            self.tools = [dict(t) if "function" in t else {"type": "function", "function": dict(t)} for t in tools]
        except BaseException as error:
            self.failure = error, where
            raise

    def step(self, reply: Any) -> list[dict[str, Any]]:
        """Give the environment a reply, and return its answer.

        Args:
            reply: The message of a chat completion (an object or a dict), or a text. For a message that the policy
                wrote, the environment reads the exact text.

        Returns:
            The messages to append to the conversation after the reply; none if the episode is over.

        Raises:
            ResetNeededError: If the episode is over.
            InvalidConfigError: If the reply is not an assistant's message.
        """
        action, ids = self._read(reply)
        with self._lock:
            if self._env is None or self.is_over:
                raise ResetNeededError("EnvTask.step: the episode is over; look at is_over before each step.")
            try:
                observation, reward, terminated, truncated, info = check_step(self._env.step(action))
                observed = observed_messages(observation, info)
                self.is_success = check_success(info)
                results = check_results(env_attribute(self._env, "tool_results", ()) or ())
                self._session.pay(reward, check_components(info, reward), results)
            except BaseException as error:
                self.failure = error, "env.step"
                raise
        self.is_over, self.is_truncated = terminated or truncated, truncated and not terminated
        if self.is_truncated:
            self._session.final = observed
        elif self.is_over and observation:
            self._session.notes["final_observation"] = observation
        return [] if self.is_over else [_to_api(message, ids) for message in observed]

    def close(self) -> None:
        """Close the environment. Harmless when repeated."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _read(self, reply: Any) -> tuple[str, list[str]]:
        """Return the text of a reply, and the ids of its calls."""
        if isinstance(reply, str):
            return reply, []
        data = reply.model_dump() if hasattr(reply, "model_dump") else reply
        if not isinstance(data, Mapping) or data.get("role") != "assistant":
            raise InvalidConfigError(f"EnvTask.step: {reply!r:.80} is not an assistant's message and not a text.")
        entry = read_entry(0, data)
        text = self._session.record.exact_text(entry)
        return _written(entry) if text is None else text, [call.id for call in entry.calls if call.id is not None]


def _written(entry: LogEntry) -> str:
    return render_reply(Message("assistant", entry.content, entry.calls))


def _to_api(message: Message, ids: list[str] | None) -> dict[str, Any]:
    """Return a message for a request; a tool's result takes the next of `ids`."""
    if message.role != "tool":
        return {"role": message.role, "content": message.content}
    if message.tool_call_id is None and not ids:
        return {"role": "user", "content": message.content}  # the result of a call that no message names
    id_ = ids.pop(0) if ids else message.tool_call_id
    return {"role": "tool", "tool_call_id": id_, "content": message.content}
