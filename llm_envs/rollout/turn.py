"""Samples one turn from any kind of policy, and joins the pieces of a turn that was interrupted.

A turn is one piece, or several if the gate closed while an interruptible policy was sampling:

1. Each piece continues from the prompt and the exact ids before it, with the rest of the turn's budget. Its seed
   depends on the turn and the number of tokens before it. Nothing is re-encoded.
2. Each piece keeps the log-probabilities that it was sampled with, and has its own version span.
3. A stop string that spans two pieces, which no policy can see, still ends the turn; the tokens after it are dropped.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from llm_envs.chat.context import Codec, check_extras, render_reply
from llm_envs.errors import ContextFullError
from llm_envs.policies.base import ChatPolicy, EnvPolicy, InterruptiblePolicy, Policy, TokenPolicy
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.pause_gate import PauseGate, Stopwatch
from llm_envs.sources.mixture import derive_seed
from llm_envs.sources.source import EpisodeSpec
from llm_envs.tracking.spans import Tracing, chat_span, current_tracing
from llm_envs.types import FinishReason, KeptTokens, Message, Sampled, SamplingParams, VersionSpan
from llm_envs.types.sampling import MAX_LOGP, MIN_LOGP

__all__ = ["SampledTurn", "TimeIsUp", "TurnSampler", "join_pieces"]

T = TypeVar("T")


class TimeIsUp(Exception):
    """The episode has no time left: it ends after its last complete turn. Handled inside the rollout."""


@dataclass(slots=True)
class SampledTurn:
    """One turn of the policy."""

    text: str
    """The action."""
    message: Message
    finish_reason: FinishReason = FinishReason.STOP
    ids: npt.NDArray[np.int32] | None = None
    logps: npt.NDArray[np.float32] | None = None
    """None if nothing was sampled."""
    kept: KeptTokens | None = None
    """The tokens that the sampling filters kept, if `keep_mask` asked for them."""
    weight_versions: tuple[VersionSpan, ...] = ()
    seconds: float = 0.0
    """Seconds that the policy took, excluding the time at a closed gate."""


@dataclass(slots=True)
class TurnSampler:
    """Samples the turns of one episode, within its time limit.

    Args:
        policy: The policy of this episode.
        spec: The episode.
        codec: Encodes and decodes text; required for a token policy.
        limits: The time limits of the policy and of the episode are enforced here.
        seed_base: Turn seeds are hashed from (this, group, member, turn).
        gate: Pauses the policy.
        on_tokens: Called with the number of sampled tokens, piece by piece.
        within: Where the spans of the turns belong: the episode, or its current turn.
    """

    policy: Policy
    spec: EpisodeSpec
    codec: Codec | None
    limits: RolloutLimits
    seed_base: int
    gate: PauseGate | None = None
    on_tokens: Callable[[int], None] | None = None
    within: Tracing | None = field(default_factory=current_tracing)
    clock: Stopwatch = field(init=False)
    """Time since the episode began."""

    def __post_init__(self) -> None:
        self.clock = Stopwatch(self.gate)

    async def sample(self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, turn: int) -> SampledTurn:
        """Sample a turn from a token policy, in one piece more than there were interruptions.

        Raises:
            ContextFullError: If the prompt leaves no room for a token.
            TimeIsUp: If the episode has no time left.
        """
        with chat_span(self.within, self.policy, params) as span:
            sampled = await self._sample(prompt_ids, params, turn)
            if span is not None:
                span.note_reply(len(prompt_ids), len(cast("Sized", sampled.ids)), sampled.finish_reason)
            return sampled

    async def _sample(self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, turn: int) -> SampledTurn:
        pieces: list[Sampled] = []
        while not pieces or pieces[-1].finish_reason is FinishReason.ABORT:
            n_tokens = sum(len(piece.token_ids) for piece in pieces)
            n_closed = 0 if self.gate is None else self.gate.n_closed
            left = params if not n_tokens else replace(params, max_new_tokens=params.max_new_tokens - n_tokens)
            # The prompt is the row's ids and the ids of this turn so far. Decoding and encoding the turn again could
            # give other ids than were sampled.
            ids = np.concatenate([prompt_ids, *(piece.token_ids for piece in pieces)]) if n_tokens else prompt_ids
            piece = await self._piece(ids, left, turn, n_tokens)
            if piece.finish_reason is FinishReason.ABORT:
                # An abort is only expected while the gate closes. A piece with tokens is continued in any case, but an
                # abort without tokens and without a closed gate would repeat for ever.
                is_asked = self.gate is not None and self.gate.n_closed > n_closed
                if not self._is_interruptible or not (is_asked or len(piece.token_ids)):
                    raise RuntimeError("the policy aborted the turn before it was complete.")
                # The turn used up its budget just as the gate closed, so it has no tokens left to ask for.
                if len(piece.token_ids) == left.max_new_tokens:
                    piece = replace(piece, finish_reason=FinishReason.LENGTH)
            pieces.append(piece)
            if self.on_tokens is not None:
                self.on_tokens(len(piece.token_ids))
        codec = cast("Codec", self.codec)
        whole = pieces[0] if len(pieces) == 1 else join_pieces(pieces, params.stop_strings, codec.decode_reply)
        text = codec.decode_reply(whole.token_ids)
        spans = _version_spans(pieces, len(whole.token_ids))
        message = Message("assistant", text)
        return SampledTurn(text, message, whole.finish_reason, whole.token_ids, whole.logps, whole.kept, spans)

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        turn: int,
    ) -> SampledTurn:
        """Ask a chat policy for a reply; `params.seed` is the seed of this turn."""
        policy = cast("ChatPolicy", self.policy)
        params = replace(params, seed=self._seed(turn))
        with chat_span(self.within, policy, params) as span:
            message = await self.in_time(lambda: policy.reply(messages, tools, params))
            if not (isinstance(message, Message) and message.role == "assistant" and isinstance(message.content, str)):
                raise TypeError(f"{type(policy).__name__}.reply returned {message!r:.80}, not an assistant's Message.")
            if span is not None:
                span.note_reply(None, None, message.metadata.get("finish_reason"))
        check_extras(message)
        return self._unsampled(render_reply(message), message)

    async def act(self, env: gym.Env[str, str], observation: str) -> SampledTurn:
        """Ask an env policy for an action, ignoring the gate: scripted policies are quick and cannot be asked twice."""
        policy = cast("EnvPolicy", self.policy)
        action = policy.act(env, observation)
        if inspect.isawaitable(action):
            awaited = action  # an awaitable can be awaited only once, so this call could not be repeated at a gate
            action = await self._within_limits(lambda: awaited)
        else:
            await asyncio.sleep(0)  # a policy that never awaits must still let other episodes and Ctrl-C run
        if not isinstance(action, str):
            raise TypeError(f"{type(policy).__name__}.act returned {type(action).__name__} {action!r:.80}, not a str.")
        return self._unsampled(action, Message("assistant", action))

    async def in_time(self, call: Callable[[], Awaitable[T]], interrupt: Callable[[], None] | None = None) -> T:
        """Return `await call()`, through the gate.

        Args:
            call: Called again if the gate closes on it.
            interrupt: Makes the call return early. If given, the gate interrupts the call instead of repeating it.

        Raises:
            TimeoutError: If it takes longer than `limits.max_policy_s`.
            TimeIsUp: If the episode has no time left.
        """
        if self.gate is None:
            return await self._within_limits(call)
        # The time limit is inside the gate: each attempt has its own, and waiting at the gate does not count.
        return await self.gate.call(lambda: self._within_limits(call), interrupt)

    @property
    def _is_interruptible(self) -> bool:
        return hasattr(self.policy, "interrupt")

    def _seed(self, turn: int, n_tokens: int = 0) -> int:
        parts = (self.seed_base, self.spec.group_id, self.spec.member, turn)
        return derive_seed(*parts, n_tokens) if n_tokens else derive_seed(*parts)

    async def _piece(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, turn: int, n_tokens: int
    ) -> Sampled:
        """Sample the rest of a turn that has `n_tokens` so far."""
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
            # A full context ends the episode only before a turn. In the middle of an interrupted turn it ends that
            # turn, as a token limit does: the tokens so far are kept and stepped.
            if not n_tokens:
                raise
            return Sampled.empty(FinishReason.LENGTH)
        if sampled.finish_reason is FinishReason.CONTEXT_FULL:
            if not n_tokens:
                raise ContextFullError(f"a prompt of {len(prompt_ids)} tokens leaves no room for a token.")
            sampled = replace(sampled, finish_reason=FinishReason.LENGTH)
        if len(sampled.token_ids) > params.max_new_tokens:
            raise RuntimeError(f"the policy wrote {len(sampled.token_ids)} tokens of at most {params.max_new_tokens}.")
        if not np.isfinite(sampled.logps).all():
            raise ValueError("the policy gave a sampled token a log-probability that is not finite.")
        for logp in (sampled.logps.max(), sampled.logps.min()) if len(sampled.logps) else ():
            if not MIN_LOGP <= logp <= MAX_LOGP:
                raise ValueError(
                    f"the policy gave a sampled token the log-probability {logp:g}; it must be from {MIN_LOGP:g} to 0."
                )
        return sampled

    def _unsampled(self, text: str, message: Message) -> SampledTurn:
        return SampledTurn(text, message, ids=None if self.codec is None else self.codec.encode_reply(text))

    async def _within_limits(self, call: Callable[[], Awaitable[T]]) -> T:
        limit_s, limits = self.limits.max_policy_s, self.limits
        left_s = None if limits.max_episode_s is None else max(limits.max_episode_s - self.clock.seconds, 0.0)
        if limit_s is None and left_s is None:
            return await call()
        # The tighter limit decides what a timeout means: a slow policy is an error, an episode without time is not.
        is_last = left_s is not None and (limit_s is None or left_s < limit_s)
        try:
            async with asyncio.timeout(left_s if is_last else limit_s) as scope:
                return await call()
        except TimeoutError:
            if not scope.expired():
                raise  # the policy's own timeout, not ours
            if is_last:
                raise TimeIsUp(f"max_episode_s={limits.max_episode_s:g}") from None
            raise TimeoutError(f"the policy took longer than max_policy_s={limit_s:g} s.") from None


def join_pieces(
    pieces: Sequence[Sampled], stop_strings: Sequence[str], decode: Callable[[npt.NDArray[np.int32]], str]
) -> Sampled:
    """Return the joined pieces of one turn, with the version of the last piece.

    Args:
        pieces: In order; all but the last were interrupted.
        stop_strings: If one spans two pieces, the turn ends at the first token that completes it.
        decode: Token ids to text.
    """
    last = pieces[-1]
    ids, logps = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("token_ids", "logps"))
    parts = [piece.kept for piece in pieces if piece.kept is not None]
    # If a piece lacks its masks, the others cannot be aligned with the joined ids.
    kept = KeptTokens.join(parts) if sum(map(len, parts)) == len(ids) and parts else None
    reason, n_seen = last.finish_reason, len(pieces[0].token_ids)
    # Decode the full turn first: the search below decodes once per token, and is rarely needed.
    if stop_strings and any(stop in decode(ids) for stop in stop_strings):
        for n_tokens in range(n_seen + 1, len(ids) + 1):  # the policy itself checked the first piece
            text = decode(ids[:n_tokens])
            if any(stop in text for stop in stop_strings):
                is_cut = n_tokens < len(ids)
                reason = FinishReason.STOP_STRING if is_cut or reason is not FinishReason.STOP else reason
                kept = None if kept is None else kept.first(n_tokens)
                return Sampled(ids[:n_tokens], logps[:n_tokens], reason, last.weight_version, kept)
    return Sampled(ids, logps, reason, last.weight_version, kept)


def _version_spans(pieces: Sequence[Sampled], n_tokens: int) -> tuple[VersionSpan, ...]:
    """Return the pieces' spans with tokens among the first `n_tokens`, or one empty span for a turn without any."""
    spans, start = [], 0
    for piece in pieces:
        for span in piece.version_spans:
            stop = min(start + span.stop, n_tokens)
            if stop > start + span.start:
                spans.append(VersionSpan(start + span.start, stop, span.version))
        start += len(piece.token_ids)
    return tuple(spans) or (VersionSpan(0, 0, pieces[-1].weight_version),)
