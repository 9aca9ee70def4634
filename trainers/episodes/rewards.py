"""Training rewards of the episodes of a generation: columns of rewards, and rewards by turn.

Training uses the weighted sum of these columns. The task's own reward stays unchanged in the trajectory, for filters
and metrics.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from llm_envs.errors import InvalidConfigError
from llm_envs.rewards import (
    Aggregator,
    RewardFn,
    RewardFns,
    create_overlong_penalty,
    pareto_rewards,
    relative_rewards,
    score_trajectories,
    z_score,
)
from llm_envs.rewards.base import named_rewards
from llm_envs.rewards.functions import gives_one_number
from llm_envs.rewards.shaping import ShapingFn, ShapingFns, named_shaping, shape
from llm_envs.rewards.time_limit import limited
from llm_envs.rollout.workers.runner import EnvMaker, close_env, env_attribute
from llm_envs.sources.source import SeedSource
from llm_envs.types import Trajectory

__all__ = [
    "Aggregate",
    "EpisodeRewards",
    "RewardSettings",
    "RewardTable",
    "check_weights",
    "checked_weights",
    "declared_weights",
    "group_numbers",
    "score_episodes",
    "warn_of_absent",
    "with_overlong",
]

Aggregate = Aggregator | Literal["pareto", "relative", "z_score"]
"""A function of the weighted columns that returns one reward; or a comparison inside the group: by Pareto front
("pareto"), by the mean rank over the columns ("relative"), or the weighted sum of the columns' z-scores ("z_score",
GDPO, arXiv 2601.05242)."""
Floats = npt.NDArray[np.float64]
_NEAR = 0.8
"""A name that resembles a column's so much (`difflib`'s ratio) is a misspelling: "lenght", but not "form"."""


@dataclass(frozen=True)
class RewardSettings:
    """The rewards of an episode; every part is optional."""

    reward_fns: RewardFns | None = None
    """Further columns, each a function of the trajectory."""
    shaping_fns: ShapingFns | None = None
    """Additions to each turn's reward, in columns `shaping/<name>`."""
    components: bool = False
    """Whether to use the task's components as columns, in place of its reward."""
    aggregate: Aggregate | None = None
    """Combines the columns into one reward, in the column `aggregate`; the others are then only logged."""
    weights: Mapping[str, float] | None = None
    """Weights by column. They override the task's declared weights; the default is 1."""

    def __post_init__(self) -> None:
        _names(self)

    @classmethod
    def of(cls, rewards: RewardSettings | RewardFns | None) -> RewardSettings:
        """Return the settings that a trainer was given: settings, or only their `reward_fns`."""
        return rewards if isinstance(rewards, RewardSettings) else cls(reward_fns=rewards)

    def limited(self, limit_s: float | None) -> RewardSettings:
        """Return the settings with a limit of time for each call of a function (`rewards.time_limit`)."""
        rewards, shaping = _names(self)
        aggregate = self.aggregate
        return replace(
            self,
            reward_fns={n: limited(f, limit_s, f"the reward function {n!r}") for n, f in rewards.items()} or None,
            shaping_fns={n: limited(f, limit_s, f"the shaping function {n!r}") for n, f in shaping.items()} or None,
            aggregate=limited(aggregate, limit_s, "the aggregate of rewards") if callable(aggregate) else aggregate,
        )


@dataclass(frozen=True)
class EpisodeRewards:
    """The training rewards of a generation."""

    columns: Mapping[str, tuple[float | None, ...]]
    """By name, one number per episode; None if the episode is not scored or lacks this column."""
    weights: Mapping[str, float]
    """By column."""
    turn_rewards: tuple[Floats, ...]
    """One array (n_turns,) per episode, summing to its weighted columns; empty if it is not scored."""
    trajectories: tuple[Trajectory, ...]
    """The episodes; one that a reward function could not score has the status `unscored`."""

    @property
    def rewards(self) -> Floats:
        """The weighted sum of each episode's columns, shape (B,); NaN if it is not scored."""
        scored = [t.status == "ok" for t in self.trajectories]
        sums = [float(part.sum()) if ok else np.nan for part, ok in zip(self.turn_rewards, scored, strict=True)]
        return np.array(sums, dtype=np.float64)


