"""An environment as an agent's task: its first messages, its tools, and a step for each reply."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llm_envs.agents.session import PolicySession
from llm_envs.chat.context import observed_messages, render_reply
from llm_envs.errors import InvalidConfigError, JudgeError, ResetNeededError
from llm_envs.parsers import format_answer
from llm_envs.rollout.chat_logs import read_entry
from llm_envs.rollout.checks import check_components, check_results, check_success, check_tools
from llm_envs.rollout.workers.runner import Env, check_reset, check_step, close_env, env_attribute
from llm_envs.rollout.workers.wire import error_text
from llm_envs.shell import Shell, ShellTools
from llm_envs.types import Message, RolloutError, StopReason, ToolResult

__all__ = ["EnvTask", "TaskState", "as_rollout_error"]


FoundCall = tuple[str, tuple[str, ...], str]
"""Id of a call, the ids of all calls of its reply, and the reply as the policy wrote it."""


class TaskState:
    """The report of an `EnvTask` on its episode: plain data in and out, so that it may cross processes.

    Args:
        session: Gets the rewards, and refuses requests once the environment is over; None: another keeps them.
    """

    def __init__(self, session: PolicySession | None = None) -> None:
        self.reward = 0.0
        """The return so far."""
        self.is_success = False
        self.is_truncated = False
        """Whether a limit of the environment ended it."""
        self.observed: tuple[Message, ...] = ()
        """The last observation, if the episode was not over."""
        self.error: RolloutError | None = None
        self.is_judge = False
        """Whether the error is a judge's."""
        self._session = session

    def exact_text(self, message: Mapping[str, Any]) -> str | None:
        """Return what the model wrote for a message that it sent; None for any other message."""
        return None if self._session is None else self._session.record.exact_text(read_entry(0, message))

    def find_call(self, name: str, arguments: Mapping[str, Any], done: Sequence[str]) -> FoundCall | None:
        """Return the latest call of the policy with this name and arguments whose id is not in `done`."""
        for turn in [] if self._session is None else reversed(self._session.record.turns):
            assert turn.reply is not None
            for id_, called, given in turn.reply.calls:
                if called == name and id_ not in done and json.loads(given) == dict(arguments):
                    return id_, tuple(call[0] for call in turn.reply.calls), turn.reply.sampled.text
        return None

    def stepped(
        self,
        reward: float,
        components: Mapping[str, float],
        results: Sequence[ToolResult],
        is_success: bool,
        is_truncated: bool,
        observed: Sequence[Message],
        final_observation: str | None,
    ) -> None:
        """Keep the outcome of a step.

        Args:
            reward: Its reward.
            components: The parts of the reward.
            results: Results of tools.
            is_success: Whether the episode is a success so far.
            is_truncated: Whether a limit of the environment ended it.
            observed: The policy's next observation; nothing if the task terminated.
            final_observation: The observation at the end.
        """
        self.reward += reward
        self.is_success, self.is_truncated, self.observed = is_success, is_truncated, tuple(observed)
        if self._session is None:
            return
        self._session.pay(reward, components, results)
        if final_observation is not None:
            self._session.notes["final_observation"] = final_observation

    def refuse_requests(self, is_truncated: bool) -> None:
        """Refuse further requests, since the environment is over."""
        self._end(StopReason.ENV_TRUNCATED if is_truncated else StopReason.TERMINATED)

    def failed(self, error: RolloutError, is_judge: bool) -> None:
        """Keep the environment's failure, and refuse further requests: an agent may hide it from itself."""
        self.error, self.is_judge = error, is_judge
        self._end(StopReason.ERROR)

    def _end(self, reason: StopReason) -> None:
        if self._session is not None:
            self._session.ended = reason


