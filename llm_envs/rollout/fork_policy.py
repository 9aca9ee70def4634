"""Episodes that continue a stored one from a turn on: the policy repeats the turns before it, the rows begin there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from llm_envs.chat.context import render_reply
from llm_envs.errors import InvalidConfigError, ReplayError
from llm_envs.policies.base import ChatPolicy, EnvPolicy, Policy, TokenPolicy
from llm_envs.rollout.rows import spans_as_context
from llm_envs.types import Message, Sampled, SamplingParams, Trajectory

__all__ = ["check_fork", "episode_name", "fork_policy", "from_turn"]


def check_fork(trajectory: Trajectory, turn: int, kind: Literal["token", "chat", "env"]) -> None:
    """Check that a policy of this kind can play an episode on from a turn.

    Raises:
        InvalidConfigError: If the episode has no such turn, or a token policy cannot repeat an earlier one, because its
            token ids are not stored.
    """
    if not 0 <= turn < len(trajectory.turns):
        raise InvalidConfigError(
            f"episode {episode_name(trajectory)} has {len(trajectory.turns)} turns, so the turn must be from 0 to "
            f"{len(trajectory.turns) - 1}; it is {turn!r}."
        )
    if kind == "token" and any(played.row < 0 for played in trajectory.turns[:turn]):
        raise InvalidConfigError(
            f"branch: episode {episode_name(trajectory)} has turns without tokens before turn {turn} (a text-only "
            "policy played it, or summaries were not trained on): take a chat or env policy, or an earlier turn."
        )


def fork_policy(policy: Policy, kind: Literal["token", "chat", "env"], trajectory: Trajectory, turn: int) -> Policy:
    """Return a policy for one episode that repeats the turns before `turn` of a stored one, and then is `policy`.

    Raises:
        InvalidConfigError: See `check_fork`.
    """
    check_fork(trajectory, turn, kind)
    return cast("Policy", {"token": _TokenFork, "chat": _ChatFork, "env": _EnvFork}[kind](policy, trajectory, turn))


class ForkPolicy:
    """Repeats the first turns of a stored episode, then asks a policy. Everything else comes from the policy."""

    def __init__(self, policy: Policy, trajectory: Trajectory, turn: int) -> None:
        self._policy, self._trajectory, self._turn = policy, trajectory, turn
        self._n = 0

    def __getattr__(self, name: str) -> Any:
        """Return the policy's own attribute (`max_model_len`, `interrupt`, ...)."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._policy, name)

    def _stored(self) -> int | None:
        """Return the index of the turn to repeat, or None after the last one."""
        self._n += 1
        return self._n - 1 if self._n <= self._turn else None


class _TokenFork(ForkPolicy):
    async def sample(
        self, prompt_ids: npt.NDArray[np.int32], params: SamplingParams, *, seed: int, session: str
    ) -> Sampled:
        stored = self._stored()
        if stored is None:
            return await cast("TokenPolicy", self._policy).sample(prompt_ids, params, seed=seed, session=session)
        turn = self._trajectory.turns[stored]
        row = self._trajectory.rows[turn.row]
        start, stop = row.spans[turn.span]
        if not np.array_equal(prompt_ids, row.ids[:start]):
            length = min(len(prompt_ids), start)
            differs = np.flatnonzero(prompt_ids[:length] != row.ids[:length])
            at = int(differs[0]) if len(differs) else length
            raise ReplayError(
                f"branch: episode {episode_name(self._trajectory)}, turn {stored}: the prompt has {len(prompt_ids)} "
                f"tokens, the stored {start}; they differ from token {at} on. Take the codec, the context function "
                "and the history setting of the stored run."
            )
        versions = turn.weight_versions
        return Sampled(
            row.ids[start:stop],
            row.logps[start:stop],
            turn.finish_reason,
            versions[-1].version if versions else 0,
            versions=versions if stop > start else (),
        )


class _ChatFork(ForkPolicy):
    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> Message:
        stored = self._stored()
        if stored is None:
            return await cast("ChatPolicy", self._policy).reply(messages, tools, params)
        return self._trajectory.replies[stored]


class _EnvFork(ForkPolicy):
    async def act(self, env: gym.Env[str, str], observation: str) -> str:
        stored = self._stored()
        if stored is not None:
            return render_reply(self._trajectory.replies[stored])
        action = cast("EnvPolicy", self._policy).act(env, observation)
        return action if isinstance(action, str) else await action


def from_turn(member: Trajectory, origin: Trajectory, turn: int) -> Trajectory:
    """Return an episode that went on from a turn of another: the turns before it are context, with mask False.

    `metadata["fork"]` has the other's group and member, the turn, and what the new rows do not show: the tokens that
    the policy wrote before the turn (`sampled_tokens`), and the episode's length from its first prompt on
    (`completion_tokens`).
    """
    earlier = {(played.row, played.span) for played in member.turns[:turn]}
    rows, turns = spans_as_context(member.rows, member.turns, earlier)
    kept = [index for index, row in enumerate(rows) if row.spans]
    turns = [replace(played, row=kept.index(played.row)) if played.row >= 0 else played for played in turns]
    rows = [rows[index] for index in kept]
    fork = {
        "group_id": origin.group_id,
        "member": origin.member,
        "turn": turn,
        "sampled_tokens": member.n_sampled_tokens - sum(int(row.mask.sum()) for row in rows),
        "completion_tokens": member.n_completion_tokens,
    }
    return replace(member, rows=tuple(rows), turns=tuple(turns), metadata={**member.metadata, "fork": fork})


def episode_name(trajectory: Trajectory) -> str:
    """Return "GROUP/MEMBER"."""
    return f"{trajectory.group_id}/{trajectory.member}"