@dataclass(frozen=True)
class RewardTable:
    """The rewards of a generation's episodes, of all processes; one entry for each episode."""

    groups: Sequence[Hashable]
    rewards: Sequence[float]
    """The weighted sum of the columns; NaN for an episode without a score."""
    columns: Mapping[str, Sequence[float | None]]
    """By name; None where an episode is not scored or lacks the column."""

    def share_of_equal_groups(self) -> float:
        """Return the share of the episodes in groups whose scored rewards, two or more, are all equal."""
        by_group: dict[Hashable, list[float]] = {}
        for group, reward in zip(self.groups, self.rewards, strict=True):
            by_group.setdefault(group, []).append(reward)
        scored = [(len(rewards), [r for r in rewards if not np.isnan(r)]) for rewards in by_group.values()]
        n_equal = sum(n for n, rewards in scored if len(rewards) > 1 and np.allclose(rewards, rewards[0], rtol=0))
        return n_equal / len(self.rewards)


def score_episodes(
    played: Sequence[Trajectory], settings: RewardSettings, task_weights: Mapping[str, float]
) -> EpisodeRewards:
    """Return the training rewards of the episodes of complete groups.

    Args:
        played: The episodes, with all members of each group.
        settings: The reward columns and their weights.
        task_weights: The tasks' declared weights of their components (`reward_weights`).

    Raises:
        InvalidConfigError: If two columns have the same name, a weight can have no column (`check_weights`), or a
            function is wrong for every episode (`rewards.functions.ENDS_RUN`).
    """
    check_weights(settings, task_weights)
    # Score first: an episode that a reward function cannot score gets the status `unscored`, which all below respect.
    trajectories, extra = _score(played, settings.reward_fns)
    shaped = [shape(t, settings.shaping_fns or ()) for t in trajectories]
    parts = [
        _parts(t, own, {f"shaping/{name}": total for name, total in s.totals.items()}, settings.components)
        for t, own, s in zip(trajectories, extra, shaped, strict=True)
    ]
    names = list(dict.fromkeys(name for part in parts for name in part))
    weights = _weights(names, settings, task_weights)
    turn_rewards = [
        _by_turn(t, own, s.additions, weights, settings.components)
        for t, own, s in zip(trajectories, extra, shaped, strict=True)
    ]
    columns = {
        name: tuple(part.get(name) if t.status == "ok" else None for t, part in zip(trajectories, parts, strict=True))
        for name in names
    }
    if settings.aggregate is None:
        return EpisodeRewards(columns, weights, tuple(turn_rewards), tuple(trajectories))
    joined = _aggregated(settings.aggregate, trajectories, parts, weights)
    columns = {**columns, "aggregate": joined}
    # An aggregate is one number per episode, so it is the reward of the last turn.
    at_the_end = [_last(len(t.turns), value) for t, value in zip(trajectories, joined, strict=True)]
    # With weight 0, TRL logs the other columns but does not train on them.
    return EpisodeRewards(
        columns, {**dict.fromkeys(names, 0.0), "aggregate": 1.0}, tuple(at_the_end), tuple(trajectories)
    )


def with_overlong(settings: RewardSettings, share: float, max_length: int) -> RewardSettings:
    """Return the settings with DAPO's soft overlong penalty added as the column `overlong`.

    Args:
        settings: The user's settings.
        share: The last part of `max_length`, as a fraction, over which the penalty grows; 0 changes nothing.
        max_length: Greatest completion length in tokens.

    Raises:
        InvalidConfigError: If a reward function is already called `overlong`.
    """
    if not share:
        return settings
    functions, _ = _names(settings)
    if "overlong" in functions:
        raise InvalidConfigError(
            "a reward function is called overlong, and the algorithm has an overlong punishment: rename it, or take "
            "replace(algorithm, overlong=0.0)."
        )
    # At least one token: a share of a short limit may round down to 0.
    penalty = create_overlong_penalty(max_length, max(int(max_length * share), 1))
    return replace(settings, reward_fns={**functions, "overlong": penalty})


