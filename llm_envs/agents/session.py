"""One episode's requests: they are sampled within its limits, recorded, and become a trajectory.

1. A request that is cancelled or fails leaves no turn. A failure of the policy ends the session: the trajectory is
   errored, whatever the agent makes of the response.
2. A limit refuses the request with an error that the agent can read. If the agent then fails too, or asks again and
   again, the episode is cut by that limit; if it ends in good order, it has terminated.
3. Requests are numbered in the order of arrival. The seed of a turn depends on the run's seed, the episode and that
   number, as for an environment: an agent that asks one request at a time gets the tokens that an environment would.
   The seeds of concurrent requests depend on which arrives first, and each has the token budget that is left when it
   begins: together they may exceed `max_episode_tokens`.
4. In a run (`requests_decide=False`) the run decides how the policy samples: a request may only lower the number of
   tokens and add stop strings. An agent that asks for temperature 0, or always for the same seed, could not learn.
5. Requests of an agent's children (a title, a subagent, a program that it has started) are recorded, and count for the
   limits; their tokens are context, unless `trains_children`. A child asks at the address of `Endpoint.child`, or, if
   `marks` are given, for another model than `MODEL`, or with other headers than the agent's first request.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from llm_envs.agents.record import EpisodeRecord, RecordedTurn, canonical_arguments
from llm_envs.agents.requests import ChatRequest, RequestError, ReturnedReply
from llm_envs.chat.context import Codec
from llm_envs.errors import ContextFullError, InvalidConfigError, ModelError
from llm_envs.parsers import parse_reply, typed_calls
from llm_envs.policies.base import EpisodicPolicy, Policy
from llm_envs.rollout.episode import policy_kind
from llm_envs.rollout.limits import RolloutLimits, row_limit, turn_budget
from llm_envs.rollout.pause_gate import PauseGate, Stopwatch
from llm_envs.rollout.rows import spans_as_context
from llm_envs.rollout.token_transcript import History
from llm_envs.rollout.turn import SampledTurn, TimeIsUp, TurnSampler
from llm_envs.sources.mixture import derive_seed
from llm_envs.sources.source import EpisodeSpec
from llm_envs.tracking.stats import CollectorStats
from llm_envs.types import (
    FinishReason,
    Message,
    RolloutError,
    SamplingParams,
    StopReason,
    ToolResult,
    Trajectory,
    Turn,
)

__all__ = ["MAX_REFUSALS", "MODEL", "Payment", "PolicySession"]

MODEL = "policy"
"""The model's name."""

MAX_REFUSALS = 16
"""Requests after a limit was reached until the episode is cut: an agent that only retries would never end."""


@dataclass(frozen=True, slots=True)
class Payment:
    """A reward for the last turn at the time that it was paid."""

    turn: int
    """Number of the request; -1 before any."""
    reward: float
    components: Mapping[str, float]
    tool_results: tuple[ToolResult, ...] = ()


