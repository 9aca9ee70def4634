"""Clauses about sameness: the interface, determinism, seeds, and isolation between episodes.

Each clause takes the subject and returns its findings; `Inapplicable` if there is nothing to examine. If the clause
does not hold, it raises `BrokenClause` with the fault and the remedy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from contextlib import closing

import gymnasium as gym
import numpy as np

from llm_envs.checker.episodes import Step, Trace, difference, global_random_state, repeat
from llm_envs.checker.subject import Subject
from llm_envs.checker.verdicts import FALSE_ALARM, Inapplicable, binomial_tail, require
from llm_envs.errors import counted

__all__ = [
    "depends_on_the_seed",
    "draws_anew_without_a_seed",
    "expected_distinct",
    "is_deterministic",
    "keeps_the_interface",
    "leaves_global_randomness_alone",
    "plays_each_episode_alike",
    "plays_side_by_side",
]

_N_DISTINCT = 60
"""Number of seeds whose problems are counted."""
_FEWEST_DISTINCT = 0.25
"""Least share of different problems among them, if the number of problems is not declared."""
_ENDLESS = 1_000_000
"""The smallest number of problems that a task's `n_problems = None` promises."""
_N_UNSEEDED = 8
_N_LATER = 10
"""Turns of an episode in which problems that begin alike must differ."""


def keeps_the_interface(subject: Subject) -> str:
    """`reset` and `step` return what Gymnasium prescribes, with texts that can be encoded as UTF-8."""
    env = subject.env
    returned = env.reset(seed=0)
    require(
        isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict),
        f"reset returned {returned!r:.100}: return (observation, info), with a dict as info",
    )
    _require_text(returned[0], "reset")
    n_steps = 0
    for seed in range(len(subject.references)):
        env.reset(seed=seed)
        for action in subject.references[seed].tried:
            try:
                answered = env.step(action)
            except Exception:  # `never_raises` reports it
                break
            require(
                isinstance(answered, tuple) and len(answered) == 5,
                f"step returned {answered!r:.100}: return (observation, reward, terminated, truncated, info)",
            )
            observation, reward, terminated, truncated, info = answered
            _require_text(observation, "step")
            require(
                isinstance(reward, int | float | np.number) and not isinstance(reward, bool),
                f"the reward {reward!r:.60} is not a number: return a float",
            )
            for name, value in (("terminated", terminated), ("truncated", truncated)):
                require(isinstance(value, bool | np.bool_), f"{name} is {value!r:.60}: return a bool")
            require(isinstance(info, dict), f"info is {info!r:.60}: return a dict")
            n_steps += 1
            if terminated or truncated:
                break
    return counted(n_steps, "step")


def _require_text(observation: object, method: str) -> None:
    require(isinstance(observation, str), f"the observation of {method} is {observation!r:.60}: return a str")
    try:
        str(observation).encode()
    except UnicodeEncodeError as error:
        require(False, f"the observation of {method} cannot be encoded ({error.reason}): leave lone surrogates out")


def is_deterministic(subject: Subject) -> str:
    """One seed and the same actions give one episode in two fresh environments, whatever the global random state."""
    require(
        not subject.repeats,
        f"{subject.repeats}: draw only from self.np_random after super().reset(seed=seed), not from time, ids, sets "
        "or the modules random and numpy.random",
    )
    return f"{sum(len(trace.steps) for trace in subject.references)} steps repeat"


def leaves_global_randomness_alone(subject: Subject) -> str:
    """No episode draws from or seeds `random` and `numpy.random`."""
    with global_random_state(987654321):  # a state that we choose, to notice one that seeds with a constant
        before = random.getstate(), str(np.random.get_state())
        for seed in (0, 1):
            subject.traced_fresh(seed, subject.player(seed))
        after = random.getstate(), str(np.random.get_state())
    require(before == after, "an episode changes the state of random or numpy.random: draw only from self.np_random")
    return "random and numpy.random are unchanged"