def declared_weights(source: SeedSource) -> dict[str, float]:
    """Return the weights of reward components that a source's environments declare (`reward_weights`).

    Raises:
        InvalidConfigError: If two environments give a component different weights.
    """
    merged: dict[str, float] = {}
    for spec in source.variants():
        env = EnvMaker(spec.env_id, spec.env_kwargs, source.factories.get(spec.env_id))()
        weights = dict(env_attribute(env, "reward_weights", {}))
        close_env(env)
        for name, weight in weights.items():
            if merged.setdefault(name, weight) != weight:
                raise InvalidConfigError(
                    f"{spec.env_id} gives {name!r} the weight {weight}, another environment {merged[name]}: leave "
                    "components out, so that the reward is one column."
                )
    return merged


def check_weights(settings: RewardSettings, task_weights: Mapping[str, float]) -> None:
    """Reject weights of columns that cannot exist, before training.

    A reward function that does not declare `-> float` may return other names, and a task's components may be
    undeclared. Such names are known only while training. Then only a name that is nearly a known one is rejected, and
    another weight whose column does not occur has no effect (`warn_of_absent`).

    Args:
        settings: The user's settings.
        task_weights: The tasks' declared weights of their components (`declared_weights`).

    Raises:
        InvalidConfigError: If a weight names no column, and all columns are known, or one has nearly this name.
    """
    functions, shaping_fns = _names(settings)
    shaping = [f"shaping/{name}" for name in shaping_fns]
    task = [*task_weights, "reward"] if settings.components else ["reward"]  # an undeclared reward is a component
    known = [*task, *functions, *shaping]
    is_open = not all(map(gives_one_number, functions.values())) or (settings.components and not task_weights)
    # An algorithm adds the column `overlong`, and a schedule of algorithms may do so later.
    for name in sorted(set(settings.weights or {}) - {*known, "overlong"}):
        near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
        if not is_open or near or name.startswith("shaping/"):
            raise InvalidConfigError(
                f"RewardSettings.weights names {name!r}; the columns are {', '.join(known)}."
                + (f" Did you mean {near[0]}?" if near else "")
            )


def checked_weights(settings: RewardSettings, source: SeedSource) -> dict[str, float]:
    """Return the `declared_weights` of a source if the components are columns, else {}; `check_weights` of both."""
    task_weights = declared_weights(source) if settings.components else {}
    check_weights(settings, task_weights)
    return task_weights


def warn_of_absent(settings: RewardSettings, columns: Iterable[str]) -> None:
    """Warn of weights whose columns did not occur; the drivers call it after the first generation and in a dry run."""
    if absent := sorted(set(settings.weights or {}) - set(columns)):
        warnings.warn(
            f"RewardSettings.weights names {', '.join(absent)}: no episode so far has such a column. "
            f"The weight has no effect until one has. The columns are {', '.join(columns)}.",
            stacklevel=2,
        )


