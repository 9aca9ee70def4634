"""Clauses about what is paid: rewards, and the wins of players without skill and of reward hacks.

Each clause takes the subject and returns its findings; `Inapplicable` if there is nothing to examine. If the clause
does not hold, it raises `BrokenClause` with the fault and the remedy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

from llm_envs.checker.episodes import TextPolicy, Trace, probe, repeat
from llm_envs.checker.reward_hacks import reward_hacks
from llm_envs.checker.subject import Subject
from llm_envs.checker.verdicts import Inapplicable, require
from llm_envs.errors import counted
from llm_envs.rewards import weighted_sum

__all__ = [
    "is_not_won_by_common_replies",
    "is_not_won_by_guessing",
    "is_not_won_by_nonsense",
    "is_not_won_by_reward_hacks",
    "pays_success_more",
    "returns_are_in_range",
    "rewards_are_weighted_components",
]

_FIXED = (
    *("yes", "no", "true", "false", "0", "1", "2", "A", "B", "C", "D", "left", "right", "up", "down", "north", "stop"),
    *("hit", "stick", "heads", "tails", "rock", "none", "pass", "x"),
)
_STAGES = (6, 20, 60)
"""Episodes of a player, by stage. A next stage is played only while chance does not clearly explain its wins."""
_HACKS = ("an echo", "all numbers")
"""Hostile actions that are among the reward hacks too."""


def returns_are_in_range(subject: Subject) -> str:
    """Each reward is finite, and each return is in the declared range, which is of the task's scale.

    A task's returns are sums of its components: `rewards_are_weighted_components` compares them with its rewards.
    """
    low, high = subject.return_range or (-math.inf, math.inf)
    require(
        not subject.is_task or subject.return_range is None or low >= -2 * high > -math.inf,
        f"an episode may earn {low:g}, and {high:g} at most: bound costs by component_limits, or declare min_return",
    )
    totals = []
    for trace in subject.all_traces:
        total = trace.total
        if subject.is_task:
            weights = subject.task.reward_weights
            total = sum(weighted_sum(step.info["reward_components"], weights) for step in trace.steps)
        require(math.isfinite(total), f"{trace.actions[-1:]!r:.60} led to a return of {total}: pay finite rewards")
        require(
            low - 1e-9 <= total <= high + 1e-9,
            f"the actions {[action[:60] for action in trace.actions[:9]]} earned {total:g}; the declared range is "
            f"{low:g} to {high:g}, by the weights and component_limits, min_return or return_range: something is paid "
            "twice or without bound, or the range is wrong",
        )
        totals.append(total)
    declared = "" if subject.return_range else "; no range declared"
    return f"returns from {min(totals):g} to {max(totals):g}{declared}"


def rewards_are_weighted_components(subject: Subject) -> str:
    """Each step's reward is a finite float, the weighted sum of exactly the declared components.

    For environments that are not tasks, only if they declare `reward_weights` and some step has components.
    """
    weights, steps = getattr(subject.env.unwrapped, "reward_weights", None), subject.all_steps
    if not subject.is_task and not (weights and any("reward_components" in step.info for step in steps)):
        return Inapplicable("info has no reward_components, or the environment no reward_weights")
    assert weights is not None
    for step in steps:
        components = step.info.get("reward_components")
        require(
            isinstance(components, dict) and components.keys() == weights.keys(),
            f"info['reward_components'] is {components}; reward_weights declares {sorted(weights)}",
        )
        assert isinstance(components, dict)
        if subject.is_task:
            are_floats = all(type(value) is float for value in (*components.values(), step.reward))
            require(are_floats, f"components and rewards must be floats: {components}, {step.reward!r}")
        total = weighted_sum(components, weights)
        require(
            math.isclose(float(step.reward), total, abs_tol=1e-9 if subject.is_task else 1e-6),
            f"the reward is {step.reward}, its components {components} sum to {total}",
        )
    return counted(len(steps), "step")


def pays_success_more(subject: Subject) -> str:
    """Episodes that `info["is_success"]` calls won pay more on average than lost ones."""
    over = [trace for trace in subject.all_traces if trace.is_over]
    told = [(trace.steps[-1].info["is_success"], trace.total) for trace in over if "is_success" in trace.steps[-1].info]
    if not told:
        return Inapplicable("info has no is_success")
    require(len(told) == len(over), "is_success is missing at the end of some episodes")
    won, lost = [total for is_won, total in told if is_won], [total for is_won, total in told if not is_won]
    if not won or not lost:
        return Inapplicable("no episode was won" if not won else "no episode was lost")
    require(
        fmean(won) > fmean(lost),
        f"{len(won)} won episodes earned {fmean(won):g} on average and {len(lost)} lost ones {fmean(lost):g}: pay for "
        "success, or correct is_success",
    )
    return f"{fmean(won):g} for success, {fmean(lost):g} otherwise"


def is_not_won_by_nonsense(subject: Subject) -> str:
    """No hostile action succeeds more often than the declared chance rate explains."""
    for name, played in subject.hostile_traces.items():
        if subject.is_task or not any(hack in name for hack in _HACKS):
            stages = (len(played), *(n for n in _STAGES if n > len(played) and "long" not in name))
            subject.measured(
                f"the action {name!r}", partial(_wins, subject, played, subject.hostile_policies[name]), stages
            )
    if subject.chance_rate == 1:
        return Inapplicable("the chance rate is 1, so no win is too many; --chance-rate P gives a lower one")
    return f"won no more often than the chance rate of {subject.chance_rate:g} explains"


def _wins(subject: Subject, played: Sequence[Trace], policy: TextPolicy, seed: int) -> bool:
    return subject.is_win(played[seed]) if seed < len(played) else subject.wins(subject.replayed, seed, policy)


def is_not_won_by_guessing(subject: Subject) -> str:
    """The right replies to another problem succeed no more often than the declared chance rate explains."""
    won = [seed for seed, trace in subject.borrowed_traces.items() if subject.is_win(trace)]
    subject.require_chance("the oracle's reply to another problem", won, len(subject.borrowed_traces))
    return f"replies to another problem won {len(won)} of {len(subject.borrowed_traces)} episodes"


def is_not_won_by_common_replies(subject: Subject) -> str:
    """One common word for ever, random probes, and the oracle's most frequent action win no more than chance.

    The last is not tried on tasks: `is_not_won_by_heart` and `is_not_won_by_a_fixed_plan` try it on another split.
    """
    has_oracle = subject.oracle is not None and not subject.is_task
    actions = [action for trace in subject.oracle_traces for action in trace.actions] if has_oracle else []
    words = dict.fromkeys((*_FIXED, *([max(actions, key=actions.count)] if actions else [])))
    players = {f"always {word[:40]!r}": partial(_always, repeat([], word)) for word in words}

    def random_policy(seed: int) -> TextPolicy:
        rng = random.Random(seed)
        return lambda env, observation: probe(observation, rng)

    return _measured(subject, players | {"a player of random probes": random_policy}, "players")


def is_not_won_by_reward_hacks(subject: Subject) -> str:
    """The library of reward hacks wins no more than the chance rate."""
    hacks = {f"the reward hack {name}": partial(_always, policy) for name, policy in reward_hacks().items()}
    return _measured(subject, hacks, "hacks")


def _always(policy: TextPolicy, seed: int) -> TextPolicy:
    return policy


def _measured(subject: Subject, players: Mapping[str, Callable[[int], TextPolicy]], what: str) -> str:
    best = 0.0
    for name, policy_of in players.items():
        wins = partial(_wins_with, subject, policy_of)
        best = max(best, subject.measured(name, wins, _STAGES))
    return f"{len(players)} {what} won at most {best:.0%}; the chance rate is {subject.chance_rate:g}"


def _wins_with(subject: Subject, policy_of: Callable[[int], TextPolicy], seed: int) -> bool:
    return subject.wins(subject.replayed, seed, policy_of(seed))
