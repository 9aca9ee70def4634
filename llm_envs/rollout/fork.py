"""Re-enters a stored episode: the state before any of its turns, and other continuations from there.

Environments are deterministic by seed and every action is stored, so a fresh environment that gets the same seed and
the same actions is in the same state. Each observation, reward and reward component is compared on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from llm_envs.chat.context import observed_messages, render_reply, with_call_ids
from llm_envs.errors import InvalidConfigError, ReplayError
from llm_envs.policies.base import Policy
from llm_envs.rollout.checks import check_components, check_results, check_success
from llm_envs.rollout.collector import Collector
from llm_envs.rollout.episode import policy_kind
from llm_envs.rollout.fork_policy import check_fork, episode_name
from llm_envs.rollout.workers.runner import Env, EnvMaker, check_reset, check_step, env_attribute
from llm_envs.sources.source import EnvFactory, EpisodeSpec
from llm_envs.types import Message, StopReason, Trajectory, TrajectoryGroup

__all__ = ["Replayed", "branch", "branch_each", "branch_specs", "replay_to", "state_keys"]


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
    if not 0 <= turn <= len(trajectory.turns):
        raise InvalidConfigError(
            f"episode {episode_name(trajectory)} has {len(trajectory.turns)} turns, so the turn must be from 0 to "
            f"{len(trajectory.turns)}; it is {turn!r}."
        )
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
    keys: list[str] = []
    with closing(EnvMaker(trajectory.env_id, trajectory.env_kwargs, env)()) as made:
        state_key = env_attribute(made, "state_key", None)
        if state_key is None:
            raise InvalidConfigError(
                f"{trajectory.env_id} has no state_key(): inherit from TextEnv, or give a "
                "state_fn (trajectory -> keys)."
            )
        _replayed(made, trajectory, len(trajectory.turns), before_turn=lambda: keys.append(state_key()))
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

    The prompts before `turn` are the stored row's, so an engine with a prefix cache computes them once. In the
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
    return branch_each(trajectory, [turn], n, policy, env=env, **collector)[0]


def branch_each(
    trajectory: Trajectory,
    turns: Sequence[int],
    n: int,
    policy: Policy,
    *,
    env: EnvFactory | None = None,
    **collector: Any,
) -> list[TrajectoryGroup]:
    """Branch from several turns of an episode, all concurrently; return the group of each turn. See `branch`."""
    kind = policy_kind(policy, collector.get("codec"))
    for turn in turns:
        check_fork(trajectory, turn, kind)
    if n < 1:
        raise InvalidConfigError(f"branch: n is {n!r}; it must be at least 1.")
    replay_to(trajectory, max(turns, default=0), env).env.close()
    groups = [branch_specs(trajectory, turn, range(n), f"{episode_name(trajectory)}@{turn}") for turn in turns]
    envs = env or trajectory.env_id
    with Collector(envs, policy, env_kwargs=trajectory.env_kwargs, **{"progress": False} | collector) as playing:
        played = playing.play(groups)
    for member in (member for group in played for member in group):
        if member.error is not None and member.error.kind == ReplayError.__name__:
            raise ReplayError(member.error.message)
    return played


def branch_specs(trajectory: Trajectory, turn: int, members: Iterable[int], group_id: str) -> list[EpisodeSpec]:
    """Return the specs of episodes that continue a stored one from a turn on.

    Args:
        trajectory: The stored episode.
        turn: Index of the first new turn.
        members: The new episodes' indices in their group.
        group_id: The id of their group. With the index it decides the seeds of sampling.
    """
    return [
        EpisodeSpec(
            trajectory.env_id,
            trajectory.env_kwargs,
            trajectory.seed,
            group_id,
            member,
            options=trajectory.metadata.get("options"),
            fork=(trajectory, turn),
        )
        for member in members
    ]


def _replayed(env: Env, trajectory: Trajectory, turn: int, before_turn: Callable[[], None] = lambda: None) -> Replayed:
    options = trajectory.metadata.get("options")
    observation, info = check_reset(env.reset(seed=trajectory.seed, options=options))
    system_prompt = env_attribute(env, "system_prompt", None)
    messages = [Message("system", system_prompt)] if system_prompt else []
    messages += observed_messages(observation, info)
    _compare(trajectory, "observation", None, tuple(messages), trajectory.messages[: len(messages)])
    for index, played in enumerate(trajectory.turns[:turn]):
        before_turn()
        rest = trajectory.messages[len(messages) :]
        if played.is_summary:  # a request and its reply, which the environment never sees
            messages += rest[:2]
            continue
        reply = rest[0]
        messages.append(reply)
        observation, reward, terminated, truncated, info = check_step(env.step(render_reply(reply)))
        answer = (reward, dict(check_components(info, reward)))
        _compare(trajectory, "reward", index, answer, (played.reward, dict(played.components)))
        results = check_results(env_attribute(env, "tool_results", ()) or ())
        _compare(trajectory, "tool results", index, results, played.tool_results)
        if index == len(trajectory.turns) - 1 and trajectory.status == "ok":
            end = (terminated, truncated and not terminated, check_success(info))
            is_cut = trajectory.stop_reason is StopReason.ENV_TRUNCATED
            _compare(trajectory, "end", index, end, (trajectory.terminated, is_cut, trajectory.is_success))
        if terminated:
            final = trajectory.metadata.get("final_observation", "")
            _compare(trajectory, "observation", index, observation, final)
            continue
        observed = with_call_ids(observed_messages(observation, info), reply)
        _compare(trajectory, "observation", index, observed, trajectory.messages[len(messages) :][: len(observed)])
        messages += observed
    return Replayed(env, observation, info, tuple(messages))


def _compare(trajectory: Trajectory, part: str, turn: int | None, found: object, stored: object) -> None:
    if found != stored:
        where = "reset" if turn is None else f"turn {turn}"
        raise ReplayError(
            f"replay: episode {episode_name(trajectory)} of {trajectory.env_id} (seed {trajectory.seed}), {where}: the "
            f"environment answers {found!r:.200}, and {stored!r:.200} is stored. It depends on more than seed and "
            "the actions (time, a service, other randomness), or it has changed since.",
            part=part,
            turn=turn,
            found=found,
            stored=stored,
        )