def depends_on_the_seed(subject: Subject) -> str:
    """Different seeds give different problems, if there are enough, and neighbours differ as much as others."""
    declared, n_pairs = subject.n_problems, subject.effort.n_pairs
    if declared == 1 and not subject.is_task:
        return Inapplicable("one problem is declared")
    problems = [subject.problem(subject.env, seed) for seed in range(n_pairs + 1)]
    n_seeds = min(len(problems), _N_DISTINCT)
    if not subject.is_task and len(set(problems)) == 1:  # it begins always alike: look at what follows
        problems = [str(_later(subject, seed)) for seed in range(n_seeds)]
    found = len(set(problems[:n_seeds]))
    if subject.is_task:
        expected = expected_distinct(len(set(subject.drawn_problems)), n_seeds) / 2
    else:
        expected = n_seeds * _FEWEST_DISTINCT if declared is None else expected_distinct(declared, n_seeds) / 2
    require(
        found >= expected,
        f"{n_seeds} seeds gave {found} different problems, at least {expected:.0f} expected: draw the problem from "
        "self.np_random after super().reset(seed=seed), or declare n_problems",
    )
    if not subject.is_task:
        return f"{found} problems from {n_seeds} seeds"
    alike = [seed for seed in range(n_pairs) if problems[seed] == problems[seed + 1]]
    require(
        binomial_tail(len(alike), n_pairs, min(1.0, 2 / (subject.task.n_problems or _ENDLESS))) >= FALSE_ALARM,
        f"{len(alike)} of {n_pairs} pairs of neighbouring seeds gave the same problem, such as {alike[:1]} and the "
        f"next; n_problems is {subject.task.n_problems}: declare how many there are, or draw more evenly",
    )
    return f"{found} problems from {n_seeds} seeds, {len(alike)} of {n_pairs} neighbours alike"


def _later(subject: Subject, seed: int) -> list[tuple[str, str]]:
    trace = subject.traced(subject.env, seed, subject.player(1), most=_N_LATER)
    return [(step.observation, repr(step.reward)) for step in trace.steps]


def draws_anew_without_a_seed(subject: Subject) -> str:
    """After a reset with a seed, resets without one give other problems."""
    openings = {subject.env.reset(seed=seed)[0] for seed in range(_N_DISTINCT)}
    if subject.n_problems == 1 or len(openings) < _FEWEST_DISTINCT * _N_DISTINCT:
        return Inapplicable("episodes begin alike")
    with closing(subject.make()) as env:
        env.reset(seed=0)
        found = len({env.reset()[0] for _ in range(_N_UNSEEDED)})
    require(
        found > 1,
        f"after reset(seed=0), {_N_UNSEEDED} resets without a seed gave one problem: seed only if a seed is given",
    )
    return f"{found} different problems in {_N_UNSEEDED} resets"


def plays_each_episode_alike(subject: Subject) -> str:
    """An episode is the same after others, also after one that was left in the middle, as in a fresh environment."""
    if subject.repeats:
        return Inapplicable("episodes do not even repeat in fresh environments")
    actions = subject.references[1].actions
    with closing(subject.make()) as env:
        for seed in (0, 0, *range(1, len(subject.references))):
            _require_alike(subject, env, seed, "after other episodes")
        subject.traced(env, 1, repeat(actions), most=len(actions) // 2)
        _require_alike(subject, env, 0, "after an episode that was left in the middle")
    return f"{len(subject.references) + 2} episodes in one environment"


def _require_alike(subject: Subject, env: gym.Env[str, str], seed: int, when: str) -> None:
    trace = subject.references[seed]
    again = subject.traced(env, seed, repeat(trace.tried), most=len(trace.tried))
    found = difference(trace, again, with_info=subject.is_task)
    require(not found, f"seed {seed}, {when}: in a fresh environment {found}: set all state in reset()")


def plays_side_by_side(subject: Subject) -> str:
    """Two environments that are stepped in turns, play as each does by itself, also after one is closed."""
    if subject.repeats:
        return Inapplicable("episodes do not even repeat in fresh environments")
    first, second = subject.make(), subject.make()
    for seed, other in ((0, 1), (2, 3)):
        wanted = subject.references[seed], subject.references[other]
        played = _in_turns((first, second), (seed, other), wanted)
        for trace, got in zip(wanted, played, strict=True):
            found = difference(trace, got)
            require(not found, f"seeds {seed} and {other} in turns: {found}: keep no state in the class or the module")
    first.close()
    _require_alike(subject, second, 0, "after another environment was closed")
    second.close()
    return "2 pairs of episodes in turns"


def _in_turns(envs: Iterable[gym.Env[str, str]], seeds: Iterable[int], wanted: Iterable[Trace]) -> list[Trace]:
    """Play several episodes step by step in turns."""
    playing = [
        (env, Trace(env.reset(seed=seed)[0]), trace) for env, seed, trace in zip(envs, seeds, wanted, strict=True)
    ]
    traces = {id(env): trace for env, trace, _ in playing}
    for turn in range(max(len(trace.tried) for *_, trace in playing)):
        for env, _, whole in playing:
            trace = traces[id(env)]
            if turn >= len(whole.tried) or trace.is_over or trace.error is not None:
                continue
            action = whole.tried[turn]
            try:
                trace.steps.append(Step(action, *env.step(action)))
            except Exception as error:
                traces[id(env)] = Trace(trace.opening, trace.steps, error, action)
    return [traces[id(env)] for env, *_ in playing]


def expected_distinct(n: int, draws: int) -> float:
    """Return the expected number of different values in `draws` uniform draws from `n`."""
    return n * -math.expm1(draws * math.log1p(-1 / n)) if n > 1 else 1.0
