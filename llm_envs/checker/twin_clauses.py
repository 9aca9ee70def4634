"""The clause about the agent's knowledge: the oracle must not use hidden state."""

from __future__ import annotations

from itertools import islice
from random import Random
from typing import Any

from llm_envs.checker.episodes import problem_of, unwrap
from llm_envs.checker.subject import Subject
from llm_envs.checker.twins import changed_problems
from llm_envs.checker.verdicts import BrokenClause, Inapplicable
from llm_envs.env import TextEnv

__all__ = ["oracle_knows_what_is_shown"]

_N_PROBLEMS = 20
_N_CHANGES = 60
"""Number of changes to try for each problem."""
_N_TWINS = 6
"""Limit, for each problem, on changes that leave the observation unchanged."""
_N_HOPELESS = 3
"""Stop after this many problems for which every change alters the observation."""
_WASTED = "Hello."


def oracle_knows_what_is_shown(subject: Subject) -> str:
    """The oracle's actions depend only on what was shown so far, never on hidden state.

    Change each problem in a way that the first observation does not show, and play the same actions in both episodes:
    those of the first one's oracle, and every other time with some wasted turns. As long as both episodes show the same
    observations, both oracles must choose the same actions.
    """
    if subject.task.max_turns == 1:
        return Inapplicable("for tasks of several turns")
    if not type(subject.task).divides_by_hash:
        return Inapplicable("problems are given by data: no other one has the same beginning")
    first, second = unwrap(subject.make()), unwrap(subject.make())
    rng, n_twins = Random(0), 0
    for seed in range(min(_N_PROBLEMS, subject.effort.n_seeds)):
        shown = _shown(first, seed)
        problem, found = problem_of(first), 0
        for where, changed in islice(changed_problems(problem, subject.drawn_problems[:100], rng), _N_CHANGES):
            if _shown(second, seed, changed) != shown:
                continue
            found += 1
            first.reset(seed=seed)
            if difference := _difference(first, second, rng, waste=0.5 * (found % 2 == 0)):
                raise BrokenClause(
                    f"seed {seed}: with another value of {where}, which nothing had shown, {difference}: let "
                    "next_action() decide by what the agent has seen"
                )
            if found == _N_TWINS:
                break
        n_twins += found
        if seed + 1 == _N_HOPELESS and not n_twins:
            return Inapplicable("no hidden state was found")
    return f"{n_twins} problems with another hidden state"


def _shown(task: TextEnv, seed: int, problem: dict[str, Any] | None = None) -> tuple[Any, ...] | None:
    """Return everything that the agent sees at the start of a problem; None if the problem cannot be played."""
    try:
        observation, _ = task.reset(seed=seed, options=None if problem is None else {"problem": problem})
    except Exception:
        return None
    return observation, task.system_prompt, task.tools


def _difference(first: TextEnv, second: TextEnv, rng: Random, *, waste: float) -> str:
    """Play the same actions in two episodes with the same start, until their observations differ.

    Args:
        first: Its oracle chooses the actions.
        second: Its oracle is asked too, for comparison.
        rng: Decides which turns are wasted.
        waste: Share of wasted turns.

    Returns:
        How the two oracles differed before the observations did; "" if they agreed.
    """
    while True:
        action, instead = first.oracle(), second.oracle()
        if action != instead:
            at = next((i for i, (a, b) in enumerate(zip(action, instead, strict=False)) if a != b), 0)
            start = max(0, at - 30)
            return (
                f"the oracle plays {instead[start : at + 40]!r} instead of {action[start : at + 40]!r} at turn "
                f"{first.n_turns + 1}"
            )
        if rng.random() < waste:
            action = _WASTED
        here, there = first.step(action), second.step(action)
        if here[2] or here[3] or there[2] or there[3] or here[0] != there[0]:
            return ""
