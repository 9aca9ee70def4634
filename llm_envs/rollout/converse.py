"""A conversation with tools made of functions: a parser, an executor, a stop condition. No environment class needed.

    trajectory = converse(policy, "What is 3 * 4?", codec=codec, tools=[multiply])

`play_episode` plays it like any other episode, so tokens, forks, limits and failures work the same way.

1. The policy replies. If `stop_condition(messages, reply)` holds, the conversation ends and the reply's calls do not
   run.
2. Otherwise the policy gets an answer: the results of its calls, an error if the reply is broken, or a text of `user`.
3. An asynchronous executor, user or reward runs in the caller's event loop. A synchronous executor or user runs in a
   thread that belongs to the conversation.
4. However a conversation ends, nothing of it is left running.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym

from llm_envs.chat.context import Codec, ContextFn
from llm_envs.errors import EnvContractError, InvalidConfigError, ResetNeededError
from llm_envs.parsers import ParsedReply, Parser, parse_reply
from llm_envs.policies.base import Policy
from llm_envs.rewards.base import Score
from llm_envs.rewards.functions import check_function, read_score
from llm_envs.rollout.chat_logs import as_messages, context_turns
from llm_envs.rollout.episode import play_episode, policy_kind
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.sync import SyncRunner
from llm_envs.rollout.token_transcript import History
from llm_envs.sources.source import EpisodeSpec
from llm_envs.spaces import TextSpace, encodable
from llm_envs.tools.executor import Executor, Toolbox, as_results, run_calls
from llm_envs.types import Message, SamplingParams, ToolCall, ToolResult, Trajectory

__all__ = [
    "CONTINUE",
    "DEFAULT_MAX_TURNS",
    "ConversationEnv",
    "StopCondition",
    "ToolTracker",
    "aconverse",
    "aconverse_batch",
    "calls_nothing",
    "converse",
    "converse_batch",
    "score_trajectory",
]

StopCondition = Callable[[Sequence[Message], ParsedReply], bool]
"""(messages so far, with the reply last) -> whether the conversation is over."""
User = Callable[[Sequence[Message], ParsedReply], str | Awaitable[str]]
"""(messages so far, with the reply last) -> the user's answer to a reply without tool calls."""
Tracker = Callable[[int, Sequence[ToolResult]], None]
"""Called with the number of each turn, from 0, and its results."""
Reward = Callable[[Trajectory], Score | Awaitable[Score]]
"""A finished conversation -> its reward, or a dict of components to sum. None leaves it unscored."""

DEFAULT_MAX_TURNS = 16
"""Limit on turns for a conversation without its own limits."""
CONTINUE = "Go on."
"""The answer to a reply without tool calls, if there is no `user` and the conversation continues."""

_CLOSE_S = 2.0
"""Longest wait for the toolsets to close."""


def calls_nothing(messages: Sequence[Message], reply: ParsedReply) -> bool:
    """Return whether a reply has no tool calls and no parse errors: usually the final reply."""
    return not reply.tool_calls and not reply.problems


class ToolTracker:
    """Counts tool calls turn by turn, for one conversation or for several."""

    def __init__(self) -> None:
        self._told: list[tuple[int, tuple[ToolResult, ...]]] = []

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> ToolTracker:
        """Return a tracker with the results of finished episodes."""
        tracker = cls()
        for trajectory in trajectories:
            for number, turn in enumerate(trajectory.turns):
                tracker(number, turn.tool_results)
        return tracker

    def __call__(self, turn: int, results: Sequence[ToolResult]) -> None:
        """Record the results of a turn, if any. Thread-safe."""
        self._told.append((turn, tuple(results)))

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """All results, in the order in which they were recorded."""
        return tuple(result for _, results in self._told for result in results)

    @property
    def n_calls(self) -> int:
        """Number of calls."""
        return len(self.results)

    @property
    def kinds(self) -> dict[str, int]:
        """Number of calls of each tool."""
        return dict(Counter(result.name for result in self.results))

    @property
    def errors(self) -> dict[str, int]:
        """Number of failed calls by kind of error."""
        return dict(Counter(result.error or "unknown" for result in self.results if not result.success))

    @property
    def success_rate(self) -> float | None:
        """Share of calls that succeeded; None without calls."""
        return _success_rate(self.results)

    def table(self) -> list[dict[str, Any]]:
        """Return a record of each turn: `turn`, `calls`, `kinds`, `success_rate`, `seconds`."""
        by_turn: dict[int, list[ToolResult]] = {}
        for turn, results in self._told:
            by_turn.setdefault(turn, []).extend(results)
        return [
            {
                "turn": turn,
                "calls": len(results),
                "kinds": dict(Counter(result.name for result in results)),
                "success_rate": _success_rate(results),
                "seconds": sum(result.seconds for result in results),
            }
            for turn, results in sorted(by_turn.items())
        ]