def group_numbers(trajectories: Sequence[Trajectory]) -> list[int]:
    """Return the number of each episode's group, counted from 0 in order of appearance."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(trajectory.group_id, len(numbers)) for trajectory in trajectories]


def _names(settings: RewardSettings) -> tuple[dict[str, RewardFn], dict[str, ShapingFn]]:
    """Return the reward functions and the shaping functions by name, checked."""
    rewards = {} if settings.reward_fns is None else named_rewards(settings.reward_fns)
    return rewards, named_shaping(settings.shaping_fns or ())


def _score(
    played: Sequence[Trajectory], reward_fns: RewardFns | None
) -> tuple[list[Trajectory], list[Mapping[str, float]]]:
    """Return the episodes, with the unscorable ones marked, and the rewards from the reward functions."""
    if reward_fns is None:
        return list(played), [{} for _ in played]
    trajectories: list[Trajectory] = []
    parts: list[Mapping[str, float]] = []
    scored = score_trajectories(played, reward_fns, on_error="unscored")
    for trajectory, (components, why) in zip(played, scored, strict=True):
        if trajectory.status == "ok" and components is None:
            metadata = {**trajectory.metadata, "unscored_because": why}
            trajectory = replace(trajectory, status="unscored", is_success=None, metadata=metadata)
        trajectories.append(trajectory)
        parts.append(components or {})
    return trajectories, parts


def _parts(
    trajectory: Trajectory, own: Mapping[str, float], shaping: Mapping[str, float], components: bool
) -> dict[str, float]:
    if trajectory.status != "ok":
        return {}
    parts = dict(trajectory.components) if components else {"reward": trajectory.reward}
    for name, value in [*own.items(), *shaping.items()]:
        if name in parts:
            raise InvalidConfigError(f"two reward columns are called {name!r}: rename the reward function.")
        parts[name] = value
    return parts


def _weights(names: Sequence[str], settings: RewardSettings, task_weights: Mapping[str, float]) -> dict[str, float]:
    own = settings.weights or {}
    declared = task_weights if settings.components else {}
    return {name: float(own.get(name, declared.get(name, 1.0))) for name in names}


def _by_turn(
    trajectory: Trajectory,
    own: Mapping[str, float],
    additions: Mapping[str, Floats],
    weights: Mapping[str, float],
    components: bool,
) -> Floats:
    if trajectory.status != "ok":
        return np.zeros(0)
    if components:
        task = [sum(weights[name] * value for name, value in turn.components.items()) for turn in trajectory.turns]
        out = np.array(task, dtype=np.float64)
    else:
        out = weights["reward"] * np.array([turn.reward for turn in trajectory.turns], dtype=np.float64)
    for name, values in additions.items():
        out = out + weights[f"shaping/{name}"] * values
    # A reward function judges the episode, so its reward belongs to the last turn.
    return out + _last(len(out), sum(weights[name] * value for name, value in own.items()))


def _last(n_turns: int, value: float | None) -> Floats:
    """Return zeros with the value at the last turn; an empty array if the value is None."""
    if value is None:
        return np.zeros(0)
    out = np.zeros(n_turns)
    out[-1:] = value
    return out


def _aggregated(
    aggregate: Aggregate,
    trajectories: Sequence[Trajectory],
    parts: Sequence[Mapping[str, float]],
    weights: Mapping[str, float],
) -> tuple[float | None, ...]:
    weighted = [{name: weights[name] * value for name, value in part.items()} for part in parts]
    if callable(aggregate):
        return tuple(float(aggregate(part)) if part else None for part in weighted)
    if aggregate not in ("pareto", "relative", "z_score"):
        raise InvalidConfigError(f"aggregate={aggregate!r}; it must be a function, 'pareto', 'relative' or 'z_score'.")
    joined: list[float | None] = [None] * len(weighted)
    numbers = group_numbers(trajectories)
    for group in set(numbers):
        # A failed episode has no columns, so it is not compared.
        members = [place for place, number in enumerate(numbers) if number == group and weighted[place]]
        names = sorted({name for place in members for name in weighted[place]})
        compared = parts if aggregate == "z_score" else weighted  # a z-score does not depend on the column's weight
        values = np.array([[compared[place].get(name, np.nan) for name in names] for place in members])
        if members:
            scores = _compared(values, aggregate, [weights[name] for name in names])
            for place, score in zip(members, scores.tolist(), strict=True):
                joined[place] = score
    return tuple(joined)


def _compared(values_BK: Floats, aggregate: str, weights_K: Sequence[float]) -> Floats:
    """Return one reward for each member of a group, shape (B,)."""
    if aggregate == "pareto":
        return pareto_rewards(values_BK)
    if aggregate == "relative":
        return np.asarray(relative_rewards(values_BK).mean(axis=1))
    scores_KB = [weight * z_score(column) for weight, column in zip(weights_K, values_BK.T, strict=True)]
    return np.asarray(np.nansum(scores_KB, axis=0))
