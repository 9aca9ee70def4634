"""Helpers for tests, yours too: a codec and a policy without a model, a small environment, and injected failures.

Everything here is deterministic and does not import torch. `llm_envs.tiny_model` makes a model small enough
for tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from llm_envs.chat.context import Codec
from llm_envs.errors import ContextFullError
from llm_envs.policies.base import Policy
from llm_envs.policies.scripted import before_turn
from llm_envs.types import FinishReason, IdArray, Message, Sampled, SamplingParams

__all__ = [
    "REAL_MODEL_FOLDER",
    "ByteCodec",
    "HashingTokenPolicy",
    "NumbersEnv",
    "real_model",
    "with_failures",
    "with_hangs",
]

REAL_MODEL_FOLDER = Path("build/smollm2-135m")
"""Where `make real-model` leaves a pretrained model, from the root of the checkout."""


def real_model() -> str:
    """Return the folder of a pretrained model for a test; skip the test if it is missing.

    The folder is named by the environment variable `LLM_ENVS_REAL_MODEL`, by default `REAL_MODEL_FOLDER`. With
    `LLM_ENVS_REQUIRE_REAL_MODEL=1` the test then fails.
    """
    import pytest

    folder = Path(os.environ.get("LLM_ENVS_REAL_MODEL") or REAL_MODEL_FOLDER)
    if not (folder / "config.json").is_file():
        message = f"{folder} has no model: run `make real-model`, or name a folder in LLM_ENVS_REAL_MODEL"
        if os.environ.get("LLM_ENVS_REQUIRE_REAL_MODEL") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return str(folder)


class ByteCodec:
    """A codec without a tokenizer: a byte is a token, and a message is a role token, its bytes and an end-of-turn."""

    end_of_turn_id = 256
    stop_token_ids = (256,)
    _ROLES: ClassVar[Mapping[str, int]] = {"system": 257, "user": 258, "assistant": 259, "tool": 260}

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> IdArray:
        """Encode the start of an episode; the tools become a first system message in JSON."""
        shown = [Message("system", json.dumps([dict(tool) for tool in tools]))] if tools else []
        return self._encode([*shown, *messages], generation_prompt=True)

    def start_of(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """Return None: the text between turns does not depend on the start."""

    def encode_delta(
        self, messages: Sequence[Message], *, reply_ids: IdArray, generation_prompt: bool = True, start: Any = None
    ) -> IdArray:
        """Encode the text between an assistant turn and the next."""
        head = [] if len(reply_ids) and reply_ids[-1] == self.end_of_turn_id else [self.end_of_turn_id]
        return np.array([*head, *self._encode(messages, generation_prompt).tolist()], dtype=np.int32)

    def encode_reply(self, text: str) -> IdArray:
        """Encode an assistant's own words, closed by the end-of-turn token."""
        return np.array([*text.encode(errors="replace"), self.end_of_turn_id], dtype=np.int32)

    def decode_reply(self, token_ids: IdArray) -> str:
        """Decode ids to text without a closing end-of-turn token; other special tokens are left out."""
        return bytes(i for i in token_ids.tolist() if i < 256).decode(errors="replace")

    def encode_anew(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], row_ids: IdArray
    ) -> IdArray | None:
        """Encode a conversation from its start; None if the row already has the same text."""
        ids = self.encode_prompt(messages, tools)
        return None if np.array_equal(ids, row_ids) else ids

    def _encode(self, messages: Sequence[Message], generation_prompt: bool) -> IdArray:
        ids: list[int] = []
        for message in messages:
            ids += [self._ROLES[message.role], *message.content.encode(errors="replace"), self.end_of_turn_id]
        return np.array(ids + [self._ROLES["assistant"]] * generation_prompt, dtype=np.int32)