def _success_rate(results: Sequence[ToolResult]) -> float | None:
    return sum(result.success for result in results) / len(results) if results else None


class Conversation:
    """Owns toolsets from the beginning of a conversation until they are closed."""


class ConversationEnv(gym.Env[str, str]):
    """A conversation as an environment, for `converse`. Its rewards are 0.

    Args:
        messages: The conversation so far; the policy speaks next.
        parser: Parses a reply.
        executor: Runs the calls of a turn. None runs the tools that were given as functions.
        stop_condition: Whether the conversation is over.
        user: Answers a reply without tool calls.
        tools: Typed functions, `Tool`s and `Toolset`s; or, with an executor, JSON Schemas.
        tool_tracker: Called with the results of each turn.
        loop: The event loop for asynchronous functions.

    Raises:
        InvalidConfigError: If the conversation or the tools are wrong.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as Gymnasium declares it
    reward_weights: ClassVar[Mapping[str, float]] = {}

    def __init__(
        self,
        messages: str | Sequence[Message | Mapping[str, Any]],
        *,
        parser: Parser = parse_reply,
        executor: Executor | None = None,
        stop_condition: StopCondition = calls_nothing,
        user: User | None = None,
        tools: Sequence[Any] = (),
        tool_tracker: Tracker | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.first = as_messages(messages)
        if not self.first or self.first[-1].role == "assistant":
            last = "the conversation is empty" if not self.first else "the last one is the assistant's"
            raise InvalidConfigError(f"converse: the policy needs a message to answer, but {last}.")
        schemas = [tool for tool in tools if isinstance(tool, Mapping)]
        if schemas and (executor is None or len(schemas) < len(tools)):
            raise InvalidConfigError(
                "converse: tools that are JSON Schemas need an executor=..., and no functions among them."
            )
        self._claim: Conversation | None = Conversation()
        self._toolbox = Toolbox([] if schemas else tools, self._claim)
        self.tools: list[Mapping[str, Any]] = [*schemas, *(tool.schema for tool in self._toolbox.values())]
        self.system_prompt: str | None = None
        self.tool_results: tuple[ToolResult, ...] = ()
        self.observation_space = self.action_space = TextSpace()
        # Any of these functions may block, so the environment gets its own thread (about 0.1 ms).
        self.blocking = executor is not None or user is not None or bool(self._toolbox)
        self._executor: Executor = executor or partial(run_calls, self._toolbox)
        self._parser, self._stop, self._user, self._tracker = parser, stop_condition, user, tool_tracker
        self._loop, self._is_over = loop, False
        self._waits_for: Future[Any] | None = None
        self._messages: list[Message] | None = None
        self._n_turns = 0
        self._closed: Future[None] = Future()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the conversation."""
        super().reset(seed=seed)
        self._messages, self._n_turns, self.tool_results = list(self.first), 0, ()
        if self._toolbox.keeps_state:
            self._toolbox.reset({}, self.np_random)
        return _observed(self.first)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a reply; return the answer to it."""
        if self._messages is None:
            raise ResetNeededError("ConversationEnv.step was called before reset().")
        reply = self._parser(action)
        self._messages.append(Message("assistant", action))
        self.tool_results = ()
        observed: tuple[Message, ...] = ()
        is_over = bool(self._stop(tuple(self._messages), reply))
        if not is_over:
            observed = self._answer(reply)
            self._messages += observed
        if self._tracker is not None:
            self._tracker(self._n_turns, self.tool_results)
        self._n_turns += 1
        observation, info = _observed(observed)
        return observation, 0.0, is_over, False, {**info, "reward_components": {}}

    def cancel(self) -> None:
        """Cancel the pending asynchronous call. Thread-safe."""
        self._is_over = True
        if self._waits_for is not None:
            self._waits_for.cancel()

    def close(self) -> None:
        """Close the toolsets, and release them for the next conversation."""
        try:
            self._toolbox.close()
        finally:
            self._claim = None
            if not self._closed.done():
                self._closed.set_result(None)

    async def wait_closed(self) -> None:
        """Wait until the conversation's thread has closed the toolsets, or give up on a hung one."""
        if self._toolbox.toolsets:
            closed = asyncio.wrap_future(self._closed)
            await asyncio.wait([closed], timeout=_CLOSE_S)
            closed.cancel()  # this cancels `_closed` too, so `close` checks whether it is done

    def _answer(self, reply: ParsedReply) -> tuple[Message, ...]:
        assert self._messages is not None
        if reply.tool_calls:
            self.tool_results = _checked(self._settle(self._executor(reply.tool_calls)), reply.tool_calls)
            pairs = zip(reply.tool_calls, self.tool_results, strict=True)
            answers = [Message("tool", result.output, (), call.id, {"name": result.name}) for call, result in pairs]
            return (*answers, *([Message("user", error)] if (error := reply.dropped_calls_error) else ()))
        if reply.problems:
            return (Message("user", f"Error: the reply cannot be read: {'; '.join(reply.problems)}."),)
        answer = CONTINUE if self._user is None else self._settle(self._user(tuple(self._messages), reply))
        if not isinstance(answer, str):
            raise EnvContractError(f"`user` returned {answer!r:.80}; it must be a str.")
        return (Message("user", encodable(answer)),)

    def _settle(self, value: Any) -> Any:
        """Return a value; if it is awaitable, run it in the caller's event loop and return its result."""
        if not inspect.isawaitable(value):
            return value
        if self._loop is None:
            raise InvalidConfigError("ConversationEnv: an asynchronous function needs loop=...; `aconverse` passes it.")
        # This runs in the environment's thread: `play_episode` called `step` there, because `blocking` is set. The
        # caller's loop is free, so the coroutine can run in it while this thread waits.
        self._waits_for = asyncio.run_coroutine_threadsafe(_awaited(value), self._loop)
        # `cancel` may have run in between. It sets `_is_over` before it cancels `_waits_for`, and this thread does the
        # reverse, so one of the two always cancels this call.
        if self._is_over:
            self._waits_for.cancel()
        try:
            return self._waits_for.result()
        except FutureCancelledError as error:  # unconverted, it would look like a cancellation of the episode
            raise RuntimeError("the call that the conversation waited for was cancelled.") from error


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _observed(messages: Sequence[Message]) -> tuple[str, dict[str, Any]]:
    text = "\n".join(message.content for message in messages)
    return text, {"messages": [message.to_dict() for message in messages]} if messages else {}


