"""What a policy says in one turn, whatever its kind; and a sampled turn that was interrupted, put together.

A turn is one piece, or several where the gate closed on a policy that can be interrupted:

1. Each piece goes on from the prompt and the very ids before it, with what is left of the turn's budget, under a seed
   of its own, which depends on the turn and the number of tokens before it. Nothing is encoded anew.
2. A piece keeps the log-probabilities that it was drawn with, and has a version span of its own.
3. A stop string that spans a seam, which no policy can see, ends the turn where it would have: what was sampled behind
   it is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from llm_envs.errors import ContextFullError
from llm_envs.policies.base import ChatPolicy, EnvPolicy, InterruptiblePolicy, Policy, TokenPolicy
from llm_envs.rollout.context import Codec, check_extras, render_reply
from llm_envs.rollout.gate import Gate, Stopwatch
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.schedule import derive_seed
from llm_envs.rollout.source import EpisodeSpec
from llm_envs.types import FinishReason, Message, Sampled, SamplingParams, VersionSpan

__all__ = ["Reply", "Speaker", "TimeIsUp", "join_pieces"]

T = TypeVar("T")


MAX_LOGP = 1e-3
"""A log-probability is at most 0; engines round."""


class TimeIsUp(Exception):
    """The episode has no time left: it ends at its last whole turn. Never leaves the rollout."""


@dataclass(slots=True)
class Reply:
    """What the policy said in one turn."""

    text: str
    """The action."""
    message: Message
    finish_reason: FinishReason = FinishReason.STOP
    ids: npt.NDArray[np.int32] | None = None
    logps: npt.NDArray[np.float32] | None = None
    """None where nothing was sampled."""
    weight_versions: tuple[VersionSpan, ...] = ()
    seconds: float = 0.0
    """How long the policy took, without what it was held up at the gate."""


@dataclass(slots=True)
class Speaker:
    """Asks the policy of one episode, within its time.

    Args:
        policy: The policy, the episode's own.
        spec: The episode.
        codec: Encodes and decodes words; a token policy has one.
        limits: Of time, those of the policy and of the episode are kept here.
        seed_base: Turn seeds are hashed from (this, group, member, turn).
        gate: Stands before the policy.
    """

    policy: Policy
    spec: EpisodeSpec
    codec: Codec | None
    limits: RolloutLimits
    seed_base: int
    gate: Gate | None = None
    clock: Stopwatch = field(init=False)
    """Since the episode began."""

    def __post_init__(self) -> None:
        """Start the clock."""
        self.clock = Stopwatch(self.gate)

    async def sample(self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, turn: int) -> Reply:
        """Have a token policy sample a turn, in as many pieces as it takes.

        Raises:
            ContextFullError: If the prompt leaves no room for a token.
            TimeIsUp: If the episode has no time left.
        """
        pieces: list[Sampled] = []
        while not pieces or pieces[-1].finish_reason is FinishReason.ABORT:
            n_tokens = sum(len(piece.token_ids) for piece in pieces)
            n_closed = 0 if self.gate is None else self.gate.n_closed
            left = params if not n_tokens else replace(params, max_new_tokens=params.max_new_tokens - n_tokens)
            piece = await self._piece(_joined(prompt_ids, pieces), left, turn, n_tokens)
            if piece.finish_reason is FinishReason.ABORT:
                is_asked = self.gate is not None and self.gate.n_closed > n_closed
                if not self._is_interruptible or not (is_asked or len(piece.token_ids)):
                    raise RuntimeError("the policy aborted the turn before it was complete.")
                if len(piece.token_ids) == left.max_new_tokens:
                    piece = replace(piece, finish_reason=FinishReason.LENGTH)
            pieces.append(piece)
        codec = cast("Codec", self.codec)
        whole = pieces[0] if len(pieces) == 1 else join_pieces(pieces, params.stop_strings, codec.decode_reply)
        text = codec.decode_reply(whole.token_ids)
        spans = _version_spans(pieces, len(whole.token_ids))
        return Reply(text, Message("assistant", text), whole.finish_reason, whole.token_ids, whole.logps, spans)

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        turn: int,
    ) -> Reply:
        """Have a chat policy reply; `params.seed` is then the turn's own."""
        policy = cast("ChatPolicy", self.policy)
        params = replace(params, seed=self._seed(turn))
        message = await self.in_time(lambda: policy.reply(messages, tools, params))
        if not (isinstance(message, Message) and message.role == "assistant" and isinstance(message.content, str)):
            raise TypeError(f"{type(policy).__name__}.reply returned {message!r:.80}, not an assistant's Message.")
        check_extras(message)
        return self._unsampled(render_reply(message), message)

    async def act(self, env: gym.Env[str, str], observation: str) -> Reply:
        """Have an env policy act. It passes the gate: a scripted one cannot be asked twice, and is quick."""
        policy = cast("EnvPolicy", self.policy)
        action = policy.act(env, observation)
        if inspect.isawaitable(action):
            awaited = action
            action = await self._within_limits(lambda: awaited)
        else:
            await asyncio.sleep(0)  # a policy that never waits still lets the other episodes, and Ctrl-C, through
        if not isinstance(action, str):
            raise TypeError(f"{type(policy).__name__}.act returned {type(action).__name__} {action!r:.80}, not a str.")
        return self._unsampled(action, Message("assistant", action))

    async def in_time(self, call: Callable[[], Awaitable[T]], interrupt: Callable[[], None] | None = None) -> T:
        """Return `await call()`, through the gate.

        Args:
            call: Made anew if the gate closed on it.
            interrupt: Has it return early; the gate then does that instead.

        Raises:
            TimeoutError: If it takes longer than `limits.max_policy_s`.
            TimeIsUp: If the episode has no time left.
        """
        if self.gate is None:
            return await self._within_limits(call)
        return await self.gate.through(lambda: self._within_limits(call), interrupt)

    @property
    def _is_interruptible(self) -> bool:
        return hasattr(self.policy, "interrupt")

    def _seed(self, turn: int, n_tokens: int = 0) -> int:
        parts = (self.seed_base, self.spec.group_id, self.spec.member, turn)
        return derive_seed(*parts, n_tokens) if n_tokens else derive_seed(*parts)

    async def _piece(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, turn: int, n_tokens: int
    ) -> Sampled:
        """Sample what follows `n_tokens` of a turn."""
        policy, session = cast("TokenPolicy", self.policy), f"{self.spec.group_id}/{self.spec.member}"
        seed = self._seed(turn, n_tokens)
        interrupt: Callable[[], None] | None = None
        if self._is_interruptible:
            interruptible = cast("InterruptiblePolicy", policy)
            interrupt = lambda: interruptible.interrupt(session)  # noqa: E731  # one line where it is used
        try:
            sampled = await self.in_time(
                lambda: policy.sample(prompt_ids, params, seed=seed, session=session), interrupt
            )
        except ContextFullError:
            if not n_tokens:
                raise
            return Sampled(np.zeros(0, np.int32), np.zeros(0, np.float32), FinishReason.LENGTH)
        if sampled.finish_reason is FinishReason.CONTEXT_FULL:
            if not n_tokens:
                raise ContextFullError(f"a prompt of {len(prompt_ids)} tokens leaves no room for a token.")
            sampled = replace(sampled, finish_reason=FinishReason.LENGTH)
        if len(sampled.token_ids) > params.max_new_tokens:
            raise RuntimeError(f"the policy wrote {len(sampled.token_ids)} tokens of at most {params.max_new_tokens}.")
        if not np.isfinite(sampled.logps).all():
            raise ValueError("the policy gave a sampled token a log-probability that is not finite.")
        if len(sampled.logps) and sampled.logps.max() > MAX_LOGP:
            raise ValueError(f"the policy gave a sampled token the log-probability {sampled.logps.max():g}, above 0.")
        return sampled

    def _unsampled(self, text: str, message: Message) -> Reply:
        return Reply(text, message, ids=None if self.codec is None else self.codec.encode_reply(text))

    async def _within_limits(self, call: Callable[[], Awaitable[T]]) -> T:
        limit_s, limits = self.limits.max_policy_s, self.limits
        left_s = None if limits.max_episode_s is None else max(limits.max_episode_s - self.clock.seconds, 0.0)
        if limit_s is None and left_s is None:
            return await call()
        is_last = left_s is not None and (limit_s is None or left_s < limit_s)
        try:
            async with asyncio.timeout(left_s if is_last else limit_s) as scope:
                return await call()
        except TimeoutError:
            if not scope.expired():
                raise
            if is_last:
                raise TimeIsUp(f"max_episode_s={limits.max_episode_s:g}") from None
            raise TimeoutError(f"the policy took longer than max_policy_s={limit_s:g} s.") from None


