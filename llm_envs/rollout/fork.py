"""Re-enters a stored episode: the state before any of its turns, and other continuations from there.

Environments are deterministic by seed and every action is stored, so a fresh environment that gets the same seed and
the same actions is in the same state. Each observation, reward and reward component is compared on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from llm_envs.chat.context import observed_messages, render_reply, with_call_ids
from llm_envs.errors import InvalidConfigError, ReplayError
from llm_envs.policies.base import ChatPolicy, EnvPolicy, EpisodicPolicy, Policy, TokenPolicy
from llm_envs.rollout.checks import check_components
from llm_envs.rollout.collector import Collector
from llm_envs.rollout.episode import policy_kind
from llm_envs.rollout.workers.runner import Env, EnvMaker, check_reset, check_step, env_attribute
from llm_envs.sources.source import EnvFactory, EpisodeSpec, group_specs
from llm_envs.types import Message, Row, Sampled, SamplingParams, Trajectory, TrajectoryGroup

__all__ = ["ForkPolicy", "Replayed", "branch", "replay_to", "state_keys"]


@dataclass(slots=True)
class Replayed:
    """An environment in the state before a turn of a stored episode. Close it after use."""

    env: Env
    observation: str
    info: Mapping[str, Any]
    messages: tuple[Message, ...]
    """The conversation before the turn."""


def replay_to(trajectory: Trajectory, turn: int, env: EnvFactory | None = None) -> Replayed:
    """Put a fresh environment into the state before a turn of a stored episode.

    Args:
        trajectory: The episode.
        turn: Index of the turn, from 0; the number of turns is the end of the episode.
        env: Makes the environment from the episode's keyword arguments; None: `gymnasium.make`.

    Raises:
        InvalidConfigError: If the episode has no such turn.
        ReplayError: If the environment answers otherwise than it did: it depends on more than seed and actions, or
            has changed since. The message has the turn and the first difference.
    """
    _check_turn(trajectory, turn, len(trajectory.turns))
    made = EnvMaker(trajectory.env_id, trajectory.env_kwargs, env)()
    try:
        return _replayed(made, trajectory, turn)
    except BaseException:
        made.close()
        raise


def state_keys(trajectory: Trajectory, env: EnvFactory | None = None) -> tuple[str, ...]:
    """Return the environment's `state_key` before each turn, by playing a stored episode again.

    Args:
        trajectory: The episode.
        env: Makes the environment from the episode's keyword arguments; None: `gymnasium.make`.

    Raises:
        InvalidConfigError: If the environment has no `state_key`.
        ReplayError: If the environment answers otherwise than it did.
    """
    made = EnvMaker(trajectory.env_id, trajectory.env_kwargs, env)()
    state_key = env_attribute(made, "state_key", None)
    if state_key is None:
        made.close()
        raise InvalidConfigError(
            f"{trajectory.env_id} has no state_key(): inherit from TextEnv, or give a state_fn (trajectory -> keys)."
        )
    keys: list[str] = []
    try:
        _replayed(made, trajectory, len(trajectory.turns), before_turn=lambda: keys.append(state_key()))
    finally:
        made.close()
    return tuple(keys)


def branch(
    trajectory: Trajectory,
    turn: int,
    n: int,
    policy: Policy,
    *,
    env: EnvFactory | None = None,
    **collector: Any,
) -> TrajectoryGroup:
    """Play a stored episode again from a turn on, `n` times: the same turns before it, and new ones from there.

    The prompts before `turn` are those of the stored row, so an engine with a prefix cache computes them once. In the
    new rows the stored turns are context: their mask is False, and their turns have no row. Their rewards count.

    Args:
        trajectory: The episode.
        turn: Index of the first new turn, from 0.
        n: How many continuations.
        policy: A policy of the kind that played the episode.
        env: Makes the environment; None: `gymnasium.make`.
        collector: Further arguments of `Collector`: `codec`, `sampling`, `limits` (which count the stored turns too),
            `context_fn` (the one of the stored episode), `seed`, ...

    Returns:
        A group of `n` members, whose id is "GROUP/MEMBER@TURN". `metadata["fork"]` has group, member and turn.

    Raises:
        InvalidConfigError: If the episode has no such turn, or lacks what the policy's kind needs.
        ReplayError: If the environment or the codec answers otherwise than it did.
    """
    _check_turn(trajectory, turn, len(trajectory.turns) - 1)
    if n < 1:
        raise InvalidConfigError(f"branch: n is {n!r}; it must be at least 1.")
    replay_to(trajectory, turn, env).env.close()
    forked = ForkPolicy.of(policy, trajectory, turn, collector.get("codec"))
    spec = EpisodeSpec(
        trajectory.env_id,
        trajectory.env_kwargs,
        trajectory.seed,
        f"{trajectory.group_id}/{trajectory.member}@{turn}",
        options=trajectory.metadata.get("options"),
    )
    envs = env or trajectory.env_id
    with Collector(envs, forked, env_kwargs=trajectory.env_kwargs, **{"progress": False} | collector) as playing:
        (group,) = playing.play([group_specs(spec, n)])
    for member in group:
        if member.error is not None and member.error.kind == ReplayError.__name__:
            raise ReplayError(member.error.message)
    return replace(group, trajectories=tuple(_from_turn(member, trajectory, turn) for member in group))


class ForkPolicy:
    """Repeats the first turns of a stored episode, then asks a policy. Everything else comes from the policy.

    Use `ForkPolicy.of`, which chooses the class for the kind of policy.
    """

    def __init__(self, policy: Policy, trajectory: Trajectory, turn: int) -> None:
        self._policy, self._trajectory, self._turn = policy, trajectory, turn
        self._n = 0

    @staticmethod
    def of(policy: Policy, trajectory: Trajectory, turn: int, codec: Any = None) -> Policy:
        """Return a policy that repeats the turns before `turn` and then is `policy`.

        Raises:
            InvalidConfigError: If a token policy cannot repeat a turn, because its token ids are not stored.
        """
        kind = policy_kind(policy, codec)
        if kind == "token" and any(played.row < 0 for played in trajectory.turns[:turn]):
            raise InvalidConfigError(
                f"branch: episode {_name(trajectory)} has turns without tokens before turn {turn} (a text-only policy "
                "played it, or summaries were not trained on): take a chat or env policy, or an earlier turn."
            )
        return cast("Policy", {"token": _TokenFork, "chat": _ChatFork, "env": _EnvFork}[kind](policy, trajectory, turn))

    def for_episode(self, seed: int) -> ForkPolicy:
        """Return the policy for one episode; see `policies.base.EpisodicPolicy`."""
        policy = self._policy
        if hasattr(policy, "for_episode"):
            policy = cast("EpisodicPolicy", policy).for_episode(seed)
        return type(self)(policy, self._trajectory, self._turn)

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
            at = _first_difference(prompt_ids, row.ids[:start])
            raise ReplayError(
                f"branch: episode {_name(self._trajectory)}, turn {stored}: the prompt has {len(prompt_ids)} tokens, "
                f"the stored {start}; they differ from token {at} on. Take the codec, the context function and the "
                "history setting of the stored run."
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
        return _replies(self._trajectory)[stored]


class _EnvFork(ForkPolicy):
    async def act(self, env: gym.Env[str, str], observation: str) -> str:
        stored = self._stored()
        if stored is not None:
            return render_reply(_replies(self._trajectory)[stored])
        action = cast("EnvPolicy", self._policy).act(env, observation)
        return action if isinstance(action, str) else await action


def _replayed(env: Env, trajectory: Trajectory, turn: int, before_turn: Callable[[], None] = lambda: None) -> Replayed:
    options = trajectory.metadata.get("options")
    observation, info = check_reset(env.reset(seed=trajectory.seed, options=options))
    system_prompt = env_attribute(env, "system_prompt", None)
    messages = [Message("system", system_prompt)] if system_prompt else []
    messages += observed_messages(observation, info)
    _compare(trajectory, "reset", tuple(messages), trajectory.messages[: len(messages)])
    for index, played in enumerate(trajectory.turns[:turn]):
        before_turn()
        rest = trajectory.messages[len(messages) :]
        if played.is_summary:  # a request and its reply, which the environment never sees
            messages += rest[:2]
            continue
        reply = rest[0]
        messages.append(reply)
        observation, reward, terminated, _, info = check_step(env.step(render_reply(reply)))
        answer = (reward, dict(check_components(info, reward)))
        _compare(trajectory, f"turn {index}", answer, (played.reward, dict(played.components)))
        if terminated:
            _compare(trajectory, f"turn {index}", observation, trajectory.metadata.get("final_observation", ""))
            continue
        observed = with_call_ids(observed_messages(observation, info), reply)
        _compare(trajectory, f"turn {index}", observed, trajectory.messages[len(messages) :][: len(observed)])
        messages += observed
    return Replayed(env, observation, info, tuple(messages))


def _compare(trajectory: Trajectory, where: str, found: object, stored: object) -> None:
    if found != stored:
        raise ReplayError(
            f"replay: episode {_name(trajectory)} of {trajectory.env_id} (seed {trajectory.seed}), {where}: the "
            f"environment answers {found!r:.200}, and {stored!r:.200} is stored. It depends on more than seed and "
            "the actions (time, a service, other randomness), or it has changed since."
        )


def _replies(trajectory: Trajectory) -> tuple[Message, ...]:
    """Return the message of each turn."""
    said = [message for message in trajectory.messages if message.role == "assistant"]
    return tuple(said[trajectory.n_example_replies :])


def _from_turn(member: Trajectory, origin: Trajectory, turn: int) -> Trajectory:
    """Return a branch whose turns before `turn` are context."""
    first: dict[int, int] = {}  # row -> its first new span
    for played in member.turns[turn:]:
        first.setdefault(played.row, played.span)
    first.pop(-1, None)
    kept = sorted(first)
    turns = []
    for index, played in enumerate(member.turns):
        if index < turn or played.row < 0:
            turns.append(replace(played, row=-1, span=-1))
        else:
            turns.append(replace(played, row=kept.index(played.row), span=played.span - first[played.row]))
    rows = tuple(_with_context(member.rows[index], first[index]) for index in kept)
    fork = {"group_id": origin.group_id, "member": origin.member, "turn": turn}
    return replace(member, rows=rows, turns=tuple(turns), metadata={**member.metadata, "fork": fork})


def _with_context(row: Row, n_spans: int) -> Row:
    """Return a row whose first spans are context."""
    start = row.spans[n_spans][0]
    is_new = np.arange(len(row)) >= start
    logps = np.where(is_new, row.logps, np.float32(0))
    return Row(row.ids, row.mask & is_new, logps, row.spans[n_spans:])


def _first_difference(one: npt.NDArray[np.int32], other: npt.NDArray[np.int32]) -> int:
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length


def _check_turn(trajectory: Trajectory, turn: int, last: int) -> None:
    if not 0 <= turn <= last:
        raise InvalidConfigError(
            f"episode {_name(trajectory)} has {len(trajectory.turns)} turns, so the turn must be from 0 to {last}; "
            f"it is {turn!r}."
        )


def _name(trajectory: Trajectory) -> str:
    return f"{trajectory.group_id}/{trajectory.member}"