class HashingTokenPolicy:
    """A token policy without a model: a hash of the prompt and the turn's seed chooses its replies.

    Its log-probabilities are invented, deterministic, and below minus the version of its weights. It respects budgets,
    cancellation and interrupts like an engine. If it is interrupted, it returns the beginning of its reply, of a length
    that the hash chooses; a call that continues from there returns the rest.

    Args:
        codec: Encodes its replies.
        texts: The replies to choose from, or a function of the prompt's ids and a random stream.
        latency_s: How long a turn takes.
        context_length: Tokens of prompt and turn together; None means no limit.
    """

    def __init__(
        self,
        codec: Codec,
        texts: Sequence[str] | Callable[[IdArray, Random], str],
        *,
        latency_s: float = 0.0,
        context_length: int | None = None,
    ) -> None:
        self.codec, self.texts = codec, texts
        self.latency_s, self.context_length = latency_s, context_length
        self.version = 0
        self.running = 0
        """Number of turns that are being sampled now."""
        self.most_running = 0
        self.aborted = 0
        """Number of cancelled turns."""
        self.interrupted = 0
        """Number of interrupted pieces."""
        self.calls: list[tuple[str, int, int]] = []
        """(session, seed, max_new_tokens) of each turn or piece of a turn."""
        self._interrupts: dict[str, set[asyncio.Event]] = {}  # for each session with a running turn
        self._rest_of_turn: dict[
            str, tuple[bytes, IdArray]
        ] = {}  # session -> where its turn was interrupted, and the rest

    async def sample(self, prompt_ids: IdArray, params: SamplingParams, *, seed: int, session: str) -> Sampled:
        """Sample one turn."""
        self.calls.append((session, seed, params.max_new_tokens))
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        version, interrupt = self.version, asyncio.Event()
        self._interrupts.setdefault(session, set()).add(interrupt)
        try:
            await self._wait(self.latency_of(prompt_ids, session), interrupt)
            is_interrupted = interrupt.is_set()
            budget = params.max_new_tokens
            return self._reply(prompt_ids, budget, seed, version, session=session, is_interrupted=is_interrupted)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.running -= 1
            self._interrupts[session].remove(interrupt)
            if not self._interrupts[session]:
                del self._interrupts[session]

    def latency_of(self, prompt_ids: IdArray, session: str) -> float:
        """Return how many seconds a turn takes; a subclass may make some slower than others."""
        return self.latency_s

    def interrupt(self, session: str) -> None:
        """End a session's turn with the tokens so far."""
        for interrupt in self._interrupts.get(session, ()):
            interrupt.set()

    def update_weights(self, named_parameters: Iterable[tuple[str, Any]], version: int) -> None:
        """Set the version; the policy has no weights."""
        self.version = version

    async def _wait(self, seconds: float, interrupt: asyncio.Event) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await interrupt.wait()

    def _reply(
        self, prompt_ids: IdArray, room: int, seed: int, version: int, session: str = "", is_interrupted: bool = False
    ) -> Sampled:
        if self.context_length is not None:
            room = min(room, self.context_length - len(prompt_ids))
        if room < 1:
            raise ContextFullError(f"the prompt has {len(prompt_ids)} tokens, the context {self.context_length}.")
        random = self._random(prompt_ids, seed)
        before, words = self._rest_of_turn.pop(session, (b"", np.array([], np.int32)))
        if before != prompt_ids.tobytes():
            text = self.texts(prompt_ids, random) if callable(self.texts) else random.choice(self.texts)
            words = self.codec.encode_reply(text)
        reason = FinishReason.STOP if len(words) <= room else FinishReason.LENGTH
        ids = words[:room]
        if is_interrupted:
            self.interrupted += 1
            reason, ids = FinishReason.ABORT, ids[: self._random(prompt_ids, ~seed).randrange(len(ids))]
            self._rest_of_turn[session] = (np.concatenate([prompt_ids, ids]).tobytes(), words[len(ids) :])
        logps = np.array([-random.random() - 1e-3 - version for _ in ids], dtype=np.float32)
        return Sampled(ids, logps, reason, version)

    def _random(self, prompt_ids: IdArray, seed: int) -> Random:
        return Random(hashlib.blake2b(prompt_ids.tobytes() + str(seed).encode(), digest_size=8).digest())


def with_failures(policy: Policy, rate: float, error: Callable[[], BaseException] | None = None) -> Policy:
    """Return a policy of the same kind that fails in a share `rate` of its turns, which the turn's seed selects."""

    async def fail(random: Random) -> None:
        if random.random() < rate:
            raise RuntimeError("injected failure") if error is None else error()

    return before_turn(policy, fail)


def with_hangs(policy: Policy, rate: float) -> Policy:
    """Return a policy of the same kind that hangs in a share `rate` of its turns until it is cancelled."""

    async def hang(random: Random) -> None:
        if random.random() < rate:
            await asyncio.Event().wait()

    return before_turn(policy, hang)


class NumbersEnv(gym.Env[str, str]):
    """Asks the agent to repeat digits: an environment that keeps the contract and can be computed by hand.

    Each turn asks for a digit; the right reply earns `1 / n_turns`. The episode succeeds if all replies are right.

    Args:
        n_turns: Number of turns of an episode.
        split: Accepted, but has no effect.
        as_tool: Whether observations after the first are a tool's messages.
        truncate_at: Turn (from 1) at which the environment truncates.
        raise_at: Turn at which `step` raises.
        blocking: Whether it declares that its calls block.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as Gymnasium declares it
    observation_space = gym.spaces.Text(100)
    action_space = gym.spaces.Text(100)
    reward_weights: ClassVar[Mapping[str, float]] = {"right": 1.0}

    def __init__(
        self,
        n_turns: int = 1,
        split: str = "train",
        as_tool: bool = False,
        truncate_at: int | None = None,
        raise_at: int | None = None,
        blocking: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.n_turns, self.as_tool, self.render_mode = n_turns, as_tool, render_mode
        self.truncate_at, self.raise_at, self.blocking = truncate_at, raise_at, blocking
        self.system_prompt: str | None = "Repeat."
        self.tools: list[dict[str, Any]] = []
        self.tool_results: tuple[Any, ...] = ()
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw the digits; `options={"problem": {"digits": [...]}}` gives them."""
        super().reset(seed=seed)
        drawn = [int(digit) for digit in self.np_random.integers(10, size=self.n_turns)]
        self.digits: list[int] = (options or {}).get("problem", {}).get("digits", drawn)
        self.n_right = self.turn = 0
        return f"Say {self.digits[0]}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Compare the action with the digit."""
        right = action.strip() == str(self.digits[self.turn])
        self.turn += 1
        if self.turn == self.raise_at:
            raise RuntimeError("the environment broke")
        self.n_right += right
        terminated = self.turn == len(self.digits)
        truncated = self.turn == self.truncate_at and not terminated
        observation = "Done." if terminated else f"Say {self.digits[self.turn]}."
        reward = right / len(self.digits)
        info: dict[str, Any] = {"reward_components": {"right": reward}}
        if terminated or truncated:
            info["is_success"] = self.n_right == len(self.digits)
        if self.as_tool:
            info["messages"] = [{"role": "tool", "name": "numbers", "content": observation}]
        return observation, reward, terminated, truncated, info

    def oracle(self) -> str:
        """Return the digit that the environment asks for."""
        return str(self.digits[self.turn])

    def close(self) -> None:
        """Record that the environment was closed."""
        self.closed = True