class EnvTask:
    """An episode of an environment, for an agent that acts in it. Made for the agent by `AgentEnv`.

    A loop of your own calls `step` for each reply; a framework that runs the tools itself calls `call` for each tool
    call. `step` must be called from one thread at a time.

    Args:
        make: Makes the environment.
        seed: The episode's seed.
        options: The options of its reset.
        report: Gets the rewards. A session has them in its last turn.
    """

    def __init__(
        self, make: Callable[[], Env], seed: int, options: Mapping[str, Any] | None, report: TaskState
    ) -> None:
        self.messages: list[dict[str, Any]] = []
        """System prompt and first observation, as a request takes them."""
        self.tools: list[dict[str, Any]] = []
        """JSON Schemas of the environment's tools."""
        self.is_over = False
        self.is_success = False
        self.is_truncated = False
        """Whether a limit of the environment ended it."""
        self._make, self._seed, self._options, self._report = make, seed, options, report
        self._env: Env | None = None
        self._lock, self._calling = threading.Lock(), threading.Lock()
        self._results: dict[str, str] = {}
        """Of calls that the environment has run: what `call` has not returned yet, by id."""
        self._answered: list[str] = []
        """Ids of the calls whose results it has returned."""

    @property
    def shell(self) -> Shell:
        """The shell of the environment's `ShellTools`, for an agent that works in files.

        Raises:
            InvalidConfigError: If it has none.
        """
        toolbox = None if self._env is None else env_attribute(self._env, "toolbox", None)
        for tools in () if toolbox is None else toolbox.toolsets:
            if isinstance(tools, ShellTools):
                return tools.shell
        error = InvalidConfigError("the environment has no ShellTools, in whose folder the agent could work.")
        self._fail(error, "agent")
        raise error

    def answer(self, text: str) -> str:
        """Return an answer in the environment's form."""
        assert self._env is not None
        written: str = env_attribute(self._env, "write_answer", format_answer)(text)
        return written

    def reset(self) -> None:
        """Make the environment and begin its episode."""
        where = "env.make"
        try:
            self._env = self._make()
            where = "env.reset"
            options = None if self._options is None else dict(self._options)
            observation, info = check_reset(self._env.reset(seed=self._seed, options=options))
            system_prompt = env_attribute(self._env, "system_prompt", None)
            first = [Message("system", system_prompt)] if system_prompt else []
            self.messages = [_to_api(message, None) for message in (*first, *observed_messages(observation, info))]
            tools = check_tools(env_attribute(self._env, "tools", ()) or ())
            self.tools = [dict(t) if "function" in t else {"type": "function", "function": dict(t)} for t in tools]
        except BaseException as error:
            self._fail(error, where)
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
                components = check_components(info, reward)
            except BaseException as error:
                self._fail(error, "env.step")
                raise
            self.is_over, self.is_truncated = terminated or truncated, truncated and not terminated
            seen, last = ((), observation or None) if terminated else (observed, None)
            self._report.stepped(reward, components, results, self.is_success, self.is_truncated, seen, last)
        return [] if self.is_over else [_to_api(message, ids) for message in observed]

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the result of one tool call of the policy, for a framework that runs the tools itself.

        The first call of a reply gives the environment the full reply. If that ends the episode, the next request is
        refused, which ends the framework's loop.

        Args:
            name: The tool.
            arguments: As the policy wrote them.

        Raises:
            InvalidConfigError: If the policy has made no such call, or each has its result. The episode is errored.
        """
        with self._calling:
            found = self._report.find_call(name, arguments, self._answered)
            if found is None:
                error = InvalidConfigError(
                    f"EnvTask.call: the policy has not called {name} with {dict(arguments)!r:.80}, or has the result. "
                    "Pass on each call once, with the arguments as the policy wrote them."
                )
                self._fail(error, "agent")  # frameworks turn an exception of a tool into its result
                raise error
            id_, ids, text = found
            if id_ not in self._results:
                self._results |= self._results_of(ids, text)
            self._answered.append(id_)
            return self._results.pop(id_)

    def _results_of(self, ids: Sequence[str], text: str) -> dict[str, str]:
        """Give the environment a reply with calls; return the result of each by id."""
        answers = [] if self.is_over else self.step(text)
        if self.is_over:
            self._report.refuse_requests(self.is_truncated)
            return dict.fromkeys(ids, "The episode is over.")
        texts = [answer["content"] for answer in answers]
        last = len(ids) - 1  # an environment that answers all calls at once answers the first
        return dict(zip(ids, [*texts[:last], "\n".join(texts[last:])] + [""] * len(ids), strict=False))

    def close(self) -> None:
        """Close the environment, ignoring its errors, which change nothing now. Harmless when repeated."""
        env, self._env = self._env, None
        if env is not None:
            close_env(env)

    def _fail(self, error: BaseException, where: str) -> None:
        self._report.failed(as_rollout_error(error, where), isinstance(error, JudgeError))

    def _read(self, reply: Any) -> tuple[str, list[str]]:
        """Return the text of a reply, and the ids of its calls."""
        if isinstance(reply, str):
            return reply, []
        data = reply.model_dump() if hasattr(reply, "model_dump") else reply
        if not isinstance(data, Mapping) or data.get("role") != "assistant":
            raise InvalidConfigError(f"EnvTask.step: {reply!r:.80} is not an assistant's message and not a text.")
        entry = read_entry(0, data)
        text = self._report.exact_text(data)
        written = render_reply(Message("assistant", entry.content, entry.calls)) if text is None else text
        return written, [call.id for call in entry.calls if call.id is not None]


def as_rollout_error(error: BaseException, where: str) -> RolloutError:
    """Return an exception as data."""
    kind = type(error).__name__
    return RolloutError(kind, error_text(error) or kind, where)


def _to_api(message: Message, ids: list[str] | None) -> dict[str, Any]:
    """Return a message for a request; a tool's result takes the next of `ids`."""
    if message.role != "tool":
        return {"role": message.role, "content": message.content}
    if message.tool_call_id is None and not ids:
        return {"role": "user", "content": message.content}  # the result of a call that no message names
    id_ = ids.pop(0) if ids else message.tool_call_id
    return {"role": "tool", "tool_call_id": id_, "content": message.content}