def _checked(answers: object, calls: Sequence[ToolCall]) -> tuple[ToolResult, ...]:
    """Return an executor's results, whose texts can be encoded."""
    results = as_results(calls, answers)
    return tuple(r if r.output.isascii() else replace(r, output=encodable(r.output)) for r in results)


async def aconverse(
    policy: Policy,
    messages: str | Sequence[Message | Mapping[str, Any]],
    *,
    codec: Codec | None = None,
    parser: Parser = parse_reply,
    executor: Executor | None = None,
    stop_condition: StopCondition = calls_nothing,
    user: User | None = None,
    tools: Sequence[Any] = (),
    tool_tracker: Tracker | None = None,
    reward_fn: Reward | None = None,
    success_at: float = 1.0,
    sampling: SamplingParams | None = None,
    limits: RolloutLimits | None = None,
    history: History = "append",
    context_fn: ContextFn | None = None,
    seed: int = 0,
    index: int = 0,
    env_id: str = "converse",
) -> Trajectory:
    """Play one conversation to its end.

    Args:
        policy: A token or chat policy; an environment's policy sees a `ConversationEnv`.
        messages: A question; or the conversation so far, as `Message`s or in OpenAI's form.
        codec: Messages to token ids; a token policy needs one.
        parser: Parses a reply.
        executor: Runs the calls of a turn, synchronous or asynchronous; None runs `tools`, as `run_calls` does.
        stop_condition: Whether the conversation is over; by default after a reply without tool calls.
        user: Answers a reply without tool calls, unless the conversation is over. None answers `CONTINUE`.
        tools: Typed functions, `Tool`s and `Toolset`s; or, with an executor, JSON Schemas.
        tool_tracker: Called with the results of each turn, for example a `ToolTracker`.
        reward_fn: Rewards the finished conversation, even if a limit cut it. Without it, or if it returns None or
            raises, the trajectory is unscored. It may be asynchronous.
        success_at: Lowest reward that counts as a success.
        sampling: How the policy samples.
        limits: Budgets; None means `DEFAULT_MAX_TURNS` turns.
        history: See `play_episode`.
        context_fn: See `play_episode`.
        seed: Seed of the sampling.
        index: Which of several conversations under one seed this is.
        env_id: Name in the trajectory.

    Returns:
        The trajectory; a failure of the policy, executor or user is in its `error`.

    Raises:
        InvalidConfigError: If an argument is wrong.
    """
    policy_kind(policy, codec)  # before the environment claims its toolsets
    if reward_fn is not None:
        check_function(reward_fn, "reward_fn", ("trajectory",), may_wait=True)
    env = ConversationEnv(
        messages,
        parser=parser,
        executor=executor,
        stop_condition=stop_condition,
        user=user,
        tools=tools,
        tool_tracker=tool_tracker,
        loop=asyncio.get_running_loop(),
    )
    try:
        trajectory = await play_episode(
            env,
            EpisodeSpec(env_id, {}, seed, f"{seed}-{index:06d}"),
            policy,
            codec=codec,
            sampling=sampling,
            limits=limits or RolloutLimits(max_turns=DEFAULT_MAX_TURNS),
            history=history,
            context_fn=context_fn,
            run_seed=seed,
        )
    finally:
        env.cancel()  # first: the conversation's thread may be waiting for a coroutine in this loop
        await env.wait_closed()  # the next conversation may use the same toolsets
    # Every assistant message has a turn, including the messages so far.
    trajectory = replace(trajectory, turns=(*context_turns(env.first), *trajectory.turns))
    return await score_trajectory(trajectory, reward_fn, success_at)


