"""Measure a policy on an environment: success with its interval, reward, how episodes ended, and every trajectory."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.base import Policy
from llm_envs.rollout.collector import Collector
from llm_envs.rollout.context import Codec
from llm_envs.rollout.source import Envs
from llm_envs.statistics import Interval, mean_interval, wilson_interval
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = ["Evaluation", "aevaluate", "evaluate", "summarize"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was measured. Rates are over the `n` scored episodes; errored and unscored ones are counted apart."""

    name: str
    """What was played: environment ids and split."""
    n: int
    """Episodes with a score."""
    successes: int
    success_rate: float
    """`successes / n`; NaN if nothing was scored."""
    interval: Interval
    """Wilson interval of the success rate."""
    mean_reward: float
    """NaN if nothing was scored."""
    reward_interval: Interval
    stop_reasons: Mapping[str, int]
    """How often episodes ended for each reason, errors included."""
    errors: Mapping[str, int]
    """How often each failure, named `where: kind`, cost an episode its score."""
    unscored: int
    """Episodes that never began, such as those whose first prompt does not fit."""
    mean_turns: float
    confidence: float
    """Of both intervals."""
    trajectories: tuple[Trajectory, ...] = field(repr=False)

    def __str__(self) -> str:
        """Return one line for people."""
        low, high = self.interval
        reasons = " ".join(f"{reason}={count}" for reason, count in self.stop_reasons.items())
        line = (
            f"{self.name}: success {self.success_rate:.1%} ({low:.1%} to {high:.1%}, n={self.n}), "
            f"reward {self.mean_reward:.3g}, {self.mean_turns:.1f} turns, {reasons}"
        )
        if self.errors:
            line += ", errors " + ", ".join(f"{kind} x{count}" for kind, count in self.errors.items())
        return line + (f", {self.unscored} unscored" if self.unscored else "")


def summarize(trajectories: Sequence[Trajectory], *, name: str = "", confidence: float = 0.95) -> Evaluation:
    """Return the evaluation that these trajectories amount to."""
    scored = [t for t in trajectories if t.status == "ok"]
    rewards = [t.reward for t in scored]
    successes = sum(t.is_success is True for t in scored)
    errors = Counter(f"{t.error.where}: {t.error.kind}" for t in trajectories if t.error is not None)
    n = len(scored)
    return Evaluation(
        name=name or ", ".join(sorted({t.env_id for t in trajectories})),
        n=n,
        successes=successes,
        success_rate=successes / n if n else float("nan"),
        interval=wilson_interval(successes, n, confidence),
        mean_reward=fmean(rewards) if n else float("nan"),
        reward_interval=mean_interval(rewards, confidence),
        stop_reasons=dict(Counter(t.stop_reason.value for t in trajectories).most_common()),
        errors=dict(errors.most_common()),
        unscored=sum(t.status == "unscored" for t in trajectories),
        mean_turns=fmean(len(t.turns) for t in scored) if n else float("nan"),
        confidence=confidence,
        trajectories=tuple(trajectories),
    )


def evaluate(
    envs: Envs,
    policy: Policy,
    *,
    n: int = 200,
    codec: Codec | None = None,
    split: str | None = "test",
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    confidence: float = 0.95,
    **settings: Any,
) -> Evaluation:
    """Measure a policy on an environment. Works in a notebook too.

    Args:
        envs: An environment id, a mixture, or a function that makes an environment.
        policy: Any policy.
        n: Episodes to play, each of its own seed.
        codec: Messages to token ids, for a token policy.
        split: Passed to the environment; None for one without splits, or where `env_kwargs` has it.
        seed: Decides which problems are played: equal seeds compare policies on equal problems.
        env_kwargs: More arguments of the environment, such as `difficulty`.
        confidence: Of the intervals.
        **settings: Everything else that `Collector` takes: `sampling`, `limits`, `max_concurrency`, `progress`, ...

    Returns:
        The evaluation; `print` it for one line.

    Raises:
        InvalidConfigError: If a setting is unknown, or the environment's arguments name another split.
    """
    settings |= {"codec": codec, "seed": seed, "env_kwargs": _with_split(env_kwargs, split)}
    with _collector(envs, policy, split, settings) as collector:
        return _evaluation(collector, collector.collect(n), split, confidence)


async def aevaluate(
    envs: Envs,
    policy: Policy,
    *,
    n: int = 200,
    codec: Codec | None = None,
    split: str | None = "test",
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    confidence: float = 0.95,
    **settings: Any,
) -> Evaluation:
    """Do what `evaluate` does, from asynchronous code."""
    settings |= {"codec": codec, "seed": seed, "env_kwargs": _with_split(env_kwargs, split)}
    with _collector(envs, policy, split, settings) as collector:
        return _evaluation(collector, await collector.acollect(n), split, confidence)


def _with_split(env_kwargs: Mapping[str, Any] | None, split: str | None) -> dict[str, Any]:
    kwargs = dict(env_kwargs or {})
    if split is not None:
        _check_split("env_kwargs", kwargs, split)
        kwargs["split"] = split
    return kwargs


def _check_split(name: str, kwargs: Mapping[str, Any], split: str | None) -> None:
    if split is not None and kwargs.get("split", split) != split:
        other = kwargs["split"]
        raise InvalidConfigError(
            f"{name} has split {other!r} but the evaluation split={split!r}: pass split={other!r}, or split=None to "
            "leave it to the environments' arguments."
        )


def _collector(envs: Envs, policy: Policy, split: str | None, settings: Mapping[str, Any]) -> Collector:
    known = inspect.signature(Collector).parameters
    unknown = sorted(set(settings) - set(known))
    if unknown:
        example = ", ".join(f"{name!r}: {settings[name]!r:.40}" for name in unknown)
        raise InvalidConfigError(
            f"evaluate has no setting {', '.join(unknown)}: an environment's arguments go into "
            f"env_kwargs={{{example}}}; the other settings are {', '.join(known)}."
        )
    collector = Collector(envs, policy, **settings)
    for choice in collector.source.choices:
        _check_split(choice.env_id, choice.kwargs, split)
    return collector


def _evaluation(
    collector: Collector, groups: Sequence[TrajectoryGroup], split: str | None, confidence: float
) -> Evaluation:
    name = ", ".join(choice.env_id for choice in collector.source.choices) + (f" [{split}]" if split else "")
    return summarize([t for group in groups for t in group], name=name, confidence=confidence)