@dataclass(slots=True)
class PolicySession:
    """The requests of one episode.

    Args:
        spec: The episode.
        policy: A token policy.
        codec: Encodes and decodes text.
        sampling: How the policy samples, where a request does not decide.
        limits: The episode's budgets. `max_turns` counts requests (each choice of `n`).
        history: See `EpisodeRecord`.
        run_seed: See `play_episode`.
        gate: Pauses the policy.
        stats: Counts tokens and seconds.
        requests_decide: Whether a request's temperature, filters and seed count.
        marks: Names of the headers that tell the agent from its children; None: only the address tells.
        trains_children: Whether the tokens of children count as the policy's.

    Raises:
        InvalidConfigError: If the policy takes no token ids.
    """

    spec: EpisodeSpec
    policy: Policy
    codec: Codec
    sampling: SamplingParams = field(default_factory=SamplingParams)
    limits: RolloutLimits = field(default_factory=RolloutLimits)
    history: History = "append"
    run_seed: int = 0
    gate: PauseGate | None = None
    stats: CollectorStats = field(default_factory=CollectorStats)
    requests_decide: bool = False
    marks: tuple[str, ...] | None = None
    trains_children: bool = False
    record: EpisodeRecord = field(init=False)
    payments: list[Payment] = field(init=False, default_factory=list)
    failure: RolloutError | None = field(init=False, default=None)
    """The policy's failure."""
    limit: tuple[StopReason, str] | None = field(init=False, default=None)
    """The limit that refused a request or ended the episode, and how much it is."""
    is_over: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set when no further request will be answered, before the agent has ended."""
    hung_s: float | None = field(init=False, default=None)
    """Seconds without a request after which the agent was given up."""
    final: tuple[Message, ...] = field(init=False, default=())
    """The observation at which an environment truncated the episode."""
    conversations: dict[str, list[dict[str, Any]]] = field(init=False, default_factory=dict)
    """Id of each answer of the responses API -> the messages up to it."""
    notes: dict[str, Any] = field(init=False, default_factory=dict)
    """For the trajectory's metadata."""
    ended: StopReason | None = field(init=False, default=None)
    """Set when the environment has ended or failed, and a framework with its own loop must not ask again."""
    is_closed: bool = field(init=False, default=False)
    overridden: set[str] = field(init=False, default_factory=set)
    """Sampling parameters that requests named and the run decided."""
    not_applied: dict[str, Any] = field(init=False, default_factory=dict)
    """Parameters that requests named and that change nothing, with the last value."""
    n_active: int = field(init=False, default=0)
    last_active_s: float = field(init=False, default=0.0)
    """Time of the clock when the last request ended."""
    policy_s: float = field(init=False, default=0.0)
    sampler: TurnSampler = field(init=False)
    _agent: dict[str, str] | None = field(init=False, default=None)
    _n_refused: int = field(init=False, default=0)
    _n_pending: int = field(init=False, default=0)
    _tasks: set[asyncio.Task[ReturnedReply]] = field(init=False, default_factory=set)
    _started: float = field(init=False, default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        if policy_kind(self.policy, self.codec) != "token":
            raise InvalidConfigError(
                f"{type(self.policy).__name__} takes no token ids, so it cannot answer an agent's requests: give a "
                "token policy (TransformersPolicy, VLLMEnginePolicy, VLLMServerPolicy)."
            )
        seed_base = self.run_seed if self.sampling.seed is None else self.sampling.seed
        if hasattr(self.policy, "for_episode"):
            episodic = cast("EpisodicPolicy", self.policy)
            self.policy = episodic.for_episode(derive_seed(seed_base, self.spec.group_id, self.spec.member))
        self.record = EpisodeRecord(self.codec, self.history)
        self.sampler = TurnSampler(
            self.policy, self.spec, self.codec, self.limits, seed_base, self.gate, self.stats.add_tokens
        )

    async def chat(self, request: ChatRequest) -> tuple[str, list[ReturnedReply]]:
        """Answer a request: sample its choices and record them. Cancelling this cancels the sampling.

        Returns:
            An id, and the replies.

        Raises:
            RequestError: If the request is wrong, a limit refuses it, or the policy failed.
        """
        if self.is_closed or self.is_over.is_set():
            raise RequestError(403, "the session is over: it answers no further request.", "session_over")
        if self.requests_decide and "chat_template_kwargs" in request.noted:
            what = "chat_template_kwargs is not supported here: give the codec template_kwargs, and leave it out."
            raise RequestError(400, what, "unsupported_or_invalid", "chat_template_kwargs")
        self.not_applied |= request.noted
        self.n_active += 1
        turns: list[RecordedTurn] = []
        try:
            self._begin(request, turns)
            replies = await self._all_of([self._answer(request, turn, index) for index, turn in enumerate(turns)])
        except BaseException as error:
            for turn in turns:
                self.record.drop(turn)
            task = asyncio.current_task()
            is_own = self.is_closed and (task is None or not task.cancelling())
            if isinstance(error, asyncio.CancelledError) and is_own:  # `close` has cancelled the sampling
                raise RequestError(403, "the session is over.", "session_over") from None
            raise
        finally:
            self.n_active -= 1
            self._n_pending -= len(turns)
            self.last_active_s = self.sampler.clock.seconds
        for turn, reply in zip(turns, replies, strict=True):
            self.record.finish(turn, reply)
        if not self.is_closed:
            self.limit = None  # an agent that shortened its history continues
        return f"chatcmpl-{self.spec.group_id}-{turns[0].number}", replies

    def child_of(self, model: str, headers: Mapping[str, str]) -> str:
        """Return the sign of a child; empty for the agent itself."""
        if self.marks is None:
            return ""
        if model != MODEL:
            return f"model {model}"
        asks = {name: headers.get(name, "") for name in self.marks}
        self._agent = self._agent or asks
        return next((f"{name} {value}" for name, value in asks.items() if value != self._agent[name]), "")

    def count_tokens(self, request: ChatRequest) -> int:
        """Return the number of tokens of a request's prompt, encoded as a new conversation. Leaves no turn.

        Raises:
            RequestError: If its messages cannot be encoded.
        """
        try:
            return len(self.record.encode(request))
        except (InvalidConfigError, ModelError) as error:
            raise RequestError(400, str(error), "invalid_messages", "messages") from error

    def close(self) -> None:
        """Answer no further request, and cancel those that are running. Harmless when repeated."""
        self.is_closed = True
        for task in self._tasks:
            task.cancel()

    def pay(self, reward: float, components: Mapping[str, float], results: Sequence[ToolResult] = ()) -> None:
        """Add a reward to the last turn. Thread-safe."""
        turns = self.record.turns
        self.payments.append(Payment(turns[-1].number if turns else -1, reward, components, tuple(results)))

    def trajectory(
        self,
        *,
        stop_reason: StopReason,
        is_success: bool,
        error: RolloutError | None = None,
        unscored_because: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Trajectory:
        """Return the episode so far, with what was paid."""
        self.close()
        places = {turn: (row, span) for row, line in enumerate(self.record.lines()) for span, turn in enumerate(line)}
        messages, turns = [], []
        for message, recorded in self.record.conversation():
            messages.append(message)
            if recorded is not None:
                turns.append(self._turn(recorded, *places[recorded]))
            elif message.role == "assistant":
                turns.append(Turn(0.0, {}))  # written by another: context, as in `converse`
        rows = self.record.rows(self.final, self._most_tokens)
        children = Counter(turn.child for turn in self.record.turns if turn.child)
        if children and not self.trains_children:
            spans = {place for turn, place in places.items() if turn.child}
            shown, turns = spans_as_context(rows, turns, spans)
            rows = tuple(shown)
        names = {name: 0.0 for payment in self.payments for name in payment.components}
        turns = [replace(turn, components={**names, **turn.components}) for turn in turns]
        if not self.record.turns and error is None:
            unscored_because = unscored_because or "the agent never called the model"
        status = "unscored" if unscored_because else "ok" if error is None else "errored"
        options = {} if self.spec.options is None else {"options": dict(self.spec.options)}
        why_rows = [line[0].why for line in self.record.lines()]
        notes = {
            "unscored_because": unscored_because,
            "row_reasons": why_rows if len(why_rows) > 1 else None,
            "overridden": sorted(self.overridden) or None,
            "not_applied": self.not_applied or None,
            "children": dict(children) or None,
            "limit": None if self.limit is None or self.ended else f"{self.limit[0].value}: {self.limit[1]}",
        }
        terminated = stop_reason is StopReason.TERMINATED
        return Trajectory(
            env_id=self.spec.env_id,
            env_kwargs=dict(self.spec.env_kwargs),
            seed=self.spec.seed,
            group_id=self.spec.group_id,
            member=self.spec.member,
            messages=(*messages, *self.final),
            tools=tuple({canonical_arguments(t): t for turn in self.record.turns for t in turn.tool_schemas}.values()),
            rows=rows,
            turns=tuple(turns),
            terminated=terminated,
            truncated=not terminated and error is None,
            stop_reason=stop_reason,
            status=status,  # type: ignore[arg-type]  # one of the three above
            is_success=is_success if status == "ok" else None,
            error=error,
            timings={"total": time.perf_counter() - self._started, "policy": self.policy_s},
            metadata={**options, **self.notes, **{k: v for k, v in notes.items() if v is not None}, **(metadata or {})},
        )

    def _begin(self, request: ChatRequest, turns: list[RecordedTurn]) -> None:
        if self.ended is not None:
            raise self._refusal(self.ended, "the environment is over")
        limits, n_turns = self.limits, len(self.record.turns) + self._n_pending
        if limits.max_turns is not None and n_turns + request.n > limits.max_turns:
            raise self._refusal(StopReason.MAX_TURNS, f"max_turns={limits.max_turns}")
        if limits.max_episode_s is not None and self.sampler.clock.seconds > limits.max_episode_s:
            raise self._refusal(StopReason.TIMEOUT, f"max_episode_s={limits.max_episode_s:g}")
        try:
            for _ in range(request.n):
                turns.append(self.record.begin(request))
                self._n_pending += 1
        except (InvalidConfigError, ModelError) as error:
            raise RequestError(400, str(error), "invalid_messages", "messages") from error

    def _refusal(self, reason: StopReason, why: str) -> RequestError:
        self.limit = (reason, why)
        self._n_refused += 1
        if self._n_refused >= MAX_REFUSALS:
            self.is_over.set()
        if reason in (StopReason.MAX_TURNS, StopReason.TIMEOUT):
            return RequestError(403, f"the episode has reached its limit {why}.", "episode_over")
        if self.ended is not None:
            return RequestError(403, f"{why}: the episode has ended.", "episode_over")
        # The code at which agents shorten their history and ask again.
        return RequestError(400, f"the conversation is too long: {why}.", "context_length_exceeded", "messages")

    async def _answer(self, request: ChatRequest, turn: RecordedTurn, index: int) -> ReturnedReply:
        clock = Stopwatch(self.gate)
        sampled = await self._sample(request, turn, index)
        sampled.seconds = clock.seconds
        self.policy_s += sampled.seconds
        return self._returned(request, turn, sampled)

    async def _all_of(self, answers: Sequence[Coroutine[Any, Any, ReturnedReply]]) -> list[ReturnedReply]:
        """Return the results in order; if one fails, cancel the others, wait for them, and raise its own error."""
        tasks = [asyncio.create_task(answer) for answer in answers]
        self._tasks.update(tasks)
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.difference_update(tasks)

    async def _sample(self, request: ChatRequest, turn: RecordedTurn, index: int) -> SampledTurn:
        prompt_ids = turn.prompt_ids
        params, sampler, number = self._params(request, turn, len(prompt_ids)), self.sampler, turn.number
        if request.seed is not None and self.requests_decide:
            sampler, number = replace(sampler, seed_base=request.seed), index
            sampler.clock = self.sampler.clock
        try:
            with self.stats.policy_time:
                return await sampler.sample(prompt_ids, params, number)
        except ContextFullError as error:
            reason = StopReason.CONTEXT_FULL if self.record.turns else StopReason.PROMPT_TOO_LONG
            raise self._refusal(reason, str(error).rstrip(".")) from error
        except TimeIsUp as error:
            raise self._refusal(StopReason.TIMEOUT, str(error)) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._failed(error) from error  # a request inside the policy was cancelled, not this one
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: BaseException) -> RequestError:
        kind = type(error).__name__
        self.failure = self.failure or RolloutError(kind, str(error) or kind, "policy")
        self.is_over.set()
        return RequestError(500, f"the policy failed: {kind}: {error}", "policy_failed")

    def _params(self, request: ChatRequest, turn: RecordedTurn, n_prompt: int) -> SamplingParams:
        named = dict(request.sampling) | ({} if request.seed is None else {"seed": request.seed})
        params = self.sampling
        if self.requests_decide:
            try:
                params = replace(params, **request.sampling)
            except ValueError as error:
                raise RequestError(400, str(error), "invalid_sampling") from error
        else:
            self.overridden |= {name for name, value in named.items() if getattr(params, name) != value}
        most = params.max_new_tokens if request.max_tokens is None else min(request.max_tokens, params.max_new_tokens)
        prompt_length, others = self.record.row_lengths(turn)
        limits = self.limits
        budget = turn_budget(limits, most, n_prompt, row_limit(limits, prompt_length, others))
        if budget < 1:
            why = (
                f"max_episode_tokens={limits.max_episode_tokens}, max_completion_tokens={limits.max_completion_tokens}"
            )
            raise self._refusal(StopReason.MAX_TOKENS, why)
        stops = tuple(dict.fromkeys((*params.stop_strings, *request.stops)))
        return replace(params, max_new_tokens=budget, stop_strings=stops)

    def _most_tokens(self, prompt_length: int, others: int) -> int | None:
        limits = (row_limit(self.limits, prompt_length, others), getattr(self.policy, "max_model_len", None))
        return min((limit for limit in limits if limit is not None), default=None)

    def _returned(self, request: ChatRequest, turn: RecordedTurn, sampled: SampledTurn) -> ReturnedReply:
        """Take a reply apart for the client. A reply that cannot be parsed is returned as it was written."""
        text = sampled.text
        if sampled.finish_reason is FinishReason.STOP_STRING:
            ends = [text.find(stop) for stop in (*self.sampling.stop_strings, *request.stops)]
            text = text[: min((end for end in ends if end >= 0), default=len(text))]
        parsed = getattr(self.codec, "parser", parse_reply)(text)
        is_sound = not parsed.problems and (not parsed.tool_calls or bool(request.tools))
        calls = tuple(
            (f"call_{turn.number}_{index}", call.name, json.dumps(dict(call.arguments), ensure_ascii=False))
            for index, call in enumerate(typed_calls(parsed.tool_calls, request.tools) if is_sound else ())
        )
        reason = {FinishReason.LENGTH: "length"}.get(sampled.finish_reason, "tool_calls" if calls else "stop")
        content, thinking = (parsed.content, parsed.thinking or "") if is_sound else (text, "")
        return ReturnedReply(content, thinking, calls, reason, len(turn.prompt_ids), sampled)

    def _turn(self, turn: RecordedTurn, row: int, span: int) -> Turn:
        assert turn.reply is not None
        sampled = turn.reply.sampled
        first = self.record.turns[0]
        # A reward before the first reply counts for that reply: only turns have rewards.
        paid = [p for p in self.payments if p.turn == turn.number or (p.turn < first.number and turn is first)]
        components: dict[str, float] = {}
        for payment in paid:
            for name, value in payment.components.items():
                components[name] = components.get(name, 0.0) + value
        return Turn(
            reward=math.fsum(payment.reward for payment in paid),
            components=components,
            row=row,
            span=span,
            finish_reason=sampled.finish_reason,
            weight_versions=sampled.weight_versions,
            tool_results=tuple(result for payment in paid for result in payment.tool_results),
            seconds={"policy": sampled.seconds},
        )