async def aconverse_batch(
    policy: Policy,
    conversations: Sequence[str | Sequence[Message | Mapping[str, Any]]],
    *,
    max_concurrency: int = 64,
    **settings: Any,
) -> list[Trajectory]:
    """Play several conversations side by side; return them in order.

    Args:
        policy: As for `aconverse`.
        conversations: The `messages` of each.
        max_concurrency: How many run concurrently.
        settings: The other keyword arguments of `aconverse`. A toolset belongs to one conversation: give functions, or
            an executor.
    """
    if max_concurrency < 1:
        raise InvalidConfigError(f"converse_batch: max_concurrency is {max_concurrency!r}; it must be at least 1.")
    slots = asyncio.Semaphore(max_concurrency)

    async def hold(index: int, messages: Any) -> Trajectory:
        async with slots:
            return await aconverse(policy, messages, index=index, **settings)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(hold(index, messages)) for index, messages in enumerate(conversations)]
    except BaseExceptionGroup as errors:  # the first one is the cause; the others were cancelled because of it
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def converse(policy: Policy, messages: str | Sequence[Message | Mapping[str, Any]], **settings: Any) -> Trajectory:
    """Play one conversation: `aconverse` for synchronous code; works in a notebook too."""
    return _run(partial(aconverse, policy, messages, **settings))


def converse_batch(
    policy: Policy, conversations: Sequence[str | Sequence[Message | Mapping[str, Any]]], **settings: Any
) -> list[Trajectory]:
    """Play several conversations side by side: `aconverse_batch` for synchronous code; works in a notebook too."""
    return _run(partial(aconverse_batch, policy, conversations, **settings))


def _run(function: Callable[[], Any]) -> Any:
    runner = SyncRunner()
    try:
        return runner.run(function)
    finally:
        runner.close()


async def score_trajectory(trajectory: Trajectory, reward_fn: Reward | None, success_at: float) -> Trajectory:
    """Put the reward on the last turn; without a reward, or if `reward_fn` fails, the trajectory is unscored.

    Args:
        trajectory: A finished episode; one that errored or is unscored stays as it is.
        reward_fn: Rewards it.
        success_at: Lowest reward that counts as a success.
    """
    if trajectory.status != "ok":
        return trajectory
    if reward_fn is None:
        return _unscored(trajectory, "there is no reward_fn")
    try:
        value = reward_fn(trajectory)
        components = read_score(await value if inspect.isawaitable(value) else value, "reward")
        if components is None:
            return _unscored(trajectory, "reward_fn gave None")
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # the conversation was cancelled from outside, not a task inside reward_fn
        return _unscored(trajectory, f"reward_fn failed: {type(error).__name__}: {error}")
    reward = sum(components.values())
    turns = [replace(turn, components=dict.fromkeys(components, 0.0)) for turn in trajectory.turns]
    turns[-1] = replace(turns[-1], reward=reward, components=components)
    return replace(trajectory, turns=tuple(turns), is_success=bool(reward >= success_at))


def _unscored(trajectory: Trajectory, why: str) -> Trajectory:
    metadata = {**trajectory.metadata, "unscored_because": why}
    return replace(trajectory, status="unscored", is_success=None, metadata=metadata)
