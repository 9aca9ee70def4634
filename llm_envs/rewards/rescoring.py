"""New rewards for stored trajectories, without playing them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from llm_envs.errors import InvalidConfigError
from llm_envs.rewards.aggregates import Aggregator, total
from llm_envs.rewards.base import RewardFns, score_trajectories, weigh
from llm_envs.rewards.normalize import pareto_rewards, relative_rewards
from llm_envs.types import Trajectory

__all__ = ["Method", "rescore", "with_reward"]

Method = Literal["absolute", "relative", "pareto"]


def rescore(
    trajectories: Sequence[Trajectory],
    reward_fns: RewardFns,
    *,
    method: Method = "absolute",
    weights: Mapping[str, float] | None = None,
    aggregate: Aggregator | None = None,
    success_at: float | None = None,
    on_error: Literal["raise", "unscored"] = "raise",
) -> list[Trajectory]:
    """Give stored trajectories new rewards. Returns new ones; errored and unscored ones are unchanged.

    The new reward is on the last turn, with its components; the other turns have 0. The old values are kept as
    `metadata["task_reward"]` and `metadata["task_components"]`. A trajectory that a reward function leaves unscored
    becomes `unscored` (it does not get reward 0), with the reason as `metadata["unscored_because"]`.

    Args:
        trajectories: Any.
        reward_fns: One, or several by name; see `score_trajectories`.
        method: "absolute": the components themselves. "relative": each component's rank in the group, in [0, 1].
            "pareto": one component, `pareto`: 1 on the first Pareto front of the group and less on later ones
            (`pareto_rewards`). The last two keep the original components as `metadata["absolute_components"]`.
        weights: Weights by the names of the components, default 1. Not for "pareto", where components have no common
            scale.
        aggregate: Combines the weighted components into the reward; None takes their sum.
        success_at: Lowest reward of a success; None keeps the task's `is_success`.
        on_error: For an exception in a reward function: raise it, or leave the trajectory unscored.

    Raises:
        InvalidConfigError: If a setting is wrong, or under "relative" or "pareto" the members of a group have different
            components.
    """
    if method not in ("absolute", "relative", "pareto"):
        raise InvalidConfigError(f"rescore: method is {method!r}; known are absolute, relative, pareto.")
    if method == "pareto" and weights:
        raise InvalidConfigError(
            "rescore: method='pareto' takes no weights: a Pareto front does not depend on the scale of its objectives."
        )
    scored = score_trajectories(trajectories, reward_fns, on_error=on_error)
    absolute = [components for components, _ in scored]
    compared = absolute if method == "absolute" else _compare(trajectories, absolute, method)
    out = []
    for trajectory, (_, why), before, components in zip(trajectories, scored, absolute, compared, strict=True):
        if trajectory.status != "ok":
            out.append(trajectory)
        elif components is None or before is None or not trajectory.turns:
            metadata = {**trajectory.metadata, "unscored_because": why or "it has no turn"}
            out.append(replace(trajectory, status="unscored", is_success=None, metadata=metadata))
        else:
            weighted = weigh(components, weights or {})
            reward = (aggregate or total)(weighted)
            again = with_reward(trajectory, reward, weighted, success_at=success_at)
            if method != "absolute":
                again = replace(again, metadata={**again.metadata, "absolute_components": before})
            out.append(again)
    return out


def with_reward(
    trajectory: Trajectory, reward: float, components: Mapping[str, float], *, success_at: float | None = None
) -> Trajectory:
    """Return the trajectory with another reward on its last turn; the metadata keeps the task's reward."""
    if not trajectory.turns:
        raise InvalidConfigError(f"{trajectory.env_id}, seed {trajectory.seed}: there is no turn to reward.")
    turns = [replace(turn, reward=0.0, components=dict.fromkeys(components, 0.0)) for turn in trajectory.turns]
    turns[-1] = replace(turns[-1], reward=float(reward), components=dict(components))
    kept = {"task_reward": trajectory.reward, "task_components": trajectory.components}
    return replace(
        trajectory,
        turns=tuple(turns),
        is_success=trajectory.is_success if success_at is None else reward >= success_at,
        metadata={**kept, **trajectory.metadata},
    )


def _compare(
    trajectories: Sequence[Trajectory], components: Sequence[Mapping[str, float] | None], method: Method
) -> list[dict[str, float] | None]:
    """Return each trajectory's components relative to its group."""
    # The key includes the environment: stored runs may reuse a group id for different environments.
    groups = [(trajectory.env_id, trajectory.group_id) for trajectory in trajectories]
    names_of: dict[tuple[str, str], tuple[str, ...]] = {}
    for group, parts in zip(groups, components, strict=True):
        if parts is not None and names_of.setdefault(group, tuple(sorted(parts))) != tuple(sorted(parts)):
            raise InvalidConfigError(
                f"the members of group {group[1]!r} have different components, so they cannot be compared."
            )
    out: list[dict[str, float] | None] = [None] * len(trajectories)
    for group, names in names_of.items():
        places = [i for i, parts in enumerate(components) if groups[i] == group and parts is not None]
        values = np.array([[(components[i] or {})[name] for name in names] for i in places]).reshape(len(places), -1)
        if method == "pareto":
            names, compared = ("pareto",), pareto_rewards(values)[:, None]
        else:
            compared = relative_rewards(values)
        for place, row in zip(places, compared.tolist(), strict=True):
            out[place] = dict(zip(names, row, strict=True))
    return out