def join_pieces(
    pieces: Sequence[Sampled], stop_strings: Sequence[str], decode: Callable[[npt.NDArray[np.int32]], str]
) -> Sampled:
    """Return a turn that was sampled in pieces as one; its version is that of the last.

    Args:
        pieces: In order; all but the last were interrupted.
        stop_strings: One that spans a seam ends the turn at the first token with which it is there.
        decode: Token ids to text.
    """
    last = pieces[-1]
    ids, logps = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("token_ids", "logps"))
    reason, n_seen = last.finish_reason, len(pieces[0].token_ids)
    if stop_strings and any(stop in decode(ids) for stop in stop_strings):
        for n_tokens in range(n_seen + 1, len(ids) + 1):  # within the first piece the policy has looked itself
            text = decode(ids[:n_tokens])
            if any(stop in text for stop in stop_strings):
                is_cut = n_tokens < len(ids)
                reason = FinishReason.STOP_STRING if is_cut or reason is not FinishReason.STOP else reason
                return Sampled(ids[:n_tokens], logps[:n_tokens], reason, last.weight_version)
    return Sampled(ids, logps, reason, last.weight_version)


def _joined(prompt_ids: npt.NDArray[np.int32], pieces: Sequence[Sampled]) -> npt.NDArray[np.int32]:
    if not any(len(piece.token_ids) for piece in pieces):
        return prompt_ids
    return np.concatenate([prompt_ids, *(piece.token_ids for piece in pieces)])


def _version_spans(pieces: Sequence[Sampled], n_tokens: int) -> tuple[VersionSpan, ...]:
    """Return a span for each piece that has tokens among the first `n_tokens`; one, at least, for a turn without."""
    spans, start = [], 0
    for piece in pieces:
        stop = min(start + len(piece.token_ids), n_tokens)
        if stop > start:
            spans.append(VersionSpan(start, stop, piece.weight_version))
        start = stop
    return tuple(spans) or (VersionSpan(0, 0, pieces[-1].weight_version),)
